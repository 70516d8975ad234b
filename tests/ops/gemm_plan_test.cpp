// Which way a product takes: plan_gemm() is a pure function, so its table is held for every instruction set on every
// machine.
#include <sluice/ops/gemm/plan.h>

#include "support/catch.h"
#include "support/isa_scope.h"

#include <sluice/core/kernel/kernel.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/matmul/matmul.h>

#include <string>
#include <tuple>

using namespace sluice;
using namespace sluice::detail;

namespace {

std::string text(const Plan& p) {
  static constexpr const char* ways[] = {"rows", "column", "separate", "own", "passing", "shared"};
  static constexpr const char* packings[] = {"plain", "panels", "rounded", "tiles", "split"};
  return str(ways[p.way], ", ", packings[static_cast<int>(p.packing)], ": ", p.means);
}

struct Row {
  Isa isa;
  DType dtype;
  Precision precision;
  int64_t batch, n, m, k;
  const char* want;
};
constexpr Precision kExact = Precision::f32, kRounded = Precision::bf16;

}  // namespace

TEST_CASE("gemm: the way of a product, by size, numbers and instruction set", "[gemm]") {
  const Row rows[] = {
      // few rows, one column
      {Isa::avx512, f32, kExact, 1, 4, 512, 512, "rows, plain: few rows"},
      {Isa::base, f64, kExact, 1, 4, 512, 512, "rows, plain: few rows"},
      {Isa::amx, bf16, kExact, 1, 4, 512, 512, "rows, plain: few rows"},
      {Isa::amx, f32, kRounded, 1, 1, 512, 512, "rows, plain: few rows"},
      {Isa::avx512, f32, kExact, 1, 512, 1, 512, "column, plain: few rows"},
      {Isa::amx, bf16, kExact, 1, 5, 1, 512, "column, plain: few rows"},
      {Isa::avx512, f32, kExact, 1, 5, 512, 512, "separate, panels: AVX-512"},
      {Isa::amx, f32, kRounded, 1, 2, 512, 512, "separate, tiles: AMX, bf16"},
      {Isa::avx512, f64, kRounded, 1, 4, 512, 512, "rows, plain: few rows"},
      {Isa::avx512, f32, kExact, 8, 1, 512, 512, "separate, plain: one row or column"},
      {Isa::amx, f32, kRounded, 8, 512, 1, 512, "separate, plain: one row or column"},
      {Isa::amx, bf16, kExact, 8, 1, 512, 512, "separate, plain: one row or column"},
      // enough rows, columns and work for all threads
      {Isa::avx2, f32, kExact, 1, 111, 512, 512, "separate, panels: AVX2"},
      {Isa::avx2, f32, kExact, 1, 111, 1024, 512, "separate, panels: AVX2"},
      {Isa::avx2, f32, kExact, 1, 1024, 512, 512, "own, panels: AVX2"},
      {Isa::avx2, f32, kExact, 1, 1025, 512, 512, "shared, panels: AVX2"},
      {Isa::avx2, f32, kExact, 1, 4096, 31, 512, "separate, panels: AVX2"},
      {Isa::avx2, f64, kExact, 1, 2048, 32, 31, "separate, panels: AVX2"},
      {Isa::avx2, f64, kExact, 1, 2048, 32, 32, "shared, panels: AVX2"},
      {Isa::neon, f64, kRounded, 1, 2048, 32, 32, "shared, panels: NEON"},
      {Isa::base, f32, kExact, 1, 1024, 1024, 1024, "separate, plain: OpenBLAS"},
      {Isa::base, f32, kRounded, 1, 1024, 1024, 1024, "separate, rounded: portable, bf16"},
      {Isa::base, bf16, kExact, 1, 128, 128, 128, "shared, rounded: portable, bf16"},
      {Isa::avx2, bf16, kExact, 1, 128, 128, 127, "separate, rounded: AVX2, bf16"},
      {Isa::avx2, bf16, kExact, 1, 64, 512, 512, "shared, rounded: AVX2, bf16"},
      // few rows, which use what all threads packed too seldom
      {Isa::avx512_bf16, f32, kRounded, 1, 512, 512, 512, "own, tiles: AVX-512 BF16"},
      {Isa::avx512_bf16, f32, kRounded, 1, 513, 512, 512, "shared, tiles: AVX-512 BF16"},
      {Isa::avx512_bf16, bf16, kExact, 1, 512, 512, 512, "own, tiles: AVX-512 BF16"},
      {Isa::avx2, f32, kRounded, 1, 112, 512, 512, "shared, rounded: AVX2, bf16"},
      {Isa::amx, f32, kRounded, 1, 112, 512, 512, "shared, tiles: AMX, bf16"},
      // one of a batch
      {Isa::avx512, f32, kExact, 2, 256, 256, 511, "separate, panels: AVX-512"},
      {Isa::avx512, f32, kExact, 2, 256, 256, 512, "own, panels: AVX-512"},
      {Isa::avx512, f32, kRounded, 2, 256, 256, 512, "shared, rounded: AVX-512, bf16"},
      {Isa::amx, f32, kRounded, 2, 512, 512, 1023, "separate, tiles: AMX, bf16"},
      {Isa::amx, f32, kRounded, 2, 512, 512, 1024, "shared, tiles: AMX, bf16"},
      {Isa::avx2, bf16, kExact, 2, 512, 512, 1023, "separate, rounded: AVX2, bf16"},
      {Isa::neon_bf16, bf16, kExact, 2, 512, 512, 1024, "shared, tiles: BFMMLA, bf16"},
      // few rows, past which b goes
      {Isa::avx2, f32, kExact, 1, 5, 1024, 512, "separate, panels: AVX2"},
      {Isa::avx512, bf16, kExact, 1, 63, 1024, 512, "passing, rounded: AVX-512, bf16"},
      {Isa::avx512, bf16, kExact, 1, 64, 1024, 512, "shared, rounded: AVX-512, bf16"},
      {Isa::avx512, bf16, kExact, 1, 5, 63, 65536, "shared, rounded: AVX-512, bf16"},
      {Isa::avx512, bf16, kExact, 2, 5, 1024, 512, "separate, rounded: AVX-512, bf16"},
      {Isa::avx512, f32, kRounded, 1, 5, 1024, 512, "separate, rounded: AVX-512, bf16"},
      {Isa::avx2, bf16, kExact, 1, 5, 128, 128, "passing, rounded: AVX2, bf16"},
      {Isa::avx2, bf16, kExact, 1, 5, 128, 127, "separate, rounded: AVX2, bf16"},
      {Isa::base, bf16, kExact, 1, 5, 128, 128, "separate, rounded: portable, bf16"},
      {Isa::base, f32, kExact, 1, 5, 1024, 512, "separate, plain: OpenBLAS"},
      {Isa::avx512_bf16, bf16, kExact, 1, 1, 512, 512, "passing, tiles: AVX-512 BF16"},
      {Isa::avx512_bf16, bf16, kExact, 1, 4, 128, 128, "rows, plain: few rows"},
      {Isa::avx512_bf16, bf16, kExact, 1, 5, 128, 128, "separate, tiles: AVX-512 BF16"},
      {Isa::avx512_bf16, bf16, kExact, 1, 47, 512, 512, "passing, tiles: AVX-512 BF16"},
      {Isa::avx512_bf16, bf16, kExact, 1, 48, 512, 512, "own, tiles: AVX-512 BF16"},
      {Isa::avx512_bf16, bf16, kExact, 2, 47, 512, 512, "separate, tiles: AVX-512 BF16"},
      {Isa::avx512_bf16, f32, kRounded, 1, 47, 512, 512, "separate, tiles: AVX-512 BF16"},
      {Isa::avx512_bf16, f32, kRounded, 2, 512, 512, 1023, "separate, tiles: AVX-512 BF16"},
      {Isa::avx512_bf16, bf16, kExact, 2, 512, 512, 1024, "own, tiles: AVX-512 BF16"},
      // f32 in three parts
      {Isa::amx, f32, kExact, 1, 112, 512, 512, "shared, split: AMX, f32 in three parts"},
      {Isa::amx, f32, kExact, 2, 112, 512, 512, "separate, split: AMX, f32 in three parts"},
      {Isa::amx, f32, kExact, 1, 111, 512, 512, "separate, panels: AVX-512"},
      {Isa::amx, f32, kExact, 1, 2048, 1024, 63, "shared, panels: AVX-512"},
      {Isa::amx, f32, kExact, 1, 1024, 1024, 64, "shared, split: AMX, f32 in three parts"},
      {Isa::amx, f64, kExact, 1, 2048, 1024, 64, "shared, panels: AVX-512"},
      {Isa::neon_bf16, f32, kExact, 1, 2048, 1024, 64, "shared, panels: NEON"},
      {Isa::avx512_bf16, f32, kExact, 1, 2048, 1024, 64, "shared, panels: AVX-512"},
  };
  // Rows of a transposed b go past as many rows of a as repay their sums of lanes.
  for (const auto& [n, k, passes] : {std::tuple{1, 64, true},
                                     {4, 64, true},
                                     {5, 64, false},
                                     {1, 63, false},
                                     {32, 512, true},
                                     {33, 512, false},
                                     {47, 752, true},
                                     {48, 768, false}}) {
    const GemmShape s{
        .n = n, .m = 512, .k = k, .dtype = bf16, .plain_rows = true, .isa = Isa::avx512_bf16, .flush = true};
    INFO(n << " rows, k " << k);
    CHECK((plan_gemm(s).way == Plan::passing) == passes);
    GemmShape lesser = s;  // more rows go past panels
    lesser.isa = Isa::avx512;
    CHECK((plan_gemm(lesser).way == Plan::passing) == (passes || n > 4));
  }
  // A large transposed b is read once for eight rows, where no tiles of bf16 want it.
  for (const auto& [isa, dtype, n, k, few] : {std::tuple{Isa::avx512, f32, 8, 2048, true},
                                              {Isa::avx512, f32, 9, 2048, false},
                                              {Isa::avx2, f64, 8, 2048, true},
                                              {Isa::avx2, bf16, 8, 2048, true},
                                              {Isa::amx, f32, 8, 2047, false},
                                              {Isa::amx, bf16, 5, 2048, false},
                                              {Isa::base, f32, 5, 2048, true}}) {
    const GemmShape s{.n = n, .m = 512, .k = k, .dtype = dtype, .plain_rows = true, .isa = isa, .flush = true};
    INFO(isa_name(isa) << ' ' << str(dtype) << ' ' << n << " rows, k " << k);
    CHECK((plan_gemm(s).way == Plan::rows) == few);
    GemmShape plain = s;
    plain.plain_b = true;
    CHECK(plan_gemm(plain).way != Plan::rows);
  }
  for (const Row& r : rows) {
    GemmShape s{.batch = r.batch,
                .n = r.n,
                .m = r.m,
                .k = r.k,
                .dtype = r.dtype,
                .precision = r.precision,
                .plain_rows = true,
                .plain_b = true,
                .plain_column = true,
                .isa = r.isa,
                .flush = true};
    INFO(isa_name(r.isa) << ' ' << str(r.dtype) << ", bf16 products " << (r.precision == kRounded) << ", " << r.batch
                         << " x " << r.n << " x " << r.m << " x " << r.k);
    CHECK(text(plan_gemm(s)) == r.want);
    // Few rows must lie row by row; a column must be contiguous.
    s.plain_rows = s.plain_b = s.plain_column = false;
    CHECK(plan_gemm(s).way >= Plan::separate);
    // Tiles flush denormals: where these must be kept, the kernels of the next lesser set compute.
    s.flush = false;
    const Plan kept = plan_gemm(s);
    s.isa = r.isa >= Isa::avx512_bf16 ? Isa::avx512 : r.isa == Isa::neon_bf16 ? Isa::neon : r.isa;
    CHECK(text(kept) == text(plan_gemm(s)));
    for (const char* flushes : {"AMX", "AVX-512 BF16", "BFMMLA"})
      CHECK(std::string(kept.means).find(flushes) == std::string::npos);
  }
}

TEST_CASE("gemm: the plan asks the instruction set and the mode in use, and profiles tell its answer", "[gemm]") {
  struct Means : Observer {
    void on_call(const KernelCall& call) override {
      if (call.work.means) last = call.work.means;
    }
    std::string last;
  };
  const bool before = flush_denormals();
  testing::for_each_isa([](Isa i) {
    for (const bool flush : {true, false}) {
      set_flush_denormals(flush);
      for (const DType t : {f32, f64, bf16})
        for (const Precision p : {kExact, kRounded}) {
          PrecisionScope scope(p);
          Means observed;
          const Tensor a = ones({130, 128}, {t}), b = ones({128, 160}, {t});
          matmul(a, b);
          const GemmShape s{.n = 130,
                            .m = 160,
                            .k = 128,
                            .dtype = t,
                            .precision = p,
                            .plain_rows = true,
                            .plain_b = true,
                            .isa = i,
                            .flush = flush};
          CHECK(observed.last == plan_gemm(s).means);
          CHECK(usual_packing(t, p) == packing_of(s));
        }
    }
  });
  set_flush_denormals(before);
}
