// Scores that depend on the key alone, as columns of K opposite ones in Q. Products round their operands, so each score
// is split into parts that stay exact.
#pragma once

#include <sluice/core/tensor.h>

#include <vector>

namespace sluice::detail {

/// Tensors of `dtype` that add up to w (f32 or f64). Where products round their operands to bf16: three parts of 8 bits
/// each. For f64 in f32: two parts. Otherwise: w alone. The gradient of w flows through the last part.
std::vector<Tensor> exact_parts(const Tensor& w, DType dtype);

}  // namespace sluice::detail
