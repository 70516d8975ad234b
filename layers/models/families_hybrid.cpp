// Families with the delta rule, lightning attention or short convolutions in most of their blocks.
#include <sluice/layers/models/families.h>

#include <cmath>
#include <set>
#include <tuple>

namespace sluice::detail {

namespace {

/// Sizes of Gated DeltaNet under the names that Qwen and OLMo use.
DeltaOptions delta_sizes(const ModelConfig& c, const DecoderOptions& o) {
  c.must_be("hidden_act", std::string("silu"));  // in transformers also that of the convolution
  DeltaOptions d{.dim = o.dim};
  d.heads = c.at<int64_t>("linear_num_key_heads"), d.value_heads = c.at<int64_t>("linear_num_value_heads");
  d.key_dim = c.at<int64_t>("linear_key_head_dim"), d.value_dim = c.at<int64_t>("linear_value_head_dim");
  d.short_conv = c.get<int64_t>("linear_conv_kernel_dim", 4);
  d.norm_eps = o.norm_eps;
  return d;
}

/// Qwen3.5's names of a Gated DeltaNet's weights, or those of one map for all of its inputs (Lara Mini).
void delta_names(FamilyReader& r) {
  if (r.has("linear_attn.in_proj.")) {
    r.parts("linear_attn", "in_proj", {"q", "k", "v", "output_gate", "beta", "decay"});
    r.members("linear_attn", {{"norm", "out_norm"}});
  } else {
    r.parts("linear_attn", "in_proj_qkv", {"q", "k", "v"});
    r.members("linear_attn", {{"output_gate", "in_proj_z"}, {"beta", "in_proj_b"}, {"decay", "in_proj_a"}});
  }
  r.members("linear_attn", {{"conv", "conv1d"}, {"a_log", "A_log"}, {"out", "out_proj"}});
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
  if (r.type != "qwen3_next") c.must_be("norm_topk_prob", true);  // Qwen3.5 always normalises
  c.ignore("mamba_ssm_dtype");
  const auto recurrent = r.typed_or_turns("linear_attention", "full_attention_interval", 4);
  r.mixers(full);
  r.mixers(recurrent, linear);

  r.usual_names(recurrent);
  r.parts("self_attn", "q_proj", {"q_proj", "gates\\.0\\.map"}, full.heads.heads);  // query and gate by head
  if (r.has("in_proj_qkvz")) {  // by key head: q, k, and v and z of its value heads
    r.parts("linear_attn", "in_proj_qkvz", {"q", "k", "v", "output_gate"}, linear.heads.heads);
    r.parts("linear_attn", "in_proj_ba", {"beta", "decay"}, linear.heads.heads);
  }
  delta_names(r);
  r.norms_less_one();

  r.dense_or_sparse(true);
}

/// The n-grams that Qwen4 adds before the layers ple_layer_ids, which are counted from 1.
void qwen4_ngrams(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const auto layers = c.get<std::vector<int64_t>>("ple_layer_ids", {});
  NgramInjectionOptions o{.dim = r.plan.options.dim, .width = c.get("ple_embed_dim", r.plan.options.dim)};
  o.taps = c.get<int64_t>("ple_conv_kernel_size", 4), o.norm_eps = r.plan.options.norm_eps;
  const auto longest = c.get<int64_t>("ngram_size", 3), heads = c.get<int64_t>("heads_per_ngram", 8),
             least = c.get<int64_t>("ngram_vocab_size_base", 20000000),
             divisor = c.get<int64_t>("make_ngram_vocab_size_divisible_by", 128), seed = c.get<int64_t>("seed", 1234),
             parts = r.positive("split_ngram_parts", 512);
  if (parts > 65536) c.refuse("split_ngram_parts", "it must be at most 65536");
  const char* const end = "eos_token_id";
  if (!layers.empty()) {
    const auto ends = c.is_list(end) ? c.at<std::vector<int64_t>>(end) : std::vector{c.at<int64_t>(end)};
    if (ends.empty()) c.refuse(end, "n-grams need one");
    o.boundary = ends[0];
  }
  std::set<int64_t> sorted(layers.begin(), layers.end());
  int64_t number = 0;
  for (const int64_t layer : sorted) {
    if (layer < 1 || layer > r.layers) c.refuse("ple_layer_ids", "no such layer");
    hash_ngrams(o, r.plan.options.vocabulary, longest, heads, number++, least, divisor, seed);
    r.block(layer - 1).ngrams = o;
    if (!r.has("ngram_embedding.shard_")) continue;
    PyTorchStorage shards;
    const int64_t rows = ceil_div(o.rows, parts);
    for (int64_t i = 0; i * rows < o.rows; ++i)
      shards.pieces.push_back(
          {str("$1ple.ple_embedding.ngram_embedding.shard_", i, ".weight"), std::min(rows, o.rows - i * rows)});
    r.rename(str("(layers\\.", layer - 1, "\\.)ngrams\\.table\\.weight"), "", std::move(shards));
  }
  r.rename("ngrams\\.table\\.", "ple.ple_embedding.ngram_embedding.");
  r.rename("ngrams\\.conv$", "ple.conv1d.weight", {.layout = PyTorchLayout::depthwise});
  r.rename("ngrams\\.(key|query)_norm\\.", "ple.norm_$1.", {.add = 1});
  r.rename("ngrams\\.value_norm\\.", "ple.norm_conv.", {.add = 1});
  r.rename("ngrams\\.(key|value)\\.", "ple.$1_proj.");
  r.plan.ignore.push_back("ple_embedding\\.(layer_multipliers|ngram_heads_vocab_sizes|ngram_heads_offsets)$");
}

/// Qwen4: three blocks of Gated DeltaNet for one of gated attention to chosen keys; gated residual streams, which norm
/// what a branch reads; n-grams added before some layers; experts.
void read_qwen4(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& model = r.plan.options;
  r.rotary_share = 1;
  const MultiHeadAttentionOptions full = r.attention();
  QsaAttentionOptions indexed{.heads = full.heads, .norm_eps = model.norm_eps};
  indexed.index_heads = c.at<int64_t>("indexer_n_heads"), indexed.index_dim = c.at<int64_t>("indexer_head_dim");
  indexed.topk = c.at<int64_t>("indexer_budget"), indexed.pool = c.at<int64_t>("indexer_compress_ratio");
  c.must_be("indexer_kv_heads", int64_t{1});
  GatedDeltaNetOptions linear{.heads = delta_sizes(c, model)};
  const std::string gate = c.get("output_gate_type", std::string("silu"));
  if (gate == "sigmoid") linear.output_gate = DeltaGate::sigmoid;
  else if (gate != "silu") c.refuse("output_gate_type", "known: silu, sigmoid");
  const auto recurrent =
      r.typed_or_turns("linear_attention", "full_attention_interval", 4, {"indexed_attention", "full_attention"});
  r.mixers(indexed);
  r.mixers(recurrent, linear);
  HyperConnectionOptions streams{.dim = model.dim, .kind = HyperKind::gated, .norm_eps = model.norm_eps};
  streams.streams = c.get<int64_t>("hc_count", 4), streams.rank = c.get<int64_t>("hc_lowrank", 320);
  model.streams = streams, model.mixes_streams = true, model.norm = NormKind::none;
  c.ignore("mamba_ssm_dtype number_of_conv_states");

  r.usual_names(recurrent);
  r.parts("self_attn", "q_proj", {"q_proj", "gates\\.0\\.map"}, full.heads.heads);  // query and gate by head
  r.parts("indexer", "index_qk_proj", {"q", "k"});
  r.members("indexer", {{"([qk])_norm", "$1_layernorm"}});
  delta_names(r);
  r.norms_less_one();
  const std::string parts = "(_hyper_connection|hyper_connection_mixer)\\.";
  r.rename("mixer_streams\\.", "attn_hyper_connection.");
  r.rename("feed_streams\\.", "mlp_hyper_connection.");
  r.rename("^streams\\.", r.body + "hyper_connection_mixer.");
  r.rename(parts + "weight", "$1.hc_norm.weight", {.add = 1});
  r.rename(parts + "map\\.", "$1.block_inject_weight.");
  r.rename(parts + "(down|up)\\.", "$1.input_mix_weight_$2.");
  qwen4_ngrams(r);
  r.dense_or_sparse(true);
}

/// Lara Mini: Gated DeltaNet, attention with a window and RoPE, and full attention without RoPE in turn; experts with a
/// shared one.
void read_lara_mini(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.tied = c.get("tie_word_embeddings", true);
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true;
  const std::vector<std::string> kinds = {"full_attention", "sliding_attention", "linear_attention"};
  const auto recurrent = r.typed("layer_types", "linear_attention", kinds);
  const auto sliding = r.typed("layer_types", "sliding_attention", kinds);
  r.mixers(sliding, o);
  r.windows(sliding);
  o.heads.use_rope = false;
  r.mixers(r.typed("layer_types", "full_attention", kinds), o);
  r.mixers(recurrent, GatedDeltaNetOptions{.heads = delta_sizes(c, r.plan.options)});
  r.usual_names(recurrent);
  delta_names(r);
  MoeOptions moe = r.moe();
  moe.norm_topk = c.get("norm_topk_prob", true);
  moe.shared_hidden = c.at<int64_t>("shared_expert_intermediate_size"), moe.shared_gate = false;
  r.experts(r.all(), moe);
}

/// OLMo-Hybrid: OLMo 2's attention among blocks of Gated DeltaNet, whose β may be up to 2.
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
  r.mixers(full);
  r.mixers(recurrent, linear);
  for (const int64_t layer : r.others_than(recurrent))
    r.block(layer).mixer_norms = r.block(layer).feed_norms = {.before = false, .after = true};
  r.rename_in(recurrent, "mixer_norm\\.", r.has("attention_layer_norm") ? "attention_layer_norm." : "input_layernorm.");
  const std::string feed = r.has("feedforward_layer_norm") ? "feedforward_layer_norm." : "post_attention_layernorm.";
  r.rename_in(recurrent, "feed_norm\\.", feed);
  // In files that transformers saved again, the norm behind attention has the name of the other blocks' norm.
  const auto full_layers = r.typed("layer_types", "full_attention", {"linear_attention"});
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

/// Blocks with lightning attention.
std::vector<int64_t> lightning_layers(const FamilyReader& r, bool published) {
  const ModelConfig& c = r.config;
  if (!published && c.has("layer_types")) return r.typed("layer_types", "linear_attention");
  if (!published) return r.where([](int64_t layer) { return layer % 2 == 1; });
  const auto types = r.of_layers<int64_t>("attn_type_list");
  for (const int64_t type : types)
    if (type != 0 && type != 1) c.refuse("attn_type_list", "known: 0, lightning attention, and 1, softmax attention");
  return r.where([&](int64_t layer) { return types[static_cast<std::size_t>(layer)] == 0; });
}

/// MiniMax-01 and M1: lightning attention in most blocks, softmax attention in the others, experts in all. A branch is
/// added to what it reads, the norm's output.
void read_minimax(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool published = r.type != "minimax";  // else the format of transformers, in which RoPE turns all channels
  if (published) r.rotary_share = r.rotary_dim_share();
  const MultiHeadAttentionOptions full = r.attention();
  const std::vector<int64_t> recurrent = lightning_layers(r, published);
  r.mixers(full);
  for (const int64_t layer : recurrent)
    r.block(layer).mixer = LightningAttentionOptions{.dim = r.plan.options.dim,
                                                     .heads = full.heads.heads,
                                                     .head_dim = full.heads.head_dim,
                                                     .gamma = lightning_gammas(full.heads.heads, layer, r.layers)};
  // α multiplies what is carried on, β the branch: for the two kinds of mixers and for the feeds.
  const auto factors = [&](const char* theirs, const char* transformers) {
    const std::string at = published ? str("layernorm_", theirs) : transformers, end = published ? "" : "_factor";
    const double carried = c.get(at + "_alpha" + end, 1.0);
    if (!(carried > 0)) c.refuse(at + "_alpha" + end, "it must be positive");
    return std::pair(carried, c.get(at + "_beta" + end, 1.0));
  };
  const auto softmax = factors("full_attention", "full_attn"), linear = factors("linear_attention", "linear_attn"),
             feed = factors("mlp", "mlp");
  for (const int64_t layer : r.all()) {
    DecoderBlockOptions& block = r.block(layer);
    const bool lightning = std::holds_alternative<LightningAttentionOptions>(block.mixer);
    std::tie(block.mixer_norms.carried, block.mixer_factor) = lightning ? linear : softmax;
    std::tie(block.feed_norms.carried, block.feed_factor) = feed;
  }
  c.must_be("postnorm", true);
  c.must_be("shared_intermediate_size", int64_t{0});
  c.must_be("attention_bias", false);
  c.ignore("block_size router_jitter_noise shared_moe_mode");  // block_size changes rounding only
  r.usual_names(recurrent);
  r.parts("linear_attn", "qkv_proj", {"q", "k", "v"}, full.heads.heads);  // q, k and v by head
  r.members("linear_attn", {{"out", "out_proj"}});
  r.rename(".*linear_attn\\.log_gamma$", "");  // config.json determines it, as the buffers below
  for (const char* buffer : {"slope_rate", "query_decay", "key_decay", "diagonal_decay"})
    r.plan.ignore.push_back(str("self_attn\\.", buffer, "$"));
  r.rename("linear_attn\\.", "self_attn.");
  r.experts(r.all(), r.moe());
  r.block_sparse_moe();
}

/// Width of LFM2's dense feeds: two thirds of intermediate_size, times a factor, rounded up to a multiple.
int64_t lfm2_width(const FamilyReader& r) {
  const ModelConfig& c = r.config;
  c.must_be("block_use_swiglu", true);
  const char* const width = c.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size";
  const int64_t given = r.positive(width), multiple = r.positive("block_multiple_of", 256);
  const double factor = c.get("block_ffn_dim_multiplier", 1.0);
  if (!(factor > 0 && factor < 1000)) c.refuse("block_ffn_dim_multiplier", "it must be positive, and below 1000");
  if (!c.get("block_auto_adjust_ff_dim", true)) return given;
  return round_up(static_cast<int64_t>(factor * static_cast<double>(2 * given / 3)), multiple);
}

/// LFM2's experts, chosen by σ.
void lfm2_experts(FamilyReader& r, const std::vector<int64_t>& which) {
  const ModelConfig& c = r.config;
  MoeOptions o = r.moe();
  o.router = MoeRouter::sigmoid, o.router_bias = c.get("use_expert_bias", true);
  o.norm_topk = c.get("norm_topk_prob", true), o.norm_topk_eps = 1e-6;
  o.scale = c.get("routed_scaling_factor", 1.0);
  r.rename("mlp\\.router_bias$", "mlp.expert_bias");
  r.experts(which, o);
}

/// LFM2, dense and with experts: gated short convolutions, and in some blocks attention with norms of each head's q and
/// k. In LFM3 attention has a gate for each head, and in some blocks a window and another RoPE; norms also stand behind
/// the branches.
void read_lfm2(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool sparse = r.type == "lfm2_moe", third = r.type == "lfm3";
  r.plan.options.tied = c.get("tie_embedding", c.get("tie_word_embeddings", true));
  MultiHeadAttentionOptions full = r.attention();
  full.qk_norm = true;
  c.must_be("attention_bias", false);
  GatedShortConvolutionOptions conv{.dim = r.plan.options.dim, .bias = c.get("conv_bias", false)};
  conv.width = c.get<int64_t>("conv_L_cache", third ? 7 : 3);
  std::vector<int64_t> convolved;
  if (third) {
    if (c.get("use_attention_gate", true)) full.gates = {{.granularity = GateGranularity::headwise}};
    const std::vector<std::string> all = {"full_attention", "sliding_attention", "conv"};
    const auto sliding = r.typed("layer_types", "sliding_attention", all);
    r.two_ropes(full, sliding);
    r.windows(sliding);
    convolved = r.typed("layer_types", "conv", all);
    if (c.get("use_sandwich_norm", true)) r.norms_behind(true, "post_operator_norm.", "post_ffn_norm.");
  } else {
    r.mixers(full);
    // Published files repeat these fields under other names.
    c.must_be("theta", c.any_of<double>({"rope_theta", "rope_parameters.rope_theta"}));
    c.must_be("use_pos_enc", true);
    c.must_be("num_heads", full.heads.heads);
    for (const char* eps : {"norm_eps", "block_norm_eps"}) c.must_be(eps, r.plan.options.norm_eps);
    for (const char* width : {"block_dim", "conv_dim", "conv_dim_out"}) c.must_be(width, r.plan.options.dim);
    c.ignore("block_mlp_init_scale block_out_init_scale block_use_xavier_init conv_use_xavier_init full_attn_idxs");
    convolved = c.has("layer_types") || !c.has("full_attn_idxs")
                    ? r.typed("layer_types", "conv")
                    : r.others_than(c.at<std::vector<int64_t>>("full_attn_idxs"));
  }
  r.mixers(convolved, conv);

  r.usual_names(convolved, "conv.");
  r.members("conv", {{"(in|out)", "$1_proj"}});
  if (third) r.members("self_attn", {{"gates\\.0\\.map", r.has("self_attn.gate_proj") ? "gate_proj" : "g_proj"}});
  else r.members("self_attn", {{"o_proj", "out_proj"}, {"([qk])_norm", "$1_layernorm"}});
  const int64_t first = sparse ? c.get<int64_t>("num_dense_layers", 2) : r.layers;
  const std::vector<int64_t> dense = r.where([&](int64_t layer) { return layer < first; });
  r.dense(dense);
  if (sparse) lfm2_experts(r, r.others_than(dense));
  else if (!third)
    for (const int64_t layer : dense) std::get<GluOptions>(r.block(layer).feed).hidden = lfm2_width(r);
  r.rename("(mlp\\..*)gate_proj\\.", "$1w1.");
  r.rename("down_proj\\.", "w2.");
  r.rename("up_proj\\.", "w3.");
  r.rename("\\.mlp\\.", ".feed_forward.");
  r.rename("input_layernorm\\.", "operator_norm.");
  r.rename("post_attention_layernorm\\.", "ffn_norm.");
  r.rename("^model\\.norm\\.", "model.embedding_norm.");
}

/// xLSTM: blocks of mLSTM and SwiGLU; capped logits.
void read_xlstm(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& model = r.plan.options;
  model.logit_cap = r.factor("output_logit_soft_cap", 30.0, 0.0);
  const auto dim = static_cast<double>(model.dim);
  MlstmOptions o{.dim = model.dim, .heads = r.positive("num_heads"), .norm_eps = model.norm_eps};
  o.expand_k = std::floor(dim * r.factor("qk_dim_factor", 0.5, 0.5)) / dim;
  o.expand_v = std::floor(dim * r.factor("v_dim_factor", 1.0, 1.0)) / dim;
  o.gate_cap = r.factor("gate_soft_cap", 15.0, 0.0), o.eps = c.get("eps", 1e-6);
  r.mixers(o);
  const auto multiple = static_cast<double>(r.positive("ffn_round_up_to_multiple_of", 64));
  const double width = dim * r.factor("ffn_proj_factor", 2.667, 2.667) + multiple - 1;
  if (!(width < 1e9)) c.refuse("ffn_proj_factor", "it is too large");
  r.usual_names(r.all(), "mlstm_layer.");
  r.dense(r.all(),
          GluOptions{.dim = model.dim, .hidden = static_cast<int64_t>(std::floor(width / multiple) * multiple)});
  for (const char* never : {"use_bias", "add_qk_norm", "add_post_norm"}) c.must_be(never, false);
  for (const char* always : {"add_out_norm", "add_post_blocks_norm"}) c.must_be(always, true);
  c.must_be("weight_mode", std::string("single"));
  c.ignore(
      "chunkwise_kernel sequence_kernel step_kernel mode chunk_size return_last_states autocast_kernel_dtype "
      "inference_state_dtype norm_reduction_force_float32 max_inference_chunksize cell_norm_eps "
      "add_embedding_dropout add_forward_backend_padding force_bos_token_insert forward_backend_name "
      "igate_bias_init_range");
  r.members(
      "mlstm_layer",
      {{"(?:(i)nput|(f)orget|(o)utput)_gate", "$1$2$3gate_preact"}, {"norm", "multihead_norm"}, {"out", "out_proj"}});
  r.members("mlp", {{"(gate|up|down)_proj", "proj_$1"}, {"proj_gate", "proj_up_gate"}});
  r.rename("\\.mlp\\.", ".ffn.");
  r.rename("input_layernorm\\.", "norm_mlstm.");
  r.rename("post_attention_layernorm\\.", "norm_ffn.");
  r.outer_names("backbone.", "embeddings", "blocks", "out_norm");
}

}  // namespace

std::span<const ModelFamily> hybrid_families() {
  static constexpr ModelFamily all[] = {
      {"qwen3_next", read_qwen3_next},
      {"qwen3_5_text", read_qwen3_next},
      {"qwen3_5_moe_text", read_qwen3_next},
      {"qwen4_exp_text", read_qwen4},
      {"olmo_hybrid", read_olmo_hybrid},
      {"minimax", read_minimax, R"({"rope_theta": 1000000})"},
      {"minimax_text_01", read_minimax},
      {"minimax_m1", read_minimax},
      {"lfm2", read_lfm2},
      {"lfm2_moe", read_lfm2},
      {"lfm3", read_lfm2},
      {"lara_mini", read_lara_mini},
      {"xlstm", read_xlstm, R"({"vocab_size": 50304, "num_heads": 8})",
       R"({"embedding_dim": "hidden_size", "num_blocks": "num_hidden_layers"})"},
  };
  return all;
}

}  // namespace sluice::detail
