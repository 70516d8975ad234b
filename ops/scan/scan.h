// Running sums and products.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

struct CumsumOptions {
  bool exclusive = false;  // entry i leaves itself out: 0, x0, x0 + x1, …
  bool reverse = false;    // from the end towards the start
};

/// y_i = Σ_{j<=i} x_j along dim: cumsum(x, -1, {.exclusive = true, .reverse = true}). Floats are
/// accumulated in f64. Integers keep their dtype and wrap around; bool counts as i64. A scalar has one entry, along dim
/// 0. Throws ShapeError for a dim that x does not have.
Tensor cumsum(const Tensor& x, int64_t dim, CumsumOptions options = {});

/// y_i = Π_{j<=i} x_j along dim, in f64. Gradients do not divide by x, so they are exact at zeros too. Integers wrap
/// around; bool counts as i64. Scalars and errors as of cumsum().
Tensor cumprod(const Tensor& x, int64_t dim);

}  // namespace sluice
