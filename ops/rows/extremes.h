// The extreme of a run of numbers, and the lengths in which reductions go through their operands.
#pragma once

#include <sluice/ops/rows/reduce_ops.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <limits>
#include <type_traits>

namespace sluice::detail::reduction {

inline constexpr int kLanes = 64;
/// Lanes of a reduction whose order does not matter. 64 numbers of 8 bytes would take all registers of AVX2.
template <class T> constexpr int lanes_in_registers = sizeof(T) == 8 ? kLanes / 2 : kLanes;
inline constexpr int64_t kBlock = 1024;  // f32 partial sums are at most this long; their totals are f64

/// extreme_of_run() in one pass, which pays for long runs only.
template <class Op, class T> [[gnu::noinline]] T extreme_of_long_run(const T* x, int64_t n) {
  constexpr int lanes = lanes_in_registers<T>;
  const auto better = [](T a, T y) { return Op::better(a, y); };
  T best[lanes], unknown[lanes] = {};  // NaN, or 0
  std::fill_n(best, lanes, Op::template start<T>());
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int k = 0; k < lanes; ++k) {
      const T y = x[i + k];
      best[k] = better(best[k], y), unknown[k] = y != y ? y : unknown[k];
    }
  for (int64_t k = i; k < n; ++k) unknown[k - i] = x[k] != x[k] ? x[k] : unknown[k - i];
  const T any = row_sum(unknown, lanes);
  const auto rest = [x](int64_t k) { return x[k]; };
  return any != any ? any : halves_joined<lanes, true>(best, i, n, rest, better);
}
/// The extreme of the numbers; NaN if one is NaN. NaN is looked for apart: a chain of Op::apply() would wait longer.
template <class Op, class T> T extreme_of_run(const T* x, int64_t n) {
  if (std::is_floating_point_v<T> && n >= 8 * kLanes) return extreme_of_long_run<Op>(x, n);
  const T best =
      row_joined<T, lanes_in_registers<T>>(x, n, Op::template start<T>(), [](T a, T y) { return Op::better(a, y); });
  int unknown = 0;
  for (int64_t i = 0; i < n; ++i) unknown |= x[i] != x[i];
  return unknown ? std::numeric_limits<T>::quiet_NaN() : best;
}

}  // namespace sluice::detail::reduction
