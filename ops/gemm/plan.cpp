#include <sluice/ops/gemm/plan.h>

#include <sluice/ops/gemm/bf16.h>

namespace sluice::detail {

namespace {

bool rounds(const GemmShape& p) { return p.dtype == bf16 || (p.dtype == f32 && p.precision == Precision::bf16); }

Packing usual(const GemmShape& p) {
  if (rounds(p)) return has_bf16_tiles(p.isa) && p.flush ? Packing::tiles : Packing::rounded;
  return p.isa == Isa::base ? Packing::plain : Packing::panels;
}

/// True if so few rows use b that its panels, packed by all threads, would take longer to come from other cores than a
/// thread needs to pack columns for itself: "Who packs" in ops/MEASURED.md. With fewer than 48 rows of bf16, packing
/// takes most of the time, and all threads together read b in the order of memory.
bool few_uses(const GemmShape& p, Packing packing) {
  if (packing == Packing::tiles)  // a task packs all of k
    return p.isa == Isa::avx512_bf16 && p.n >= 48 && p.n <= 512 && p.k <= 2048;
  return packing == Packing::panels && p.n <= 1024;
}

/// True if the numbers of b, of bf16, are multiplied as pairs, where they lie. With AMX this was not measured.
bool passes_in_pairs(const GemmShape& p) {
  if (p.dtype != bf16 || !p.plain_rows || p.batch > 1 || p.m == 1) return false;
  if (p.isa == Isa::avx512_bf16 && p.flush)
    return p.plain_b ? p.n < 48 && p.m >= 64 && p.m * p.k > 1 << 14 : dots_pay(p.n, p.k, 47);
  return (p.isa == Isa::avx512 || p.isa == Isa::avx512_bf16) && !p.plain_b && dots_pay(p.n, p.k, 24);
}
/// True if b of bf16 goes past few rows, which do not repay a widened copy of it.
bool passes(const GemmShape& p) {
  return p.dtype == bf16 && usual(p) == Packing::rounded && p.isa != Isa::base && p.plain_rows && p.batch == 1 &&
         p.n < 64 && p.m >= 64 && p.m * p.k >= 1 << 14;
}

const char* means(const GemmShape& p, Packing packing) {
  static constexpr const char* exact[] = {"portable", "NEON",    "NEON",   "AVX2",
                                          "AVX-512",  "AVX-512", "AVX-512"};  // by Isa
  static constexpr const char* rounded[] = {"portable, bf16", "NEON, bf16",    "NEON, bf16",   "AVX2, bf16",
                                            "AVX-512, bf16",  "AVX-512, bf16", "AVX-512, bf16"};
  switch (packing) {
    case Packing::plain: return p.isa != Isa::base || p.dtype == bf16 ? "one row or column" : "OpenBLAS";
    case Packing::panels: return exact[static_cast<int>(p.isa)];
    case Packing::rounded: return rounded[static_cast<int>(p.isa)];
    case Packing::tiles:
      return p.isa == Isa::amx ? "AMX, bf16" : p.isa == Isa::avx512_bf16 ? "AVX-512 BF16" : "BFMMLA, bf16";
    case Packing::split: break;
  }
  return "AMX, f32 in three parts";
}

}  // namespace

Plan plan_gemm(const GemmShape& p) {
  const int64_t work = p.n * p.m * p.k;
  if (passes_in_pairs(p)) return {Plan::passing, usual(p), means(p, usual(p))};
  // A single product of few rows is memory-bound. Where f32 is rounded to bf16, only one row counts as few: rounding
  // would not make it faster. Rows of a large transposed b are read once for 8 rows of a, 4 at a time.
  const bool twice = !p.plain_b && p.m * p.k >= 1 << 20 && usual(p) != Packing::tiles;
  const int64_t most = twice ? 2 * kSkinnyRows : kSkinnyRows;
  const int64_t few = p.dtype == f32 && rounds(p) ? 1 : most;
  if (p.batch == 1 && p.n <= few && p.plain_rows) return {Plan::rows, Packing::plain, "few rows"};
  if (p.batch == 1 && p.m == 1 && p.plain_column) return {Plan::column, Packing::plain, "few rows"};
  if (passes(p)) return {Plan::passing, usual(p), means(p, usual(p))};

  // Packing for all threads pays with enough rows and columns. OpenBLAS packs by itself. bf16 is always packed.
  const bool wide = p.isa != Isa::base && p.n >= 112 && p.m >= 32 && work >= 1 << 21;
  const Packing packing = wide && splits(p) ? Packing::split : packing_of(p);
  // All threads work on a single matrix, but on one of a batch only if it is large.
  const int64_t least = p.batch == 1 ? 1 << 21 : p.dtype == bf16 || packing == Packing::tiles ? 1 << 28 : 1 << 25;
  const bool large = (wide || (p.dtype == bf16 && packing != Packing::plain)) && work >= least;
  return {!large ? Plan::separate : few_uses(p, packing) ? Plan::own : Plan::shared, packing, means(p, packing)};
}

Packing packing_of(const GemmShape& p) { return p.n == 1 || p.m == 1 ? Packing::plain : usual(p); }

Packing usual_packing(DType dtype, Precision precision) {
  return usual({.n = 2, .m = 2, .k = 2, .dtype = dtype, .precision = precision});
}

bool splits(const GemmShape& p) {
  constexpr int64_t kLeast = 64;  // of k: two steps of AMX
  return p.dtype == f32 && p.precision == Precision::f32 && p.isa == Isa::amx && p.flush && p.k >= kLeast;
}

}  // namespace sluice::detail
