// Families whose feed stands beside attention, as in GPT-J: h + attention(N(h)) + feed(N'(h)), where N' may be N. All
// have LayerNorm.
#include <sluice/layers/models/families.h>

#include <algorithm>

namespace sluice::detail {

namespace {

/// Puts the feeds beside attention, with a norm of their own or without.
void stand_beside(FamilyReader& r, bool own_norm) {
  for (DecoderBlockOptions& block : r.plan.options.blocks) block.parallel = true, block.feed_norms.before = own_norm;
}

/// GPT-NeoX and Pythia: biases everywhere, a norm for each branch, and one map for q, k and v, head by head. GPT-NeoX
/// Japanese has the feed behind attention, and one bias: behind the last attention.
void read_gpt_neox(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool japanese = r.type == "gpt_neox_japanese";
  r.plan.options.norm = NormKind::layer;
  r.rotary_share = japanese ? 1 : 0.25;
  if (japanese) r.plan.options.tied = c.get("tie_word_embeddings", true);
  // Transformers reads only the older names of these; it writes both.
  c.must_be("partial_rotary_factor", c.get("rotary_pct", *r.rotary_share));
  c.must_be("rope_theta", c.get("rotary_emb_base", 10000.0));
  c.rename(R"({"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"})");
  MultiHeadAttentionOptions o = r.attention();
  r.mixers(o);
  if (japanese) {
    for (const char* never : {"attention_bias", "use_parallel_residual"}) c.must_be(never, false);
    o.heads.out_bias = true;
    r.block(r.layers - 1).mixer = o;
    r.widening = c.get<int64_t>("intermediate_multiple_size", 4);
    c.must_be("intermediate_size", r.widening * o.heads.dim);
  } else if (c.get("use_parallel_residual", true)) {
    stand_beside(r, true);
  }
  c.ignore("classifier_dropout is_decoder attention_probs_dropout_prob hidden_dropout_prob");
  r.usual_names();
  r.ungated(r.all(), !japanese, "hidden_act", "dense_h_to_4h.", "dense_4h_to_h.");
  r.rename("^lm_head\\.", "embed_out.");
  r.outer_names(r.type + ".", "embed_in", "layers", "final_layer_norm");
  if (japanese) r.rename("self_attn\\.o_proj\\.bias", "attention.dense_bias");
  r.rename("self_attn\\.o_proj\\.", "attention.dense.");
  r.rename("self_attn\\.", "attention.");
  r.parts("attention", "query_key_value", {"q_proj", "k_proj", "v_proj"}, o.heads.heads);
  if (r.plan.options.tied) r.plan.ignore.push_back("^embed_out\\.weight$");
}

/// GPT-J: RoPE of neighbouring channels, base 10000; biases of the MLP and the head alone. CodeGen has one map for q, v
/// and k, in four parts.
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
      "summary_proj_to_labels summary_type summary_use_proj task_specific_params tokenizer_class n_ctx");
  r.usual_names();
  r.widening = 4;
  r.ungated(r.all(), true, "activation_function", "fc_in.", "fc_out.");
  r.outer_names("transformer.", "wte", "h", "ln_f");
  r.rename("input_layernorm\\.", "ln_1.");
  r.rename("self_attn\\.o_proj\\.", "attn.out_proj.");
  r.rename("self_attn\\.", "attn.");
  if (r.type != "codegen") return;
  r.parts("attn", "qkv_proj", {"q_proj", "v_proj", "k_proj"}, 4);
  r.plan.ignore.push_back("\\.attn\\.causal_mask$");
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

/// Feeds of Cohere's Command with experts: the first layers may be dense. What the chosen and the shared experts make
/// is averaged, or added.
void cohere_feeds(FamilyReader& r, const std::vector<int64_t>& dense) {
  const ModelConfig& c = r.config;
  r.dense(dense);
  for (const int64_t layer : dense) {
    auto& feed = std::get<GluOptions>(r.block(layer).feed);
    feed.hidden = c.get("prefix_dense_intermediate_size", feed.hidden);
  }
  c.ignore("prefix_dense_intermediate_size");
  MoeOptions moe = r.moe({"num_experts"});
  const auto choice = [&](const char* field, const std::string& one, const std::string& other) {
    const std::string value = c.get(field, one);
    if (value != one && value != other) c.refuse(field, known({one, other}));
    return value == one;
  };
  if (!choice("expert_selection_fn", "softmax", "sigmoid"))
    moe.router = MoeRouter::sigmoid, moe.norm_topk = c.get("norm_topk_prob", true);
  c.ignore("norm_topk_prob");  // of softmax, which is that of the chosen experts
  moe.shared_hidden = c.get<int64_t>("num_shared_experts", 0) * moe.hidden, moe.shared_gate = false;
  const std::vector<int64_t> sparse = r.others_than(dense);
  if (choice("shared_expert_combination_strategy", "average", "sum") && moe.shared_hidden > 0)
    for (const int64_t layer : sparse) r.block(layer).feed_factor = 0.5;
  r.experts(sparse, moe, "shared_experts");
}

/// Cohere's Command: norms without bias, and RoPE of neighbouring channels. In Command R7B (cohere2) most layers have a
/// window, and the others no RoPE. With experts (cohere2_moe) the norms may be RMSNorm, and the first layers dense:
/// with a pattern of windows of their own, and with RoPE if this makes all of them full.
void read_cohere(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool sparse = r.type == "cohere2_moe";
  DecoderOptions& all = r.plan.options;
  all.norm = sparse && c.has("rms_norm_eps") ? NormKind::rms : NormKind::layer, all.norm_bias = false;
  if (all.norm == NormKind::rms) c.ignore("layer_norm_eps");
  all.tied = c.get("tie_word_embeddings", true);
  all.logit_scale = r.factor("logit_scale", 0.0625, 1);
  MultiHeadAttentionOptions o = r.attention();
  o.heads.rope.pairing = RopePairing::interleaved;
  r.mixers(o);
  std::vector<int64_t> dense = r.all();
  if (sparse) dense = r.dense_layers(0);
  if (r.type != "cohere") {
    const int64_t first = sparse ? c.get<int64_t>("first_k_dense_replace", 0) : 0,
                  of_first = sparse ? r.positive("prefix_dense_sliding_window_pattern", 1) : 1,
                  of_others = r.positive("sliding_window_pattern", 4);
    const std::vector<int64_t> sliding =
        c.has("layer_types") ? r.typed("layer_types", "sliding_attention") : r.where([&](int64_t i) {
          return i < first ? (i + 1) % of_first != 0 : (i - first + 1) % of_others != 0;
        });
    o.heads.use_rope = false;
    for (const int64_t layer : r.others_than(sliding))
      if (!sparse || of_first != 1 || std::ranges::find(dense, layer) == dense.end()) r.block(layer).mixer = o;
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
  if (sparse) cohere_feeds(r, dense);
  else r.dense(dense);
}

}  // namespace

std::span<const ModelFamily> parallel_families() {
  static constexpr ModelFamily all[] = {
      {"gpt_neox", read_gpt_neox, R"({"attention_bias": true, "hidden_act": "gelu"})"},
      {"gpt_neox_japanese", read_gpt_neox, R"({"hidden_act": "gelu"})"},
      {"codegen", read_gptj, R"({"activation_function": "gelu_new"})", kGpt2Names},
      {"gptj", read_gptj, R"({"activation_function": "gelu_new"})", kGpt2Names},
      {"falcon", read_falcon, R"({"activation": "gelu"})", R"({"ffn_hidden_size": "intermediate_size"})"},
      {"phi", read_phi, R"({"hidden_act": "gelu_new"})"},
      {"stablelm", read_stablelm},
      {"cohere", read_cohere, R"({"rope_theta": 500000.0})"},
      {"cohere2", read_cohere},
      {"cohere2_moe", read_cohere, R"({"head_dim": 128})"},
  };
  return all;
}

}  // namespace sluice::detail
