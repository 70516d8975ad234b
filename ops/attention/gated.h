// Attention and the gate on its result in one kernel, where a device has one: y ⊙ σ(z) is written without y ever having
// been, and its gradients start from y ⊙ σ(z).
#pragma once

#include <sluice/ops/attention/attention.h>

namespace sluice::detail {

struct MaybeGated {
  Tensor out;
  bool gated;
};
/// attention(q, k, v, options, rng), rank 4, multiplied by σ(gate), gate [batch, heads, m, dv or 1], if the device's kernel
/// does so; else attention() alone. In the sense of attention(), also the gradients.
MaybeGated attention_and_gate(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                              const AttentionOptions& options, Rng* rng = nullptr);
/// False if it never does for such queries at the precision of now: a GPU's tensor cores do.
bool may_gate(const Tensor& q);

}  // namespace sluice::detail
