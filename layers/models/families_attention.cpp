// Families whose mixer is softmax attention.
#include <sluice/layers/models/families.h>

#include <cmath>

namespace sluice::detail {

namespace {

/// Window W in the blocks of `sliding` attention; without such blocks the field says nothing.
void set_windows(FamilyReader& r, const std::vector<int64_t>& sliding) {
  r.config.ignore("sliding_window");
  const int64_t window = sliding.empty() ? 1 : r.config.at<int64_t>("sliding_window");
  if (window < 1) r.config.refuse("sliding_window", "it must be positive");
  for (const int64_t layer : sliding) std::get<MultiHeadAttentionOptions>(r.block(layer).mixer).window = window;
}

/// Qwen2 and Qwen3 may slide in some layers: layer_types says in which, or those from max_window_layers on. Qwen3 MoE
/// slides in all; of Qwen2 MoE without layer_types packages disagree.
void set_qwen_windows(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.config.ignore("max_window_layers sliding_window layer_types");
  if (!r.config.get("use_sliding_window", false)) return;
  const std::string type = c.at<std::string>("model_type");
  const bool all = type == "qwen3_moe", typed = type == "qwen2_moe" || (!all && c.has("layer_types"));
  const int64_t first = all ? 0 : r.config.get("max_window_layers", int64_t{28});
  set_windows(r, typed ? r.typed("layer_types", "sliding_attention") : r.where([&](int64_t i) { return i >= first; }));
}

/// Attention `o` in all blocks, with windows and a RoPE of its own in those that slide: `local`, where the file has
/// none for each of the two.
void two_ropes(FamilyReader& r, MultiHeadAttentionOptions o, const std::vector<int64_t>& sliding, double local) {
  const auto rope = [&](const std::string& kind) { return r.rope(o.heads.head_dim, "rope_parameters." + kind); };
  const bool apart = r.config.has("rope_parameters.full_attention.rope_theta");
  if (apart) o.heads.rope = rope("full_attention");
  r.mixers(o);
  o.heads.rope = apart ? rope("sliding_attention") : RopeOptions{.base = local};
  r.mixers(sliding, o);
  set_windows(r, sliding);
}

/// Norms on both sides of both branches, under these names.
void norms_around(FamilyReader& r, const std::string& feed_before, const std::string& feed_after) {
  for (DecoderBlockOptions& block : r.plan.options.blocks)
    block.mixer_norms = block.feed_norms = {.before = true, .after = true};
  r.rename("feed_norm\\.", feed_before);
  r.rename("feed_post_norm\\.", feed_after);
  r.rename("mixer_post_norm\\.", "post_attention_layernorm.");
}

/// Llama 1 to 3, and what is built like them (SmolLM2, TinyLlama, Yi).
void read_llama(FamilyReader& r) {
  r.config.must_be("is_llama_config", true);
  r.config.must_be("rope_interleaved", false);
  r.mixers(r.attention());
  r.usual_names();
  r.dense(r.all());
}

/// Mistral, Ministral and Mixtral: all layers slide, or those that layer_types names, or none.
void read_mistral(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const std::string type = c.at<std::string>("model_type");
  c.must_be("attention_bias", false);
  r.mixers(r.attention());
  if (type == "ministral" && c.has("layer_types")) set_windows(r, r.typed("layer_types", "sliding_attention"));
  else if (!c.is_null("sliding_window") && (type != "mixtral" || c.has("sliding_window"))) set_windows(r, r.all());
  r.usual_names();
  if (type != "mixtral") return r.dense(r.all());
  r.experts(r.all(), r.moe({"num_local_experts", "num_experts"}));
  c.ignore("router_jitter_noise");
  r.block_sparse_moe();
}

/// MiniMax-M2: RoPE on a part of a head's channels, norms of all heads' q and k together, experts chosen by σ.
void read_minimax_m2(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const double rotary = c.has("rotary_dim") ? c.at<double>("rotary_dim") / c.at<double>("head_dim") : 1;
  r.rotary_share = c.get("rope_parameters.partial_rotary_factor", rotary);
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
  MoeOptions moe = r.moe({"num_local_experts", "num_experts"});
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

/// Phi-3 and Phi-4 with the usual RoPE: one map makes q, k and v, and one gate and value.
void read_phi3(FamilyReader& r) {
  const ModelConfig& c = r.config;
  // Another kind, whatever its name, is longrope in transformers: other frequencies for a long text than for a short
  // one.
  for (const std::string at : {"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"})
    c.must_be(at, std::string("default"));
  r.rotary_share = c.get("rope_parameters.partial_rotary_factor", c.get("partial_rotary_factor", 1.0));
  c.must_be("attention_bias", false);
  c.ignore("embd_pdrop resid_pdrop original_max_position_embeddings");
  r.mixers(r.attention());
  if (c.has("sliding_window")) set_windows(r, r.all());
  r.usual_names();
  r.dense(r.all());
  const std::vector<std::string> qkv = {"q", "k", "v"}, both = {"gate", "up"};
  for (int64_t i = 0; i < 3; ++i)
    r.rename("self_attn\\." + qkv[static_cast<std::size_t>(i)] + "_proj", "self_attn.qkv_proj", {.part = i});
  for (int64_t i = 0; i < 2; ++i)
    r.rename("mlp\\." + both[static_cast<std::size_t>(i)] + "_proj", "mlp.gate_up_proj", {.part = i});
}

/// ERNIE 4.5, dense: RoPE of neighbouring channels, biases everywhere or nowhere.
void read_ernie(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.tied = c.get("tie_word_embeddings", true);
  c.any_of<double>({"rope_theta", "rope_parameters.rope_theta"});
  MultiHeadAttentionOptions o = r.attention();
  o.heads.rope.pairing = RopePairing::interleaved;
  const bool biases = o.heads.qkv_bias = o.heads.out_bias = c.get("use_bias", false);
  c.must_be("attention_bias", biases);
  c.must_be("mlp_bias", biases);
  r.mixers(o);
  r.usual_names();
  r.dense(r.all());
  for (DecoderBlockOptions& block : r.plan.options.blocks) std::get<GluOptions>(block.feed).bias = biases;
}

/// Qwen1.5, Qwen2, Qwen2.5, with experts or without: biases of q, k, v.
void read_qwen2(FamilyReader& r) {
  const bool sparse = r.config.at<std::string>("model_type") == "qwen2_moe";
  MultiHeadAttentionOptions o = r.attention();
  o.heads.qkv_bias = !sparse || r.config.get("qkv_bias", true), o.heads.out_bias = false;
  r.config.must_be("use_mrope", false);
  r.mixers(o);
  set_qwen_windows(r);
  r.usual_names();
  if (sparse) r.dense_or_sparse(false);
  else r.dense(r.all());
}

/// Qwen3, dense and with experts: norms of each head's q and k.
void read_qwen3(FamilyReader& r) {
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true;
  r.mixers(o);
  set_qwen_windows(r);
  r.usual_names();
  r.dense_or_sparse(false);
}

/// SmolLM3: Llama with blocks without RoPE between.
void read_smollm3(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.tied = c.get("tie_word_embeddings", true);
  c.any_of<double>({"rope_theta", "rope_parameters.rope_theta"});
  MultiHeadAttentionOptions o = r.attention();
  r.mixers(o);
  std::vector<int64_t> rotates = c.get("no_rope_layers", std::vector<int64_t>{});  // 0: no RoPE
  const auto turn = c.get<int64_t>("no_rope_layer_interval", 4);
  if (turn < 1) c.refuse("no_rope_layer_interval", "it must be positive");
  for (int64_t i = 0; i < r.layers && !c.has("no_rope_layers"); ++i) rotates.push_back((i + 1) % turn);
  if (std::ssize(rotates) < r.layers) c.refuse("no_rope_layers", str("need ", r.layers, " entries"));
  o.heads.use_rope = false;
  for (int64_t i = 0; i < r.layers; ++i)
    if (rotates[static_cast<std::size_t>(i)] == 0) r.block(i).mixer = o;
  const bool slides = c.get("use_sliding_window", false);
  std::vector<int64_t> sliding;
  if (slides || c.has("layer_types")) sliding = r.typed("layer_types", "sliding_attention");
  if (!slides && !sliding.empty()) c.refuse("layer_types", "no layer may slide where use_sliding_window is false");
  set_windows(r, sliding);
  c.ignore("max_window_layers");
  r.usual_names();
  r.dense(r.all());
}

/// OLMo 2 and 3: norms behind the branches instead of before, and of all heads' q and k together. OLMo 3 slides in
/// three layers of four, without the other layers' stretched RoPE.
void read_olmo2(FamilyReader& r) {
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true, o.qk_norm_over = QkNormOver::width;
  r.mixers(o);
  if (r.config.at<std::string>("model_type") == "olmo3") {
    // Without rope_parameters transformers takes 500000 for layers that slide, whatever rope_theta is.
    const ModelConfig& c = r.config;
    if (!c.has("rope_parameters.full_attention.rope_theta") && c.at<double>("rope_theta") != 500000)
      c.refuse("rope_theta", "only 500000 is known");
    two_ropes(r, o, r.typed("layer_types", "sliding_attention"), 500000);
  }
  for (DecoderBlockOptions& block : r.plan.options.blocks)
    block.mixer_norms = block.feed_norms = {.before = false, .after = true};
  r.rename("mixer_post_norm\\.", "post_attention_layernorm.");
  r.rename("feed_post_norm\\.", "post_feedforward_layernorm.");
  r.usual_names();
  r.dense(r.all());
}

/// Gemma 2 and 3: norms around both branches that hold w − 1, and windows; capped scores and logits in Gemma 2, norms
/// of each head's q and k in Gemma 3.
void read_gemma2(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool third = c.at<std::string>("model_type") == "gemma3_text";
  r.plan.options.tied = c.get("tie_word_embeddings", true);
  r.plan.options.embedding_scale = std::sqrt(static_cast<double>(r.plan.options.dim));
  r.plan.options.logit_cap = c.get("final_logit_softcapping", third ? 0.0 : 30.0, 0.0);
  if (r.plan.options.logit_cap < 0) c.refuse("final_logit_softcapping", "it must not be negative");
  MultiHeadAttentionOptions o = r.attention();
  o.scale = 1 / std::sqrt(c.at<double>("query_pre_attn_scalar"));
  o.softcap = c.get("attn_logit_softcapping", third ? 0.0 : 50.0, 0.0);
  if (third && o.softcap != 0) c.refuse("attn_logit_softcapping", "transformers caps no scores of Gemma 3");
  o.qk_norm = third;
  c.must_be("use_bidirectional_attention", false);
  const int64_t turn = third ? c.get<int64_t>("sliding_window_pattern", 6) : 2;  // of these blocks the last is full
  const auto sliding = c.has("layer_types") ? r.typed("layer_types", "sliding_attention")
                                            : r.where([&](int64_t i) { return turn < 1 || (i + 1) % turn != 0; });
  if (third) {
    c.any_of<double>({"rope_theta", "rope_parameters.full_attention.rope_theta"});
    two_ropes(r, o, sliding, c.get("rope_local_base_freq", 10000.0));
  } else {
    r.mixers(o);
    set_windows(r, sliding);
  }
  c.must_be("sliding_window_size", c.get<int64_t>("sliding_window", 0));
  c.ignore("cache_implementation hidden_act _sliding_window_pattern");
  norms_around(r, "pre_feedforward_layernorm.", "post_feedforward_layernorm.");
  r.usual_names();
  r.dense(r.all(), "hidden_activation", "gelu_pytorch_tanh");
  r.norms_less_one();
}

/// gpt-oss: sinks, biases everywhere, experts with a clamped gate; every other layer slides.
void read_gpt_oss(FamilyReader& r) {
  const ModelConfig& c = r.config;
  // The defaults of both are not those of the others.
  c.any_of<double>({"rope_theta", "rope_parameters.rope_theta"});
  c.any_of<std::string>({"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"});
  MultiHeadAttentionOptions o = r.attention();
  o.sink = AttentionSink::learned;
  r.mixers(o);
  set_windows(r, r.typed("layer_types", "sliding_attention"));
  MoeOptions moe = r.moe({"num_local_experts"});
  moe.logit_bias = moe.expert_bias = true;
  moe.activation = MoeActivation::swiglu_oai;
  moe.swiglu_limit = c.get("swiglu_limit", 7.0), moe.swiglu_alpha = c.get("swiglu_alpha", 1.702);
  c.ignore("initial_context_length experts_per_token");
  for (DecoderBlockOptions& block : r.plan.options.blocks) block.feed = moe;
  r.usual_names();
  r.members("self_attn", {{"sink", "sinks"}});
  // Of each expert a column of the gate and one of the value in turn.
  const int64_t m = moe.hidden;
  constexpr PyTorchLayout as_is = PyTorchLayout::as_is;
  r.members("mlp", {{"gate\\.weight", "experts.gate_up_proj", {.part = 0, .groups = m, .axis = 2, .layout = as_is}},
                    {"up\\.weight", "experts.gate_up_proj", {.part = 1, .groups = m, .axis = 2, .layout = as_is}},
                    {"down\\.weight", "experts.down_proj", {.layout = as_is}},
                    {"gate\\.bias", "experts.gate_up_proj_bias", {.part = 0, .groups = m, .axis = 1, .layout = as_is}},
                    {"up\\.bias", "experts.gate_up_proj_bias", {.part = 1, .groups = m, .axis = 1, .layout = as_is}},
                    {"down\\.bias", "experts.down_proj_bias", {.layout = as_is}}});
}

/// Trinity (Arcee AI): a gate on attention's output, RoPE only in the layers that slide, norms around both branches,
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
  set_windows(r, sliding);
  c.ignore("global_attn_every_n_layers load_balance_coeff use_grouped_mm");
  c.must_be<int64_t>("num_expert_groups", 1);
  c.must_be<int64_t>("num_limited_groups", 1);
  norms_around(r, "pre_mlp_layernorm.", "post_mlp_layernorm.");
  r.usual_names();
  r.rename("self_attn\\.gates\\.0\\.map\\.", "self_attn.gate_proj.");
  const auto dense_layers = c.get<int64_t>("num_dense_layers", 0);
  r.dense(r.where([&](int64_t layer) { return layer < dense_layers; }));
  MoeOptions moe = r.moe({"num_experts", "num_local_experts"});
  moe.router = MoeRouter::sigmoid, moe.router_bias = true;
  c.must_be("score_func", std::string("sigmoid"));
  c.must_be("route_norm", true);  // transformers norms the weights whatever it says
  moe.norm_topk = true;
  moe.scale = c.get("route_scale", 1.0);
  moe.groups = c.get<int64_t>("n_group", 1), moe.top_groups = c.get<int64_t>("topk_group", 1);
  moe.shared_hidden = c.get<int64_t>("num_shared_experts", 0) * moe.hidden, moe.shared_gate = false;
  r.rename("mlp\\.router_bias$", "mlp.expert_bias");
  r.experts(r.where([&](int64_t layer) { return layer >= dense_layers; }), moe, "shared_experts");
  r.rename("mlp\\.gate\\.weight", "mlp.router.gate.weight");
}

/// What the config.json of Gemma 3 leaves out, of 4B and more: the defaults of transformers' Gemma3TextConfig.
constexpr const char* kGemma3 = R"({"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
  "head_dim": 256, "rms_norm_eps": 1e-06, "query_pre_attn_scalar": 256, "rope_theta": 1000000})";

}  // namespace

std::span<const ModelFamily> attention_families() {
  static constexpr ModelFamily all[] = {
      {"llama", read_llama},           {"qwen2", read_qwen2},
      {"qwen3", read_qwen3},           {"qwen3_moe", read_qwen3},
      {"olmo2", read_olmo2},           {"gemma2", read_gemma2},
      {"gpt_oss", read_gpt_oss},       {"afmoe", read_afmoe},
      {"olmo3", read_olmo2},           {"gemma3_text", read_gemma2, kGemma3},
      {"smollm3", read_smollm3},       {"phi3", read_phi3},
      {"ernie4_5", read_ernie},        {"mistral", read_mistral},
      {"ministral", read_mistral},     {"mixtral", read_mistral},
      {"minimax_m2", read_minimax_m2}, {"qwen2_moe", read_qwen2},
  };
  return all;
}

}  // namespace sluice::detail
