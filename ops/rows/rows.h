// Loops over the rows of a matrix, for ops that normalise along the last dim. Sums use independent lanes
// so that they vectorise; their order is fixed.
#pragma once

#include <sluice/core/number/math.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/memory/thread_memory.h>
#include <sluice/core/tensor.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace sluice::detail {

inline constexpr int kRowLanes = 16;

/// f(row) for every row, in parallel, about 16k elements a task.
template <class F> void for_each_row(int64_t rows, int64_t width, F f) {
  parallel_for(rows, std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, width)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}

inline constexpr int64_t kTogether = 16;
/// f(row, m) for blocks of m rows, at most kTogether and, of long rows, fewer. f takes each of its steps for all m rows
/// before the next one: a sum of a row, and what needs it, are chains in which a processor waits.
template <class F> void for_each_rows(int64_t rows, int64_t width, F f) {
  const int64_t most = std::clamp<int64_t>(4096 / std::max<int64_t>(1, width), 1, kTogether);
  for_each_row(ceil_div(rows, most), most * width, [=](int64_t i) { f(i * most, std::min(most, rows - i * most)); });
}

/// Joins all lanes and, with `rest`, the terms i … n − 1, fewer than lanes. Joins lanes by halves, and after each half
/// of 4 or more as many terms, if there are so many; at last up to three terms. Inlined, so that the lanes stay in
/// registers. Each half has an array of its own: where lanes were joined in place, g++ 12.2 added eight f64 wrongly in
/// some callers.
template <int lanes, bool rest, class T, class Term, class Join>
[[gnu::always_inline]] inline T halves_joined(const T* lane, int64_t i, int64_t n, Term term, Join join) {
  constexpr int half = lanes / 2;
  T joined[half];
  for (int k = 0; k < half; ++k) joined[k] = join(lane[k], lane[k + half]);
  if (rest && half >= 4 && i + half <= n) {
    for (int k = 0; k < half; ++k) joined[k] = join(joined[k], term(i + k));
    i += half;
  }
  if constexpr (half > 1) return halves_joined<half, rest>(joined, i, n, term, join);
  T all = joined[0];
  for (; rest && i < n; ++i) all = join(all, term(i));
  return all;
}
/// Joins `start` and term(i), i < n, in a fixed order. `start` must be neutral: join(start, x) is x.
template <int lanes, class T, class Term, class Join>
[[gnu::always_inline]] inline T lanes_joined(int64_t n, T start, Term term, Join join) {
  T lane[lanes];
  std::fill_n(lane, lanes, start);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int k = 0; k < lanes; ++k) lane[k] = join(lane[k], term(i + k));
  if (i < n) return halves_joined<lanes, true>(lane, i, n, term, join);
  return halves_joined<lanes, false>(lane, i, n, term, join);
}

/// Σ term(i), i < n: blocks are summed in T, and their sums are added up in f64. term may also store what it computes.
template <class T, class Total = T, class Term> Total row_total(int64_t n, Term term) {
  constexpr int64_t block = 1024;
  double total = 0;
  for (int64_t at = 0; at < n; at += block)
    total += lanes_joined<kRowLanes>(
        std::min(block, n - at), T(0), [&term, at](int64_t i) { return term(at + i); }, [](T a, T b) { return a + b; });
  return Total(total);
}
template <class T> T row_sum(const T* x, int64_t n) {
  return row_total<T>(n, [x](int64_t i) { return x[i]; });
}
template <class T> T row_dot(const T* a, const T* b, int64_t n) {
  return row_total<T>(n, [a, b](int64_t i) { return a[i] * b[i]; });
}
/// row_joined() of n < 64. Not inlined, so that the loops of long rows keep their registers.
template <class T, class X, class Join> [[gnu::noinline]] T few_joined(const X* x, int64_t n, T start, Join join) {
  if (n >= 16)
    return lanes_joined<16>(
        n, start, [x](int64_t i) { return T(x[i]); }, join);
  for (int64_t i = 0; i < n; ++i) start = join(start, T(x[i]));
  return start;
}
/// join(start, x₀, …, x_{n−1}) of an associative join, in 64 lanes; callers may take 32 for numbers of 8 bytes. Not 16:
/// a loop of 16 is unrolled completely, and its selects stay scalar.
template <class T, int lanes = 64, class X, class Join> T row_joined(const X* x, int64_t n, T start, Join join) {
  if (n < 64) return few_joined(x, n, start, join);
  return lanes_joined<lanes>(
      n, start, [x](int64_t i) { return T(x[i]); }, join);
}
/// Largest element that is not NaN; −∞ if there is none. (Where NaN matters, the sum of exponentials is NaN.)
template <class T> T row_max(const T* x, int64_t n) {
  return row_joined(x, n, -std::numeric_limits<T>::infinity(), [](T top, T y) { return y > top ? y : top; });
}
/// What is subtracted from the exponents of numbers whose largest is m: m, or beside +∞ the largest finite number, so
/// that +∞ alone has an infinite term, or 0 where all are −∞.
template <class T> T exp_shift(T m) {
  using Limits = std::numeric_limits<T>;
  return m - m == T(0) ? m : m == Limits::infinity() ? Limits::max() : T(0);
}
/// Σ e^(x_i − shift) of a row whose largest element is m. Sets shift to exp_shift(m). Each term passes through
/// keep(i, term), which must return it.
template <class T, class Total = T, class Keep>
Total row_exp_total(const T* __restrict__ x, int64_t n, T m, T& shift, Keep keep) {
  const T by = shift = exp_shift(m);
  if (m == std::numeric_limits<T>::infinity())
    return row_total<T, Total>(n, [=](int64_t i) { return keep(i, math::exp(x[i] - by)); });
  return row_total<T, Total>(n, [=](int64_t i) { return keep(i, math::exp_low(x[i] - by)); });
}
template <class T, class F> void row_map(const T* x, T* y, int64_t n, F f) {
  for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
}

/// Thread-local memory for n floats; `which` (0, 1 or 2) selects one of three.
inline float* row_memory(int which, int64_t n) {
  struct Rows;
  return static_cast<float*>(thread_memory<Rows, 3>(which, static_cast<std::size_t>(n) * sizeof(float)));
}

/// Reads rows of n numbers of a contiguous tensor: in place, or, from bf16 (T is float), widened into
/// row_memory(which), one row at a time.
template <class T> class RowsIn {
 public:
  RowsIn(const Tensor& x, int64_t n, int which) : at_(x.raw()), n_(n), which_(which), narrow_(x.dtype() == bf16) {}
  const T* operator[](int64_t row) const { return part(row * n_, n_); }
  /// n numbers from element `first` on.
  const T* part(int64_t first, [[maybe_unused]] int64_t n) const {
    if constexpr (std::is_same_v<T, float>)
      if (narrow_) {
        const auto* from = reinterpret_cast<const BFloat16*>(at_) + first;
        float* __restrict__ to = row_memory(which_, n);
        for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
        return to;
      }
    return reinterpret_cast<const T*>(at_) + first;
  }

 private:
  const std::byte* at_;
  int64_t n_;
  int which_;
  bool narrow_;
};

/// Writes rows of n numbers of a contiguous tensor: in place, or for bf16 in row_memory(which), which done(row) rounds.
template <class T> class RowsOut {
 public:
  RowsOut(Tensor& y, int64_t n, int which) : at_(y.raw()), n_(n), which_(which), narrow_(y.dtype() == bf16) {}
  T* operator[](int64_t row) const { return rows(row, 1); }
  /// m rows from `row` on, one after the other.
  T* rows(int64_t row, [[maybe_unused]] int64_t m) const {
    if constexpr (std::is_same_v<T, float>)
      if (narrow_) return row_memory(which_, m * n_);
    return reinterpret_cast<T*>(at_) + row * n_;
  }
  void done(int64_t row, [[maybe_unused]] int64_t m = 1) const {
    if constexpr (std::is_same_v<T, float>)
      if (narrow_) {
        const float* __restrict__ from = row_memory(which_, m * n_);
        auto* to = reinterpret_cast<BFloat16*>(at_) + row * n_;
        for (int64_t i = 0; i < m * n_; ++i) to[i] = BFloat16(from[i]);
      }
  }

 private:
  std::byte* at_;
  int64_t n_;
  int which_;
  bool narrow_;
};

/// dispatch_float, with float for bf16: for kernels that read and write rows by RowsIn and RowsOut.
template <class F> void dispatch_rows(std::string_view op, DType t, F&& f) {
  dispatch_float(op, t == bf16 ? f32 : t, std::forward<F>(f));
}

}  // namespace sluice::detail
