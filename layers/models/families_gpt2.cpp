// GPT-2, and families with learned positions or ALiBi in place of RoPE. All have LayerNorm and an MLP.
#include <sluice/layers/models/families.h>

#include <cmath>

namespace sluice::detail {

namespace {

/// GPT-2: learned positions, LayerNorm, an MLP, biases everywhere. Its maps are [in, out], and one makes q, k and v.
/// GPT-Neo has windows in some layers, scores q·k as they are, no bias of q, k and v, and maps [out, in]. GPT-BigCode
/// (StarCoder 1, SantaCoder) has maps [out, in], and in most models one key head. GPT-1 has its norms behind the sums,
/// and calls the approximation of GELU "gelu".
void read_gpt2(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool first = r.type == "openai-gpt", neo = r.type == "gpt_neo", code = r.type == "gpt_bigcode",
             one = code && c.get("multi_query", true);
  DecoderOptions& all = r.plan.options;
  all.norm = NormKind::layer, all.tied = c.get("tie_word_embeddings", true);
  all.positions = r.positive("max_position_embeddings");
  c.must_be("scale_attn_weights", true);
  c.must_be("scale_attn_by_inverse_layer_idx", false);
  c.must_be("add_cross_attention", false);
  c.ignore(
      "n_ctx attn_pdrop reorder_and_upcast_attn task_specific_params summary_activation summary_first_dropout "
      "summary_proj_to_labels summary_type summary_use_proj attention_types classifier_dropout embed_dropout "
      "resid_dropout gradient_checkpointing tokenizer_class");
  all.post_norm = first;
  if (first) c.ignore("n_special predict_special_tokens");
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
  if (first && !c.is("activation_function", "gelu") && !c.is("activation_function", "relu"))
    c.refuse("activation_function", known({"relu", "gelu"}));
  if (first && c.is("activation_function", "gelu"))
    for (DecoderBlockOptions& block : all.blocks) std::get<MlpOptions>(block.feed).activation = Act::gelu_tanh;
  if (first) r.plan.ignore.push_back("position_ids$");
  const std::string body = r.has("transformer.") ? "transformer." : "";  // the published files have no such prefix
  r.rename("^positions\\.", body + (first ? "positions_embed." : "wpe."));
  r.outer_names(body, first ? "tokens_embed" : "wte", "h", "ln_f");
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

/// OPT, of which OPT 350M has its norms behind the sums and a narrower embedding, and BioGPT: learned positions, whose
/// table begins with two rows that no token reads, LayerNorm, in Galactica without weights, and an MLP. OPT counts real
/// tokens only.
void read_opt(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool bio = r.type == "biogpt";
  DecoderOptions& all = r.plan.options;
  all.norm = c.get("layer_norm_elementwise_affine", true) ? NormKind::layer : NormKind::layer_plain;
  all.tied = c.get("tie_word_embeddings", true), all.counts_real = !bio;
  all.position_offset = 2, all.positions = r.positive("max_position_embeddings") + all.position_offset;
  if (bio && c.get("scale_embedding", true)) all.embedding_scale = std::sqrt(static_cast<double>(all.dim));
  all.post_norm = !c.get("do_layer_norm_before", true);
  if (!all.post_norm) c.must_be("_remove_final_layer_norm", false);
  else c.ignore("_remove_final_layer_norm");  // there is none
  all.embedding_dim = r.positive("word_embed_proj_dim", all.dim);
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
  r.rename("^project_in\\.", body + "project_in.");
  r.rename("^project_out\\.", body + "project_out.");
  if (bio) r.rename("^lm_head\\.", "output_projection.");
  if (bio && all.tied) r.plan.ignore.push_back("^output_projection\\.weight$");
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

}  // namespace

std::span<const ModelFamily> gpt2_families() {
  static constexpr ModelFamily all[] = {
      {"gpt2", read_gpt2, R"({"activation_function": "gelu_new"})", kGpt2Names},
      {"openai-gpt", read_gpt2, R"({"activation_function": "gelu"})",
       R"({"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
           "n_positions": "max_position_embeddings", "afn": "activation_function"})"},
      {"gpt_bigcode", read_gpt2, R"({"activation_function": "gelu_pytorch_tanh"})", kGpt2Names},
      {"gpt_neo", read_gpt2, R"({"activation_function": "gelu_new"})",
       R"({"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "window_size": "sliding_window"})"},
      {"opt", read_opt, R"({"rms_norm_eps": 1e-5, "activation_function": "relu"})",
       R"({"ffn_dim": "intermediate_size"})"},
      {"biogpt", read_opt, R"({"rms_norm_eps": 1e-5, "activation_function": "gelu"})",
       R"({"hidden_act": "activation_function"})"},
      {"mpt", read_mpt, R"({"layer_norm_epsilon": 1e-5, "hidden_act": "gelu"})",
       R"({"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"})"},
      {"bloom", read_bloom, R"({"attention_bias": true, "activation": "gelu_new"})",
       R"({"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size"})"},
  };
  return all;
}

}  // namespace sluice::detail
