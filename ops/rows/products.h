// Running products in ops, and their gradient, for prod and cumprod.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice::detail {

/// y_i = Π_{j<=i} x_j along dim d.
Tensor composed_cumprod(Tensor x, int d);
/// Gradient of the running products of x along d from g of their shape; or, with g of size 1 along d, of the last
/// ones: of prod(x, {d}).
Tensor cumprod_vjp(const Tensor& x, const Tensor& g, int d);

}  // namespace sluice::detail
