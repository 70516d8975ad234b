// The loops of softmax and log-softmax on the CPU. Which one serves which layout:
//
//   the dim is last, rows of 256 bytes and more     softmax_cpu           a row at a time
//   the dim is last, many shorter rows              softmax_short_rows    128 rows, copied to be columns
//   the dim is not last                             softmax_columns_cpu   128 columns at a time
//
// Each computes m = max x, then Σ e^(x−m) while it stores e^(x−m), then divides (log-softmax: subtracts).
#include <sluice/ops/rows/softmax.h>

#include <sluice/core/kernel/strided.h>
#include <sluice/core/number/math.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/column_exp.h>
#include <sluice/ops/rows/rows.h>
#include <sluice/ops/rows/runs.h>

namespace sluice {

namespace {

/// y_rk = f(x_rk, k) for the rows r of a block of m columns k.
template <class T, class F> void column_map(ReduceShape s, int64_t m, const T* x, T* y, F f) {
  for (int64_t r = 0; r < s.n; ++r, x += s.inner, y += s.inner)
    for (int64_t k = 0; k < m; ++k) y[k] = f(x[k], k);
}

/// (log-)softmax of m columns.
template <bool rows, class T>
void softmax_of_columns(const T* __restrict__ p, T* __restrict__ q, ReduceShape s, int64_t m, bool log) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  T shift[detail::kColumns], total[detail::kColumns], by[detail::kColumns];
  detail::column_exp_totals<rows>(p, s, m, shift, total, [q](int64_t i, T e) { return q[i] = e; });
  if (log) {
    for (int64_t k = 0; k < m; ++k) by[k] = math::log(total[k]);
    column_map(s, m, p, q, [&](T v, int64_t k) { return by[k] == -inf ? by[k] : (v - shift[k]) - by[k]; });
  } else {
    for (int64_t k = 0; k < m; ++k) by[k] = total[k] == T(0) ? T(0) : T(1) / total[k];
    column_map(s, m, q, q, [&](T v, int64_t k) { return v * by[k]; });
  }
}

template <class T> void softmax_short_rows(const Tensor& x, Tensor& y, bool log) {
  const int64_t n = x.dim(-1);
  detail::for_each_short_block<T>(x, n, [=, &y](const T* columns, int64_t row, int64_t m) {
    T out[detail::kShort<T> * detail::kColumns];
    softmax_of_columns<true>(columns, out, {1, n, m}, m, log);
    detail::columns_to_rows(out, y, row, n, m);
  });
}

/// Along the last dim of contiguous x.
void softmax_cpu(const Tensor& x, Tensor& y, bool log) {
  const int64_t n = x.dim(-1);
  detail::dispatch_rows("softmax", x.dtype(), [&]<class T>() {
    if (detail::are_short_rows<T>(x.numel() / n, n)) return softmax_short_rows<T>(x, y, log);
    const detail::RowsIn<T> in(x, n, 0);
    const detail::RowsOut<T> out(y, n, 1);
    detail::for_each_rows(x.numel() / n, n, [&](int64_t row, int64_t m) {
      const T* __restrict__ p = in.part(row * n, m * n);
      T* __restrict__ q = out.rows(row, m);
      T shift[detail::kTogether], total[detail::kTogether];
      for (int64_t r = 0; r < m; ++r) shift[r] = detail::row_max(p + r * n, n);
      for (int64_t r = 0; r < m; ++r)
        total[r] = detail::row_exp_total(p + r * n, n, shift[r], shift[r],
                                         [to = q + r * n](int64_t i, T e) { return to[i] = e; });
      for (int64_t r = 0; r < m; ++r) {
        const T *from = p + r * n, by = shift[r];
        T* to = q + r * n;
        if (log) {
          const T l = math::log(total[r]);  // beside `by`, the sum would lose the digits of l at a large shift
          // A line of −inf has log Σ = −inf; keep it −inf instead of −inf − −inf = NaN.
          detail::row_map(from, to, n,
                          [=](T v) { return l == -std::numeric_limits<T>::infinity() ? l : (v - by) - l; });
        } else {
          const T scale = total[r] == T(0) ? T(0) : T(1) / total[r];
          detail::row_map(to, to, n, [scale](T v) { return v * scale; });
        }
      }
      out.done(row, m);
    });
  });
}

/// Columns of x, from `at` on, and where they lie: in place, or, of bf16, as a copy in f32.
template <class T> struct Columns {
  T* p;
  ReduceShape s;
};
template <class T> Columns<T> columns_of(const Tensor& x, ReduceShape s, int64_t at, int64_t m, int which) {
  if (x.dtype() != bf16) return {reinterpret_cast<T*>(x.raw()) + at, s};
  return {reinterpret_cast<T*>(detail::row_memory(which, s.n * m)), {1, s.n, m}};
}
template <class T> Columns<const T> columns_in(const Tensor& x, ReduceShape s, int64_t at, int64_t m, int which) {
  const Columns<T> to = columns_of<T>(x, s, at, m, which);
  if constexpr (std::is_same_v<T, float>)
    if (x.dtype() == bf16) {
      const BFloat16* from = x.data<BFloat16>() + at;
      for (int64_t r = 0; r < s.n; ++r)
        for (int64_t k = 0; k < m; ++k) to.p[r * m + k] = static_cast<float>(from[r * s.inner + k]);
    }
  return {to.p, to.s};
}
/// Rounds columns that are a copy.
template <class T> void columns_done(Columns<T> from, Tensor& y, ReduceShape s, int64_t at, int64_t m) {
  if (y.dtype() != bf16) return;
  BFloat16* to = y.mutable_data<BFloat16>() + at;
  for (int64_t r = 0; r < s.n; ++r)
    for (int64_t k = 0; k < m; ++k) to[r * s.inner + k] = BFloat16(static_cast<float>(from.p[r * m + k]));
}
/// Columns of a block: of bf16 fewer than kColumns where they are long, so that their copies stay in L1.
int64_t columns_at_once(DType dtype, ReduceShape s) {
  return dtype == bf16 ? std::clamp<int64_t>(4096 / s.n / 32 * 32, 32, detail::kColumns) : detail::kColumns;
}

/// As softmax_cpu(), a block of columns at a time. Of bf16 with the bits of softmax_cpu().
void softmax_columns_cpu(const Tensor& x, Tensor& y, ReduceShape s, bool log) {
  detail::dispatch_rows("softmax", x.dtype(), [&]<class T>() {
    detail::for_each_columns(s, columns_at_once(x.dtype(), s), [&](int64_t at, int64_t m) {
      const Columns<const T> from = columns_in<T>(x, s, at, m, 0);
      const Columns<T> to = columns_of<T>(y, s, at, m, 1);
      if (x.dtype() == bf16) softmax_of_columns<true>(from.p, to.p, from.s, m, log);
      else softmax_of_columns<false>(from.p, to.p, from.s, m, log);
      columns_done(to, y, s, at, m);
    });
  });
}

/// dx [n, m], in q, which may be b.
template <bool rows, class T>
void softmax_of_columns_backward(const T* a, const T* b, T* q, ReduceShape s, int64_t m, bool log) {
  T total[detail::kColumns];
  const auto totals = [&](auto term) {
    if constexpr (rows) detail::row_totals<T>(s, m, total, term);
    else detail::column_totals<T>(s, m, total, term);
  };
  if (log) totals([=](int64_t i, int64_t) { return b[i]; });
  else totals([=](int64_t i, int64_t) { return a[i] * b[i]; });
  for (int64_t r = 0; r < s.n; ++r, a += s.inner, b += s.inner, q += s.inner)
    if (log) {
      SLUICE_VECTORIZE
      for (int64_t k = 0; k < m; ++k) q[k] = b[k] - math::exp(a[k]) * total[k];
    } else {
      SLUICE_VECTORIZE
      for (int64_t k = 0; k < m; ++k) q[k] = a[k] * (b[k] - total[k]);
    }
}
template <class T> void softmax_short_rows_backward(const Tensor& y, const Tensor& g, Tensor& dx, bool log) {
  const int64_t n = y.dim(-1);
  detail::for_each_short_block<T>(y, n, [=, &g, &dx](const T* columns, int64_t row, int64_t m) {
    T other[detail::kShort<T> * detail::kColumns];
    detail::rows_to_columns(g, row, n, m, other);
    softmax_of_columns_backward<true>(columns, other, other, {1, n, m}, m, log);
    detail::columns_to_rows(other, dx, row, n, m);
  });
}

/// dx = y ⊙ (g − Σ g⊙y), or of log-softmax g − e^y · Σ g, of contiguous rows. y is what forward gave.
void softmax_backward_cpu(const Tensor& y, const Tensor& g, Tensor& dx, bool log) {
  const int64_t n = y.dim(-1);
  detail::dispatch_rows("softmax", y.dtype(), [&]<class T>() {
    // Where little is computed, only the shortest rows repay the copies.
    const int64_t few = log || y.dtype() == bf16 ? 32 : 8;
    if (n < few && detail::are_short_rows<T>(y.numel() / n, n)) return softmax_short_rows_backward<T>(y, g, dx, log);
    const detail::RowsIn<T> py(y, n, 0), pg(g, n, 1);
    const detail::RowsOut<T> out(dx, n, 2);
    detail::for_each_row(y.numel() / n, n, [&](int64_t r) {
      const T *a = py[r], *b = pg[r];
      T* q = out[r];
      if (log) {
        const T total = detail::row_sum(b, n);
        for (int64_t i = 0; i < n; ++i) q[i] = b[i] - math::exp(a[i]) * total;
      } else {
        const T dot = detail::row_dot(a, b, n);
        for (int64_t i = 0; i < n; ++i) q[i] = a[i] * (b[i] - dot);
      }
      out.done(r);
    });
  });
}

/// As softmax_backward_cpu(), a block of columns at a time. Of bf16 with the bits of softmax_backward_cpu().
void softmax_columns_backward_cpu(const Tensor& y, const Tensor& g, Tensor& dx, ReduceShape s, bool log) {
  detail::dispatch_rows("softmax", y.dtype(), [&]<class T>() {
    detail::for_each_columns(s, columns_at_once(y.dtype(), s), [&](int64_t at, int64_t m) {
      const Columns<const T> a = columns_in<T>(y, s, at, m, 0), b = columns_in<T>(g, s, at, m, 1);
      const Columns<T> to = columns_of<T>(dx, s, at, m, 2);
      if (y.dtype() == bf16) softmax_of_columns_backward<true>(a.p, b.p, to.p, a.s, m, log);
      else softmax_of_columns_backward<false>(a.p, b.p, to.p, a.s, m, log);
      columns_done(to, dx, s, at, m);
    });
  });
}

}  // namespace

constinit decltype(kernel::softmax) kernel::softmax{"softmax", &softmax_cpu, Bf16::native};
constinit decltype(kernel::softmax_backward) kernel::softmax_backward{"softmax backward", &softmax_backward_cpu,
                                                                      Bf16::native};
constinit decltype(kernel::softmax_columns) kernel::softmax_columns{"softmax", &softmax_columns_cpu, Bf16::native};
constinit decltype(kernel::softmax_columns_backward) kernel::softmax_columns_backward{
    "softmax backward", &softmax_columns_backward_cpu, Bf16::native};

}  // namespace sluice
