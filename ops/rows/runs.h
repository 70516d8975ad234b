// Runs of a dim that lie side by side or one behind the other, several at a time: for scans, and for softmax of
// columns.
#pragma once

#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <type_traits>

namespace sluice::detail {

/// f(at, width) for blocks of `width` neighbouring columns, at most `most`, of x [outer, n, inner], in parallel. The
/// first element of a block is `at`.
template <class F> void for_each_columns(ReduceShape s, int64_t most, F f) {
  const int64_t blocks = ceil_div(s.inner, most);
  for_each_row(s.outer * blocks, s.n * std::min(s.inner, most), [=](int64_t i) {
    const int64_t first = i % blocks * most;
    f(i / blocks * s.n * s.inner + first, std::min(most, s.inner - first));
  });
}

inline constexpr int64_t kRuns = 64;
template <int64_t k> using Fixed = std::integral_constant<int64_t, k>;

/// Calls f(at, width, rows) for blocks of `width` neighbouring runs, at most kRuns, of x [outer, n, inner] along the
/// middle, in parallel. The first run of a block begins at `at`. `rows`: the runs lie one behind the other, else side
/// by side. A small width is a constant for the compiler, which then keeps the totals in registers.
template <class F> void for_each_block(ReduceShape s, F f) {
  if (s.inner != 1)
    return for_each_columns(s, kRuns, [=](int64_t at, int64_t width) {
      if (width == 1) f(at, Fixed<1>(), std::false_type());
      else if (width == 2) f(at, Fixed<2>(), std::false_type());
      else if (width == 3) f(at, Fixed<3>(), std::false_type());
      else if (width == 4) f(at, Fixed<4>(), std::false_type());
      else f(at, width, std::false_type());
    });
  parallel_for(s.outer, std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, s.n)), [&](int64_t begin, int64_t end) {
    int64_t row = begin;
    for (; s.n < 16 && row < end; ++row) f(row * s.n, Fixed<1>(), std::false_type());  // copies would take longer
    for (; row + 4 <= end; row += 4) f(row * s.n, Fixed<4>(), std::true_type());
    for (; row < end; ++row) f(row * s.n, Fixed<1>(), std::true_type());
  });
}

/// Copies of up to four rows of n numbers, for scans of rows: numbers are converted in vectors, and memory is read
/// upwards, whatever the direction. Rows of a piece are not a power of two apart: such rows share a place in the cache.
inline constexpr int64_t kPiece = 256, kApart = kPiece + 8;
template <class T> struct Piece {
  T at[4 * kApart];
  template <class From> void load(const From* x, int64_t rows, int64_t n, int64_t m) {
    for (int64_t c = 0; c < rows; ++c)
      for (int64_t i = 0; i < m; ++i) at[c * kApart + i] = static_cast<T>(x[c * n + i]);
  }
  template <class To> void store(To* y, int64_t rows, int64_t n, int64_t m) const {
    for (int64_t c = 0; c < rows; ++c)
      for (int64_t i = 0; i < m; ++i) y[c * n + i] = static_cast<To>(at[c * kApart + i]);
  }
};

}  // namespace sluice::detail
