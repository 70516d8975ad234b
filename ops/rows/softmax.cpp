// y = e^(x−m) / Σ e^(x−m), m = max x          dx = y ⊙ (g − Σ g⊙y)
// z = x − m − log Σ e^(x−m)                    dx = g − e^z · Σ g
// logsumexp: m + log Σ e^(x−m)                 dx = g · y, made of ops (ops/rows/reduce.cpp)
#include <sluice/ops/rows/softmax.h>

#include <sluice/core/number/math.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/rows.h>
#include <sluice/ops/rows/runs.h>

namespace sluice {

namespace {

/// dx for softmax (y and g) or log-softmax, rows contiguous.
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

/// Columns at a time: long pieces of rows whose distances, powers of two, give them one place in the caches.
constexpr int64_t kWidth = 128;

/// Rows of less than kShort numbers are copied to be columns where there are many: their maxima and sums, across a
/// vector, would take longer than the rest.
template <class T> constexpr int64_t kShort = 256 / sizeof(T);
template <class T> bool short_rows(int64_t rows, int64_t n) { return n < kShort<T> && rows >= kWidth / 4; }

/// total[k] = Σ_r term(r·inner + k, k), k < m. Sums of 128 rows are added, so that long columns lose no more digits
/// than rows. term may also store what it computes.
template <class T, class Total, class Term> void column_totals(ReduceShape s, int64_t m, Total* total, Term term) {
  std::fill_n(total, m, Total(0));
  for (int64_t b = 0; b < s.n; b += 128) {
    T part[kWidth] = {};
    for (int64_t r = b; r < std::min(s.n, b + 128); ++r)
      for (int64_t k = 0; k < m; ++k) part[k] += term(r * s.inner + k, k);
    for (int64_t k = 0; k < m; ++k) total[k] += part[k];
  }
}
/// As column_totals(), but each sum has the bits of detail::row_total().
template <class T, class Total, class Term> void row_totals(ReduceShape s, int64_t m, Total* total, Term term) {
  constexpr int64_t lanes = detail::kRowLanes;
  T lane[lanes][kWidth] = {};
  int64_t r = 0;
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

/// detail::row_max() and detail::row_exp_total() of m columns, or of m rows that were copied to be columns.
template <bool rows, class T, class Total, class Keep>
void column_exp_totals(const T* __restrict__ p, ReduceShape s, int64_t m, T* shift, Total* total, Keep keep) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  T top[kWidth];
  std::fill_n(top, m, -inf);
  for (int64_t r = 0; r < s.n; ++r)
    for (int64_t k = 0; k < m; ++k) top[k] = p[r * s.inner + k] > top[k] ? p[r * s.inner + k] : top[k];
  bool infinite = false;
  for (int64_t k = 0; k < m; ++k) shift[k] = top[k] - top[k] == T(0) ? top[k] : T(0), infinite |= top[k] == inf;
  const auto add_up = [&](auto exp) {
    const auto term = [&](int64_t i, int64_t k) { return keep(i, exp(p[i] - shift[k])); };
    if constexpr (rows) row_totals<T>(s, m, total, term);
    else column_totals<T>(s, m, total, term);
  };
  if (infinite) add_up([](T v) { return math::exp(v); });
  else add_up([](T v) { return math::exp_low(v); });
}

/// y_rk = f(x_rk, k) for the rows r of a block of m columns k.
template <class T, class F> void column_map(ReduceShape s, int64_t m, const T* x, T* y, F f) {
  for (int64_t r = 0; r < s.n; ++r, x += s.inner, y += s.inner)
    for (int64_t k = 0; k < m; ++k) y[k] = f(x[k], k);
}

/// (log-)softmax of m columns.
template <bool rows, class T>
void softmax_of_columns(const T* __restrict__ p, T* __restrict__ q, ReduceShape s, int64_t m, bool log) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  T shift[kWidth], total[kWidth], by[kWidth];
  column_exp_totals<rows>(p, s, m, shift, total, [q](int64_t i, T e) { return q[i] = e; });
  if (log) {
    for (int64_t k = 0; k < m; ++k) by[k] = math::log(total[k]);
    column_map(s, m, p, q, [&](T v, int64_t k) { return by[k] == -inf ? by[k] : (v - shift[k]) - by[k]; });
  } else {
    for (int64_t k = 0; k < m; ++k) by[k] = total[k] == T(0) ? T(0) : T(1) / total[k];
    column_map(s, m, q, q, [&](T v, int64_t k) { return v * by[k]; });
  }
}

/// As softmax_cpu(), a block of columns at a time.
void softmax_columns_cpu(const Tensor& x, Tensor& y, ReduceShape s, bool log) {
  dispatch_float("softmax", x.dtype(), [&]<class T>() {
    detail::for_each_columns(s, kWidth, [=, x0 = x.data<T>(), y0 = y.mutable_data<T>()](int64_t at, int64_t m) {
      softmax_of_columns<false>(x0 + at, y0 + at, s, m, log);
    });
  });
}

/// f(columns, row, m) for blocks of m rows of x as columns [n, m], in parallel.
template <class T, class F> void for_each_short_block(const Tensor& x, int64_t n, F f) {
  const int64_t rows = x.numel() / n;
  detail::for_each_row(ceil_div(rows, kWidth), n * kWidth, [=, from = x.raw(), dtype = x.dtype()](int64_t i) {
    const int64_t row = i * kWidth, m = std::min(kWidth, rows - row);
    T columns[kShort<T> * kWidth];
    detail::copy_strided(from + row * n * size_of(dtype), {{n, m}, {1, n}, 0}, dtype,
                         reinterpret_cast<std::byte*>(columns), Layout({n, m}), dtype_of<T>());
    f(columns, row, m);
  });
}

template <class T> void softmax_short_rows(const Tensor& x, Tensor& y, bool log) {
  const int64_t n = x.dim(-1);
  for_each_short_block<T>(x, n, [=, to = y.raw(), dtype = y.dtype()](const T* columns, int64_t row, int64_t m) {
    T out[kShort<T> * kWidth];
    softmax_of_columns<true>(columns, out, {1, n, m}, m, log);
    detail::copy_strided(reinterpret_cast<const std::byte*>(out), Layout({n, m}), dtype_of<T>(),
                         to + row * n * size_of(dtype), {{n, m}, {1, n}, 0}, dtype);
  });
}

/// Along the last dim of contiguous x.
void softmax_cpu(const Tensor& x, Tensor& y, bool log) {
  const int64_t n = x.dim(-1);
  detail::dispatch_rows("softmax", x.dtype(), [&]<class T>() {
    if (short_rows<T>(x.numel() / n, n)) return softmax_short_rows<T>(x, y, log);
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

void softmax_columns_backward_cpu(const Tensor& y, const Tensor& g, Tensor& dx, ReduceShape s, bool log) {
  dispatch_float("softmax", y.dtype(), [&]<class T>() {
    const T *y0 = y.data<T>(), *g0 = g.data<T>();
    detail::for_each_columns(s, kWidth, [=, dx0 = dx.mutable_data<T>()](int64_t at, int64_t m) {
      const T *a = y0 + at, *b = g0 + at;
      T* __restrict__ q = dx0 + at;
      T total[kWidth];
      if (log) column_totals<T>(s, m, total, [=](int64_t i, int64_t) { return b[i]; });
      else column_totals<T>(s, m, total, [=](int64_t i, int64_t) { return a[i] * b[i]; });
      for (int64_t r = 0; r < s.n; ++r, a += s.inner, b += s.inner, q += s.inner)
        if (log)
          for (int64_t k = 0; k < m; ++k) q[k] = b[k] - math::exp(a[k]) * total[k];
        else
          for (int64_t k = 0; k < m; ++k) q[k] = a[k] * (b[k] - total[k]);
    });
  });
}

/// Where logarithms go, of f32, f64 or bf16. Its loops are apart from those of the sums, which would be compiled for
/// each dtype.
struct Logs {
  std::byte* y;
  DType dtype;
  /// y_k = log total_k + shift_k for m elements from `first` on, in the wider of both types.
  template <class T> [[gnu::noinline]] void store(int64_t first, const T* shift, const double* total, int64_t m) const {
    const auto as = [&]<class Y>() {
      using Wide = std::conditional_t<std::is_same_v<Y, double>, double, T>;
      detail::vectorised([=, to = reinterpret_cast<Y*>(y) + first] {
        for (int64_t k = 0; k < m; ++k)
          to[k] = static_cast<Y>(math::log(static_cast<Wide>(total[k])) + static_cast<Wide>(shift[k]));
      });
    };
    if (dtype == f32) as.template operator()<float>();
    else if (dtype == f64) as.template operator()<double>();
    else as.template operator()<BFloat16>();
  }
};

/// y [outer, pieces, inner]: log Σ e^x of pieces, of `length` entries but the last one, of the lines of
/// x [outer, n, inner].
template <class T> void logsumexp_of_pieces(const Tensor& x, Logs y, ReduceShape s, int64_t length) {
  const int64_t pieces = ceil_div(s.n, length), lines = s.outer * pieces, blocks = ceil_div(s.inner, kWidth);
  const auto first = [=](int64_t line) { return line / pieces * s.n + line % pieces * length; };
  const auto size = [=](int64_t line) { return std::min(length, s.n - line % pieces * length); };
  if (s.inner > 1)
    return detail::for_each_row(lines * blocks, length * std::min(s.inner, kWidth), [=, x0 = x.data<T>()](int64_t i) {
      const int64_t line = i / blocks, column = i % blocks * kWidth, m = std::min(kWidth, s.inner - column);
      T shift[kWidth];
      double total[kWidth];
      column_exp_totals<false>(x0 + first(line) * s.inner + column, {1, size(line), s.inner}, m, shift, total,
                               [](int64_t, T e) { return e; });
      y.store(line * s.inner + column, shift, total, m);
    });
  if (short_rows<T>(lines, s.n))
    return for_each_short_block<T>(x, s.n, [=](const T* columns, int64_t row, int64_t m) {
      T shift[kWidth];
      double total[kWidth];
      column_exp_totals<true>(columns, {1, s.n, m}, m, shift, total, [](int64_t, T e) { return e; });
      y.store(row, shift, total, m);
    });
  const detail::RowsIn<T> in(x, s.n, 0);
  const int64_t group = std::clamp<int64_t>((1 << 14) / length, 1, kWidth);  // so that logarithms are vectors, too
  detail::for_each_row(ceil_div(lines, group), group * length, [=](int64_t i) {
    const int64_t begin = i * group, m = std::min(group, lines - begin);
    T shift[kWidth];
    double total[kWidth] = {};
    for (int64_t k = 0; k < m; ++k) {
      constexpr int64_t block = 1024;  // sums of T are at most this long
      const int64_t n = size(begin + k);
      const T* p = in.part(first(begin + k), n);
      const T top = detail::row_max(p, n);
      for (int64_t b = 0; b < n; b += block)
        total[k] += detail::row_exp_total(p + b, std::min(block, n - b), top, shift[k], [](int64_t, T e) { return e; });
    }
    y.store(begin, shift, total, m);
  });
}

/// Long lines in pieces, in parallel, and then of what these give.
void logsumexp_cpu(const Tensor& x, Tensor& y, ReduceShape s) {
  constexpr int64_t task = 1 << 15;
  const int64_t width = std::min(s.inner, kWidth);
  const Logs out{y.raw(), y.dtype()};
  detail::dispatch_rows("logsumexp", x.dtype(), [&]<class T>() {
    if (s.n * width <= 2 * task) return logsumexp_of_pieces<T>(x, out, s, s.n);
    const int64_t length = task / width, pieces = ceil_div(s.n, length);
    Tensor part = empty({s.outer, pieces, s.inner}, {f64});
    logsumexp_of_pieces<T>(x, {part.raw(), f64}, s, length);
    logsumexp_of_pieces<double>(part, out, {s.outer, pieces, s.inner}, pieces);
  });
}

Tensor softmax_along(const char* op, const Tensor& x, int64_t dim, bool log) {
  detail::check_float(op, x);
  const int d = wrap_dim(op, dim, x.rank()), last = x.rank() - 1;
  if (x.rank() == 0) return squeeze(softmax_along(op, unsqueeze(x, 0), 0, log), 0);
  const ReduceShape s = ReduceShape::along(x.shape(), d);
  // Few columns, numbers that must be widened, and a transposed x, whose columns lie as rows, are faster as rows.
  const bool narrow = x.dtype() == bf16 && x.device() == cpu;
  const bool rows = s.inner < 16 || narrow || transpose(x.detach(), d, -1).is_contiguous();
  if (d != last && rows) return transpose(softmax_along(op, transpose(x, d, -1), -1, log), d, -1);
  Tensor y = empty(x.shape(), x.options());
  if (x.numel() > 0 && d == last) kernel::softmax(contiguous(x.detach()), y, log);
  if (x.numel() > 0 && d != last) kernel::softmax_columns(contiguous(x.detach()), y, s, log);
  return record(op, y, {x}, {y}, [log, d, s](const Node& node, const Tensor& g) {
    const Tensor y = node.saved(0);
    if (grad_enabled()) {
      const Tensor wide = detail::widened(g), p = detail::widened(y);
      return to(log ? wide - exp(p) * sum(wide, {d}, keep) : p * (wide - sum(wide * p, {d}, keep)), y.dtype());
    }
    Tensor dx = empty_like(y);
    if (y.numel() > 0 && d == y.rank() - 1) kernel::softmax_backward(y, contiguous(g), dx, log);
    if (y.numel() > 0 && d != y.rank() - 1) kernel::softmax_columns_backward(y, contiguous(g), dx, s, log);
    return dx;
  });
}

}  // namespace

constinit decltype(kernel::softmax) kernel::softmax{"softmax", &softmax_cpu, Bf16::native};
constinit decltype(kernel::softmax_backward) kernel::softmax_backward{"softmax backward", &softmax_backward_cpu,
                                                                      Bf16::native};
constinit decltype(kernel::softmax_columns) kernel::softmax_columns{"softmax", &softmax_columns_cpu};
constinit decltype(kernel::softmax_columns_backward) kernel::softmax_columns_backward{"softmax backward",
                                                                                      &softmax_columns_backward_cpu};
constinit decltype(kernel::logsumexp) kernel::logsumexp{"logsumexp", &logsumexp_cpu, Bf16::native};

Tensor softmax(const Tensor& x, int64_t dim) { return softmax_along("softmax", x, dim, false); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return softmax_along("log_softmax", x, dim, true); }

}  // namespace sluice
