// A short convolution along the sequence, each channel on its own: what Mamba, Hyena and gated linear attention have before
// their scans.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// y_t = Σ_j weight_j ⊙ x_{t − (width − 1) + j} + bias, a causal depthwise convolution: x [..., n, c], weight [width, c], its
/// last row that of the token itself (PyTorch's Conv1d has the transpose, [c, 1, width]), bias [c] or undefined. Before the
/// first row stand zeros, or the rows of `before` [..., width − 1, c]. A pass over x for each row of the weight: for few. f32,
/// f64 and bf16, gradients of any order.
Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Tensor& before = {});

}  // namespace sluice
