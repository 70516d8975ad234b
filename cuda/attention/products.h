// Attention on tensor cores with the scores in memory: every option, any widths.
#pragma once

#include <sluice/ops/attention/attention_kernels.h>

namespace sluice::cuda {

/// Bytes that a call may take for scores and weights; longer calls are computed in slices.
extern int64_t attention_products_bytes;
/// The least d + dv. Narrower calls fill little of a tensor core's tile, and the general tiles do not round weights.
extern int64_t attention_products_width;

/// The slots attention and attention_backward for f32 and bf16 tensors, with operands rounded to bf16. False for a call
/// that the general tiles must serve: without cuBLASLt, with fewer than 16 queries or keys, narrower than
/// attention_products_width, or where 16 rows of scores exceed attention_products_bytes. They apply no gate.
bool attention_by_products(const sluice::detail::AttentionCall& call, Tensor& out, Tensor& lse);
bool attention_backward_by_products(const sluice::detail::AttentionCall& call, const Tensor& g, const Tensor& lse,
                                    const Tensor& delta, sluice::detail::AttentionGradients& out);

}  // namespace sluice::cuda
