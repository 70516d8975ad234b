// Attention on tensor cores: calls of bf16 tensors, and of f32 tensors under Precision::bf16.
#pragma once

#include <sluice/ops/attention/attention_kernels.h>

namespace sluice::cuda {

/// What served a call: the general tiles; rungs 3 and 4, or the kernel of few queries; products of matrices.
enum class AttentionServer { tiles, rungs, products };
/// Calls so far, forward and backward.
int64_t attention_calls(AttentionServer by);

/// The slots attention and attention_backward on tensor cores. False for a call that the general tiles must serve:
/// another dtype or precision, fewer than 16 keys, or fewer than 16 queries of f32 or in the backward pass. Rungs 3 and
/// 4, and few.cuh for few queries of bf16, serve even d and dv up to 128 with a causal mask, a window, a key mask for
/// all heads and a sink, rung 4 also chosen blocks of keys (chosen_blocks.h). Rungs apply gates if the weighting is
/// softmax or relu², dv is 64 or 128, and there are no blocks. All else goes to products.h, of bf16 tensors after the
/// caller has widened them.
bool attention_bf16(const sluice::detail::AttentionCall& call, Tensor& out, Tensor& lse);
bool attention_backward_bf16(const sluice::detail::AttentionCall& call, const Tensor& g, const Tensor& lse,
                             const Tensor& delta, sluice::detail::AttentionGradients& out);

}  // namespace sluice::cuda
