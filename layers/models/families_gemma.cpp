// Gemma 1 to 4 and VaultGemma.
#include <sluice/layers/models/families.h>

#include <cmath>

namespace sluice::detail {

namespace {

/// Gemma 1 to 3 and VaultGemma: norms that hold w − 1, in Gemma 2 and 3 around both branches. All but Gemma 1 have
/// windows; Gemma 2 and VaultGemma cap scores and logits, Gemma 3 has norms of each head's q and k.
void read_gemma(FamilyReader& r) {
  const ModelConfig& c = r.config;
  const bool first = r.type == "gemma", third = r.type == "gemma3_text", second = !first && !third;
  DecoderOptions& model = r.plan.options;
  model.tied = c.get("tie_word_embeddings", true);
  model.embedding_scale = std::sqrt(static_cast<double>(model.dim));
  c.must_be("use_bidirectional_attention", false);
  MultiHeadAttentionOptions o = r.attention();
  if (!first) {
    model.logit_cap = r.factor("final_logit_softcapping", second ? 30.0 : 0.0, 0.0);
    o.scale = 1 / std::sqrt(c.at<double>("query_pre_attn_scalar"));
    o.softcap = r.factor("attn_logit_softcapping", second ? 50.0 : 0.0, 0.0);
    if (third && o.softcap != 0) c.refuse("attn_logit_softcapping", "transformers caps no scores of Gemma 3");
    o.qk_norm = third;
    if (second) c.must_be("sliding_window_pattern", int64_t{2});
    const auto sliding = r.typed_or_turns("sliding_attention", "sliding_window_pattern", second ? 2 : 6);
    r.mixers(o);
    if (third) {
      c.any_of<double>({"rope_theta", "rope_parameters.full_attention.rope_theta"});
      r.two_ropes(o, sliding, c.get("rope_local_base_freq", 10000.0));
    }
    r.windows(sliding);
    c.must_be("sliding_window_size", c.get<int64_t>("sliding_window", 0));
    if (r.type != "vaultgemma") r.norms_behind(true, "post_attention_layernorm.", "post_feedforward_layernorm.");
    r.rename("feed_norm\\.", "pre_feedforward_layernorm.");
  } else {
    r.mixers(o);
    c.must_be("hidden_activation", std::string("gelu_pytorch_tanh"));
  }
  r.usual_names();
  // Gemma 1's "gelu" means the approximation, too.
  const bool named = first && c.get("hidden_act", std::string("gelu")) != "gelu";
  r.dense(r.all(), named ? "hidden_act" : "hidden_activation", "gelu_pytorch_tanh");
  c.ignore("cache_implementation hidden_act _sliding_window_pattern");
  r.norms_less_one();
}

/// Gemma 4 without experts and without an embedding for each layer (31B): windows in most layers; heads of another
/// width in the others, where values may be those that keys are made of. Scores have no factor, each block has one.
void read_gemma4(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& model = r.plan.options;
  model.tied = c.get("tie_word_embeddings", true);
  model.embedding_scale = std::sqrt(static_cast<double>(model.dim));
  model.logit_cap = r.factor("final_logit_softcapping", 0.0, 0.0);
  for (const auto& [name, otherwise] : {std::pair("hidden_size_per_layer_input", 256), {"num_kv_shared_layers", 0}})
    if (c.get<int64_t>(name, otherwise) != 0) c.refuse(name, "only 0 is known");
  c.must_be("enable_moe_block", false);
  c.must_be("use_bidirectional_attention", std::string("vision"));  // of images
  c.ignore(
      "vocab_size_per_layer_input use_double_wide_mlp num_experts top_k_experts moe_intermediate_size global_head_dim "
      "num_global_key_value_heads");
  const std::vector<int64_t> sliding = r.typed("layer_types", "sliding_attention"), full = r.others_than(sliding);
  const int64_t last = r.layers - 1;
  if (full.empty() || full.back() != last) c.refuse("layer_types", "the last layer must be full_attention");
  const std::string ropes = "rope_parameters.", own = "per_layer_config.";
  // Transformers writes those sizes of a layer that are not the usual ones.
  const bool each = c.is_null("per_layer_config") || c.has(str(own, last, ".head_dim")) ||
                    c.has(str(own, last, ".num_key_value_heads"));
  const bool tied = c.get("attention_k_eq_v", false);
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = o.v_norm = true, o.scale = 1;
  MultiHeadAttentionOptions wide = o;
  wide.tied_values = tied;
  o.heads.rope = r.rope(o.heads.head_dim, ropes + "sliding_attention");
  r.mixers(sliding, o);
  for (const int64_t layer : full) {
    const std::string at = str(own, layer, ".");
    HeadsOptions& h = wide.heads;
    h.head_dim = each ? c.get(at + "head_dim", o.heads.head_dim) : c.get<int64_t>("global_head_dim", 512);
    h.kv_heads = each   ? c.get(at + "num_key_value_heads", o.heads.kv_heads)
                 : tied ? c.get("num_global_key_value_heads", o.heads.kv_heads)
                        : o.heads.kv_heads;
    if (h.head_dim < 1) c.refuse(each ? at + "head_dim" : "global_head_dim", "it must be positive");
    h.rope = r.rope(h.head_dim, ropes + "full_attention");
    r.block(layer).mixer = wide;
  }
  r.windows(sliding);
  r.norms_behind(true, "post_attention_layernorm.", "post_feedforward_layernorm.");
  r.rename("feed_norm\\.", "pre_feedforward_layernorm.");
  for (DecoderBlockOptions& block : model.blocks) block.scaled = true;
  r.rename("^(model\\..*layers\\.\\d+\\.)scale$", "$1layer_scalar");
  r.usual_names();
  r.dense(r.all(), "hidden_activation", "gelu_pytorch_tanh");
  r.plan.ignore.push_back("^(model\\.)?(embed_vision|audio_tower|embed_audio)\\.");
}

/// Defaults of transformers' Gemma3TextConfig for fields that config.json of Gemma 3 (4B and larger) leaves out.
constexpr const char* kGemma3 = R"({"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
  "head_dim": 256, "rms_norm_eps": 1e-06, "query_pre_attn_scalar": 256, "rope_theta": 1000000})";

}  // namespace

std::span<const ModelFamily> gemma_families() {
  static constexpr ModelFamily all[] = {
      {"gemma", read_gemma},        {"gemma2", read_gemma},
      {"vaultgemma", read_gemma},   {"gemma3_text", read_gemma, kGemma3},
      {"gemma4_text", read_gemma4},
  };
  return all;
}

}  // namespace sluice::detail
