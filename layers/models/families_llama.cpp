// Llama, and families that differ from it by a few options of attention or by their feeds.
#include <sluice/layers/models/families.h>

#include <algorithm>

namespace sluice::detail {

namespace {

/// Llama 1 to 3, and what is built like them (SmolLM2, TinyLlama, Yi, IQuest-Coder, EXAONE 3). Seed-OSS has no bias
/// behind attention, Arcee's AFM an MLP with relu², and Jais 2 this MLP, LayerNorm, and biases everywhere.
void read_llama(FamilyReader& r) {
  const ModelConfig& c = r.config;
  c.must_be("is_llama_config", true);
  c.must_be("rope_interleaved", false);
  if (r.type == "iquestcoder") {
    if (c.has("clip_qkv")) c.refuse("clip_qkv", "only null is known");
    c.must_be("use_sliding_window", false);
    c.ignore("sliding_window max_window_layers");
  }
  if (r.type == "internlm3") c.must_be("mlp_bias", c.at<bool>("attention_bias"));
  const bool jais = r.type == "jais2";
  if (jais) r.plan.options.norm = NormKind::layer;
  MultiHeadAttentionOptions o = r.attention();
  o.heads.out_bias = c.get("attention_out_bias", o.heads.out_bias);
  r.mixers(o);
  r.usual_names();
  if (jais || r.type == "arcee") return r.ungated(r.all(), c.get("mlp_bias", false));
  r.dense(r.all());
  if (r.type != "exaone") return;
  c.ignore("embed_dropout");
  if (!r.has("transformer.h.")) return;  // as transformers writes them
  r.outer_names("transformer.", "wte", "h", "ln_f");
  r.rename("input_layernorm\\.", "ln_1.");
  r.rename("post_attention_layernorm\\.", "ln_2.");
  r.rename("self_attn\\.o_proj\\.", "self_attn.out_proj.");
  r.rename("self_attn\\.", "attn.attention.");
  r.members("mlp", {{"gate_proj", "c_fc_0"}, {"up_proj", "c_fc_1"}, {"down_proj", "c_proj"}});
}

/// StarCoder2 and Nemotron-4 (Minitron): LayerNorm, in Nemotron of weights that are less by one, and an MLP.
void read_starcoder2(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool nemotron = r.type == "nemotron";
  r.plan.options.norm = NormKind::layer;
  if (nemotron) r.rotary_share = 0.5;
  else r.plan.options.tied = c.get("tie_word_embeddings", true);
  MultiHeadAttentionOptions o = r.attention();
  if (!nemotron) o.heads.qkv_bias = o.heads.out_bias = c.get("use_bias", true);
  r.mixers(o);
  if (!nemotron && c.has("sliding_window")) r.windows(r.all());
  r.usual_names();
  if (nemotron) {
    r.ungated(r.all(), c.get("mlp_bias", false));
    r.norms_less_one();
  } else {
    for (const char* eps : {"norm_epsilon", "layer_norm_epsilon"}) c.must_be(eps, r.plan.options.norm_eps);
    c.must_be("scale_attn_weights", true);
    c.ignore("activation_function attention_softmax_in_fp32 scale_attention_softmax_in_fp32");
    c.must_be("norm_type", std::string("layer_norm"));
    c.must_be("mlp_type", std::string("default"));
    r.ungated(r.all(), o.heads.out_bias, "hidden_act", "c_fc.", "c_proj.");
  }
}

/// nanochat: RMSNorm without weights everywhere, of the embedding, too, and behind RoPE, which turns the other way; an
/// MLP with relu², capped logits.
void read_nanochat(FamilyReader& r) {
  DecoderOptions& all = r.plan.options;
  all.norm = NormKind::rms_plain, all.embedding_norm = true;
  all.logit_cap = r.factor("final_logit_softcapping", 15, 0);
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = o.qk_norm_late = true, o.qk_norm_kind = NormKind::rms_plain;
  RopeOptions& rope = o.heads.rope;
  if (rope.frequencies.empty()) rope.frequencies = rope_frequencies(o.heads.head_dim, rope.base);
  for (double& f : rope.frequencies) f = -f;
  r.mixers(o);
  r.usual_names();
  r.ungated(r.all(), false, "hidden_act", "fc1.", "fc2.");
}

/// Apertus: norms of each head's q and k, an MLP with xIELU.
void read_apertus(FamilyReader& r) {
  const ModelConfig& c = r.config;
  // Without it transformers takes llama3 with a factor.
  c.needs({"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"});
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = true;
  c.must_be("qk_norm", true);
  for (const char* never : {"post_norm", "mlp_bias"}) c.must_be(never, false);
  r.mixers(o);
  r.usual_names();
  r.ungated(r.all(), false);
  r.rename("input_layernorm\\.", "attention_layernorm.");
  r.rename("post_attention_layernorm\\.", "feedforward_layernorm.");
}

/// OLMo: LayerNorm without weights; what makes q, k and v may be limited.
void read_olmo(FamilyReader& r) {
  r.plan.options.norm = NormKind::layer_plain;
  MultiHeadAttentionOptions o = r.attention();
  o.qkv_limit = r.factor("clip_qkv", 0, 0);
  r.config.must_be("mlp_bias", false);
  r.mixers(o);
  r.usual_names();
  r.dense(r.all());
}

/// HyperCLOVA X: Granite's factors, and norms behind the branches, too.
void read_hyperclovax(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& model = r.plan.options;
  model.embedding_scale = r.factor("embedding_multiplier", 1, 1);
  model.residual_scale = r.factor("residual_multiplier", 1, 1);
  model.logit_scale = r.factor("logits_scaling", 1, 1);
  MultiHeadAttentionOptions o = r.attention();
  if (c.has("attention_multiplier")) o.scale = r.factor("attention_multiplier", 1, 1);
  r.mixers(o);
  if (c.get("use_post_norm", true)) r.norms_behind(true, "post_norm1.", "post_norm2.");
  r.usual_names();
  r.dense(r.all());
}

/// Persimmon: LayerNorm, also of each head's q and k, RoPE on half of a head's channels, an MLP with relu², biases
/// everywhere, and one map for q, k and v, head by head.
void read_persimmon(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.norm = NormKind::layer;
  r.rotary_share = 0.5;
  MultiHeadAttentionOptions o = r.attention();
  c.must_be("num_key_value_heads", o.heads.heads);
  o.qk_norm = c.get("qk_layernorm", true), o.qk_norm_kind = NormKind::layer;
  r.mixers(o);
  r.usual_names();
  r.ungated(r.all(), true, "hidden_act", "dense_h_to_4h.", "dense_4h_to_h.");
  r.parts("self_attn", "query_key_value", {"q_proj", "k_proj", "v_proj"}, o.heads.heads);
  r.rename("self_attn\\.o_proj\\.", "self_attn.dense.");
  r.rename("self_attn\\.([qk])_norm\\.", "self_attn.$1_layernorm.");
  r.rename("^model\\.norm\\.", "model.final_layernorm.");
}

/// Phi-3, Phi-3.5 and Phi-4, those for long texts with texts of the trained length alone: one map makes q, k and v, and
/// one gate and value.
void read_phi3(FamilyReader& r) {
  const ModelConfig& c = r.config;
  for (const std::string at : {"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"})
    if (c.has(at) && !c.is(at, "default") && !c.is(at, "longrope") && !c.is(at, "su"))
      c.refuse(at, known({"default", "longrope", "su"}));  // transformers takes any other name for longrope, too
  r.rotary_share = c.get("rope_parameters.partial_rotary_factor", c.get("partial_rotary_factor", 1.0));
  c.must_be("attention_bias", false);
  c.ignore("original_max_position_embeddings");
  r.mixers(r.attention());
  if (c.has("sliding_window")) r.windows(r.all());
  r.usual_names();
  r.dense(r.all());
  r.parts("self_attn", "qkv_proj", {"q_proj", "k_proj", "v_proj"});
  r.parts("mlp", "gate_up_proj", {"gate_proj", "up_proj"});
}

/// GLM-4 of 2024, and of 2025 with norms around both branches, as in GLM-4.1V, whose q, k and v have biases: RoPE of
/// neighbouring channels, on half of a head's, and gate and value in one map.
void read_glm(FamilyReader& r) {
  const bool images = r.type == "glm4v_text";
  r.rotary_share = images ? 1 : 0.5;
  if (images) r.config.must_be("attention_bias", true);
  MultiHeadAttentionOptions o = r.attention();
  o.heads.rope.pairing = RopePairing::interleaved, o.heads.out_bias = false;
  if (images && o.heads.head_dim * o.heads.heads != o.heads.dim)
    r.config.refuse("head_dim", "only hidden_size/num_attention_heads is known");
  r.mixers(o);
  if (r.type != "glm") r.norms_behind(true, "post_self_attn_layernorm.", "post_mlp_layernorm.");
  r.usual_names();
  r.dense(r.all());
  r.parts("mlp", "gate_up_proj", {"gate_proj", "up_proj"});
}

/// ERNIE 4.5, dense and with experts, and Helium: RoPE of neighbouring channels, biases everywhere or nowhere.
void read_ernie(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.tied = c.get("tie_word_embeddings", r.type != "helium");
  c.needs({"rope_theta", "rope_parameters.rope_theta"});
  MultiHeadAttentionOptions o = r.attention();
  o.heads.rope.pairing = RopePairing::interleaved;
  const bool biases = o.heads.qkv_bias = o.heads.out_bias = c.get("use_bias", false);
  c.must_be("attention_bias", biases);
  c.must_be("mlp_bias", biases);
  r.mixers(o);
  r.usual_names();
  const bool sparse = r.type == "ernie4_5_moe";
  if (sparse) c.must_be("use_bias", false);
  const auto first = c.get<int64_t>("moe_layer_start_index", 1), end = c.get<int64_t>("moe_layer_end_index", -1),
             turn = r.positive("moe_layer_interval", 1);
  const std::vector<int64_t> dense = r.where(
      [&](int64_t layer) { return !sparse || (layer + 1) % turn != 0 || layer < first || (end != -1 && layer > end); });
  r.dense(dense);
  for (const int64_t layer : dense) std::get<GluOptions>(r.block(layer).feed).bias = biases;
  if (!sparse) return;
  MoeOptions moe = r.moe({"moe_num_experts", "num_experts"});
  moe.router_bias = true;
  c.must_be("moe_use_aux_free", true);
  c.must_be("moe_gate", std::string("topk"));
  c.must_be("moe_gate_act", std::string("softmax"));
  c.must_be("moe_norm_gate_logits", true);
  c.ignore("moe_capacity");
  if (c.get("moe_norm_min", 1e-12) > 1e-12) c.refuse("moe_norm_min", "it must be at most 1e-12");
  moe.shared_hidden = c.get<int64_t>("moe_num_shared_experts", 2) * moe.hidden, moe.shared_gate = false;
  r.rename("mlp\\.router_bias$", "mlp.moe_statics.e_score_correction_bias");
  r.experts(r.others_than(dense), moe, "shared_experts");
}

/// The layers of SmolLM3 and Llama 4 that have no RoPE.
std::vector<int64_t> layers_without_rope(const FamilyReader& r) {
  const ModelConfig& c = r.config;
  const auto rotates = c.get("no_rope_layers", std::vector<int64_t>{});  // 0: no RoPE
  const int64_t turn = r.positive("no_rope_layer_interval", 4);
  if (!c.has("no_rope_layers") || (rotates.empty() && r.type == "llama4_text"))
    return r.where([&](int64_t i) { return (i + 1) % turn == 0; });
  if (std::ssize(rotates) < r.layers) c.refuse("no_rope_layers", str("need ", r.layers, " entries"));
  return r.where([&](int64_t i) { return rotates[static_cast<std::size_t>(i)] == 0; });
}

/// Llama 4 (its text): chunks and RoPE of neighbouring channels in most layers, with norms without weights of each
/// head's q and k behind it; elsewhere queries that grow with their position. SwiGLU, or experts with a shared one,
/// which read what the router weighs.
void read_llama4(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MultiHeadAttentionOptions turns = r.attention(), stays = turns;
  turns.heads.rope.pairing = RopePairing::interleaved;
  turns.qk_norm = turns.qk_norm_late = c.get("use_qk_norm", true), turns.qk_norm_kind = NormKind::rms_plain;
  stays.heads.use_rope = false;
  const char* const tuning = "attn_temperature_tuning";  // in some files 4
  if (c.is(tuning, int64_t{4}) || c.get(tuning, true))
    stays.growth = {c.get("attn_scale", 0.1), r.positive("floor_scale", 8192), 1};
  c.ignore("attn_scale floor_scale");
  const std::vector<int64_t> without = layers_without_rope(r);
  r.mixers(turns);
  r.mixers(without, stays);
  const char* const size = "attention_chunk_size";
  const std::vector<int64_t> chunked = c.has("layer_types") ? r.typed("layer_types", "chunked_attention")
                                                            : r.others_than(c.is_null(size) ? r.all() : without);
  const auto chunk = c.get<int64_t>(size, 8192, 0);
  if (chunk < 1 && !chunked.empty()) c.refuse(size, "it must be positive");
  for (const int64_t layer : chunked) std::get<MultiHeadAttentionOptions>(r.block(layer).mixer).chunk_size = chunk;
  r.usual_names();
  const int64_t step = r.positive("interleave_moe_layer_step", 1);
  std::vector<int64_t> sparse = r.where([&](int64_t i) { return (i + 1) % step == 0; });
  if (c.has("moe_layers")) {
    const auto given = c.at<std::vector<int64_t>>("moe_layers");
    sparse = r.where([&](int64_t i) { return std::ranges::find(given, i) != given.end(); });
  }
  r.dense(r.others_than(sparse));
  for (const int64_t layer : r.others_than(sparse))
    std::get<GluOptions>(r.block(layer).feed).hidden = c.get<int64_t>("intermediate_size_mlp", 16384);
  MoeOptions moe = r.moe({"num_local_experts"});
  moe.router = MoeRouter::sigmoid, moe.norm_topk = false, moe.weigh_input = true;
  moe.shared_hidden = moe.hidden, moe.shared_gate = false;
  c.ignore("router_jitter_noise for_llm_compressor intermediate_size_mlp");
  r.experts(sparse, moe);
  r.rename("mlp\\.gate\\.weight", "mlp.router.weight");
  r.rename("\\.mlp\\.", ".feed_forward.");
}

/// SmolLM3: Llama with blocks without RoPE between.
void read_smollm3(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.tied = c.get("tie_word_embeddings", true);
  c.needs({"rope_theta", "rope_parameters.rope_theta"});
  MultiHeadAttentionOptions o = r.attention();
  r.mixers(o);
  o.heads.use_rope = false;
  r.mixers(layers_without_rope(r), o);
  const bool slides = c.get("use_sliding_window", false);
  std::vector<int64_t> sliding;
  if (slides || c.has("layer_types")) sliding = r.typed("layer_types", "sliding_attention");
  if (!slides && !sliding.empty()) c.refuse("layer_types", "no layer may slide where use_sliding_window is false");
  r.windows(sliding);
  c.ignore("max_window_layers");
  r.usual_names();
  r.dense(r.all());
}

}  // namespace

std::span<const ModelFamily> llama_families() {
  static constexpr ModelFamily all[] = {
      {"llama", read_llama},
      {"seed_oss", read_llama, R"({"attention_bias": true, "attention_out_bias": false})"},
      {"arcee", read_llama, R"({"hidden_act": "relu2"})"},
      {"internlm3", read_llama, R"({"head_dim": 128, "attention_bias": false, "mlp_bias": false})",
       R"({"qkv_bias": "attention_bias", "bias": "mlp_bias"})"},
      {"iquestcoder", read_llama, R"({"head_dim": 128})"},
      {"exaone", read_llama, R"({"rope_theta": 500000})",
       R"({"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps",
           "activation_function": "hidden_act"})"},
      {"olmo", read_olmo, R"({"rms_norm_eps": 1e-5})"},
      {"hyperclovax", read_hyperclovax},
      {"jais2", read_llama, R"({"hidden_act": "relu2", "attention_bias": true, "mlp_bias": true})"},
      {"smollm3", read_smollm3},
      {"llama4_text", read_llama4, R"({"rope_theta": 500000, "head_dim": 128, "num_experts_per_tok": 1})"},
      {"starcoder2", read_starcoder2, R"({"hidden_act": "gelu_pytorch_tanh"})"},
      {"nemotron", read_starcoder2, R"({"hidden_act": "relu2"})"},
      {"nanochat", read_nanochat, R"({"hidden_act": "relu2"})"},
      {"apertus", read_apertus, R"({"hidden_act": "xielu", "rope_theta": 12000000})"},
      {"persimmon", read_persimmon, R"({"hidden_act": "relu2", "attention_bias": true})"},
      {"phi3", read_phi3, R"({"original_max_position_embeddings": 4096})"},
      {"glm", read_glm, R"({"attention_bias": true})"},
      {"glm4", read_glm, R"({"attention_bias": true})"},
      {"glm4v_text", read_glm, R"({"attention_bias": true})"},
      {"ernie4_5", read_ernie},
      {"ernie4_5_moe", read_ernie},
      {"helium", read_ernie},
  };
  return all;
}

}  // namespace sluice::detail
