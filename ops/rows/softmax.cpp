// y = e^(x−m) / Σ e^(x−m), m = max x          dx = y ⊙ (g − Σ g⊙y)
// z = x − m − log Σ e^(x−m)                    dx = g − e^z · Σ g
//
// The dim lies last, or beside columns (x [outer, n, inner]), or the tensor is transposed so that it lies last.
// The loops of the CPU are in ops/rows/softmax_kernels.cpp.
#include <sluice/ops/rows/softmax.h>

#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>

namespace sluice {

namespace {
Tensor softmax_along(const char* op, const Tensor& x, int64_t dim, bool log);
}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) { return softmax_along("softmax", x, dim, false); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return softmax_along("log_softmax", x, dim, true); }

namespace {

/// dx as ops, which record their own gradients. `y` is the result of the forward pass.
Tensor softmax_gradient(const Tensor& y, const Tensor& g, int d, bool log) {
  const Tensor wide = detail::widened(g), p = detail::widened(y);
  return to(log ? wide - exp(p) * sum(wide, {d}, keep) : p * (wide - sum(wide * p, {d}, keep)), y.dtype());
}

Tensor softmax_along(const char* op, const Tensor& x, int64_t dim, bool log) {
  detail::check_float(op, x);
  const int d = wrap_dim(op, dim, x.rank()), last = x.rank() - 1;
  if (x.rank() == 0) return squeeze(softmax_along(op, unsqueeze(x, 0), 0, log), 0);
  const ReduceShape s = ReduceShape::along(x.shape(), d);
  // Few columns, long ones of numbers that must be widened, and a transposed x, whose columns lie as rows, are faster
  // as rows.
  const bool long_bf16 = x.dtype() == bf16 && x.device() == cpu && s.n > 1024;
  const bool rows = s.inner < 16 || long_bf16 || transpose(x.detach(), d, -1).is_contiguous();
  if (d != last && rows) return transpose(softmax_along(op, transpose(x, d, -1), -1, log), d, -1);
  Tensor y = empty(x.shape(), x.options(), op);
  if (x.numel() > 0 && d == last) kernel::softmax(contiguous(x.detach()), y, log);
  if (x.numel() > 0 && d != last) kernel::softmax_columns(contiguous(x.detach()), y, s, log);
  return record(op, y, {x}, {y}, [log, d, s](const Node& node, const Tensor& g) {
    const Tensor y = node.saved(0);
    if (grad_enabled()) return softmax_gradient(y, g, d, log);
    Tensor dx = empty_like(y);
    if (y.numel() > 0 && d == y.rank() - 1) kernel::softmax_backward(y, contiguous(g), dx, log);
    if (y.numel() > 0 && d != y.rank() - 1) kernel::softmax_columns_backward(y, contiguous(g), dx, s, log);
    return dx;
  });
}

}  // namespace
}  // namespace sluice
