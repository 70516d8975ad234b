#include <sluice/ops/scan/causal_conv.h>

#include <sluice/core/node.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/shape/view.h>

namespace sluice {

Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before) {
  const char* op = "causal_conv1d";
  detail::check_float(op, x);
  if (x.rank() < 2 || weight.rank() != 2 || weight.dim(0) < 1 || weight.dim(1) != x.dim(-1))
    fail(op, ": got x=", x, ", weight=", weight, "; need [..., n, c], [width, c]");
  const int64_t n = x.dim(-2), c = x.dim(-1), width = weight.dim(0);
  if (bias.defined() && bias.shape() != Shape{c}) fail(op, ": bias=", bias, " does not fit x=", x, "; need [", c, "]");
  for (const Tensor* t : {&weight, &bias, &before})
    if (t->defined() && t->dtype() != x.dtype())
      fail<DTypeError>(op, ": needs operands of one dtype — got ", t->dtype(), *t, " beside x=", x.dtype(), x);
  if (before.defined()) {
    Shape want = x.shape();
    want[x.rank() - 2] = width - 1;
    if (before.shape() != want) fail(op, ": before=", before, " does not fit x=", x, "; need ", want);
  }
  if (x.dtype() == bf16)
    return to(causal_conv1d(to(x, f32), detail::widened(weight), detail::widened(bias), detail::widened(before)), bf16);
  Shape padded = x.shape();
  padded[x.rank() - 2] = checked_add(op, n, width - 1);
  checked_numel(op, padded);
  const Tensor rows = before.defined() ? cat({before, x}, -2) : pad(x, -2, width - 1, 0);
  Tensor y;
  for (int64_t j = 0; j < width; ++j) {
    const Tensor at = narrow(rows, -2, j, n), w = select(weight, 0, j);
    if (const Tensor& so_far = j == 0 ? bias : y; so_far.defined()) y = map(formula::ScaleOffset{}, at, w, so_far);
    else y = at * w;
  }
  return y;
}

}  // namespace sluice
