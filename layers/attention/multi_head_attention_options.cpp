// Checks and defaults of the options of an attention layer.
#include <sluice/layers/attention/multi_head_attention.h>

#include <algorithm>
#include <utility>

namespace sluice {

/// Throws ValueError for gates, and what stands in their place, that do not go with the other options.
static void check_gates(const char* layer, const MultiHeadAttentionOptions& o) {
  const auto refuse = [&](bool when, const auto&... why) {
    if (when) fail<ValueError>(layer, ": ", why...);
  };
  const auto gate_at = [&](GatePosition p) {
    return std::any_of(o.gates.begin(), o.gates.end(), [p](const AttentionGateOptions& g) { return g.position == p; });
  };
  refuse(!o.heads.project_out && (o.sandwich_norm || gate_at(GatePosition::g5)),
         "project_out = false leaves nothing for G5 and sandwich_norm");
  refuse(o.separate_global_projections &&
             (gate_at(GatePosition::g2) || gate_at(GatePosition::g3) || gate_at(GatePosition::g4)),
         "separate_global_projections have no gates of their own; only G1 and G5 fit");
  refuse(o.ablation == SdpaAblationKind::silu && gate_at(GatePosition::g1),
         "the ablation silu takes the place of gate G1; need one or the other");
  for (const AttentionGateOptions& g : o.gates)
    refuse(g.position == GatePosition::g5 && g.granularity == GateGranularity::headwise &&
               o.heads.dim % o.heads.heads != 0,
           "a headwise gate at g5 needs heads=", o.heads.heads, " to divide dim=", o.heads.dim);
}

MultiHeadAttentionOptions detail::checked(const char* layer, MultiHeadAttentionOptions o) {
  o = checked_layer(layer, std::move(o), {.cross = true});
  const auto refuse = [&](bool when, const auto&... why) {
    if (when) fail<ValueError>(layer, ": ", why...);
  };
  std::sort(o.global.begin(), o.global.end());
  o.global.erase(std::unique(o.global.begin(), o.global.end()), o.global.end());
  const bool cross = o.heads.context_dim > 0, forgets = o.forget.gate != ForgetGate::none;
  refuse(cross && (o.heads.causal || o.window > 0 || o.dilation > 1 || !o.global.empty() ||
                   o.separate_global_projections || o.heads.use_rope || o.position_bias != PositionBias::none),
         "cross attention has no common positions; it takes neither causal, window, dilation, global, "
         "separate_global_projections, RoPE nor a position bias");
  check_gates(layer, o);
  const auto per_head = [&](const char* option, bool on, NormKind kind) {
    refuse(on && (kind == NormKind::scale || kind == NormKind::scale_l2), option,
           " takes the kinds layer, rms, layer_plain and rms_plain — got ", name_of(kind));
  };
  per_head("qk_norm_over per_head", o.qk_norm && o.qk_norm_over == QkNormOver::per_head, o.qk_norm_kind);
  per_head("ablation_per_head", o.ablation == SdpaAblationKind::head_norm && o.ablation_per_head, o.ablation_norm);
  refuse(o.growth.beta != 0 && (cross || o.separate_global_projections),
         "growth is for self attention without separate_global_projections");
  refuse(o.chunk_size > 0 && (cross || o.separate_global_projections),
         "chunk_size is for self attention without separate_global_projections");
  refuse(o.tied_values && (o.separate_global_projections || o.heads.value_dim != o.heads.head_dim),
         "tied_values needs value_dim=", o.heads.value_dim, " to be head_dim=", o.heads.head_dim,
         ", and takes no separate_global_projections");
  refuse(o.kv_shift && (cross || o.separate_global_projections),
         "kv_shift is for self attention without separate_global_projections");
  refuse((o.forget.decay_first > 0) != (o.forget.decay_last > 0),
         "decay times of both ends or of none — got decay_first=", o.forget.decay_first,
         ", decay_last=", o.forget.decay_last);
  // A cap and a sink would see c_i, which a plain softmax cancels, and a scale of 0 would leave nothing of c_j.
  refuse(forgets && (!o.heads.causal || o.softcap > 0 || o.sink != AttentionSink::none ||
                     o.separate_global_projections || o.scale == 0),
         "a forget gate needs causal = true and a scale other than 0, and takes neither softcap, sink nor "
         "separate_global_projections");
  refuse(o.sandwich_norm && o.norm == NormKind::none, "sandwich_norm needs a norm");
  o.t5.causal = o.heads.causal;
  if (o.position_bias == PositionBias::t5) check_t5(layer, o.t5);
  return o;
}

MultiHeadAttentionOptions qwen_attention_options(int64_t dim, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                                 std::vector<AttentionGateOptions> gates) {
  MultiHeadAttentionOptions o{.heads = {.dim = dim, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim}};
  o.heads.causal = o.heads.use_rope = o.qk_norm = o.heads.residual = true;
  o.norm = NormKind::rms, o.norm_eps = 1e-6;
  o.gates = std::move(gates);
  o.heads.init = Init::paper();
  return o;
}

}  // namespace sluice
