// Attention and the gate on its result in one kernel, on devices that have one: the kernel writes y ⊙ σ(z) and never y,
// and its gradients start from y ⊙ σ(z).
#pragma once

#include <sluice/ops/attention/attention.h>

namespace sluice::detail {

struct MaybeGated {
  Tensor out;
  bool gated;
};
/// attention(q, k, v, options, rng) of rank 4, multiplied by σ(gate), gate [batch, heads, m, dv or 1], if the device's
/// kernel can gate; otherwise attention() alone. `gated` tells which. Gradients as for attention().
MaybeGated attention_and_gate(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                              const AttentionOptions& options, Rng* rng = nullptr);
/// Returns false if attention_and_gate() cannot gate such queries at the current precision. Only a GPU's tensor cores
/// can.
bool may_gate(const Tensor& q);

}  // namespace sluice::detail
