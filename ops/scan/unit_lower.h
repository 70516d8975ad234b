// Systems of a unit lower triangular matrix, in place. Blocks of 16 rows: the blocks on the diagonal are inverted by
// substitution, and the rest are products.
#pragma once

#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/gemm/gemm.h>

#include <algorithm>
#include <cstdint>

namespace sluice::detail {

constexpr int64_t kUnitBlock = 16;  // rows

/// Numbers of scratch memory that solve_unit_lower() needs for m right-hand sides.
constexpr int64_t unit_lower_scratch(int64_t m) { return kUnitBlock * (kUnitBlock + m); }

/// x ← (I + A)⁻¹ x, or (I + A)⁻ᵀ x, for x [n, m] and the part of a [n, n] below its diagonal.
template <class T>
void solve_unit_lower(Trans trans, int64_t n, const T* a, int64_t lda, T* x, int64_t m, int64_t ldx, T* scratch) {
  T *const inverse = scratch, *const before = scratch + kUnitBlock * kUnitBlock;
  const int64_t blocks = ceil_div(n, kUnitBlock);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t first = (trans == Trans::no ? i : blocks - 1 - i) * kUnitBlock,
                  rows = std::min(kUnitBlock, n - first), behind = first + rows;
    T* const here = x + first * ldx;
    if (trans == Trans::no && first > 0)
      gemm(Trans::no, Trans::no, rows, m, first, T(-1), a + first * lda, lda, x, ldx, T(1), here, ldx);
    if (trans == Trans::yes && behind < n)
      gemm(Trans::yes, Trans::no, rows, m, n - behind, T(-1), a + behind * lda + first, lda, x + behind * ldx, ldx,
           T(1), here, ldx);
    if (rows == 1) continue;
    const T* const corner = a + first * lda + first;
    if (!all_finite(here, rows, m, ldx)) {  // 0·NaN of a later row would reach earlier ones
      for (int64_t r = 1; r < rows; ++r)
        for (int64_t j = 0; j < r; ++j) {
          const int64_t to = trans == Trans::no ? r : rows - 1 - r, from = trans == Trans::no ? j : rows - 1 - j;
          const T weight = corner[std::max(to, from) * lda + std::min(to, from)];
          for (int64_t c = 0; c < m; ++c) here[to * ldx + c] -= weight * here[from * ldx + c];
        }
      continue;
    }
    vectorised([=] {
      for (int64_t r = 0; r < rows; ++r) {
        T line[kUnitBlock] = {};
        line[r] = T(1);
        for (int64_t j = 0; j < r; ++j) {
          const T weight = corner[r * lda + j];
          for (int64_t c = 0; c < kUnitBlock; ++c) line[c] -= weight * inverse[j * kUnitBlock + c];
        }
        std::copy_n(line, kUnitBlock, inverse + r * kUnitBlock);
      }
    });
    for (int64_t r = 0; r < rows; ++r) std::copy_n(here + r * ldx, m, before + r * m);
    gemm(trans, Trans::no, rows, m, rows, T(1), inverse, kUnitBlock, before, m, T(0), here, ldx);
  }
}

}  // namespace sluice::detail
