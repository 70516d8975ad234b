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

/// Calls f(at, width, apart) for blocks of `width` neighbouring runs, at most kRuns, of x [outer, n, inner] along the
/// middle, in parallel. The first run of a block begins at `at`. Runs are `apart`: 1, or n where they lie one behind
/// the other. A small width is a constant for the compiler, which then keeps the totals in registers. Of rows there are
/// `rows` in a block: those that are a power of two apart share a place in the cache, which holds few lines.
template <int64_t rows = 4, class F> void for_each_block(ReduceShape s, F f) {
  if (s.inner != 1)
    return for_each_columns(s, kRuns, [=](int64_t at, int64_t width) {
      if (width == 1) f(at, Fixed<1>(), Fixed<1>());
      else if (width == 2) f(at, Fixed<2>(), Fixed<1>());
      else if (width == 3) f(at, Fixed<3>(), Fixed<1>());
      else if (width == 4) f(at, Fixed<4>(), Fixed<1>());
      else f(at, width, Fixed<1>());
    });
  parallel_for(s.outer, std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, s.n)), [&](int64_t begin, int64_t end) {
    int64_t row = begin;
    for (; row + rows <= end; row += rows) f(row * s.n, Fixed<rows>(), s.n);
    for (; row < end; ++row) f(row * s.n, Fixed<1>(), Fixed<1>());
  });
}

}  // namespace sluice::detail
