// Llama, and families that differ from it by a few options of attention or by their feeds.
#include <sluice/layers/models/families.h>

#include <cmath>

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

/// GPT-2: learned positions, LayerNorm, an MLP, biases everywhere. Its maps are [in, out], and one makes q, k and v.
/// GPT-Neo has windows in some layers, scores q·k as they are, no bias of q, k and v, and maps [out, in]. GPT-BigCode
/// (StarCoder 1, SantaCoder) has maps [out, in], and in most models one key head.
void read_gpt2(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool neo = r.type == "gpt_neo", code = r.type == "gpt_bigcode", one = code && c.get("multi_query", true);
  DecoderOptions& all = r.plan.options;
  all.norm = NormKind::layer, all.tied = c.get("tie_word_embeddings", true);
  all.positions = c.at<int64_t>("max_position_embeddings");
  if (all.positions < 1) c.refuse("max_position_embeddings", "it must be at least 1");
  c.must_be("scale_attn_weights", true);
  c.must_be("scale_attn_by_inverse_layer_idx", false);
  c.must_be("add_cross_attention", false);
  c.ignore(
      "n_ctx attn_pdrop reorder_and_upcast_attn task_specific_params summary_activation summary_first_dropout "
      "summary_proj_to_labels summary_type summary_use_proj attention_types classifier_dropout embed_dropout "
      "resid_dropout gradient_checkpointing tokenizer_class");
  if (code)
    c.ignore("attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner validate_runner_input");
  if (code) c.ignore("num_key_value_heads max_batch_size max_sequence_length pre_allocate_kv_cache");
  MultiHeadAttentionOptions o = r.attention();
  if (code) o.heads.kv_heads = one ? 1 : o.heads.heads;
  o.heads.use_rope = false, o.heads.qkv_bias = !neo, o.heads.out_bias = true;
  if (neo) o.scale = 1;
  r.mixers(o);
  if (neo) r.windows(r.typed("attention_layers", "local", {"global"}));
  r.usual_names();
  r.widening = 4;
  r.ungated(r.all(), true, "activation_function", "c_fc.", "c_proj.");
  const std::string body = r.has("transformer.") ? "transformer." : "";  // the published files have no such prefix
  r.rename("^positions\\.", body + "wpe.");
  r.outer_names(body, "wte", "h", "ln_f");
  r.rename("input_layernorm\\.", "ln_1.");
  r.rename("post_attention_layernorm\\.", "ln_2.");
  if (neo) {
    r.rename("self_attn\\.o_proj\\.", "self_attn.out_proj.");
    return r.rename("self_attn\\.", "attn.attention.");
  }
  r.rename("self_attn\\.o_proj\\.", "attn.c_proj.");
  if (code) {
    r.rename("self_attn\\.", "attn.");
    return r.parts("attn", "c_attn", {"q_proj", "k_proj", "v_proj"}, one ? 1 : o.heads.heads);
  }
  r.rename("c_(fc|proj)\\.weight$", "$&", {.layout = PyTorchLayout::as_is});
  const std::string qkv = "qkv";
  for (int64_t i = 0; i < 3; ++i) {
    const std::string map = str("self_attn\\.", qkv[static_cast<std::size_t>(i)], "_proj\\.");
    r.rename(map + "weight", "attn.c_attn.weight", {.part = i, .layout = PyTorchLayout::as_is});
    r.rename(map + "bias", "attn.c_attn.bias", {.part = i});
  }
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

/// MPT: ALiBi, LayerNorm and maps without bias, one map for q, k and v.
void read_mpt(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& all = r.plan.options;
  all.norm = NormKind::layer, all.norm_bias = false, all.tied = c.get("tie_word_embeddings", true);
  MultiHeadAttentionOptions o = r.attention();
  o.heads.use_rope = false, o.position_bias = PositionBias::alibi;
  if (c.has("attn_config.softmax_scale")) o.scale = r.factor("attn_config.softmax_scale", 1, 1);
  o.qkv_limit = r.factor("attn_config.clip_qkv", 0, 0);
  if (c.has("logit_scale")) c.refuse("logit_scale", "only null is known");
  for (const char* never : {"qk_ln", "prefix_lm", "attn_uses_sequence_id"})
    c.must_be(std::string("attn_config.") + never, false);
  for (const char* always : {"attn_config.alibi", "no_bias"}) c.must_be(always, true);
  c.must_be("attn_config.alibi_bias_max", 8.0);
  c.must_be("attn_config.attn_type", std::string("multihead_attention"));
  c.must_be("norm_type", std::string("low_precision_layernorm"));
  c.must_be("expansion_ratio", 4.0);  // transformers ignores others
  for (const char* unused :
       {"attn_impl", "attn_pdrop", "dtype", "model_type", "_name_or_path", "chunk_size_feed_forward", "id2label",
        "is_encoder_decoder", "label2id", "output_attentions", "output_hidden_states", "return_dict"})
    c.ignore(std::string("attn_config.") + unused);
  c.ignore("emb_pdrop embedding_fraction init_config init_device learned_pos_emb max_seq_len tokenizer_name verbose");
  r.mixers(o);
  r.usual_names();
  r.widening = 4;
  r.ungated(r.all(), false);
  r.outer_names("transformer.", "wte", "blocks", "norm_f");
  r.rename("input_layernorm\\.", "norm_1.");
  r.rename("post_attention_layernorm\\.", "norm_2.");
  r.rename("\\.mlp\\.", ".ffn.");
  r.parts("self_attn", "Wqkv", {"q_proj", "k_proj", "v_proj"});
  r.rename("self_attn\\.o_proj\\.", "attn.out_proj.");
  r.rename("self_attn\\.", "attn.");
}

/// BLOOM: ALiBi, LayerNorm, also of the embedding, biases everywhere, and one map for q, k and v, head by head.
void read_bloom(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& all = r.plan.options;
  all.norm = NormKind::layer, all.embedding_norm = true, all.tied = c.get("tie_word_embeddings", true);
  MultiHeadAttentionOptions o = r.attention();
  o.heads.use_rope = false, o.position_bias = PositionBias::alibi;
  r.mixers(o);
  if (c.get("apply_residual_connection_post_layernorm", false))
    for (DecoderBlockOptions& block : all.blocks) block.mixer_norms.carried = block.feed_norms.carried = 1;
  c.must_be("n_inner", 4 * all.dim);
  c.ignore(
      "slow_but_exact attention_softmax_in_fp32 masked_softmax_fusion bias_dropout_fusion offset_alibi seq_length "
      "skip_bias_add skip_bias_add_qkv unk_token_id");
  r.usual_names();
  r.widening = 4;
  r.ungated(r.all(), true, "activation", "dense_h_to_4h.", "dense_4h_to_h.");
  const std::string body = r.has("transformer.") ? "transformer." : "";  // the published files have no such prefix
  r.outer_names(body, "word_embeddings", "h", "ln_f");
  r.rename("^embedding_norm\\.", body + "word_embeddings_layernorm.");
  r.rename("self_attn\\.o_proj\\.", "self_attention.dense.");
  r.rename("self_attn\\.", "self_attention.");
  r.parts("self_attention", "query_key_value", {"q_proj", "k_proj", "v_proj"}, o.heads.heads);
}

/// OPT, but not OPT 350M, whose norms stand behind the sums, and BioGPT: learned positions, whose table begins with two
/// rows that no token reads, LayerNorm, in Galactica without weights, and an MLP. OPT counts real tokens only.
void read_opt(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool bio = r.type == "biogpt";
  DecoderOptions& all = r.plan.options;
  all.norm = c.get("layer_norm_elementwise_affine", true) ? NormKind::layer : NormKind::layer_plain;
  all.tied = c.get("tie_word_embeddings", true), all.counts_real = !bio;
  all.position_offset = 2, all.positions = c.at<int64_t>("max_position_embeddings");
  if (all.positions < 1 || all.positions > (int64_t{1} << 40))
    c.refuse("max_position_embeddings", "it must be from 1 to 2^40");
  all.positions += all.position_offset;
  if (bio && c.get("scale_embedding", true)) all.embedding_scale = std::sqrt(static_cast<double>(all.dim));
  c.must_be("do_layer_norm_before", true);
  c.must_be("_remove_final_layer_norm", false);
  c.must_be("word_embed_proj_dim", all.dim);
  MultiHeadAttentionOptions o = r.attention();
  const bool biases = o.heads.qkv_bias = o.heads.out_bias = c.get("enable_bias", true);
  o.heads.use_rope = false;
  r.mixers(o);
  c.ignore(
      "dropout activation_dropout layerdrop init_std prefix output_past hidden_dropout_prob "
      "attention_probs_dropout_prob");
  if (bio) c.ignore("layer_norm_eps");  // no code reads it
  r.usual_names();
  r.ungated(r.all(), biases, "activation_function", "fc1.", "fc2.");
  r.rename("\\.mlp\\.", ".");
  r.rename("input_layernorm\\.", "self_attn_layer_norm.");
  r.rename("post_attention_layernorm\\.", "final_layer_norm.");
  r.rename("self_attn\\.o_proj\\.", "self_attn.out_proj.");
  const std::string body = bio ? "biogpt." : r.has("model.decoder.") ? "model.decoder." : "decoder.";
  r.outer_names(body, "embed_tokens", "layers", bio ? "layer_norm" : "final_layer_norm");
  r.rename("^positions\\.", body + "embed_positions.");
  if (bio) r.rename("^lm_head\\.", "output_projection.");
  if (bio && all.tied) r.plan.ignore.push_back("^output_projection\\.weight$");
}

/// nanochat: RMSNorm without weights everywhere, of the embedding, too, and behind RoPE, which turns the other way; an
/// MLP with relu², capped logits.
void read_nanochat(FamilyReader& r) {
  const ModelConfig& c = r.config;
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
  c.any_of<std::string>({"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"});
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

/// Phi-3 and Phi-4 with the usual RoPE: one map makes q, k and v, and one gate and value.
void read_phi3(FamilyReader& r) {
  const ModelConfig& c = r.config;
  // Transformers treats any other kind as longrope, whatever its name: other frequencies for long texts than for short
  // ones.
  for (const std::string at : {"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"})
    c.must_be(at, std::string("default"));
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

/// GLM-4 of 2024, and of 2025 with norms around both branches: RoPE of neighbouring channels, on half of a head's, and
/// gate and value in one map.
void read_glm(FamilyReader& r) {
  r.rotary_share = 0.5;
  MultiHeadAttentionOptions o = r.attention();
  o.heads.rope.pairing = RopePairing::interleaved, o.heads.out_bias = false;
  r.mixers(o);
  if (r.type == "glm4") r.norms_behind(true, "post_self_attn_layernorm.", "post_mlp_layernorm.");
  r.usual_names();
  r.dense(r.all());
  r.parts("mlp", "gate_up_proj", {"gate_proj", "up_proj"});
}

/// ERNIE 4.5, dense and with experts, and Helium: RoPE of neighbouring channels, biases everywhere or nowhere.
void read_ernie(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.tied = c.get("tie_word_embeddings", r.type != "helium");
  c.any_of<double>({"rope_theta", "rope_parameters.rope_theta"});
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
             turn = c.get<int64_t>("moe_layer_interval", 1);
  if (turn < 1) c.refuse("moe_layer_interval", "it must be positive");
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
      {"iquestcoder", read_llama, R"({"head_dim": 128})"},
      {"exaone", read_llama, R"({"rope_theta": 500000})",
       R"({"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps",
           "activation_function": "hidden_act"})"},
      {"jais2", read_llama, R"({"hidden_act": "relu2", "attention_bias": true, "mlp_bias": true})"},
      {"smollm3", read_smollm3},
      {"gpt2", read_gpt2, R"({"activation_function": "gelu_new"})", kGpt2Names},
      {"gpt_bigcode", read_gpt2, R"({"activation_function": "gelu_pytorch_tanh"})", kGpt2Names},
      {"gpt_neo", read_gpt2, R"({"activation_function": "gelu_new"})",
       R"({"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "window_size": "sliding_window"})"},
      {"starcoder2", read_starcoder2, R"({"hidden_act": "gelu_pytorch_tanh"})"},
      {"nemotron", read_starcoder2, R"({"hidden_act": "relu2"})"},
      {"mpt", read_mpt, R"({"layer_norm_epsilon": 1e-5, "hidden_act": "gelu"})",
       R"({"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"})"},
      {"bloom", read_bloom, R"({"attention_bias": true, "activation": "gelu_new"})",
       R"({"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size"})"},
      {"opt", read_opt, R"({"rms_norm_eps": 1e-5, "activation_function": "relu"})",
       R"({"ffn_dim": "intermediate_size"})"},
      {"biogpt", read_opt, R"({"rms_norm_eps": 1e-5, "activation_function": "gelu"})",
       R"({"hidden_act": "activation_function"})"},
      {"nanochat", read_nanochat, R"({"hidden_act": "relu2"})"},
      {"apertus", read_apertus, R"({"hidden_act": "xielu", "rope_theta": 12000000})"},
      {"persimmon", read_persimmon, R"({"hidden_act": "relu2", "attention_bias": true})"},
      {"phi3", read_phi3},
      {"glm", read_glm, R"({"attention_bias": true})"},
      {"glm4", read_glm, R"({"attention_bias": true})"},
      {"ernie4_5", read_ernie},
      {"ernie4_5_moe", read_ernie},
      {"helium", read_ernie},
  };
  return all;
}

}  // namespace sluice::detail
