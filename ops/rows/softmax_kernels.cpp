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
  detail::for_each_short_block<T>(x, n, [=, to = y.raw(), dtype = y.dtype()](const T* columns, int64_t row, int64_t m) {
    T out[detail::kShort<T> * detail::kColumns];
    softmax_of_columns<true>(columns, out, {1, n, m}, m, log);
    detail::copy_strided(reinterpret_cast<const std::byte*>(out), Layout({n, m}), dtype_of<T>(),
                         to + row * n * size_of(dtype), {{n, m}, {1, n}, 0}, dtype);
  });
}

/// Along the last dim of contiguous x.
void softmax_cpu(const Tensor& x, Tensor& y, bool log) {
  const int64_t n = x.dim(-1);
  detail::dispatch_rows("softmax", x.dtype(), [&]<class T>() {
    if (detail::are_short_rows<T>(x.numel() / n, n)) return softmax_short_rows<T>(x, y, log);
    const detail::RowsIn<T> in(x, n, 0);
    const detail::RowsOut<T> out(y, n, 1);
    detail::for_each_row(x.numel() / n, n, [&](int64_t r) {
      const T* __restrict__ p = in[r];
      T* __restrict__ q = out[r];
      T shift;
      const T total =
          detail::row_exp_total(p, n, detail::row_max(p, n), shift, [q](int64_t i, T e) { return q[i] = e; });
      if (log) {
        const T l = math::log(total), by = shift;  // their sum would lose the digits of l at a large shift
        // A line of −inf has log Σ = −inf; keep it −inf instead of −inf − −inf = NaN.
        detail::row_map(p, q, n, [=](T v) { return l == -std::numeric_limits<T>::infinity() ? l : (v - by) - l; });
      } else {
        const T scale = total == T(0) ? T(0) : T(1) / total;
        detail::row_map(q, q, n, [scale](T v) { return v * scale; });
      }
      out.done(r);
    });
  });
}

/// As softmax_cpu(), a block of columns at a time.
void softmax_columns_cpu(const Tensor& x, Tensor& y, ReduceShape s, bool log) {
  dispatch_float("softmax", x.dtype(), [&]<class T>() {
    detail::for_each_columns(s, detail::kColumns,
                             [=, x0 = x.data<T>(), y0 = y.mutable_data<T>()](int64_t at, int64_t m) {
                               softmax_of_columns<false>(x0 + at, y0 + at, s, m, log);
                             });
  });
}

/// dx = y ⊙ (g − Σ g⊙y), or of log-softmax g − e^y · Σ g, of contiguous rows. y is what forward gave.
void softmax_backward_cpu(const Tensor& y, const Tensor& g, Tensor& dx, bool log) {
  const int64_t n = y.dim(-1);
  detail::dispatch_rows("softmax", y.dtype(), [&]<class T>() {
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

/// As softmax_backward_cpu(), a block of columns at a time.
void softmax_columns_backward_cpu(const Tensor& y, const Tensor& g, Tensor& dx, ReduceShape s, bool log) {
  dispatch_float("softmax", y.dtype(), [&]<class T>() {
    const T *y0 = y.data<T>(), *g0 = g.data<T>();
    detail::for_each_columns(s, detail::kColumns, [=, dx0 = dx.mutable_data<T>()](int64_t at, int64_t m) {
      const T *a = y0 + at, *b = g0 + at;
      T* __restrict__ q = dx0 + at;
      T total[detail::kColumns];
      if (log) detail::column_totals<T>(s, m, total, [=](int64_t i, int64_t) { return b[i]; });
      else detail::column_totals<T>(s, m, total, [=](int64_t i, int64_t) { return a[i] * b[i]; });
      for (int64_t r = 0; r < s.n; ++r, a += s.inner, b += s.inner, q += s.inner)
        if (log)
          for (int64_t k = 0; k < m; ++k) q[k] = b[k] - math::exp(a[k]) * total[k];
        else
          for (int64_t k = 0; k < m; ++k) q[k] = a[k] * (b[k] - total[k]);
    });
  });
}

}  // namespace

constinit decltype(kernel::softmax) kernel::softmax{"softmax", &softmax_cpu, Bf16::native};
constinit decltype(kernel::softmax_backward) kernel::softmax_backward{"softmax backward", &softmax_backward_cpu,
                                                                      Bf16::native};
constinit decltype(kernel::softmax_columns) kernel::softmax_columns{"softmax", &softmax_columns_cpu};
constinit decltype(kernel::softmax_columns_backward) kernel::softmax_columns_backward{"softmax backward",
                                                                                      &softmax_columns_backward_cpu};

}  // namespace sluice
