// einsum: sums of products, written with one letter per dim.
#pragma once

#include <sluice/core/tensor.h>

#include <string_view>
#include <vector>

namespace sluice {

/// einsum("bqhd,bkhd->bhqk", {q, k}): letters shared by operands are matched, letters missing on the right
/// are summed. Without "->" the result has the letters that occur once, in alphabetical order (after the
/// dims of the ellipsis). "..." stands for leading or inner dims that broadcast; a letter repeated within
/// an operand takes its diagonal. Operands are contracted in pairs from left to right, each pair by one
/// batched matmul on views where strides allow it. f32, f64 and bf16; ShapeErrors repeat the equation. Dims of one
/// letter must be equal: a 1 does not stretch.
Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands);

}  // namespace sluice
