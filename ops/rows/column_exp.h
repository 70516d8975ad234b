// Σ e^x of many lines at once: of columns side by side, or of short rows that were copied to be columns. Softmax and
// logsumexp of such lines share it; a long row by itself is row_exp_total() (ops/rows/rows.h).
#pragma once

#include <sluice/core/kernel/strided.h>
#include <sluice/core/number/math.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace sluice::detail {

/// Columns of a block. Blocks are this wide to read long pieces of rows, because rows whose distance is a power of two
/// share one place in the caches.
inline constexpr int64_t kColumns = 128;

/// Many rows of less than kShort numbers are copied to be columns: the maximum and the sum of a short row, across a
/// vector, would take longer than the rest.
template <class T> inline constexpr int64_t kShort = 256 / sizeof(T);
template <class T> bool are_short_rows(int64_t rows, int64_t n) { return n < kShort<T> && rows >= kColumns / 4; }

/// total[k] = Σ_r term(r·inner + k, k), k < m. Sums of 128 rows are added, so that long columns lose no more digits
/// than rows. term may also store what it computes.
template <class T, class Total, class Term> void column_totals(ReduceShape s, int64_t m, Total* total, Term term) {
  std::fill_n(total, m, Total(0));
  for (int64_t b = 0; b < s.n; b += 128) {
    T part[kColumns] = {};
    for (int64_t r = b; r < std::min(s.n, b + 128); ++r)
      for (int64_t k = 0; k < m; ++k) part[k] += term(r * s.inner + k, k);
    for (int64_t k = 0; k < m; ++k) total[k] += part[k];
  }
}
/// As column_totals(), but each sum has the bits of row_total().
template <class T, class Total, class Term> void row_totals(ReduceShape s, int64_t m, Total* total, Term term) {
  int64_t lanes = kRowLanes, r = 0;
  while (lanes > s.n) lanes /= 2;  // lanes without a term would add zeros
  lanes = lanes < 4 ? 1 : lanes;
  T lane[kRowLanes][kColumns];
  for (int64_t i = 0; i < lanes; ++i) std::fill_n(lane[i], m, T(0));
  const auto add = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t k = 0; k < m; ++k) lane[i][k] += term((r + i) * s.inner + k, k);
    r += count;
  };
  while (r + lanes <= s.n) add(lanes);
  for (int64_t half = lanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i)
      for (int64_t k = 0; k < m; ++k) lane[i][k] += lane[i + half][k];
    if (half >= 4 && r + half <= s.n) add(half);
  }
  while (r < s.n) add(1);
  std::copy_n(lane[0], m, total);
}

/// row_max() and row_exp_total() of m columns, or of m rows that were copied to be columns.
template <bool rows, class T, class Total, class Keep>
void column_exp_totals(const T* __restrict__ p, ReduceShape s, int64_t m, T* shift, Total* total, Keep keep) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  T top[kColumns];
  std::fill_n(top, m, -inf);
  for (int64_t r = 0; r < s.n; ++r)
    for (int64_t k = 0; k < m; ++k) top[k] = p[r * s.inner + k] > top[k] ? p[r * s.inner + k] : top[k];
  bool infinite = false;
  for (int64_t k = 0; k < m; ++k) shift[k] = exp_shift(top[k]), infinite |= top[k] == inf;
  const auto add_up = [&](auto exp) {
    const auto term = [&](int64_t i, int64_t k) { return keep(i, exp(p[i] - shift[k])); };
    if constexpr (rows) row_totals<T>(s, m, total, term);
    else column_totals<T>(s, m, total, term);
  };
  if (infinite) add_up([](T v) { return math::exp(v); });
  else add_up([](T v) { return math::exp_low(v); });
}

/// Copies m rows of n numbers, from `row` on, to be columns [n, m].
template <class T> void rows_to_columns(const Tensor& x, int64_t row, int64_t n, int64_t m, T* columns) {
  copy_strided(x.raw() + row * n * size_of(x.dtype()), {{n, m}, {1, n}, 0}, x.dtype(),
               reinterpret_cast<std::byte*>(columns), Layout({n, m}), dtype_of<T>());
}
/// The other way.
template <class T> void columns_to_rows(const T* columns, Tensor& y, int64_t row, int64_t n, int64_t m) {
  copy_strided(reinterpret_cast<const std::byte*>(columns), Layout({n, m}), dtype_of<T>(),
               y.raw() + row * n * size_of(y.dtype()), {{n, m}, {1, n}, 0}, y.dtype());
}
/// Calls f(row, m) for blocks of m rows of n numbers, in parallel.
template <class F> void for_each_short_block(int64_t rows, int64_t n, F f) {
  for_each_row(ceil_div(rows, kColumns), n * kColumns, [=](int64_t i) {
    const int64_t row = i * kColumns;
    f(row, std::min(kColumns, rows - row));
  });
}
/// The same with f(columns, row, m), where the rows of x were copied to be columns [n, m].
template <class T, class F> void for_each_short_block(const Tensor& x, int64_t n, F f) {
  for_each_short_block(x.numel() / n, n, [&x, n, f](int64_t row, int64_t m) {
    T columns[kShort<T> * kColumns];
    rows_to_columns(x, row, n, m, columns);
    f(columns, row, m);
  });
}

}  // namespace sluice::detail
