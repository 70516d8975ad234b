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

/// join of all lanes, by halves. Unrolled for certain: loops over each half would take longer than short rows.
template <int lanes, class T, class Join> T lanes_joined(T* lane, Join join) {
  if constexpr (lanes == 1) return lane[0];
  else {
    for (int k = 0; k < lanes / 2; ++k) lane[k] = join(lane[k], lane[k + lanes / 2]);
    return lanes_joined<lanes / 2>(lane, join);
  }
}

/// Σ term(i), i < n. term may also store what it computes. The rest of a row is cut in halves, so that it vectorises.
template <class T, class Term> T row_total(int64_t n, Term term) {
  T lane[kRowLanes] = {};
  int64_t i = 0;
  for (; i + kRowLanes <= n; i += kRowLanes)
    for (int k = 0; k < kRowLanes; ++k) lane[k] += term(i + k);
  if (i + 8 <= n) {
    for (int k = 0; k < 8; ++k) lane[k] += term(i + k);
    i += 8;
  }
  if (i + 4 <= n) {
    for (int k = 0; k < 4; ++k) lane[k] += term(i + k);
    i += 4;
  }
  for (int k = 0; i < n; ++i, ++k) lane[k] += term(i);
  return lanes_joined<kRowLanes>(lane, [](T a, T b) { return a + b; });
}
/// The lane to which row_total() adds term i of n.
inline int row_lane(int64_t i, int64_t n) {
  int lane = static_cast<int>(i % kRowLanes);
  if (i < n - n % kRowLanes) return lane;
  for (int part : {8, 4})
    if (n & part) {
      if (lane < part) return lane;
      lane -= part;
    }
  return lane;
}
template <class T> T row_sum(const T* x, int64_t n) {
  return row_total<T>(n, [x](int64_t i) { return x[i]; });
}
template <class T> T row_dot(const T* a, const T* b, int64_t n) {
  return row_total<T>(n, [a, b](int64_t i) { return a[i] * b[i]; });
}
/// Not inlined, so that the loops of long rows keep their registers: join(start, x₀, …, x_{n−1}) for n < 64;
/// join(start, x) is x.
template <class T, class X, class Join> [[gnu::noinline]] T few_joined(const X* x, int64_t n, T start, Join join) {
  constexpr int lanes = 16;
  int64_t i = 0;
  if (n >= lanes) {
    T lane[lanes];
    std::fill_n(lane, lanes, start);
    for (; i + lanes <= n; i += lanes)
      for (int k = 0; k < lanes; ++k) lane[k] = join(lane[k], T(x[i + k]));
    start = lanes_joined<lanes>(lane, join);
  }
  for (; i < n; ++i) start = join(start, T(x[i]));
  return start;
}
/// join(start, x₀, …, x_{n−1}) of an associative join with the neutral `start`, in a fixed order. By 64 lanes, because
/// a loop of 16 is unrolled completely, and its selects stay scalar. The rest of a row is taken with some of what came
/// before, which counts as `start`, or, if join(x, x) is x, again.
template <bool idempotent, class T, class X, class Join> T row_joined(const X* x, int64_t n, T start, Join join) {
  constexpr int lanes = 64;
  if (n < lanes) return few_joined(x, n, start, join);
  T lane[lanes];
  std::fill_n(lane, lanes, start);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int k = 0; k < lanes; ++k) lane[k] = join(lane[k], T(x[i + k]));
  if (i < n) {
    const int before = static_cast<int>(lanes - (n - i));
    x += n - lanes;
    for (int k = 0; k < lanes; ++k) {
      const T v = T(x[k]);
      lane[k] = join(lane[k], idempotent || k >= before ? v : start);
    }
  }
  return lanes_joined<lanes>(lane, join);
}
/// Largest element that is not NaN; −∞ if there is none. (Where NaN matters, the sum of exponentials is NaN.)
template <class T> T row_max(const T* x, int64_t n) {
  return row_joined<true>(x, n, -std::numeric_limits<T>::infinity(), [](T top, T y) { return y > top ? y : top; });
}
/// Σ e^(x_i − shift) of a row whose largest element is m. Each term passes through keep(i, term), which returns it. The
/// shift is m, or 0 where m is infinite: there e^x itself is right.
template <class T, class Keep> T row_exp_total(const T* __restrict__ x, int64_t n, T m, T& shift, Keep keep) {
  const T by = shift = m - m == T(0) ? m : T(0);
  if (m == std::numeric_limits<T>::infinity())
    return row_total<T>(n, [=](int64_t i) { return keep(i, math::exp(x[i])); });
  return row_total<T>(n, [=](int64_t i) { return keep(i, math::exp_low(x[i] - by)); });
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

/// Writes rows as RowsIn reads them. done(row) rounds a row of bf16.
template <class T> class RowsOut {
 public:
  RowsOut(Tensor& y, int64_t n, int which) : at_(y.raw()), n_(n), which_(which), narrow_(y.dtype() == bf16) {}
  T* operator[](int64_t row) const {
    if constexpr (std::is_same_v<T, float>)
      if (narrow_) return row_memory(which_, n_);
    return reinterpret_cast<T*>(at_) + row * n_;
  }
  void done(int64_t row) const {
    if constexpr (std::is_same_v<T, float>)
      if (narrow_) {
        const float* __restrict__ from = row_memory(which_, n_);
        auto* to = reinterpret_cast<BFloat16*>(at_) + row * n_;
        for (int64_t i = 0; i < n_; ++i) to[i] = BFloat16(from[i]);
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
