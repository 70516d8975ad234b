// The ladder of ops/gemm beside OpenBLAS and the processor's limit, one thread and all of them:
//
//   bench_gemm [ISA]
//
// Each figure is the best of several short runs, taken in turn with the others and timed by the processor's clock of
// this thread (matmul: by the clock on the wall): others may use the machine.
#include <sluice/core/node.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/gemm/ladder.h>
#include <sluice/ops/machine.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/shape/view.h>

#include "bench.h"

#include <cstring>

using namespace sluice;
using namespace sluice::detail;

namespace {

struct Size {
  int64_t n, m, k;
  Trans ta = Trans::no, tb = Trans::no;
};

template <class T> void row(const Size& s, const char* type) {
  const Tensor a = full({s.n * s.k}, 0.5, {dtype_of<T>()}), b = full({s.k * s.m}, 0.25, {dtype_of<T>()});
  Tensor c = full({s.n * s.m}, 0, {dtype_of<T>()});
  Product<T> p{s.ta,        s.tb,
               s.n,         s.m,
               s.k,         T(1),
               a.data<T>(), s.ta == Trans::no ? s.k : s.n,
               b.data<T>(), s.tb == Trans::no ? s.m : s.k,
               T(0),        c.mutable_data<T>(),
               s.m};
  const double flops = 2.0 * double(s.n) * double(s.m) * double(s.k);
  struct Way {
    const char* name;
    std::function<void()> run;
    double best = 0;
  };
  auto matrix = [](const Tensor& x, Trans r, int64_t rows, int64_t cols) {
    return r == Trans::no ? reshape(x, {rows, cols}) : transpose(reshape(x, {cols, rows}), 0, 1);
  };
  const Tensor ta = matrix(a, s.ta, s.n, s.k), tb = matrix(b, s.tb, s.k, s.m);
  std::vector<Way> ways = {
      {"portable", [&] { gemm_packed(micro<T>(Isa::base), p); }},
      {"OpenBLAS", [&] { gemm_blas(p); }},
      {"ours", [&] { gemm(p.ta, p.tb, p.n, p.m, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc); }},
      {"matmul",
       [&] {
         NoGrad guard;
         matmul(ta, tb);
       }},
      {"bf16",
       [&] { gemm(p.ta, p.tb, p.n, p.m, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc, Precision::bf16); }}};
  if (sizeof(T) == 8) ways.pop_back();
  if (flops < 3e8) {
    ways.insert(ways.begin(), {"blocked", [&] { gemm_blocked(p); }});
    ways.insert(ways.begin(), {"naive", [&] { gemm_naive(p); }});
  }
  double limit = 0;
  const double start = bench::now();
  for (int i = 0; i < 400 && (i < 3 || bench::now() - start < 1.5); ++i) {
    limit = std::max(limit, bench::multiply_adds(dtype_of<T>()) * 1e-9);
    for (Way& w : ways) {
      const bool slow = w.name[0] == 'n' || w.name[1] == 'l' || w.name[0] == 'p';
      if (slow && i > 2) continue;
      const int repeats = slow ? 1 : int(std::max(1.0, 1e6 / flops));
      const auto clock = w.name[0] == 'm' ? &bench::now : &bench::thread_seconds;
      const double before = clock();
      for (int r = 0; r < repeats; ++r) w.run();
      w.best = std::max(w.best, repeats * flops / (clock() - before) / 1e9);
    }
  }
  std::printf("%s %c%c %5lld %5lld %5lld  %6.1f", type, s.ta == Trans::no ? 'n' : 't', s.tb == Trans::no ? 'n' : 't',
              (long long)s.n, (long long)s.m, (long long)s.k, limit);
  if (flops >= 3e8) std::printf("  %6s %6s", "", "");
  for (const Way& w : ways) std::printf(" %6.1f", w.best);
  const std::size_t first = flops < 3e8 ? 2 : 0;  // portable, OpenBLAS, ours
  const double blas = ways[first + 1].best, ours = ways[first + 2].best;
  if (sizeof(T) == 8) std::printf("       ");
  std::printf("   %4.0f %%  %4.2f\n", limit > 0 ? 100 * ours / limit : 0.0, ours / blas);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  for (Isa i : isas())
    if (argc > 1 && !std::strcmp(argv[1], isa_name(i))) set_isa(i);
  std::printf("%s\nGFLOP/s, one thread (matmul: all)\n", describe_machine().c_str());
  std::printf(
      "            n     m     k    peak   naive blocked portable OpenBLAS ours matmul   bf16  of peak  to OpenBLAS\n");
  const Trans t = Trans::yes, n = Trans::no;
  const Size sizes[] = {{2048, 512, 512},       {2048, 2048, 512},
                        {4096, 256, 1024},      {2048, 3072, 768},
                        {8192, 256, 256},       {512, 2048, 2048, t},
                        {256, 1024, 8192, t},   {2048, 512, 2048, n, t},
                        {4096, 768, 768, n, t}, {128, 256, 64, n, t},
                        {128, 64, 256},         {128, 128, 64, n, t},
                        {128, 64, 128, t},      {256, 256, 128, n, t},
                        {64, 64, 64},           {32, 32, 32},
                        {16, 16, 16},           {8, 8, 8},
                        {4, 512, 512},          {16, 512, 512},
                        {2, 2048, 64, n, t}};
  for (const Size& s : sizes) row<float>(s, "f32");
  for (const Size& s : {sizes[0], sizes[1], sizes[2], sizes[5], sizes[7], sizes[9], sizes[10], sizes[15]})
    row<double>(s, "f64");
}
