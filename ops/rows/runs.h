// Runs of a dim, of which scans go through several at a time.
#pragma once

#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/kernels.h>

#include <algorithm>
#include <type_traits>

namespace sluice::detail {

inline constexpr int64_t kRuns = 64;
template <int64_t k> using Fixed = std::integral_constant<int64_t, k>;

/// f(at, width, rows) for blocks of `width` neighbouring runs, at most kRuns, of x [outer, n, inner] along the middle,
/// in parallel. The first run of a block begins at `at`. With `rows` they lie one behind the other, else side by side.
/// Few are counted by the compiler, which keeps their totals in registers.
template <class F> void for_each_block(ReduceShape s, F f) {
  const int64_t blocks = ceil_div(s.inner, kRuns), work = std::max<int64_t>(1, s.n * std::min(s.inner, kRuns));
  parallel_for(s.outer * blocks, std::max<int64_t>(1, (1 << 14) / work), [&](int64_t begin, int64_t end) {
    int64_t task = begin;
    for (; s.inner == 1 && task + 4 <= end; task += 4) f(task * s.n, Fixed<4>(), std::true_type());
    for (; s.inner == 1 && task < end; ++task) f(task * s.n, Fixed<1>(), std::true_type());
    for (; task < end; ++task) {
      const int64_t first = task % blocks * kRuns, at = task / blocks * s.n * s.inner + first;
      const int64_t width = std::min(kRuns, s.inner - first);
      if (width == 1) f(at, Fixed<1>(), std::false_type());
      else if (width == 2) f(at, Fixed<2>(), std::false_type());
      else if (width == 3) f(at, Fixed<3>(), std::false_type());
      else if (width == 4) f(at, Fixed<4>(), std::false_type());
      else f(at, width, std::false_type());
    }
  });
}

/// Pieces of up to four rows of n numbers, where scans of rows take place: numbers are converted in vectors, and memory
/// is read upwards, whatever the direction. The rows of a piece are not a power of two apart, which caches do not like.
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
