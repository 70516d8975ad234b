// Scores that depend on the key alone, as columns of K beside ones in Q: what products round must be kept in parts.
#pragma once

#include <sluice/core/tensor.h>

#include <vector>

namespace sluice::detail {

/// Tensors of `dtype`, to which w (f32 or f64) adds up in products with 1; the gradient of w goes through the last one.
/// Where products round their operands to bf16 there are three, of 8 bits each; of f64 in f32 there are two; else w
/// alone.
std::vector<Tensor> exact_parts(const Tensor& w, DType dtype);

}  // namespace sluice::detail
