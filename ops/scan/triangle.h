// Products over the pairs of steps (t, j) of a chunk, of which half do not count: those with j > t, or in a reverse
// scan j < t. Blocks without a pair that counts are left out: of 64 steps, pair_products() computes 3/4,
// masked_product() 5/8, of 32 steps all and 3/4.
#pragma once

#include <sluice/ops/attention/heads.h>
#include <sluice/ops/gemm/gemm.h>

#include <algorithm>
#include <cstdint>

namespace sluice::detail {

/// The steps j whose pairs with t count: j <= t, or j >= t.
enum class Pairs : bool { earlier, later };

/// Of `chunk` steps that may be computed together, so many are: fewer steps have fewer pairs, but pass through the
/// state more often, which AMX has to pack each time.
inline int64_t steps_together(int64_t chunk, Precision precision) {
  return precision == Precision::bf16 && isa() == Isa::amx ? chunk : std::min<int64_t>(chunk, 32);
}
/// The same where nothing is erased, for n steps of keys of width m. Wide keys have large states. Of few chunks, the
/// first, which reads no state, and the last, which leaves none, are a large share.
inline int64_t steps_together(int64_t chunk, Precision precision, int64_t n, int64_t m) {
  return n > 128 && m <= 64 ? steps_together(chunk, precision) : chunk;
}

/// Steps of a block. bf16 takes one block, because its products would pack their operands anew for each block.
inline int64_t pair_block(int64_t n, int64_t steps, Precision precision) {
  return precision == Precision::f32 ? steps : std::max<int64_t>(n, 1);
}

/// a_tj = x_t·k_j for the pairs that count, and for some more; x, k [n, m], a [n, n].
template <class T>
void pair_products(Pairs pairs, int64_t n, int64_t m, const T* x, int64_t ldx, const T* k, int64_t ldk, T* a,
                   Precision precision) {
  const int64_t block = pair_block(n, 32, precision);
  for (int64_t first = 0; first < n; first += block) {
    const int64_t steps = std::min(block, n - first), from = pairs == Pairs::earlier ? first : 0,
                  rows = (pairs == Pairs::earlier ? n : first + steps) - from;
    gemm(Trans::no, Trans::yes, rows, steps, m, T(1), x + from * ldx, ldx, k + first * ldk, ldk, T(0),
         a + from * n + first, n, precision);
  }
}

/// The pairs of `count` steps from `first` on among those of n steps: a [n, n] → to [count, count].
template <class T> void copy_pairs(const T* a, int64_t n, int64_t first, int64_t count, T* to) {
  for (int64_t t = 0; t < count; ++t) std::copy_n(a + (first + t) * n + first, count, to + t * count);
}

/// c [n, m] = a · b, or aᵀ · b; with `add`, c += it. a [n, n] must be 0 for the pairs of steps that do not count. For
/// such a pair, infinities and NaN in its row of b stay out of c.
template <class T>
void masked_product(Trans ta, Pairs pairs, int64_t n, int64_t m, const T* a, const T* b, int64_t ldb, bool add, T* c,
                    int64_t ldc, Precision precision) {
  if (!all_finite(b, n, m, ldb)) {
    for (int64_t i = 0; !add && i < n; ++i) std::fill_n(c + i * ldc, m, T(0));
    return sparse_product(ta, n, m, n, T(1), a, n, b, ldb, c, ldc);
  }
  const int64_t block = pair_block(n, 16, precision);
  const bool from_first = (ta == Trans::yes) == (pairs == Pairs::earlier);  // of the block on, not up to its last step
  for (int64_t first = 0; first < n; first += block) {
    const int64_t rows = std::min(block, n - first), from = from_first ? first : 0,
                  steps = (from_first ? n : first + rows) - from;
    gemm(ta, Trans::no, rows, m, steps, T(1), a + (ta == Trans::no ? first * n + from : from * n + first), n,
         b + from * ldb, ldb, T(add), c + first * ldc, ldc, precision);
  }
}

}  // namespace sluice::detail
