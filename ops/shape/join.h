// Boxes of a tensor and their adjoint, of which slicing and padding are made; blocks of a dim; and the limit of ranks.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice::detail {

/// The view x[starts[d] + i·steps[d]] of the given sizes.
Tensor region(const Tensor& x, const Shape& starts, const Shape& sizes, const Shape& steps);
/// A tensor of shape `full` holding x in that box and `value` elsewhere: the adjoint of region.
Tensor embed(const Tensor& x, const Shape& full, const Shape& starts, const Shape& steps, double value);
/// x with dim in blocks, of n if `block` is more, the last one filled up with `value`: [..., ⌈n/block⌉, block, ...].
Tensor in_blocks(const Tensor& x, int64_t dim, int64_t block, double value = 0);
/// ShapeError naming `op`, which got x, if a tensor cannot have `rank` dims.
void check_rank(const char* op, int rank, const Tensor& x);

}  // namespace sluice::detail
