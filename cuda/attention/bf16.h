// Attention on tensor cores: calls of f32 tensors under Precision::bf16.
#pragma once

#include <sluice/ops/attention/attention_kernels.h>

namespace sluice::cuda {

/// The slots attention and attention_backward on tensor cores. False for a call that the general tiles must serve:
/// another dtype or precision, d and dv not both 64 or both 128, fewer than 16 queries or keys, or any option or rule
/// of the mask beside causal, window, a key mask for all heads, and a sink. Gates are applied if the weighting is
/// softmax or relu².
bool attention_bf16(const sluice::detail::AttentionCall& call, Tensor& out, Tensor& lse);
bool attention_backward_bf16(const sluice::detail::AttentionCall& call, const Tensor& g, const Tensor& lse,
                             const Tensor& delta, sluice::detail::AttentionGradients& out);

}  // namespace sluice::cuda
