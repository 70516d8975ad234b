// Families with a recurrent mixer in most or all of their blocks.
#include <sluice/layers/models/families.h>

#include <cmath>

namespace sluice::detail {

namespace {

/// Sizes of Gated DeltaNet as Qwen and OLMo call them.
DeltaOptions delta_sizes(const ModelConfig& c, const DecoderOptions& o) {
  c.must_be("hidden_act", std::string("silu"));  // in transformers also that of the convolution
  DeltaOptions d{.dim = o.dim};
  d.heads = c.at<int64_t>("linear_num_key_heads"), d.value_heads = c.at<int64_t>("linear_num_value_heads");
  d.key_dim = c.at<int64_t>("linear_key_head_dim"), d.value_dim = c.at<int64_t>("linear_value_head_dim");
  d.short_conv = c.get<int64_t>("linear_conv_kernel_dim", 4);
  d.norm_eps = o.norm_eps;
  return d;
}

/// Qwen3-Next and Qwen3.5: three blocks of Gated DeltaNet for one of gated attention; norms hold w − 1.
void read_qwen3_next(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.rotary_share = 0.25;
  MultiHeadAttentionOptions full = r.attention();
  full.qk_norm = true;
  full.gates = {AttentionGateOptions{}};
  c.must_be("attn_output_gate", true);
  const GatedDeltaNetOptions linear{.heads = delta_sizes(c, r.plan.options)};
  c.must_be("use_sliding_window", false);
  if (c.at<std::string>("model_type") != "qwen3_next") c.must_be("norm_topk_prob", true);  // Qwen3.5 norms always
  c.ignore("mamba_ssm_dtype");
  const auto interval = c.get<int64_t>("full_attention_interval", 4);
  const std::vector<int64_t> recurrent =
      c.has("layer_types") ? r.typed("layer_types", "linear_attention")
                           : r.where([&](int64_t layer) { return interval < 1 || (layer + 1) % interval != 0; });
  r.mixers(full);
  r.mixers(recurrent, linear);

  r.usual_names(recurrent);
  const int64_t heads = full.heads.heads;  // query and gate by head
  r.members("self_attn", {{"q_proj", "q_proj", {.part = 0, .groups = heads}},
                          {"gates\\.0\\.map", "q_proj", {.part = 1, .groups = heads}}});
  const int64_t groups = linear.heads.heads;
  if (r.has("in_proj_qkvz"))  // by key head: q, k, and v and z of its value heads
    r.members("linear_attn", {{"q", "in_proj_qkvz", {.part = 0, .groups = groups}},
                              {"k", "in_proj_qkvz", {.part = 1, .groups = groups}},
                              {"v", "in_proj_qkvz", {.part = 2, .groups = groups}},
                              {"output_gate", "in_proj_qkvz", {.part = 3, .groups = groups}},
                              {"beta", "in_proj_ba", {.part = 0, .groups = groups}},
                              {"decay", "in_proj_ba", {.part = 1, .groups = groups}}});
  else
    r.members("linear_attn", {{"q", "in_proj_qkv", {.part = 0}},
                              {"k", "in_proj_qkv", {.part = 1}},
                              {"v", "in_proj_qkv", {.part = 2}},
                              {"output_gate", "in_proj_z"},
                              {"beta", "in_proj_b"},
                              {"decay", "in_proj_a"}});
  r.members("linear_attn", {{"conv", "conv1d"}, {"a_log", "A_log"}, {"out", "out_proj"}});
  r.norms_less_one();

  r.dense_or_sparse(true);
}

/// OLMo-Hybrid: OLMo 2's attention among blocks of Gated DeltaNet, whose writes may turn the state.
void read_olmo_hybrid(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MultiHeadAttentionOptions full = r.attention();
  full.qk_norm = true, full.qk_norm_over = QkNormOver::width;
  full.heads.use_rope = !c.is_null("rope_parameters.rope_theta") && !c.is_null("rope_theta");
  if (!full.heads.use_rope) c.ignore("rope_parameters.rope_type");
  GatedDeltaNetOptions linear{.heads = delta_sizes(c, r.plan.options)};
  linear.heads.norm_eps = 1e-5;  // whatever rms_norm_eps is
  linear.heads.beta_scale = c.get("linear_allow_neg_eigval", true) ? 2 : 1;
  c.ignore("linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max linear_dt_init_floor");
  c.must_be("linear_use_gate", true);
  const std::vector<int64_t> recurrent = r.typed("layer_types", "linear_attention");
  for (DecoderBlockOptions& block : r.plan.options.blocks) {
    block.mixer = full;
    block.mixer_norms = block.feed_norms = {.before = false, .after = true};
  }
  for (const int64_t layer : recurrent) {
    r.block(layer).mixer = linear;
    r.block(layer).mixer_norms = r.block(layer).feed_norms = {};
  }
  r.rename_in(recurrent, "mixer_norm\\.", r.has("attention_layer_norm") ? "attention_layer_norm." : "input_layernorm.");
  const std::string feed = r.has("feedforward_layer_norm") ? "feedforward_layer_norm." : "post_attention_layernorm.";
  r.rename_in(recurrent, "feed_norm\\.", feed);
  // Saved again by transformers, the norm behind attention has the name of the other blocks' norm.
  const auto full_layers = r.typed("layer_types", "full_attention", "linear_attention");
  const bool saved_again =
      !full_layers.empty() && r.has(str("layers.", full_layers[0], ".feedforward_layer_norm").c_str());
  r.rename("mixer_post_norm\\.", saved_again ? feed : "post_attention_layernorm.");
  r.rename("feed_post_norm\\.", "post_feedforward_layernorm.");
  r.usual_names(recurrent);
  const DeltaOptions& d = linear.heads;
  r.convolution("linear_attn", d.heads * d.key_dim, d.value_heads * d.value_dim);
  r.members("linear_attn", {{"([qkv])", "$1_proj"},
                            {"out", "o_proj"},
                            {"norm", "o_norm"},
                            {"decay", "a_proj"},
                            {"beta", "b_proj"},
                            {"output_gate", "g_proj"},
                            {"a_log", "A_log"}});
  r.dense(r.all());
}

/// Names of Mamba-2's members in `module`.
void mamba2_names(FamilyReader& r, const std::string& module) {
  r.members(module, {{"(in|out)", "$1_proj"}, {"conv", "conv1d"}, {"a_log", "A_log"}, {"d", "D"}});
}

/// Mamba-2 of transformers.
void read_mamba2(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& model = r.plan.options;
  Mamba2Options o{.dim = model.dim};
  o.heads = c.at<int64_t>("num_heads"), o.head_dim = c.at<int64_t>("head_dim"), o.state = c.at<int64_t>("state_size");
  o.groups = c.get<int64_t>("n_groups", 1), o.short_conv = c.get<int64_t>("conv_kernel", 4);
  o.conv_bias = c.get("use_conv_bias", true);
  o.norm_eps = model.norm_eps;
  c.must_be("use_bias", false);
  c.must_be("hidden_act", std::string("silu"));
  o.dt_limit = c.get("time_step_limit", o.dt_limit);
  c.ignore(
      "chunk_size expand rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_max time_step_min "
      "time_step_rank norm_before_gate rms_norm");
  r.mixers(o);
  r.plan.rules = {{"^embedding\\.", "backbone.embeddings."},
                  {"^norm\\.", "backbone.norm_f."},
                  {"^head\\.", "lm_head."},
                  {"^blocks\\.", "backbone.layers."},
                  {"mixer_norm\\.", "norm."}};
  mamba2_names(r, "mixer");
}

/// Granite's gate and value stand in one map.
void granite_feeds(FamilyReader& r, bool shared_expert) {
  const ModelConfig& c = r.config;
  const bool sparse = c.at<int64_t>("num_local_experts") > 0;
  const int64_t shared = shared_expert ? c.at<int64_t>("shared_intermediate_size") : 0;
  constexpr PyTorchLayout transposed = PyTorchLayout::transposed;
  if (sparse) {
    MoeOptions o = r.moe({"num_local_experts"});
    o.shared_hidden = shared, o.shared_gate = false;
    for (DecoderBlockOptions& block : r.plan.options.blocks) block.feed = o;
    const std::string both = "block_sparse_moe.input_linear.";
    r.rename("mlp\\.router\\.", "block_sparse_moe.router.layer.");
    r.rename("mlp\\.gate\\.", both, {.part = 0, .axis = 1, .layout = transposed});
    r.rename("mlp\\.up\\.", both, {.part = 1, .axis = 1, .layout = transposed});
    r.rename("mlp\\.down\\.", "block_sparse_moe.output_linear.", {.layout = transposed});
  } else {
    for (DecoderBlockOptions& block : r.plan.options.blocks)
      block.feed = GluOptions{.dim = r.plan.options.dim, .hidden = shared};
    c.ignore("intermediate_size num_experts_per_tok");
  }
  r.rename("mlp\\.(shared_gate_proj|gate)\\.", "shared_mlp.input_linear.", {.part = 0});
  r.rename("mlp\\.(shared_up|value)\\.", "shared_mlp.input_linear.", {.part = 1});
  r.rename("mlp\\.(shared_down|out)\\.", "shared_mlp.output_linear.");
}

/// Mamba-2 as Granite 4 calls its options, in the blocks `which`.
void granite_mamba(FamilyReader& r, const std::vector<int64_t>& which) {
  const ModelConfig& c = r.config;
  Mamba2Options o{.dim = r.plan.options.dim, .heads = c.at<int64_t>("mamba_n_heads")};
  if (o.heads < 1) c.refuse("mamba_n_heads", "it must be at least 1");
  o.head_dim = c.at<int64_t>("mamba_expand") * o.dim / o.heads;
  o.state = c.at<int64_t>("mamba_d_state"), o.groups = c.at<int64_t>("mamba_n_groups");
  o.short_conv = c.at<int64_t>("mamba_d_conv"), o.conv_bias = c.get("mamba_conv_bias", true);
  o.dt_limit = c.get("time_step_limit", o.dt_limit);
  o.norm_eps = r.plan.options.norm_eps;
  c.must_be("mamba_proj_bias", false);
  c.ignore("mamba_d_head mamba_chunk_size");
  r.mixers(which, o);
}

/// Granite 3, dense and with experts, and Granite 4, whose mixers are Mamba-2 in most blocks or in none: factors of the
/// embedding, the branches, the scores and the logits.
void read_granite(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const std::string type = c.at<std::string>("model_type");
  const bool hybrid = type == "granitemoehybrid";
  DecoderOptions& model = r.plan.options;
  model.embedding_scale = c.get("embedding_multiplier", 1.0), model.residual_scale = c.get("residual_multiplier", 1.0);
  model.logit_scale = 1 / c.get("logits_scaling", 1.0);
  if (!std::isfinite(model.logit_scale)) c.refuse("logits_scaling", "it must not be 0");
  MultiHeadAttentionOptions full = r.attention();
  full.scale = c.get("attention_multiplier", 1.0);
  const std::string position = c.get("position_embedding_type", std::string(hybrid ? "nope" : "rope"));
  if (position != "rope" && (position != "nope" || !hybrid)) c.refuse("position_embedding_type", "known: rope, nope");
  full.heads.use_rope = position == "rope";
  c.must_be("normalization_function", std::string("rmsnorm"));
  c.must_be("hidden_act", std::string("silu"));
  c.ignore("init_method");
  r.mixers(full);
  const std::vector<int64_t> recurrent = hybrid ? r.typed("layer_types", "linear_attention") : std::vector<int64_t>{};
  if (hybrid) granite_mamba(r, recurrent);
  r.usual_names(recurrent, "mamba.");
  mamba2_names(r, "mamba");
  if (type == "granite") r.dense(r.all());
  else granite_feeds(r, hybrid);
}

}  // namespace

std::span<const ModelFamily> hybrid_families() {
  static constexpr ModelFamily all[] = {
      {"qwen3_next", read_qwen3_next},
      {"qwen3_5_text", read_qwen3_next},
      {"qwen3_5_moe_text", read_qwen3_next},
      {"olmo_hybrid", read_olmo_hybrid},
      {"mamba2", read_mamba2},
      {"granite", read_granite},
      {"granitemoe", read_granite},
      {"granitemoehybrid", read_granite},
  };
  return all;
}

}  // namespace sluice::detail
