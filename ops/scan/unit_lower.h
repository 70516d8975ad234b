// Solves systems with a unit lower triangular matrix in place, in blocks of 16 rows: the blocks on the diagonal are
// inverted by substitution, and the rest are products.
#pragma once

#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/gemm/gemm.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace sluice::detail {

constexpr int64_t kUnitBlock = 16;  // rows

/// Size in numbers of the inverses of the diagonal blocks, for a matrix of n rows.
constexpr int64_t corner_inverses(int64_t n) { return ceil_div(n, kUnitBlock) * kUnitBlock * kUnitBlock; }

/// Inverts the diagonal blocks of I + A, where A is the part of a [n, n] below its diagonal. The inverses lie one
/// behind the other. A row depends on those before it; the rows of different blocks take turns, so that none waits for
/// the one before.
template <class T> void invert_corners(int64_t n, const T* a, T* inverses) {
  using Line [[gnu::vector_size(kUnitBlock * sizeof(T))]] = T;  // compilers keep a loop of so few numbers scalar
  vectorised([=] {
    for (int64_t r = 0; r < std::min(kUnitBlock, n); ++r)
      for (int64_t first = 0; first + r < n; first += kUnitBlock) {
        const T* const weights = a + (first + r) * n + first;
        T* const inverse = inverses + first * kUnitBlock;
        Line line = {}, earlier;
        line[r] = T(1);
        for (int64_t j = 0; j < r; ++j) {
          std::memcpy(&earlier, inverse + j * kUnitBlock, sizeof earlier);
          line -= weights[j] * earlier;
        }
        std::memcpy(inverse + r * kUnitBlock, &line, sizeof line);
      }
  });
}

/// x ← (I + A)⁻¹ x, or (I + A)⁻ᵀ x, for x [n, m], where A is the part of a [n, n] below its diagonal. `inverses` are
/// those of invert_corners(). scratch: kUnitBlock · m numbers.
template <class T>
void solve_unit_lower(Trans trans, int64_t n, const T* a, const T* inverses, T* x, int64_t m, int64_t ldx, T* scratch) {
  const int64_t blocks = ceil_div(n, kUnitBlock);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t first = (trans == Trans::no ? i : blocks - 1 - i) * kUnitBlock,
                  rows = std::min(kUnitBlock, n - first), behind = first + rows;
    T* const here = x + first * ldx;
    if (trans == Trans::no && first > 0)
      gemm(Trans::no, Trans::no, rows, m, first, T(-1), a + first * n, n, x, ldx, T(1), here, ldx);
    if (trans == Trans::yes && behind < n)
      gemm(Trans::yes, Trans::no, rows, m, n - behind, T(-1), a + behind * n + first, n, x + behind * ldx, ldx, T(1),
           here, ldx);
    if (rows == 1) continue;
    if (!all_finite(here, rows, m, ldx)) {  // 0·NaN of a later row would reach earlier ones
      const T* const corner = a + first * n + first;
      for (int64_t r = 1; r < rows; ++r)
        for (int64_t j = 0; j < r; ++j) {
          const int64_t to = trans == Trans::no ? r : rows - 1 - r, from = trans == Trans::no ? j : rows - 1 - j;
          const T weight = corner[std::max(to, from) * n + std::min(to, from)];
          for (int64_t c = 0; c < m; ++c) here[to * ldx + c] -= weight * here[from * ldx + c];
        }
      continue;
    }
    for (int64_t r = 0; r < rows; ++r) std::copy_n(here + r * ldx, m, scratch + r * m);
    gemm(trans, Trans::no, rows, m, rows, T(1), inverses + first * kUnitBlock, kUnitBlock, scratch, m, T(0), here, ldx);
  }
}

}  // namespace sluice::detail
