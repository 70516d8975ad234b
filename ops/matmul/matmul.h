// Matrix products. Transposed and batch-strided operands are handed to GEMM as they are, never copied.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// Matrix product over the last two dims: [..., n, k] · [..., k, m] → [..., n, m]. Leading dims
/// broadcast. A rank-1 operand is a row (left) or column (right) and its dim disappears. A rank-2 right
/// operand under leading dims on the left is one GEMM over all rows, with no broadcast copy.
/// f32, f64, and bf16 with sums in f32. Throws ShapeError when inner dimensions differ.
Tensor matmul(const Tensor& a, const Tensor& b);

/// x·W + b → [..., out]: x [..., in], weight [in, out], bias [out] or undefined. The matmul kernel adds the bias.
/// Throws ShapeError when sizes do not fit.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// a_i·b_j [n, m] of a [n] and b [m], elementwise: exact for integers, too.
Tensor outer(const Tensor& a, const Tensor& b);

}  // namespace sluice
