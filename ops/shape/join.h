// Boxes of a tensor and their adjoint: slicing and padding are made of them.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice::detail {

/// The view x[starts[d] + i·steps[d]] of the given sizes.
Tensor region(const Tensor& x, const Shape& starts, const Shape& sizes, const Shape& steps);
/// A tensor of shape `full` holding x in that box and `value` elsewhere: the adjoint of region.
Tensor embed(const Tensor& x, const Shape& full, const Shape& starts, const Shape& steps, double value);

}  // namespace sluice::detail
