// Families with latent attention, and GLM-4.5, whose experts are DeepSeek's.
#include <sluice/layers/models/families.h>

#include <cmath>

namespace sluice::detail {

namespace {

/// DeepSeek-V2, V3, R1, GLM-4.7-Flash, Sarvam-105B, Mistral 4, Youtu-LLM without experts, A.X K1 with a norm behind its
/// experts, and DeepSeek-V3.2 and GLM-5, whose queries attend to the keys that an indexer chooses.
void read_deepseek(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool youtu = r.type == "youtu", axk1 = r.type == "axk1";
  if (youtu) r.plan.options.tied = c.get("tie_word_embeddings", true);
  MlaOptions o = r.latent_attention();
  if (r.type == "mistral4") {
    const int64_t head_dim = o.nope_dim + o.rope_dim;
    c.must_be("head_dim", head_dim);
    r.rotary_share = static_cast<double>(o.rope_dim) / static_cast<double>(head_dim);
    r.query_growth(o.growth);
  }
  r.latent_rope(o);
  if (axk1) c.at<int64_t>("q_lora_rank");
  if (youtu || axk1 || r.type == "deepseek_v3" || r.type == "glm4_moe_lite")
    c.must_be("head_dim", o.rope_dim);  // of RoPE, there
  const bool indexed = r.type == "deepseek_v32" || r.type == "glm_moe_dsa";
  const bool always = indexed || r.type == "deepseek_v2";  // where transformers ignores the field
  if (r.type == "glm_moe_dsa") c.must_be("rope_interleave", true);
  else if (always) c.ignore("rope_interleave");
  o.rope.pairing = always || c.get("rope_interleave", true, false) ? RopePairing::interleaved : RopePairing::half;
  if (indexed) {
    o.topk = c.at<int64_t>("index_topk");
    o.index_heads = c.at<int64_t>("index_n_heads"), o.index_dim = c.at<int64_t>("index_head_dim");
    r.members("indexer", {{"q", "wq_b"}, {"k", "wk"}, {"weights", "weights_proj"}});
    c.ignore("layer_types");
  }
  if (r.type == "glm_moe_dsa") {
    o.index_pairing = RopePairing::interleaved;
    c.must_be("indexer_rope_interleave", true);
    // Layers of the type "shared" have no indexer: they attend to the keys of the layer before.
    c.must_be("index_topk_freq", int64_t{1});
    c.ignore("index_skip_topk_offset");
    if (c.has("indexer_types")) r.typed("indexer_types", "full", {});
  }
  r.mixers(o);
  r.usual_names();
  c.ignore("q_head_dim embedding_initializer_range");
  if (youtu) return r.dense(r.all());
  const std::vector<int64_t> dense = r.dense_layers(r.type.starts_with("glm") ? -1 : axk1 ? 1 : 0);
  r.deepseek_feeds(dense);
  if (!axk1) return;
  for (const int64_t layer : r.others_than(dense)) r.block(layer).feed_norms.after = true;
  r.rename("feed_post_norm\\.", "post_mlp_layernorm.");
  r.plan.ignore.push_back("\\.post_mlp_layernorm\\.weight$");  // published of dense layers, too, which do without
}

/// MiniCPM3: latent attention whose RoPE turns halves; factors of the embedding, the branches and the logits.
void read_minicpm3(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& model = r.plan.options;
  const double dim = static_cast<double>(model.dim), root = std::sqrt(static_cast<double>(r.layers));
  model.tied = c.get("tie_word_embeddings", true);
  model.embedding_scale = r.factor("scale_emb", 12, 12);
  model.residual_scale = r.factor("scale_depth", 1.4, root) / root;
  model.logit_scale = r.factor("dim_model_base", 256, dim) / dim;
  c.assume(str("{\"v_head_dim\": ", model.dim / r.positive("num_attention_heads"), "}"));
  MlaOptions o = r.latent_attention();
  r.latent_rope(o);
  o.rope.pairing = RopePairing::half;
  r.mixers(o);
  r.usual_names();
  r.dense(r.all());
}

/// GLM-4.5 to 4.7 and 4.5V, Solar Open, dots.llm1, Sarvam-30B and Hy3: softmax attention, in GLM with RoPE on half of a
/// head's channels, and DeepSeek-V3's experts.
void read_glm4_moe(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool images = r.type == "glm4v_moe_text", glm = r.type == "glm4_moe" || images, dots = r.type == "dots1",
             hy = r.type == "hy_v3", sarvam = r.type == "sarvam_moe";
  if (glm || sarvam) r.rotary_share = glm ? 0.5 : 1;
  MultiHeadAttentionOptions o = r.attention();
  if (!dots && !hy) o.heads.out_bias = false;
  o.qk_norm = dots || hy || c.get("use_qk_norm", sarvam);
  if (r.type == "solar_open" || images) c.must_be("use_qk_norm", false);
  r.mixers(o);
  if (dots) {
    const auto first = c.get<int64_t>("max_window_layers", 62);
    const bool typed = c.has("layer_types");
    r.windows(typed ? r.typed("layer_types", "sliding_attention")
                    : r.where([&](int64_t i) { return i >= first && !c.is_null("sliding_window"); }));
  }
  r.usual_names();
  if (hy) {
    c.must_be("norm_topk_prob", true);
    c.must_be("mlp_bias", false);
    c.ignore("enable_moe_fp32_combine");
  }
  r.deepseek_feeds(glm ? r.dense_layers() : r.dense_layers(hy || sarvam ? 1 : 0));
  if (r.has("mlp.router.gate.")) r.rename("mlp\\.gate\\.weight", "mlp.router.gate.weight");
  if (r.has("mlp.expert_bias")) r.rename("mlp\\.gate\\.e_score_correction_bias", "mlp.expert_bias");
  if (r.has("mlp.gate.expert_bias")) r.rename("mlp\\.gate\\.e_score_correction_bias", "mlp.gate.expert_bias");
  if (r.has("mlp.shared_mlp.")) r.rename("mlp\\.shared_experts\\.", "mlp.shared_mlp.");
  if (r.has("query_key_value.")) {
    r.rename("^model\\.embed_tokens\\.", "model.word_embeddings.");
    r.rename("self_attn\\.o_proj\\.", "attention.dense.");
    r.rename("self_attn\\.q_norm\\.", "attention.query_layernorm.");
    r.rename("self_attn\\.k_norm\\.", "attention.key_layernorm.");
    r.rename("self_attn\\.", "attention.");
    r.parts("attention", "query_key_value", {"q_proj", "k_proj", "v_proj"});
  }
}

/// MiMo-V2-Flash: windows with learned sinks and twice as many key heads in most layers, RoPE on a third of a head's
/// channels, values narrower than keys and times a factor; DeepSeek-V3's experts.
void read_mimo(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.rotary_share = 0.334;
  MultiHeadAttentionOptions o = r.attention();
  o.heads.out_bias = false, o.heads.value_dim = c.get<int64_t>("v_head_dim", 128);
  MultiHeadAttentionOptions local = o;
  local.sink = AttentionSink::learned, local.heads.kv_heads = 2 * o.heads.kv_heads;
  // Layers for which the published list `name` has this value.
  const auto flagged = [&](const char* name, int64_t value) {
    const auto flags = r.of_layers<int64_t>(name);
    return r.where([&](int64_t i) { return flags[static_cast<std::size_t>(i)] == value; });
  };
  const std::vector<int64_t> sliding = c.has("layer_types") ? r.typed("layer_types", "sliding_attention")
                                       : c.has("hybrid_layer_pattern")
                                           ? flagged("hybrid_layer_pattern", 1)
                                           : r.where([](int64_t i) { return i != 0 && (i + 1) % 6 != 0; });
  const std::pair<const char*, int64_t> sizes[] = {{"swa_num_key_value_heads", local.heads.kv_heads},
                                                   {"swa_num_attention_heads", o.heads.heads},
                                                   {"swa_head_dim", o.heads.head_dim},
                                                   {"swa_v_head_dim", o.heads.value_dim}};
  for (const auto& [name, size] : sizes) c.must_be(name, size);
  c.must_be("add_swa_attention_sink_bias", true);
  c.must_be("add_full_attention_sink_bias", false);
  c.ignore("attention_chunk_size hybrid_block_size");
  r.two_ropes(o, sliding, c.get("swa_rope_theta", 10000.0));
  for (const int64_t layer : sliding) {
    local.heads.rope = std::get<MultiHeadAttentionOptions>(r.block(layer).mixer).heads.rope;
    r.block(layer).mixer = local;
  }
  r.windows(sliding);
  const double factor = c.get("attention_value_scale", 0.707, 1.0);
  for (DecoderBlockOptions& block : r.plan.options.blocks) block.mixer_factor = factor;
  r.usual_names();
  r.members("self_attn", {{"sink", r.has("attention_sink_bias") ? "attention_sink_bias" : "sinks"}});
  r.deepseek_feeds(c.is_list("moe_layer_freq") ? flagged("moe_layer_freq", 0) : r.dense_layers(1));
}

/// Experts of Kimi Linear and Ling, by groups, in all layers but the `dense` ones. Ling's fields may have DeepSeek's
/// names, and none has a default.
void kimi_feeds(FamilyReader& r, const std::vector<int64_t>& dense) {
  const ModelConfig& c = r.config;
  const bool kimi = r.type == "kimi_linear";
  const auto count = [&](const std::string& name, const std::string& deepseeks, int64_t otherwise) {
    return kimi ? c.get(name, otherwise) : c.any_of<int64_t>({name, deepseeks});
  };
  r.dense(dense);
  MoeOptions moe = r.moe();
  moe.router = MoeRouter::sigmoid, moe.router_bias = true;
  c.must_be("moe_router_activation_func", std::string("sigmoid"));
  c.ignore("use_grouped_topk");
  moe.norm_topk = kimi ? c.get("moe_renormalize", true, false) : c.any_of<bool>({"moe_renormalize", "norm_topk_prob"});
  moe.scale = kimi ? c.get("routed_scaling_factor", 2.446) : c.at<double>("routed_scaling_factor");
  moe.groups = count("num_expert_group", "n_group", 1), moe.top_groups = count("topk_group", "topk_group", 1);
  moe.group_best = 2;
  moe.shared_hidden = count("num_shared_experts", "n_shared_experts", 0) * moe.hidden, moe.shared_gate = false;
  r.rename("mlp\\.router_bias$",
           r.has("gate.expert_bias") ? "mlp.gate.expert_bias" : "mlp.gate.e_score_correction_bias");
  r.experts(r.others_than(dense), moe, "shared_experts");
  const bool all = r.has("layers.0.block_sparse_moe");  // in transformers' files dense layers have this name, too
  r.block_sparse_moe(all ? "\\.mlp\\." : "\\.mlp\\.(?=gate\\.|experts\\.|shared_experts\\.)");
}

/// True for the fields of Moonshot's and Zhipu's files, false for those that transformers writes.
bool as_published(const ModelConfig& c) { return c.has("linear_attn_config.num_heads"); }

/// Sizes of Kimi Delta Attention.
KdaOptions kimi_sizes(const FamilyReader& r) {
  const ModelConfig& c = r.config;
  const auto size = [&](const char* published, const char* transformers) {
    return c.at<int64_t>(as_published(c) ? std::string("linear_attn_config.") + published : transformers);
  };
  KdaOptions o{.heads = {.dim = r.plan.options.dim}};
  o.heads.heads = o.heads.value_heads = size("num_heads", "linear_num_heads");
  o.heads.key_dim = o.heads.value_dim = size("head_dim", "linear_head_dim");
  o.heads.short_conv = size("short_conv_kernel_size", "linear_conv_kernel_dim");
  o.heads.norm_eps = r.plan.options.norm_eps;
  return o;
}

/// Names of Kimi Delta Attention in self_attn.
void kimi_names(FamilyReader& r, const DeltaOptions& d) {
  r.convolution("self_attn", d.heads * d.key_dim, d.heads * d.key_dim);
  const std::string forget = r.has("forget_gate.") ? "forget_gate." : "";
  r.members("self_attn", {{"decay_down", forget + "f_a_proj"},
                          {"decay_up", forget + (r.has("f_proj.") ? "f_proj" : "f_b_proj")},
                          {"a_log", forget + "A_log"},
                          {"dt_bias", forget + "dt_bias"},
                          {"output_gate_down", "g_a_proj"},
                          {"output_gate_up", r.has("g_b_proj.") ? "g_b_proj" : "g_proj"},
                          {"beta", "b_proj"},
                          {"norm", "o_norm"}});
}

/// Kimi Linear: Kimi Delta Attention with latent attention without RoPE between, experts as DeepSeek-V3's.
void read_kimi_linear(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MlaOptions full = r.latent_attention();
  full.use_rope = false;
  c.must_be("mla_use_nope", true);
  c.must_be("tie_word_embeddings", false);
  c.ignore("rope_theta");
  const bool published = as_published(c);
  const KdaOptions linear = kimi_sizes(r);
  std::vector<int64_t> recurrent;
  if (published) {
    for (const int64_t layer : c.at<std::vector<int64_t>>("linear_attn_config.kda_layers")) {  // counted from 1
      if (layer < 1 || layer > r.layers) c.refuse("linear_attn_config.kda_layers", "no such layer");
      recurrent.push_back(layer - 1);
    }
    c.ignore("linear_attn_config.full_attn_layers");
  } else {
    recurrent = r.typed("layer_types", "linear_attention");
  }
  r.mixers(full);
  r.mixers(recurrent, linear);

  r.usual_names();
  kimi_names(r, linear.heads);
  kimi_feeds(r, r.dense_layers(1));
}

/// Ling 3: Kimi Delta Attention with a bounded decay and maps of full rank, latent attention with a gate for each head.
void read_ling(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MlaOptions full = r.latent_attention();
  r.latent_rope(full);
  if (c.has("rope_parameters.rope_theta")) c.ignore("rope_theta");
  full.gate = MlaGate::headwise;
  c.must_be("tie_word_embeddings", false);
  KdaOptions linear{.heads = {.dim = r.plan.options.dim}};
  DeltaOptions& d = linear.heads;
  d.heads = d.value_heads = full.heads;
  // In files that transformers wrote, head_dim is that of latent attention.
  d.key_dim = d.value_dim = c.any_of<int64_t>({"linear_head_dim", "head_dim"});
  d.short_conv = c.any_of<int64_t>({"short_conv_kernel_size", "linear_conv_kernel_dim"});
  d.norm_eps = r.plan.options.norm_eps;
  linear.full_rank = true;
  if (c.at<bool>("kda_safe_gate")) linear.lower_bound = c.at<double>("kda_lower_bound");
  c.must_be("linear_num_heads", d.heads);
  c.ignore("linear_conv_kernel_dim kda_lower_bound mtp_loss_scaling_factor");
  const auto recurrent = r.typed_or_turns("linear_attention", "layer_group_size", 0);
  r.mixers(full);
  r.mixers(recurrent, linear);
  r.usual_names();
  kimi_names(r, d);
  r.members("self_attn", {{"gate", "g_proj"}});
  kimi_feeds(r, r.dense_layers());
  if (r.has("word_embeddings.")) r.rename("embed_tokens\\.", "word_embeddings.");
  if (r.has(".attention."))
    r.rename("self_attn\\.o_proj\\.", "attention.dense."), r.rename("self_attn\\.", "attention.");
}

/// GLM-5.3: Kimi Delta Attention with a bounded decay, and latent attention without RoPE to chosen pools of keys
/// between; four residual streams; experts whose gates are clamped.
void read_glm5_next(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MlaOptions full = r.latent_attention();
  full.use_rope = false, full.norm_eps = r.plan.options.norm_eps;
  c.must_be("qk_rope_head_dim", int64_t{0});
  full.topk = c.get<int64_t>("index_topk", 2048), full.index_pool = c.get<int64_t>("index_kpool", 16);
  full.index_heads = c.get<int64_t>("index_n_heads", 32), full.index_dim = c.get<int64_t>("index_head_dim", 128);
  c.must_be("index_kpool_always_select_tail", true);
  r.members("indexer", {{"q", "wq_b"},
                        {"k", "wk"},
                        {"weights", "weights_proj"},
                        {"pool_gate\\.weight", "index_kpool_compress_gate"},
                        {"pool_position", "index_kpool_compress_ape", {.layout = PyTorchLayout::as_is}}});
  KdaOptions linear = kimi_sizes(r);
  const std::string bound = "linear_attn_config.gate_lower_bound";
  const double safe = -5;
  if (as_published(c))
    linear.lower_bound = c.get("linear_attn_config.safe_gate", true) ? c.get(bound, safe) : c.at<double>(bound);
  else if (!c.is_null("linear_lower_bound")) linear.lower_bound = c.get("linear_lower_bound", safe);
  const auto recurrent = c.has("layer_types")
                             ? r.typed("layer_types", "linear_attention", {"indexed_attention", "full_attention"})
                             : r.where([](int64_t i) { return i % 4 != 3; });
  // Layers of the type "shared" attend to the keys that the layer before has chosen.
  c.must_be("index_topk_freq", int64_t{1});
  c.ignore("index_skip_topk_offset head_dim");
  if (c.has("indexer_types")) r.typed("indexer_types", "full", {});
  r.mixers(full);
  r.mixers(recurrent, linear);
  HyperConnectionOptions streams{.dim = r.plan.options.dim, .norm_eps = r.plan.options.norm_eps};
  streams.streams = c.get<int64_t>("hc_mult", 4), streams.eps = c.get("hc_eps", 1e-6);
  streams.iterations = c.get<int64_t>("hc_sinkhorn_iters", 20);
  r.plan.options.streams = streams;

  r.usual_names();
  kimi_names(r, linear.heads);
  r.deepseek_feeds(r.dense_layers(3));
  const double limit = r.factor("swiglu_limit", 10.0, 10.0);
  for (DecoderBlockOptions& block : r.plan.options.blocks) {
    if (MoeOptions* moe = std::get_if<MoeOptions>(&block.feed))
      moe->activation = MoeActivation::swiglu_limited, moe->swiglu_limit = limit;
    else if (GluOptions* dense = std::get_if<GluOptions>(&block.feed)) dense->limit = limit;
  }
  const bool own = r.has("hc_attn_fn");
  r.rename("(mixer|feed)_streams\\.map\\.weight", "$1_streams.fn");
  r.rename("mixer_streams\\.", own ? "hc_attn_" : "attn_hc.");
  r.rename("feed_streams\\.", own ? "hc_ffn_" : "ffn_hc.");
}

/// What config.json of DeepSeek-V3 may leave out.
constexpr const char* kDeepSeekV3 = R"({"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5})";

}  // namespace

std::span<const ModelFamily> latent_families() {
  static constexpr ModelFamily all[] = {
      {"kimi_linear", read_kimi_linear},
      {"bailing_hybrid", read_ling, R"({"rope_theta": 6000000})"},
      {"deepseek_v2", read_deepseek, R"({"routed_scaling_factor": 1.0})"},
      {"deepseek_v3", read_deepseek, kDeepSeekV3},
      {"deepseek_v32", read_deepseek, kDeepSeekV3},
      {"kimi_k2", read_deepseek, kDeepSeekV3},
      {"axk1", read_deepseek, kDeepSeekV3},
      {"sarvam_mla", read_deepseek, R"({"routed_scaling_factor": 2.5, "first_k_dense_replace": 1})"},
      {"youtu", read_deepseek},
      {"minicpm3", read_minicpm3},
      {"glm4_moe", read_glm4_moe},
      {"glm4v_moe_text", read_glm4_moe, R"({"attention_bias": true})"},
      {"mimo_v2_flash", read_mimo, R"({"routed_scaling_factor": 1.0, "rope_theta": 5000000})",
       R"({"layernorm_epsilon": "rms_norm_eps"})"},
      {"solar_open", read_glm4_moe, R"({"routed_scaling_factor": 1.0, "rope_theta": 1000000})"},
      {"dots1", read_glm4_moe, R"({"routed_scaling_factor": 1.0, "norm_topk_prob": false})"},
      {"sarvam_moe", read_glm4_moe, R"({"routed_scaling_factor": 2.5, "rope_theta": 8000000})",
       R"({"use_qkv_bias": "attention_bias"})"},
      {"hy_v3", read_glm4_moe, R"({"router_scaling_factor": 2.826, "num_shared_experts": 1, "rope_theta": 11158840})",
       R"({"router_scaling_factor": "routed_scaling_factor"})"},
      {"glm4_moe_lite", read_deepseek},
      {"glm_moe_dsa", read_deepseek},
      {"mistral4", read_deepseek, R"({"routed_scaling_factor": 1.0, "n_shared_experts": 1})"},
      {"glm5_next_text", read_glm5_next, R"({"routed_scaling_factor": 2.5, "n_shared_experts": 1, "rms_norm_eps": 1e-5,
                                             "linear_num_heads": 64, "linear_head_dim": 128,
                                             "linear_conv_kernel_dim": 4})"},
  };
  return all;
}

}  // namespace sluice::detail
