// Families whose mixer is softmax attention.
#include <sluice/layers/models/families.h>

#include <cmath>

namespace sluice::detail {

namespace {

/// Windows of Qwen2 and Qwen3: in the layers that layer_types names, or from layer max_window_layers on. Qwen3 MoE has
/// them in all layers. Packages disagree about Qwen2 MoE without layer_types.
void set_qwen_windows(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.config.ignore("max_window_layers sliding_window layer_types");
  if (!r.config.get("use_sliding_window", false)) {
    const bool means = r.type != "qwen3_moe" && c.has("layer_types");
    if (means && !r.typed("layer_types", "sliding_attention").empty())
      c.refuse("layer_types", "no layer may slide where use_sliding_window is false");
    return;
  }
  const bool all = r.type == "qwen3_moe", typed = r.type == "qwen2_moe" || (!all && c.has("layer_types"));
  const int64_t first = all ? 0 : r.config.get("max_window_layers", int64_t{28});
  r.windows(typed ? r.typed("layer_types", "sliding_attention") : r.where([&](int64_t i) { return i >= first; }));
}

/// Mistral, Ministral, Mixtral and CWM: windows in all layers, in those that layer_types names, or in none. CWM's RoPE
/// must be given: without it, transformers takes llama3 with a factor.
void read_mistral(FamilyReader& r) {
  const ModelConfig& c = r.config;
  c.must_be("attention_bias", false);
  MultiHeadAttentionOptions o = r.attention();
  if (r.type == "ministral3") r.query_growth(o.growth);
  r.mixers(o);
  const bool cwm = r.type == "cwm", windowed = r.type != "mixtral" && r.type != "ministral3";
  if (cwm) c.needs({"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"});
  if ((cwm || r.type == "ministral") && c.has("layer_types")) r.windows(r.typed("layer_types", "sliding_attention"));
  else if (cwm) r.windows(r.where([](int64_t i) { return i % 4 != 0; }));
  else if (!c.is_null("sliding_window") && (windowed || c.has("sliding_window"))) r.windows(r.all());
  r.usual_names();
  if (r.type != "mixtral") return r.dense(r.all());
  r.experts(r.all(), r.moe());
  c.ignore("router_jitter_noise");
  r.block_sparse_moe();
}

/// MiniMax-M2: RoPE on a part of a head's channels, norms of all heads' q and k together, experts chosen by σ.
void read_minimax_m2(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.rotary_share = c.get("rope_parameters.partial_rotary_factor", r.rotary_dim_share());
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true, o.qk_norm_over = QkNormOver::width;
  c.must_be("attention_bias", false);
  c.must_be("use_qk_norm", true);
  c.must_be("qk_norm_type", std::string("per_layer"));
  for (const int64_t full : c.get("attn_type_list", std::vector<int64_t>{}))
    if (full != 1) c.refuse("attn_type_list", "only 1, softmax attention, is known");
  for (const std::string of : {"full_attention", "linear_attention", "mlp"})
    c.must_be("layernorm_" + of + "_beta", 1.0);
  r.mixers(o);
  MoeOptions moe = r.moe();
  moe.router = MoeRouter::sigmoid, moe.router_bias = true;
  c.must_be("scoring_func", std::string("sigmoid"));
  c.must_be("use_routing_bias", true);
  c.must_be("shared_intermediate_size", int64_t{0});
  c.ignore("router_jitter_noise shared_moe_mode use_mtp num_mtp_modules mtp_transformer_layers");
  r.usual_names();
  r.rename("mlp\\.router_bias$", "mlp.e_score_correction_bias");
  r.experts(r.all(), moe);
  r.block_sparse_moe();
}

/// Qwen1.5, Qwen2, Qwen2.5, with experts or without, and the text of Qwen2-VL and Qwen2.5-VL: biases of q, k, v.
void read_qwen2(FamilyReader& r) {
  const bool sparse = r.type == "qwen2_moe";
  MultiHeadAttentionOptions o = r.attention();
  o.heads.qkv_bias = !sparse || r.config.get("qkv_bias", true), o.heads.out_bias = false;
  r.config.must_be("use_mrope", false);
  r.mixers(o);
  set_qwen_windows(r);
  r.usual_names();
  if (sparse) r.dense_or_sparse(false);
  else r.dense(r.all());
}

/// Qwen3, dense and with experts, and the text of Qwen3-VL: norms of each head's q and k.
void read_qwen3(FamilyReader& r) {
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true;
  r.mixers(o);
  set_qwen_windows(r);
  r.usual_names();
  const bool norms = r.type == "qwen3_vl_moe_text";  // whatever the field says
  if (norms) r.config.must_be("norm_topk_prob", true);
  r.dense_or_sparse(norms);
}

/// DiffLlama: differential attention of heads in two halves.
void read_diffllama(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const HeadsOptions h = r.attention().heads;
  for (const auto& [name, count] :
       {std::pair("num_attention_heads", h.heads), std::pair("num_key_value_heads", h.kv_heads)})
    if (count % 2 != 0) c.refuse(name, "it must be even");
  c.must_be("attention_bias", false);
  c.ignore("lambda_std_dev");
  for (int64_t layer = 0; layer < r.layers; ++layer)
    r.block(layer).mixer = DiffAttentionOptions{.dim = h.dim,
                                                .heads = h.heads / 2,
                                                .kv_heads = h.kv_heads / 2,
                                                .head_dim = h.head_dim,
                                                .version = 1,
                                                .pairing = DiffPairing::halves,
                                                .lambda_init = diff_lambda_init(layer),
                                                .norm = NormKind::rms_plain,
                                                .norm_eps = r.plan.options.norm_eps,
                                                .rope = h.rope};
  r.usual_names();
  r.dense(r.all());
}

/// Flint: Qwen3's attention with learned sinks, RoPE only in the layers with windows; experts chosen by σ, with a
/// shared one.
void read_flint(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true, o.sink = AttentionSink::learned;
  const std::vector<int64_t> sliding =
      c.has("layer_types") ? r.typed("layer_types", "sliding_attention")
                           : r.where([&](int64_t i) { return i >= 2 && i % 4 != 1 && i != r.layers - 1; });
  r.mixers(sliding, o);
  r.windows(sliding);
  o.heads.use_rope = false;
  r.mixers(r.others_than(sliding), o);
  if (c.is_null("mlp_only_layers")) c.refuse("mlp_only_layers", "need a list");
  r.usual_names();
  r.members("self_attn", {{"sink", r.has("softmax_offset") ? "softmax_offset" : "sinks"}});
  r.dense_or_sparse(true);
  for (DecoderBlockOptions& block : r.plan.options.blocks)
    if (MoeOptions* moe = std::get_if<MoeOptions>(&block.feed))
      moe->router = MoeRouter::sigmoid, moe->shared_gate = false;
}

/// Mellum 2: Qwen3's attention with windows in some layers, which have a RoPE of their own, and its experts.
void read_mellum(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true;
  const std::vector<int64_t> sliding =
      c.has("layer_types") ? r.typed("layer_types", "sliding_attention") : std::vector<int64_t>{};
  r.two_ropes(o, sliding);
  r.windows(sliding);
  r.usual_names();
  const std::vector<int64_t> dense = r.dense_layers(0);
  r.dense(dense);
  MoeOptions moe = r.moe();
  moe.norm_topk = c.get("norm_topk_prob", true);
  r.experts(r.others_than(dense), moe);
  c.ignore("mtp_layer_types mtp_mlp_layer_types");
}

/// HunYuan: norms of each head's q and k behind RoPE; SwiGLU, or experts with a shared one.
void read_hunyuan(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = o.qk_norm_late = true;
  for (const char* always : {"use_qk_norm", "qk_norm", "use_rotary_pos_emb"}) c.must_be(always, true);
  for (const char* never : {"use_cla", "mlp_bias", "group_limited_greedy"}) c.must_be(never, false);
  c.must_be("attention_head_dim", o.heads.head_dim);
  c.ignore("eod_token_id sep_token_id");
  r.mixers(o);
  r.usual_names();
  r.members("self_attn", {{"q_norm", "query_layernorm"}, {"k_norm", "key_layernorm"}});
  if (r.type == "hunyuan_v1_dense") return r.dense(r.all());
  MoeOptions moe = r.moe();
  moe.shared_hidden = c.at<int64_t>("intermediate_size"), moe.shared_gate = false;
  if (moe.hidden != moe.shared_hidden) c.refuse("moe_intermediate_size", "only intermediate_size is known");
  if (r.one_for_all("num_shared_expert", 1) != 1) c.refuse("num_shared_expert", "only 1 is known");
  c.must_be("use_mixed_mlp_moe", true);
  c.must_be<int64_t>("moe_layer_num_skipped", 0);
  c.must_be("norm_topk_prob", true);
  r.experts(r.all(), moe, "shared_mlp");
  r.rename("mlp\\.gate\\.weight", "mlp.gate.wg.weight");
}

/// OLMo 2 and 3, OLMoE and FlexOlmo: norms of all heads' q and k together, and, except in OLMoE, norms behind the
/// branches instead of before. Three of four layers of OLMo 3 have windows, and RoPE that is not stretched.
void read_olmo(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true, o.qk_norm_over = QkNormOver::width;
  if (c.has("clip_qkv")) c.refuse("clip_qkv", "only null is known");
  r.mixers(o);
  if (r.type == "olmo3") {
    // Without rope_parameters transformers uses 500000 for layers with windows, whatever rope_theta is.
    const bool named = c.has("rope_parameters.rope_theta") || c.has("rope_parameters.full_attention.rope_theta");
    if (!named && c.at<double>("rope_theta") != 500000) c.refuse("rope_theta", "only 500000 is known");
    const std::vector<int64_t> sliding = r.typed("layer_types", "sliding_attention");
    r.two_ropes(o, sliding, 500000);
    r.windows(sliding);
  }
  if (r.type != "olmoe") r.norms_behind(false, "post_attention_layernorm.", "post_feedforward_layernorm.");
  r.usual_names();
  if (!c.has("num_experts")) return r.dense(r.all());
  MoeOptions moe = r.moe({"num_experts"});
  moe.norm_topk = c.get("norm_topk_prob", false);
  r.experts(r.all(), moe);
}

/// EXAONE 4 and K-EXAONE: norms of each head's q and k, RoPE in the layers with windows, or in all layers if
/// sliding_window is null. EXAONE 4 has norms behind the branches; K-EXAONE has norms before them, and experts.
void read_exaone(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true;
  c.must_be("attention_bias", false);
  c.ignore("is_moe_layer sliding_window_pattern");
  r.mixers(o);
  const bool hybrid = !c.is_null("sliding_window");
  std::vector<int64_t> sliding;
  if (hybrid || c.has("layer_types")) sliding = r.typed_or_turns("sliding_attention", "sliding_window_pattern", 4);
  r.windows(sliding);
  o.heads.use_rope = !hybrid;
  r.mixers(r.others_than(sliding), o);
  const bool sparse = r.type == "exaone_moe";
  if (!sparse) r.norms_behind(false, "post_attention_layernorm.", "post_feedforward_layernorm.");
  r.usual_names();
  if (sparse) r.deepseek_feeds(r.dense_layers(1));
  else r.dense(r.all());
}

/// gpt-oss: sinks, biases everywhere, experts with a clamped gate, windows in every other layer.
void read_gpt_oss(FamilyReader& r) {
  const ModelConfig& c = r.config;
  c.needs({"rope_theta", "rope_parameters.rope_theta"});
  c.needs({"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"});
  MultiHeadAttentionOptions o = r.attention();
  o.sink = AttentionSink::learned;
  r.mixers(o);
  r.windows(r.typed("layer_types", "sliding_attention"));
  MoeOptions moe = r.moe({"num_local_experts"});
  moe.logit_bias = moe.expert_bias = true;
  moe.activation = MoeActivation::swiglu_oai;
  moe.swiglu_limit = c.get("swiglu_limit", 7.0), moe.swiglu_alpha = c.get("swiglu_alpha", 1.702);
  c.ignore("initial_context_length experts_per_token");
  for (DecoderBlockOptions& block : r.plan.options.blocks) block.feed = moe;
  r.usual_names();
  r.members("self_attn", {{"sink", "sinks"}});
  // The columns of gate and value alternate in the map of an expert.
  const int64_t m = moe.hidden;
  constexpr PyTorchLayout as_is = PyTorchLayout::as_is;
  r.members("mlp", {{"gate\\.weight", "experts.gate_up_proj", {.part = 0, .groups = m, .axis = 2, .layout = as_is}},
                    {"up\\.weight", "experts.gate_up_proj", {.part = 1, .groups = m, .axis = 2, .layout = as_is}},
                    {"down\\.weight", "experts.down_proj", {.layout = as_is}},
                    {"gate\\.bias", "experts.gate_up_proj_bias", {.part = 0, .groups = m, .axis = 1, .layout = as_is}},
                    {"up\\.bias", "experts.gate_up_proj_bias", {.part = 1, .groups = m, .axis = 1, .layout = as_is}},
                    {"down\\.bias", "experts.down_proj_bias", {.layout = as_is}}});
}

/// Trinity (Arcee AI): a gate on attention's output, RoPE only in the layers with windows, norms around both branches,
/// experts chosen by σ.
void read_afmoe(FamilyReader& r) {
  const ModelConfig& c = r.config;
  if (c.get("mup_enabled", false)) r.plan.options.embedding_scale = std::sqrt(static_cast<double>(r.plan.options.dim));
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true;
  o.gates = {AttentionGateOptions{}};
  MultiHeadAttentionOptions full = o;
  full.heads.use_rope = false;
  r.mixers(full);
  const std::vector<int64_t> sliding = r.typed("layer_types", "sliding_attention");
  r.mixers(sliding, o);
  r.windows(sliding);
  c.ignore("global_attn_every_n_layers load_balance_coeff use_grouped_mm");
  c.must_be<int64_t>("num_expert_groups", 1);
  c.must_be<int64_t>("num_limited_groups", 1);
  r.norms_behind(true, "post_attention_layernorm.", "post_mlp_layernorm.");
  r.rename("feed_norm\\.", "pre_mlp_layernorm.");
  r.usual_names();
  r.rename("self_attn\\.gates\\.0\\.map\\.", "self_attn.gate_proj.");
  const auto dense_layers = c.get<int64_t>("num_dense_layers", 0);
  r.dense(r.where([&](int64_t layer) { return layer < dense_layers; }));
  MoeOptions moe = r.moe();
  moe.router = MoeRouter::sigmoid, moe.router_bias = true;
  c.must_be("score_func", std::string("sigmoid"));
  c.must_be("route_norm", true);  // transformers normalises the weights whatever the field says
  moe.norm_topk = true;
  moe.scale = c.get("route_scale", 1.0);
  moe.groups = c.get<int64_t>("n_group", 1), moe.top_groups = c.get<int64_t>("topk_group", 1);
  moe.shared_hidden = c.get<int64_t>("num_shared_experts", 0) * moe.hidden, moe.shared_gate = false;
  r.rename("mlp\\.router_bias$", "mlp.expert_bias");
  r.experts(r.where([&](int64_t layer) { return layer >= dense_layers; }), moe, "shared_experts");
  r.rename("mlp\\.gate\\.weight", "mlp.router.gate.weight");
}

/// Laguna (poolside): a softplus gate for each head or channel of attention's output, a number of heads for each layer,
/// RoPE by the kind of layer, experts chosen by σ.
void read_laguna(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.rotary_share = 1.0;
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true;
  const bool elementwise = c.is("gating", "per-element");
  if (c.has("gating") && !elementwise && !c.is("gating", "per-head") && !c.is("gating", true))
    c.refuse("gating", "known: true, per-head, per-element");
  o.gates = {AttentionGateOptions{.granularity = elementwise ? GateGranularity::elementwise : GateGranularity::headwise,
                                  .activation = Act::softplus}};
  const std::vector<int64_t> sliding =
      c.has("layer_types") ? r.typed("layer_types", "sliding_attention") : std::vector<int64_t>{};
  r.two_ropes(o, sliding);
  r.windows(sliding);
  const auto heads = r.of_layers("num_attention_heads_per_layer", o.heads.heads);
  for (int64_t i = 0; i < r.layers; ++i)
    std::get<MultiHeadAttentionOptions>(r.block(i).mixer).heads.heads = heads[static_cast<std::size_t>(i)];
  r.usual_names();
  r.rename("self_attn\\.gates\\.0\\.map\\.", "self_attn.g_proj.");
  const std::vector<int64_t> dense = r.dense_layers(1);
  r.dense(dense);
  MoeOptions moe = r.moe();
  moe.router = MoeRouter::sigmoid, moe.router_bias = true;
  moe.scale = c.get("moe_routed_scaling_factor", 1.0);
  moe.shared_hidden = c.at<int64_t>("shared_expert_intermediate_size"), moe.shared_gate = false;
  c.must_be("moe_apply_router_weight_on_input", false);
  c.must_be("moe_router_logit_softcapping", 0.0);
  r.rename("mlp\\.router_bias$",
           str("mlp.", r.has("experts.e_score") ? "experts" : "gate", ".e_score_correction_bias"));
  r.experts(r.others_than(dense), moe, r.has("shared_experts.") ? "shared_experts" : "shared_expert");
}

// Bases of RoPE where the file has none.
constexpr const char* kHalfMillion = R"({"rope_theta": 500000})";
constexpr const char* kMillion = R"({"rope_theta": 1000000})";

}  // namespace

std::span<const ModelFamily> attention_families() {
  static constexpr ModelFamily all[] = {
      {"diffllama", read_diffllama},
      {"qwen2", read_qwen2},
      {"qwen2_moe", read_qwen2},
      {"qwen2_vl", read_qwen2, kMillion},
      {"qwen2_vl_text", read_qwen2, kMillion},
      {"qwen2_5_vl", read_qwen2, kMillion},
      {"qwen2_5_vl_text", read_qwen2, kMillion},
      {"qwen3", read_qwen3},
      {"qwen3_moe", read_qwen3},
      {"qwen3_vl_text", read_qwen3, kHalfMillion},
      {"qwen3_vl_moe_text", read_qwen3, kHalfMillion},
      {"mistral", read_mistral},
      {"ministral", read_mistral},
      {"ministral3", read_mistral},
      {"mixtral", read_mistral, kMillion},
      {"cwm", read_mistral, R"({"rope_theta": 1000000, "head_dim": 128})"},
      {"minimax_m2", read_minimax_m2, R"({"rope_theta": 5000000})"},
      {"hunyuan_v1_dense", read_hunyuan},
      {"hunyuan_v1_moe", read_hunyuan},
      {"olmo2", read_olmo},
      {"olmo3", read_olmo},
      {"olmoe", read_olmo},
      {"flex_olmo", read_olmo, kHalfMillion},
      {"exaone4", read_exaone},
      {"exaone_moe", read_exaone, R"({"routed_scaling_factor": 2.5})"},
      {"gpt_oss", read_gpt_oss},
      {"afmoe", read_afmoe},
      {"laguna", read_laguna},
      {"mellum", read_mellum},
      {"flint", read_flint, R"({"mlp_only_layers": [0, 1]})"},
  };
  return all;
}

}  // namespace sluice::detail
