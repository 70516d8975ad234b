// Families whose feed stands beside attention, as in GPT-J: h + attention(N(h)) + feed(N'(h)), where N' may be N. All
// have LayerNorm.
#include <sluice/layers/models/families.h>

namespace sluice::detail {

namespace {

/// Puts the feeds beside attention, with a norm of their own or without.
void stand_beside(FamilyReader& r, bool own_norm) {
  for (DecoderBlockOptions& block : r.plan.options.blocks) block.parallel = true, block.feed_norms.before = own_norm;
}

/// GPT-NeoX and Pythia: biases everywhere, a norm for each branch, and one map for q, k and v, head by head.
void read_gpt_neox(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.norm = NormKind::layer;
  r.rotary_share = 0.25;
  // Transformers reads only the older names of these; it writes both.
  c.must_be("partial_rotary_factor", c.get("rotary_pct", 0.25));
  c.must_be("rope_theta", c.get("rotary_emb_base", 10000.0));
  c.rename(R"({"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"})");
  const MultiHeadAttentionOptions o = r.attention();
  r.mixers(o);
  if (c.get("use_parallel_residual", true)) stand_beside(r, true);
  c.ignore("classifier_dropout is_decoder attention_probs_dropout_prob hidden_dropout_prob");
  r.usual_names();
  r.ungated(r.all(), true, "hidden_act", "dense_h_to_4h.", "dense_4h_to_h.");
  r.rename("^lm_head\\.", "embed_out.");
  r.outer_names("gpt_neox.", "embed_in", "layers", "final_layer_norm");
  r.rename("self_attn\\.o_proj\\.", "attention.dense.");
  r.rename("self_attn\\.", "attention.");
  r.parts("attention", "query_key_value", {"q_proj", "k_proj", "v_proj"}, o.heads.heads);
  if (r.plan.options.tied) r.plan.ignore.push_back("^embed_out\\.weight$");
}

/// GPT-J: RoPE of neighbouring channels, base 10000; biases of the MLP and the head alone.
void read_gptj(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.norm = NormKind::layer, r.plan.options.head_bias = true;
  for (const char* of : {"rope_parameters.", "rope_scaling.", ""})  // transformers reads none of these
    for (const char* kind : {"rope_type", "type"}) c.must_be(std::string(of) + kind, std::string("default"));
  for (const char* base : {"rope_theta", "rope_parameters.rope_theta"}) c.must_be(base, 10000.0);
  MultiHeadAttentionOptions o = r.attention();
  o.heads.rope = {.pairing = RopePairing::interleaved, .rot_dim = c.at<int64_t>("rotary_dim")};
  r.mixers(o);
  stand_beside(r, false);
  c.must_be("tie_word_embeddings", false);
  c.ignore(
      "attn_pdrop gradient_checkpointing rotary scale_attn_weights summary_activation summary_first_dropout "
      "summary_proj_to_labels summary_type summary_use_proj task_specific_params tokenizer_class");
  r.usual_names();
  r.widening = 4;
  r.ungated(r.all(), true, "activation_function", "fc_in.", "fc_out.");
  r.outer_names("transformer.", "wte", "h", "ln_f");
  r.rename("input_layernorm\\.", "ln_1.");
  r.rename("self_attn\\.o_proj\\.", "attn.out_proj.");
  r.rename("self_attn\\.", "attn.");
}

/// Falcon: one key head (7B), or several, each beside its query heads in the map of q, k and v (40B, 180B), where the
/// branches have a norm each.
void read_falcon(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& all = r.plan.options;
  all.norm = NormKind::layer, all.tied = c.get("tie_word_embeddings", true);
  c.must_be("alibi", false);
  const bool grouped = c.get("new_decoder_architecture", false), one = !grouped && c.get("multi_query", true);
  const bool beside = c.get("parallel_attn", true) || grouped, bias = c.get("bias", false);
  const bool two_norms = c.get<int64_t>("num_ln_in_parallel_attn", grouped ? 2 : 1) == 2;
  if (grouped) c.must_be("parallel_attn", true);
  else c.must_be<int64_t>("num_ln_in_parallel_attn", 1);
  MultiHeadAttentionOptions o = r.attention();
  const int64_t heads = o.heads.heads, kv_heads = c.get("num_kv_heads", heads);
  o.heads.kv_heads = one ? 1 : grouped ? kv_heads : heads;
  o.heads.qkv_bias = o.heads.out_bias = bias;
  r.mixers(o);
  if (beside) stand_beside(r, two_norms);
  c.ignore("multi_query apply_residual_connection_post_layernorm n_embed");
  r.usual_names();
  r.widening = 4;
  r.ungated(r.all(), bias, "activation", "dense_h_to_4h.", "dense_4h_to_h.");
  r.outer_names("transformer.", "word_embeddings", "h", "ln_f");
  if (two_norms) r.rename("input_layernorm\\.", "ln_attn."), r.rename("post_attention_layernorm\\.", "ln_mlp.");
  r.rename("self_attn\\.o_proj\\.", "self_attention.dense.");
  r.rename("self_attn\\.", "self_attention.");
  r.parts("self_attention", "query_key_value", {"q_proj", "k_proj", "v_proj"}, one ? 1 : o.heads.kv_heads);
}

/// Phi 1 to 2: biases everywhere, in the head, too.
void read_phi(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.norm = NormKind::layer, r.plan.options.head_bias = true;
  r.rotary_share = 0.5;
  MultiHeadAttentionOptions o = r.attention();
  o.heads.qkv_bias = o.heads.out_bias = true;
  r.mixers(o);
  stand_beside(r, false);
  c.must_be("tie_word_embeddings", false);
  c.must_be("qk_layernorm", false);
  r.usual_names();
  r.ungated(r.all(), true, "hidden_act", "fc1.", "fc2.");
  r.rename("self_attn\\.o_proj\\.", "self_attn.dense.");
  r.rename("^model\\.norm\\.", "model.final_layernorm.");
}

/// StableLM 1 to 2; few of them have feeds beside attention.
void read_stablelm(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.plan.options.norm = NormKind::layer;
  r.rotary_share = 0.25;
  MultiHeadAttentionOptions o = r.attention();
  o.heads.qkv_bias = c.get("use_qkv_bias", false), o.heads.out_bias = false;
  r.mixers(o);
  if (c.get("use_parallel_residual", false)) stand_beside(r, false);
  c.must_be("qk_layernorm", false);
  r.usual_names();
  r.dense(r.all());
}

/// Cohere's Command: norms without bias, and RoPE of neighbouring channels. In Command R7B (cohere2) most layers have a
/// window, and the others no RoPE.
void read_cohere(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& all = r.plan.options;
  all.norm = NormKind::layer, all.norm_bias = false;
  all.tied = c.get("tie_word_embeddings", true);
  all.logit_scale = r.factor("logit_scale", 0.0625, 1);
  MultiHeadAttentionOptions o = r.attention();
  o.heads.rope.pairing = RopePairing::interleaved;
  r.mixers(o);
  if (r.type == "cohere2") {
    const std::vector<int64_t> sliding = r.typed_or_turns("sliding_attention", "sliding_window_pattern", 4);
    o.heads.use_rope = false;
    r.mixers(r.others_than(sliding), o);
    r.windows(sliding);
    if (c.has("layer_types")) c.ignore("_sliding_window_pattern");
    c.must_be("rotary_pct", 1.0);
    c.must_be("position_embedding_type", std::string("rope_gptj"));
    for (const char* there : {"use_parallel_block", "use_gated_activation", "use_embedding_sharing"})
      c.must_be(there, true);
    c.ignore("cache_implementation order_of_interleaved_layers layer_switch use_parallel_embedding");
  }
  stand_beside(r, false);
  c.must_be("use_qk_norm", false);
  r.usual_names();
  r.dense(r.all());
}

}  // namespace

std::span<const ModelFamily> parallel_families() {
  static constexpr ModelFamily all[] = {
      {"gpt_neox", read_gpt_neox, R"({"attention_bias": true, "hidden_act": "gelu"})"},
      {"gptj", read_gptj, R"({"activation_function": "gelu_new"})", kGpt2Names},
      {"falcon", read_falcon, R"({"activation": "gelu"})", R"({"ffn_hidden_size": "intermediate_size"})"},
      {"phi", read_phi, R"({"hidden_act": "gelu_new"})"},
      {"stablelm", read_stablelm},
      {"cohere", read_cohere, R"({"rope_theta": 500000.0})"},
      {"cohere2", read_cohere},
  };
  return all;
}

}  // namespace sluice::detail
