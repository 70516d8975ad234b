// Attention on tensor cores: calls of f32 tensors under Precision::bf16.
#pragma once

#include <sluice/ops/attention/attention_kernels.h>

namespace sluice::cuda {

/// What the slots attention and attention_backward fill, or false for a call that the general tiles must answer: another
/// dtype or precision, d and dv not both 64 or both 128, fewer than 16 queries or keys, an option or a rule of the mask
/// beside causal, window, a key mask for all heads, and a sink. Gates of calls with softmax or relu² are applied.
bool attention_bf16(const sluice::detail::AttentionCall& call, Tensor& out, Tensor& lse);
bool attention_backward_bf16(const sluice::detail::AttentionCall& call, const Tensor& g, const Tensor& lse,
                             const Tensor& delta, sluice::detail::AttentionGradients& out);

}  // namespace sluice::cuda
