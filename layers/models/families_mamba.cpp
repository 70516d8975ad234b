// Families with Mamba or Mamba-2 in most or all of their blocks, and Granite 3, whose factors are Granite 4's.
#include <sluice/layers/models/families.h>

#include <cmath>
#include <map>

namespace sluice::detail {

namespace {

/// Names of Mamba-2's members in `module`.
void mamba2_names(FamilyReader& r, const std::string& module) {
  r.members(module, {{"(in|out)", "$1_proj"}, {"conv", "conv1d"}, {"a_log", "A_log"}, {"d", "D"}});
}

/// Options of Mamba-2 under the names of transformers' Mamba-2 and of Nemotron-H, with the prefix `of`.
Mamba2Options mamba2_options(const FamilyReader& r, const std::string& of, const std::string& state) {
  const ModelConfig& c = r.config;
  Mamba2Options o{.dim = r.plan.options.dim};
  o.heads = c.at<int64_t>(of + "num_heads"), o.head_dim = c.at<int64_t>(of + "head_dim");
  o.state = c.at<int64_t>(state);
  o.short_conv = c.get<int64_t>("conv_kernel", 4), o.conv_bias = c.get("use_conv_bias", true);
  o.norm_eps = r.plan.options.norm_eps;
  c.must_be("use_bias", false);
  c.must_be(of + "hidden_act", std::string("silu"));
  o.dt_limit = c.get("time_step_limit", o.dt_limit);
  c.ignore(
      "chunk_size expand rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_max time_step_min "
      "time_step_rank");
  return o;
}

/// The names of the weights around `backbone`'s blocks, and of a block's only norm.
PyTorchRules mamba2_names_around(const std::string& backbone) {
  return {{"^embedding\\.", backbone + "embeddings."},
          {"^norm\\.", backbone + "norm_f."},
          {"^head\\.", "lm_head."},
          {"^blocks\\.", backbone + "layers."},
          {"(mixer|feed)_norm\\.", "norm."}};
}

/// Names of Mamba's members in `module`, those of its norms included.
void mamba_names(FamilyReader& r, const std::string& module) {
  r.members(module, {{"(in|out|dt)\\.", "$1_proj."},
                     {"select\\.", "x_proj."},
                     {"(dt|b|c)_norm\\.", "$1_layernorm."},
                     {"dt_bias", "dt_proj.bias"},
                     {"conv", "conv1d"},
                     {"a_log", "A_log", {.layout = PyTorchLayout::as_is}},
                     {"d", "D"}});
}

/// The rank of Mamba's Δ: `field` is a number, or "auto", ⌈dim/16⌉.
int64_t rank_of_step(const FamilyReader& r, const std::string& field) {
  const bool named = !r.config.has(field) || r.config.is(field, Json{std::string("auto")});
  const int64_t rank = named ? (r.plan.options.dim + 15) / 16 : r.config.at<int64_t>(field);
  if (rank < 1) r.config.refuse(field, "it must be at least 1, or \"auto\"");
  return rank;
}

/// Mamba and Falcon Mamba, which has norms without weights in its mixers.
void read_mamba(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MambaOptions o{.dim = r.plan.options.dim};
  o.inner = r.positive("expand", 2) * o.dim;
  c.must_be("intermediate_size", o.inner);
  o.state = c.at<int64_t>("state_size"), o.dt_rank = rank_of_step(r, "time_step_rank");
  o.short_conv = c.get<int64_t>("conv_kernel", 4), o.conv_bias = c.get("use_conv_bias", true);
  o.bias = c.get("use_bias", false);
  c.must_be("hidden_act", std::string("silu"));
  if (r.type == "falcon_mamba") o.norm = NormKind::rms_plain, o.norm_eps = c.get("mixer_rms_eps", 1e-6);
  else {
    c.must_be("rms_norm", true);
    c.must_be("d_model", o.dim), c.must_be("d_inner", o.inner), c.must_be("n_layer", r.layers);
  }
  c.ignore(
      "fused_add_norm pad_vocab_size_multiple rescale_prenorm_residual residual_in_fp32 time_step_floor "
      "time_step_init_scheme time_step_max time_step_min time_step_scale use_associative_scan use_falcon_mambapy "
      "use_mambapy");
  r.mixers(o);
  r.plan.rules = mamba2_names_around("backbone.");
  mamba_names(r, "mixer");
}

/// Mamba-2 of transformers.
void read_mamba2(FamilyReader& r) {
  const ModelConfig& c = r.config;
  Mamba2Options o = mamba2_options(r, "", "state_size");
  o.groups = c.get<int64_t>("n_groups", 1);
  c.ignore("norm_before_gate rms_norm");
  r.mixers(o);
  r.plan.rules = mamba2_names_around("backbone.");
  mamba2_names(r, "mixer");
}

/// The kinds of Nemotron-H's blocks by their letters: M Mamba-2, * attention, - a dense feed, E experts.
std::string nemotron_pattern(const FamilyReader& r) {
  const std::map<std::string, char> letters = {{"linear_attention", 'M'}, {"mamba", 'M'}, {"full_attention", '*'},
                                               {"attention", '*'},        {"mlp", '-'},   {"moe", 'E'}};
  const bool listed = r.config.has("layers_block_type");
  const char* const field = listed ? "layers_block_type" : "hybrid_override_pattern";
  std::string out;
  if (!listed) out = r.config.at<std::string>(field);
  else
    for (const std::string& kind : r.config.at<std::vector<std::string>>(field))
      out += letters.contains(kind) ? letters.at(kind) : '?';
  if (std::ssize(out) != r.layers || out.find_first_not_of("M*-E") != std::string::npos)
    r.config.refuse(field, str("need ", r.layers, " blocks: mamba (M), attention (*), mlp (-), moe (E)"));
  r.config.must_be("hybrid_override_pattern", out);
  return out;
}

/// Nemotron-H's experts, without a gate, and its shared one.
MoeOptions nemotron_experts(const FamilyReader& r) {
  const ModelConfig& c = r.config;
  MoeOptions o = r.moe({"n_routed_experts", "num_local_experts"});
  o.activation = MoeActivation::relu2;
  o.latent = c.get<int64_t>("moe_latent_size", 0);
  o.router = MoeRouter::sigmoid, o.router_bias = true;
  o.norm_topk = c.get("norm_topk_prob", true), o.scale = c.get("routed_scaling_factor", 1.0);
  o.groups = c.get<int64_t>("n_group", 1), o.top_groups = c.get<int64_t>("topk_group", 1), o.group_best = 2;
  o.shared_hidden = c.at<int64_t>("moe_shared_expert_intermediate_size"), o.shared_gate = false;
  c.must_be("n_shared_experts", int64_t{1});
  c.must_be("mlp_bias", false);
  return o;
}

/// Nemotron-H and Nemotron 3: blocks of Mamba-2, of attention without RoPE, of a dense feed or of experts alone.
void read_nemotron_h(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const std::string pattern = nemotron_pattern(r);
  const auto of_kind = [&](char letter) {
    return r.where([&](int64_t layer) { return pattern[static_cast<std::size_t>(layer)] == letter; });
  };
  const std::vector<int64_t> attends = of_kind('*'), dense = of_kind('-'), sparse = of_kind('E');
  c.must_be("layer_norm_epsilon", r.plan.options.norm_eps);
  c.must_be("mlp_hidden_act", std::string("relu2"));
  c.must_be("mamba_proj_bias", false);
  c.ignore(
      "intermediate_size mlp_bias mamba_ssm_cache_dtype hidden_dropout moe_shared_expert_overlap "
      "mtp_layers_block_type mtp_hybrid_override_pattern");
  // NVIDIA's code clamps Δ to time_step_limit. Transformers 5.24 clamps it to [time_step_min, ∞), which its pull
  // request 48989 calls a fault.
  Mamba2Options recurrent = mamba2_options(r, "mamba_", "ssm_state_size");
  recurrent.groups = c.at<int64_t>("n_groups");
  r.mixers(recurrent);
  MultiHeadAttentionOptions full = r.attention();
  full.heads.use_rope = false;
  full.heads.head_dim = c.any_of<int64_t>({"head_dim", "attention_head_dim"});
  c.must_be("attention_head_dim", full.heads.head_dim);
  c.must_be("attention_bias", false);
  if (c.has("sliding_window")) c.refuse("sliding_window", "no model has one");
  r.mixers(attends, full);
  for (const std::vector<int64_t>& some : {dense, sparse}) r.mixers(some, std::monostate{});

  r.plan.rules = mamba2_names_around(r.has("backbone.") ? "backbone." : "model.");
  r.rename_in(attends, "mixer\\.([qkv])\\.", "mixer.$2_proj.");
  r.rename_in(attends, "mixer\\.out\\.", "mixer.o_proj.");
  mamba2_names(r, "mixer");
  r.rename("(layers\\.\\d+\\.)feed\\.", "$1mlp.");
  r.ungated(dense, c.get("mlp_bias", false), "mlp_hidden_act");
  if (!sparse.empty()) r.experts(sparse, nemotron_experts(r), "shared_experts");
  else
    c.ignore(
        "n_routed_experts num_experts_per_tok moe_intermediate_size moe_shared_expert_intermediate_size "
        "moe_latent_size n_group topk_group norm_topk_prob routed_scaling_factor n_shared_experts");
  r.members("mlp", {{"router_bias", "gate.e_score_correction_bias"},
                    {"latent_down", "fc1_latent_proj"},
                    {"latent_up", "fc2_latent_proj"}});
  r.rename("\\.mlp\\.", ".mixer.");
}

// What config.json of Granite may leave out.
constexpr const char* kNoShared = R"({"shared_intermediate_size": 0})";
constexpr const char* kSwash = R"({"shared_intermediate_size": 0, "sliding_window": 128})";

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
    const bool newer = r.has("block_sparse_moe.experts.");
    const std::string at = "block_sparse_moe.", both = at + (newer ? "experts.gate_up_proj" : "input_linear.weight");
    r.rename("mlp\\.router\\.", at + (newer ? "router." : "router.layer."));
    r.rename("mlp\\.gate\\.weight", both, {.part = 0, .axis = 1, .layout = transposed});
    r.rename("mlp\\.up\\.weight", both, {.part = 1, .axis = 1, .layout = transposed});
    r.rename("mlp\\.down\\.weight", at + (newer ? "experts.down_proj" : "output_linear.weight"),
             {.layout = transposed});
  } else {
    for (DecoderBlockOptions& block : r.plan.options.blocks)
      block.feed = GluOptions{.dim = r.plan.options.dim, .hidden = shared};
    c.ignore("intermediate_size num_experts_per_tok");
  }
  r.rename("mlp\\.(shared_gate_proj|gate)\\.", "shared_mlp.input_linear.", {.part = 0});
  r.rename("mlp\\.(shared_up|value)\\.", "shared_mlp.input_linear.", {.part = 1});
  r.rename("mlp\\.(shared_down|out)\\.", "shared_mlp.output_linear.");
}

/// Mamba-2 as Granite 4, Bamba and Falcon-H1 call its options.
Mamba2Options granite_mamba(const FamilyReader& r) {
  const ModelConfig& c = r.config;
  Mamba2Options o{.dim = r.plan.options.dim, .heads = r.positive("mamba_n_heads")};
  o.head_dim = (c.has("mamba_d_ssm") ? c.at<int64_t>("mamba_d_ssm") : c.at<int64_t>("mamba_expand") * o.dim) / o.heads;
  o.state = c.at<int64_t>("mamba_d_state"), o.groups = c.at<int64_t>("mamba_n_groups");
  o.short_conv = c.at<int64_t>("mamba_d_conv"), o.conv_bias = c.get("mamba_conv_bias", true, false);
  o.dt_limit = c.get("time_step_limit", o.dt_limit);
  o.norm_eps = r.plan.options.norm_eps;
  c.must_be("mamba_proj_bias", false);
  c.ignore("mamba_d_head mamba_chunk_size mamba_expand");
  return o;
}

/// Attention of Granite's models with sinks: windows in most layers, and for each layer a base of RoPE, 0 for none.
void granite_swa(FamilyReader& r, MultiHeadAttentionOptions o) {
  const ModelConfig& c = r.config;
  const char* const bases = "layer_rope_theta";
  o.sink = AttentionSink::learned;
  const auto base = r.of_layers(bases, o.heads.rope.base);
  for (int64_t i = 0; i < r.layers; ++i) {
    MultiHeadAttentionOptions own = o;
    const double theta = base[static_cast<std::size_t>(i)];
    own.heads.use_rope = theta != 0;
    if (theta != 0 && theta != o.heads.rope.base) {
      if (theta < 0) c.refuse(bases, "need numbers that are not negative");
      if (!o.heads.rope.frequencies.empty()) c.refuse(bases, "other bases are known for the default RoPE only");
      own.heads.rope.base = theta;
    }
    r.block(i).mixer = own;
  }
  r.windows(c.has("layer_types") ? r.typed("layer_types", "sliding_attention")
                                 : r.where([](int64_t i) { return i % 4 != 0; }));
  r.members("self_attn", {{"sink", "sinks"}});
}

/// Granite 3, dense, with experts and with sinks, and Granite 4, whose mixers are Mamba-2 in most blocks or in none:
/// factors of the embedding, the branches, the scores and the logits.
void read_granite(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool hybrid = r.type == "granitemoehybrid", dense_swa = r.type == "granite_swa";
  DecoderOptions& model = r.plan.options;
  if (dense_swa) model.tied = c.get("tie_word_embeddings", true);
  model.embedding_scale = r.factor("embedding_multiplier", 1.0, 1.0);
  model.residual_scale = r.factor("residual_multiplier", 1.0, 1.0);
  model.logit_scale = 1 / r.factor("logits_scaling", 1.0, 1.0);
  MultiHeadAttentionOptions full = r.attention();
  if (!c.is_null("attention_multiplier")) full.scale = r.factor("attention_multiplier", 1.0, 1.0);
  const std::string position = c.get("position_embedding_type", std::string(hybrid ? "nope" : "rope"));
  if (position != "rope" && (position != "nope" || !hybrid)) c.refuse("position_embedding_type", "known: rope, nope");
  full.heads.use_rope = position == "rope";
  c.must_be("normalization_function", std::string("rmsnorm"));
  c.must_be("hidden_act", std::string("silu"));
  c.ignore("init_method");
  r.mixers(full);
  const std::vector<int64_t> recurrent = hybrid ? r.typed("layer_types", "linear_attention") : std::vector<int64_t>{};
  if (hybrid) r.mixers(recurrent, granite_mamba(r));
  r.usual_names(recurrent, "mamba.");
  mamba2_names(r, "mamba");
  if (dense_swa || r.type == "granitemoe_swa") granite_swa(r, full);
  if (dense_swa || r.type == "granite") r.dense(r.all());
  else granite_feeds(r, r.type != "granitemoe");
}

/// The names of feeds and norms in Bamba and Falcon-H1. Must be called after usual_names().
void bamba_names(FamilyReader& r) {
  mamba2_names(r, "mamba");
  r.dense(r.all());
  r.rename("\\.mlp\\.", ".feed_forward.");
  r.rename("post_attention_layernorm\\.", "pre_ff_layernorm.");
  r.rename("^model\\.norm\\.", "model.final_layernorm.");
}

/// Bamba: Mamba-2, and in a few blocks attention with RoPE on half of a head's channels.
void read_bamba(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.rotary_share = 0.5;
  c.must_be("partial_rotary_factor", 0.5);  // transformers takes a half whatever it says
  const MultiHeadAttentionOptions full = r.attention();
  c.must_be("attn_rotary_emb", full.heads.head_dim / 2);
  c.must_be("hidden_act", std::string("silu"));  // in transformers also that of the convolution
  c.ignore("z_loss_coefficient");
  const std::vector<int64_t> recurrent = r.others_than(c.get("attn_layer_indices", std::vector<int64_t>{}));
  r.mixers(full);
  r.mixers(recurrent, granite_mamba(r));
  r.usual_names(recurrent, "mamba.");
  bamba_names(r);
}

/// Jamba: Mamba with norms, and attention without RoPE in turns; experts in turns, whose weights are not divided by
/// their sum.
void read_jamba(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const auto turns = [&](const std::string& of) {
    const auto period = r.positive(of + "_layer_period"), offset = c.at<int64_t>(of + "_layer_offset");
    if (offset < 0 || offset >= period) c.refuse(of + "_layer_offset", "it must be from 0 to below the period");
    return r.where([&](int64_t layer) { return layer % period == offset; });
  };
  const std::vector<int64_t> attends = turns("attn"), others = r.others_than(attends);
  const std::vector<int64_t> sparse = c.at<int64_t>("num_experts") > 1 ? turns("expert") : std::vector<int64_t>{};
  MultiHeadAttentionOptions full = r.attention();
  full.heads.use_rope = false;
  c.must_be("attention_bias", false);
  if (c.has("sliding_window")) c.refuse("sliding_window", "no model has one");
  MambaOptions o{.dim = r.plan.options.dim, .norm = NormKind::rms, .norm_eps = r.plan.options.norm_eps};
  o.inner = r.positive("mamba_expand") * o.dim;
  o.state = c.at<int64_t>("mamba_d_state"), o.dt_rank = rank_of_step(r, "mamba_dt_rank");
  o.short_conv = c.at<int64_t>("mamba_d_conv"), o.conv_bias = c.get("mamba_conv_bias", true);
  o.bias = c.get("mamba_proj_bias", false);
  c.must_be("mamba_inner_layernorms", true);
  c.ignore(
      "num_experts num_experts_per_tok expert_layer_period expert_layer_offset use_mambapy use_associative_scan "
      "calc_logits_for_entire_prompt n_ctx");

  r.mixers(full);
  r.mixers(others, o);
  r.usual_names(others, "mamba.");
  mamba_names(r, "mamba");
  r.dense(r.others_than(sparse));
  if (!sparse.empty()) {
    MoeOptions moe = r.moe({"num_experts"});
    moe.norm_topk = false;
    r.experts(sparse, moe);
  }
  r.rename("\\.mlp\\.gate\\.weight", ".mlp.router.weight");
  r.rename("\\.mlp\\.", ".feed_forward.");
  r.rename("post_attention_layernorm\\.", "pre_ff_layernorm.");
  r.rename("^model\\.norm\\.", "model.final_layernorm.");
}

/// Falcon-H1: attention and Mamba-2 side by side in every block, and factors of nearly every map.
void read_falcon_h1(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const auto factor = [&](const std::string& of) { return c.get(of + "_multiplier", 1.0); };
  r.plan.options.embedding_scale = factor("embedding"), r.plan.options.logit_scale = factor("lm_head");
  MultiHeadAttentionOptions full = r.attention();
  const double in = factor("attention_in");  // of q, k and v
  if (in != 1 && full.heads.qkv_bias) c.refuse("attention_bias", "need attention_in_multiplier 1 for it");
  full.scale = in * in * factor("key") / std::sqrt(static_cast<double>(full.heads.head_dim));

  if (!c.is_null("mamba_d_ssm")) c.at<int64_t>("mamba_d_ssm");  // transformers' default fits one model only
  Mamba2Options ssm = granite_mamba(r);
  ssm.norm = c.get("mamba_rms_norm", false), ssm.norm_before_gate = c.get("mamba_norm_before_gate", true);
  ssm.in_factors = c.get("ssm_multipliers", std::vector<double>(5, 1.0));
  for (double& each : ssm.in_factors) each *= factor("ssm_in");
  c.must_be("projectors_bias", false);
  c.must_be("mamba_use_mlp", true);
  c.must_be("hidden_act", std::string("silu"));  // in transformers also that of the convolution

  r.mixers(full);
  r.usual_names();
  r.rename("(layers\\.\\d+\\.)beside\\.", "$1mamba.");
  bamba_names(r);
  const auto feed = c.get("mlp_multipliers", std::vector<double>{1, 1});  // of the gate, and of the whole
  if (feed.size() != 2) c.refuse("mlp_multipliers", "need 2 entries");
  for (DecoderBlockOptions& block : r.plan.options.blocks) {
    block.beside = ssm;
    block.mixer_factor = in * factor("attention_out"), block.beside_factor = factor("ssm_out");
    block.feed_factor = feed[1], std::get<GluOptions>(block.feed).gate_scale = feed[0];
  }
}

}  // namespace

std::span<const ModelFamily> mamba_families() {
  static constexpr ModelFamily all[] = {
      {"mamba", read_mamba, R"({"tie_word_embeddings": true})"},
      {"falcon_mamba", read_mamba, R"({"tie_word_embeddings": true})"},
      {"jamba", read_jamba},
      {"mamba2", read_mamba2},
      {"granite", read_granite},
      {"granitemoe", read_granite},
      {"granitemoeshared", read_granite, kNoShared},
      {"granite_swa", read_granite, kSwash},
      {"granitemoe_swa", read_granite, kSwash},
      {"granitemoehybrid", read_granite},
      {"bamba", read_bamba},
      {"nemotron_h", read_nemotron_h, R"({"mlp_hidden_act": "relu2"})"},
      {"falcon_h1", read_falcon_h1},
  };
  return all;
}

}  // namespace sluice::detail
