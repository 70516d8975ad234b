// Products of f32 on AMX, in three parts of bf16: exact where they must be, as near as a chain of multiply-adds
// elsewhere, and what is not finite as that chain has it.
#include "ops/gemm_samples.h"
#include "support/catch.h"
#include "support/worse.h"

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::detail;
using namespace sluice::testing;

namespace {

void packed_b(const Product<float>& p) {
  const Tensor memory = empty({PackedB<float>::size(p.k, p.m, Packing::split)});
  PackedB<float> b(p.k, p.m, reinterpret_cast<float*>(memory.raw()), Packing::split);
  for (int64_t j = b.panels(); j-- > 0;) b.fill(p.tb, p.b, p.ldb, j, j + 1);
  b.multiply(p.ta, p.n, p.alpha, p.a, p.lda, p.beta, p.c, p.ldc);
}
void both_packed(const Product<float>& p) {
  const int64_t for_b = PackedB<float>::size(p.k, p.m, Packing::split);
  const Tensor memory = empty({for_b + PackedA<float>::size(p.n, p.k, Packing::split)});
  PackedB<float> b(p.k, p.m, reinterpret_cast<float*>(memory.raw()), Packing::split);
  PackedA<float> a(p.n, p.k, reinterpret_cast<float*>(memory.raw()) + for_b, Packing::split);
  b.fill(p.tb, p.b, p.ldb);
  for (int64_t row = (p.n - 1) / 32 * 32; row >= 0; row -= 32) a.fill(p.ta, p.a, p.lda, row, std::min(row + 32, p.n));
  for (int64_t row = 0; row < p.n; row += 64)
    b.multiply(a, row, std::min<int64_t>(64, p.n - row), p.alpha, p.beta, p.c + row * p.ldc, p.ldc, 0, b.panels());
}

constexpr Trans kBoth[] = {Trans::no, Trans::yes};

Tensor wide_numbers(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return normal(shape, 0, 1, rng);
}

/// Largest |c − exact| / Σ|a||b| over all elements.
double error_of(const Tensor& a, const Tensor& b, const Tensor& c) {
  const int64_t n = a.dim(0), k = a.dim(1), m = b.dim(1);
  const Tensor wa = to(a, f64), wb = to(b, f64), sums = matmul(wa, wb);
  double worst = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) {
      double size = 0;
      for (int64_t p = 0; p < k; ++p) size += std::abs(wa.data<double>()[i * k + p] * wb.data<double>()[p * m + j]);
      worst = worse(worst, std::abs(c.data<float>()[i * m + j] - sums.data<double>()[i * m + j]) / size);
    }
  return worst;
}

}  // namespace

TEST_CASE("gemm in three parts: every size, reading and factor", "[gemm][amx]") {
  if (isa() < Isa::amx) return;
  std::vector<Sizes> sizes;
  for (int64_t n : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 65, 385, 450}) sizes.push_back({n, 37, 70});
  for (int64_t m : {1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 65, 129}) sizes.push_back({35, m, 66});
  for (int64_t k : {1, 2, 31, 32, 33, 63, 64, 65, 255, 1023, 1024, 1025, 2050}) sizes.push_back({37, 35, k});
  sizes.push_back({230, 97, 1057});
  int wrong = 0;
  for (const Sizes& s : sizes)
    for (Trans ta : kBoth)
      for (Trans tb : kBoth)
        for (int64_t gap : {0, 3}) {
          Sample<float> x(s, ta, tb, gap);  // numbers from −3 to 3
          // Two parts on one side: up to 3 · 2045, and all sums below 2²⁴.
          float* const wide = gap ? x.a.data() : x.b.data();
          const std::size_t count =
              gap ? Sample<float>::count(ta == Trans::no ? s.n : s.k, ta == Trans::no ? s.k : s.n, x.lda)
                  : Sample<float>::count(tb == Trans::no ? s.k : s.m, tb == Trans::no ? s.m : s.k, x.ldb);
          for (std::size_t i = 0; i < count; ++i) wide[i] *= static_cast<float>(1 + 7 * (i % 110));
          for (auto [alpha, beta] : {std::pair{1.0f, 0.0f}, {1.0f, 1.0f}, {2.0f, -0.5f}}) {
            std::vector<float> expected = x.c;
            gemm_naive(x.product(alpha, beta, expected));
            for (const auto& run : {&packed_b, &both_packed}) {
              std::vector<float> c = x.c;
              run(x.product(alpha, beta, c));
              if (same(c, expected)) continue;
              ++wrong;
              UNSCOPED_INFO((run == &packed_b ? "b" : "both")
                            << " packed: " << s.n << " × " << s.m << " × " << s.k << (ta == Trans::no ? " n" : " t")
                            << (tb == Trans::no ? "n" : "t") << " gap " << gap << " alpha " << alpha);
            }
          }
        }
  CHECK(wrong == 0);
}

TEST_CASE("gemm in three parts: a number times one is that number", "[gemm][amx]") {
  if (isa() < Isa::amx) return;
  const Tensor x = wide_numbers({96, 96}, 3) * 1e3, one = eye(96);
  std::vector<float> c(96 * 96);
  for (bool left : {false, true}) {
    const Tensor &a = left ? one : x, &b = left ? x : one;
    both_packed({Trans::no, Trans::no, 96, 96, 96, 1, a.data<float>(), 96, b.data<float>(), 96, 0, c.data(), 96});
    CHECK(std::equal(c.begin(), c.end(), x.data<float>()));
  }
}

TEST_CASE("matmul in three parts: errors are no larger than those of a chain of multiply-adds", "[gemm][amx][matmul]") {
  if (isa() < Isa::amx) return;
  for (const int64_t k : {64, 300, 1024, 2500}) {
    INFO("k " << k);
    for (const bool positive : {false, true}) {
      Tensor a = wide_numbers({192, k}, 5), b = wide_numbers({k, 200}, 6);
      if (positive) a = a * a, b = b * b;
      const Tensor split = matmul(a, b), chain = with_isa(Isa::avx512, [&] { return matmul(a, b); });
      CHECK(std::memcmp(split.raw(), chain.raw(), 192 * 200 * 4) != 0);  // it is another way
      const double error = error_of(a, b, split), usual = error_of(a, b, chain);
      INFO(error << " instead of " << usual);
      CHECK(error < usual);
      CHECK(error < 6e-7);
    }
  }
  // Over ninety binary orders of magnitude, each product.
  const Tensor scale = exp(wide_numbers({1, 300}, 7) * 15), a = wide_numbers({192, 300}, 8) * scale,
               b = wide_numbers({300, 130}, 9) / transpose(scale, 0, 1);
  CHECK(error_of(a, b, matmul(a, b)) < 3e-7);
}

TEST_CASE(
    "matmul in three parts: infinities, NaN and the largest numbers are those of multiply-adds, and stay where they "
    "are",
    "[gemm][amx][matmul]") {
  if (isa() < Isa::amx) return;
  const int64_t k = GENERATE(130, 1130);  // one block of k, and two
  const Tensor a = wide_numbers({210, k}, 1), b = wide_numbers({k, 150}, 2), bias = wide_numbers({150}, 3),
               clean = linear(a, b, bias);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN(),
              most = std::numeric_limits<float>::max();
  for (const float odd : {inf, -inf, nan, most, -most, 1e38f, 3e-39f})
    for (const bool left : {true, false}) {
      Tensor x = clone(a), y = clone(b);
      (left ? x.mutable_data<float>()[78 * k - 5] : y.mutable_data<float>()[(k - 5) * 150 + 77]) = odd;
      if (left) y.mutable_data<float>()[(k - 5) * 150 + 9] = 0;
      const Tensor got = linear(x, y, bias), want = with_isa(Isa::avx512, [&] { return linear(x, y, bias); });
      bool kind = true, others = true, near = true;
      for (int64_t i = 0; i < 210; ++i)
        for (int64_t j = 0; j < 150; ++j) {
          const float g = got.data<float>()[i * 150 + j], w = want.data<float>()[i * 150 + j];
          kind = kind && (std::isfinite(w) ? std::isfinite(g) : std::isnan(w) ? std::isnan(g) : g == w);
          near = near && (!std::isfinite(w) || std::abs(g - w) <= 1e-5f * (std::abs(w) + 100));
          if (left ? i != 77 && j != 9 : j != 77) others = others && g == clean.data<float>()[i * 150 + j];
        }
      INFO("with " << odd << (left ? " in a" : " in b"));
      CHECK((kind && near && others));
    }
}

TEST_CASE("matmul in three parts: batches, strided operands, threads", "[gemm][amx][matmul][bits]") {
  if (isa() < Isa::amx) return;
  const int threads = num_threads();
  for (const Sizes& s : {Sizes{300, 130, 129}, {2100, 65, 1030}, {120, 3000, 400}, {2600, 70, 900}}) {
    const Tensor a = transpose(wide_numbers({s.k, s.n}, 1), 0, 1), b = wide_numbers({s.k, s.m}, 2),
                 bias = wide_numbers({s.m}, 3);
    set_num_threads(1);
    const Tensor one = linear(a, b, bias);
    set_num_threads(5);
    CHECK(one.to_vector<float>() == linear(a, b, bias).to_vector<float>());
    const Tensor chain = with_isa(Isa::avx512, [&] { return linear(a, b, bias); });
    float worst = 0;
    for (int64_t i = 0; i < one.numel(); ++i)
      worst = worse(worst, std::abs(one.data<float>()[i] - chain.data<float>()[i]));
    CHECK(worst < 2e-6f * static_cast<float>(s.k));
    set_num_threads(threads);
  }
  const Tensor a = wide_numbers({3, 520, 260}, 4), b = wide_numbers({3, 260, 300}, 5), all = matmul(a, b);
  for (int64_t i = 0; i < 3; ++i)
    CHECK(select(all, 0, i).to_vector<float>() == matmul(select(a, 0, i), select(b, 0, i)).to_vector<float>());
  // Many small ones, each a task's: with a left operand of its own, and b the same for all or only for some.
  for (const Shape& right : {Shape{4, 3, 65, 257}, Shape{65, 257}, Shape{4, 1, 65, 257}}) {
    Tensor x = wide_numbers({4, 3, 129, 65}, 6), y = wide_numbers(right, 7);
    x.mutable_data<float>()[7 * 129 * 65 + 128 * 65 + 64] = std::numeric_limits<float>::infinity();
    const Tensor many = matmul(x, y), from = expand(y, {4, 3, 65, 257});
    const Tensor chain = with_isa(Isa::avx512, [&] { return matmul(x, y); });
    CHECK(std::memcmp(many.raw(), chain.raw(), 129 * 257 * 4) != 0);
    set_num_threads(5);
    CHECK(std::memcmp(many.raw(), matmul(x, y).raw(), static_cast<std::size_t>(many.numel()) * 4) == 0);
    set_num_threads(threads);
    for (int64_t i = 0; i < 12; ++i) {
      const Tensor one = select(select(many, 0, i / 3), 0, i % 3), a1 = select(select(x, 0, i / 3), 0, i % 3),
                   b1 = select(select(from, 0, i / 3), 0, i % 3);
      const Tensor alone = matmul(a1, b1);
      CHECK(std::memcmp(contiguous(one).raw(), alone.raw(), 129 * 257 * 4) == 0);
      if (i != 7) CHECK(error_of(a1, contiguous(b1), contiguous(one)) < 3e-7);
    }
    bool kind = true;
    for (int64_t i = 0; i < many.numel(); ++i) {
      const float g = many.data<float>()[i], w = chain.data<float>()[i];
      kind = kind && std::isfinite(g) == std::isfinite(w) && (std::isfinite(w) || g == w) &&
             std::isfinite(w) == (i / 257 != 7 * 129 + 128);
    }
    CHECK(kind);
  }
}

TEST_CASE("matmul on AMX: more rows, columns and k than are packed at a time", "[gemm][amx][matmul][bits]") {
  if (isa() < Isa::amx) return;
  Rng rng(7);
  const auto small = [&](const Shape& shape) {
    return floor(uniform(shape, -3, 4, rng));
  };  // sums are exact in any order
  for (const Precision p : {Precision::f32, Precision::bf16}) {
    PrecisionScope scope(p);
    for (const Sizes& s : {Sizes{1570, 33, 4130}, {113, 1570, 4130}}) {
      const Tensor a = small({s.n, s.k}), b = small({s.k, s.m}), bias = small({s.m});
      CHECK(linear(a, b, bias).to_vector<float>() ==
            with_isa(Isa::avx512, [&] { return linear(a, b, bias).to_vector<float>(); }));
    }
  }
}
