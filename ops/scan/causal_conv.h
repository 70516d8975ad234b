// A short convolution along the sequence, each channel on its own. Mamba, Hyena and gated linear attention apply it
// before their scans.
#pragma once

#include <sluice/core/tensor.h>
#include <sluice/ops/elementwise/activation.h>

namespace sluice {

/// Causal depthwise convolution: y_t = act(Σ_j weight_j ⊙ x_{t − (width − 1) + j} + bias). x [..., n, c]; weight
/// [width, c], its last row for the token itself (PyTorch's Conv1d has the transpose, [c, 1, width]); bias [c] or
/// undefined. The rows before the first are zeros, or `before` [..., width − 1, c]. SiLU costs no extra pass and saves
/// nothing for the gradient. f32, f64 and bf16; gradients of any order.
Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Tensor& before = {},
                     Act activation = Act::identity);

}  // namespace sluice
