// y = e^(x−m) / Σ e^(x−m), m = max x          dx = y ⊙ (g − Σ g⊙y)
// z = x − m − log Σ e^(x−m)                    dx = g − e^z · Σ g
#include <sluice/ops/rows/softmax.h>

#include <sluice/core/number/math.h>
#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/rows.h>

namespace sluice {

namespace {

/// Along the last dim of contiguous x.
void softmax_cpu(const Tensor& x, Tensor& y, bool log) {
  const int64_t n = x.dim(-1);
  detail::dispatch_rows("softmax", x.dtype(), [&]<class T>() {
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

Tensor softmax_along(const char* op, const Tensor& x, int64_t dim, bool log) {
  int d = wrap_dim(op, dim, x.rank());
  detail::check_float(op, x);
  if (x.rank() == 0) return squeeze(softmax_along(op, unsqueeze(x, 0), 0, log), 0);
  if (d != x.rank() - 1) return transpose(softmax_along(op, transpose(x, d, -1), -1, log), d, -1);
  Tensor y = empty(x.shape(), x.options());
  if (x.numel() > 0) kernel::softmax(contiguous(x.detach()), y, log);
  return record(op, y, {x}, {y}, [log](const Node& node, const Tensor& g) {
    const Tensor y = node.saved(0);
    if (grad_enabled()) {
      const Tensor wide = detail::widened(g), p = detail::widened(y);
      return to(log ? wide - exp(p) * sum(wide, {-1}, keep) : p * (wide - sum(wide * p, {-1}, keep)), y.dtype());
    }
    Tensor dx = empty_like(y);
    if (y.numel() > 0) kernel::softmax_backward(y, contiguous(g), dx, log);
    return dx;
  });
}

}  // namespace

constinit decltype(kernel::softmax) kernel::softmax{"softmax", &softmax_cpu, Bf16::native};
constinit decltype(kernel::softmax_backward) kernel::softmax_backward{"softmax backward", &softmax_backward_cpu,
                                                                      Bf16::native};

Tensor softmax(const Tensor& x, int64_t dim) { return softmax_along("softmax", x, dim, false); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return softmax_along("log_softmax", x, dim, true); }

}  // namespace sluice
