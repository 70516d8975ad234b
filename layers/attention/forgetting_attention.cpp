#include <sluice/layers/attention/forgetting_attention.h>

namespace sluice {

ForgettingAttentionOptions forgetting_pro_options(HeadsOptions heads) {
  return {.heads = std::move(heads), .kv_shift = true, .qk_norm = true, .output_norm = true, .output_gate = true};
}

MultiHeadAttentionOptions forgetting_attention_options(const ForgettingAttentionOptions& o) {
  MultiHeadAttentionOptions m{.heads = checked_layer("forgetting_attention", o).heads};
  m.heads.causal = true;
  m.forget = {o.gate, o.gate_bias, o.decay_first, o.decay_last}, m.kv_shift = o.kv_shift;
  m.qk_norm = o.qk_norm, m.qk_norm_eps = o.qk_norm_eps;
  m.qk_norm_over = o.shared_qk_norm ? QkNormOver::shared : QkNormOver::per_head;
  if (o.output_norm) m.ablation = SdpaAblationKind::head_norm;
  m.ablation_per_head = true, m.ablation_eps = o.output_norm_eps;
  if (o.output_gate) m.gates.push_back({.init = o.heads.init});
  return m;
}

ForgettingAttention::ForgettingAttention(ForgettingAttentionOptions o, Rng& rng)
    : MultiHeadAttention({type, "forgetting_attention"}, forgetting_attention_options(o), rng), options(o) {
  options.heads = MultiHeadAttention::options.heads;
}

}  // namespace sluice
