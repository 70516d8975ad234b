// Gemma 1 to 4, Gemma 3n, VaultGemma and RecurrentGemma.
#include <sluice/layers/models/families.h>

#include <algorithm>
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
      c.needs({"rope_theta", "rope_parameters.full_attention.rope_theta"});
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

/// Gemma 4 26B-A4B: experts beside each feed, of which the router reads another norm of the same h.
void gemma4_experts(FamilyReader& r) {
  const ModelConfig& c = r.config;
  c.must_be("hidden_activation", std::string("gelu_pytorch_tanh"));
  MoeOptions o = r.moe({"num_experts"});
  o.activation = MoeActivation::geglu_tanh, o.norms = true, o.norm_eps = r.plan.options.norm_eps;
  o.expert_factor = true;
  for (DecoderBlockOptions& block : r.plan.options.blocks) block.experts = o;
  r.rename("feed_own_norm\\.", "post_feedforward_layernorm_1.");
  r.rename("experts_norm\\.", "post_feedforward_layernorm_2.");
  r.rename("experts\\.norm\\.", "pre_feedforward_layernorm_2.");
  r.rename("experts\\.router_norm\\.weight", "router.scale");
  r.rename("experts\\.router\\.", "router.proj.");
  r.rename("experts\\.expert_factor", "router.per_expert_scale");
  constexpr PyTorchLayout transposed = PyTorchLayout::transposed;
  r.rename("experts\\.gate\\.weight", "experts.gate_up_proj", {.part = 0, .axis = 1, .layout = transposed});
  r.rename("experts\\.up\\.weight", "experts.gate_up_proj", {.part = 1, .axis = 1, .layout = transposed});
  r.rename("experts\\.down\\.weight", "experts.down_proj", {.layout = transposed});
}

/// Gemma 3n, Gemma 4 E2B and E4B: an embedding for each layer.
void per_layer_embeddings(FamilyReader& r, int64_t width) {
  const ModelConfig& c = r.config;
  const std::string act = c.get("hidden_activation", std::string("gelu_pytorch_tanh"));  // one of those of dense()
  r.plan.options.per_layer =
      PerLayerEmbeddingOptions{.vocabulary = c.get<int64_t>("vocab_size_per_layer_input", 262144),
                               .width = width,
                               .activation = act == "gelu"                ? Act::gelu
                                             : act == "gelu_pytorch_tanh" ? Act::gelu_tanh
                                                                          : Act::silu};
  r.rename("^per_layer\\.table\\.", r.body + "embed_tokens_per_layer.");
  r.rename("^per_layer\\.map\\.", r.body + "per_layer_model_projection.");
  r.rename("^per_layer\\.norm\\.", r.body + "per_layer_projection_norm.");
  r.rename("per_layer\\.in\\.", "per_layer_input_gate.");
  r.rename("per_layer\\.out\\.", "per_layer_projection.");
  r.rename("per_layer\\.norm\\.", "post_per_layer_input_norm.");
}

/// Gemma 3n, Gemma 4 E2B and E4B: the last layers read the keys of the last layer of their kind before them, and their
/// feeds may be twice as wide. Files have weights of keys of these layers, too.
void shared_keys(FamilyReader& r, const std::vector<int64_t>& sliding) {
  const ModelConfig& c = r.config;
  const auto shared = c.get<int64_t>("num_kv_shared_layers", 0), first = r.layers - shared;
  if (shared < 0 || first < 1) c.refuse("num_kv_shared_layers", "the first layer must have keys of its own");
  const auto slides = [&](int64_t layer) { return std::ranges::find(sliding, layer) != sliding.end(); };
  const bool wide = c.get("use_double_wide_mlp", false);
  for (int64_t layer = first; layer < r.layers; ++layer) {
    int64_t of = first - 1;
    while (of >= 0 && slides(of) != slides(layer)) --of;
    if (of < 0) c.refuse("num_kv_shared_layers", str("no layer before ", first, " is of the kind of layer ", layer));
    r.block(layer).keys_of = of;
    if (wide) std::get<GluOptions>(r.block(layer).feed).hidden *= 2;
    r.plan.ignore.push_back(str("layers\\.", layer, "\\.self_attn\\.[kv]_(proj|norm)\\."));
  }
}

/// Gemma 4: windows in most layers; heads of another width in the others, where values may be those that keys are made
/// of. Scores have no factor, each block has one.
void read_gemma4(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& model = r.plan.options;
  model.tied = c.get("tie_word_embeddings", true);
  model.embedding_scale = std::sqrt(static_cast<double>(model.dim));
  model.logit_cap = r.factor("final_logit_softcapping", 0.0, 0.0);
  c.must_be("use_bidirectional_attention", std::string("vision"));  // of images
  c.ignore(
      "vocab_size_per_layer_input use_double_wide_mlp num_experts num_experts_per_tok moe_intermediate_size "
      "global_head_dim num_global_key_value_heads");
  const std::vector<int64_t> sliding = r.typed("layer_types", "sliding_attention"), full = r.others_than(sliding);
  const int64_t last = r.layers - 1;
  if (full.empty() || full.back() != last) c.refuse("layer_types", "the last layer must be full_attention");
  const std::string ropes = "rope_parameters.";
  // Transformers writes those sizes of a layer that are not the usual ones. Numbers of layers may begin with zeros.
  const auto own = [&](int64_t layer) {
    std::string number = std::to_string(layer);
    const auto there = [&](const char* field) { return c.has(str("per_layer_config.", number, field)); };
    while (number.size() < 4 && !there(".head_dim") && !there(".num_key_value_heads")) number.insert(0, "0");
    return str("per_layer_config.", number, ".");
  };
  const bool each =
      c.is_null("per_layer_config") || c.has(own(last) + "head_dim") || c.has(own(last) + "num_key_value_heads");
  const bool tied = c.get("attention_k_eq_v", false);
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = o.v_norm = true, o.scale = 1;
  MultiHeadAttentionOptions wide = o;
  wide.tied_values = tied;
  o.heads.rope = r.rope(o.heads.head_dim, ropes + "sliding_attention");
  r.mixers(sliding, o);
  for (const int64_t layer : full) {
    const std::string at = own(layer);
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
  const auto width = c.get<int64_t>("hidden_size_per_layer_input", 256);
  if (width < 0) c.refuse("hidden_size_per_layer_input", "it must be at least 0");
  if (width > 0) per_layer_embeddings(r, width);
  if (c.get("enable_moe_block", false)) gemma4_experts(r);
  shared_keys(r, sliding);
  r.plan.ignore.push_back("^(model\\.)?(embed_vision|vision_embedder|audio_tower|embed_audio)\\.");
}

/// Gemma 3n: Gemma 4's attention, with one width of heads, embeddings and keys of earlier layers; streams with
/// alternating updates; feeds of which most gates are 0 in the first layers.
void read_gemma3n(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& model = r.plan.options;
  model.tied = c.get("tie_word_embeddings", true);
  model.embedding_scale = std::sqrt(static_cast<double>(model.dim));
  model.logit_cap = r.factor("final_logit_softcapping", 30.0, 0.0);
  MultiHeadAttentionOptions o = r.attention();
  o.qk_norm = o.v_norm = true, o.scale = 1;
  const std::vector<int64_t> sliding = r.typed_or_turns("sliding_attention", "sliding_window_pattern", 5);
  c.needs({"rope_theta", "rope_parameters.full_attention.rope_theta"});
  r.two_ropes(o, sliding, c.get("rope_local_base_freq", 10000.0));
  r.windows(sliding);
  AltUpOptions streams{.streams = c.get<int64_t>("altup_num_inputs", 4), .scale = c.get("altup_correct_scale", true)};
  streams.laurel = r.positive("laurel_rank", 64);
  if (streams.streams < 1 || streams.streams > 64) c.refuse("altup_num_inputs", "it must be from 1 to 64");
  model.alt_up = streams;
  c.must_be<int64_t>("altup_active_idx", 0);
  c.ignore("altup_coef_clip altup_lr_multiplier query_pre_attn_scalar attn_logit_softcapping");
  r.norms_behind(true, "post_attention_layernorm.", "post_feedforward_layernorm.");
  r.rename("feed_norm\\.", "pre_feedforward_layernorm.");
  r.usual_names();
  r.dense(r.all(), "hidden_activation", "gelu_pytorch_tanh");
  per_layer_embeddings(r, c.get<int64_t>("hidden_size_per_layer_input", 256));
  shared_keys(r, sliding);
  const std::string pattern = "activation_sparsity_pattern";
  std::vector<double> sparsity = r.of_layers(pattern, 0.0);
  if (!c.has(pattern) && r.layers > 10) std::fill_n(sparsity.begin(), 10, 0.95);
  for (int64_t i = 0; i < r.layers; ++i)
    std::get<GluOptions>(r.block(i).feed).sparsity = sparsity[static_cast<std::size_t>(i)];
  r.rename("^alt_up\\.in\\.", r.body + "altup_projections.");
  r.rename("^alt_up\\.out\\.", r.body + "altup_unembed_projections.");
  r.members("alt_up", {{"norm", "router_norm"},
                       {"router", "modality_router"},
                       {"predict", "prediction_coefs"},
                       {"correct", "correction_coefs"},
                       {"scale", "correct_output_scale"}});
  r.rename("\\.alt_up\\.", ".altup.");
  r.members("laurel", {{"down", "linear_left"}, {"up", "linear_right"}, {"norm", "post_laurel_norm"}});
  if (!streams.scale) r.plan.ignore.push_back("\\.altup\\.correct_output_scale$");
  r.plan.ignore.push_back("^(model\\.)?(embed_vision|audio_tower|embed_audio)\\.");
}

/// RecurrentGemma: Griffin's recurrent block, and in turns attention with a window and RoPE on half of a head's
/// channels.
void read_recurrent_gemma(FamilyReader& r) {
  const ModelConfig& c = r.config;
  DecoderOptions& model = r.plan.options;
  model.tied = c.get("tie_word_embeddings", true);
  model.embedding_scale = static_cast<float>(BFloat16(std::sqrt(static_cast<float>(model.dim))));
  model.logit_cap = r.factor("logits_soft_cap", 30.0, 30.0);
  const auto turns = c.get("block_types", std::vector<std::string>{"recurrent", "recurrent", "attention"});
  for (const std::string& kind : turns)
    if (kind != "recurrent" && kind != "attention") c.refuse("block_types", "known: recurrent, attention");
  if (turns.empty()) c.refuse("block_types", "it must not be empty");
  const std::vector<int64_t> attends =
      r.where([&](int64_t layer) { return turns[static_cast<std::size_t>(layer) % turns.size()] == "attention"; });
  r.rotary_share = 0.5;
  MultiHeadAttentionOptions o = r.attention();
  c.must_be("head_dim", model.dim / o.heads.heads);
  o.heads.out_bias = true;
  r.mixers(RgLruOptions{.dim = model.dim,
                        .inner = c.get("lru_width", model.dim, model.dim),
                        .heads = o.heads.heads,
                        .short_conv = r.positive("conv1d_width", 4)});
  r.mixers(attends, o);
  r.windows(attends);
  r.usual_names(r.others_than(attends), "temporal_block.");
  r.rename("\\.self_attn\\.", ".temporal_block.");
  const PyTorchStorage as_is{.layout = PyTorchLayout::as_is};
  r.members("temporal_block", {{"in", "linear_x"},
                               {"gate", "linear_y"},
                               {"out", "linear_out"},
                               {"conv", "conv_1d"},
                               {"forget_(weight|bias)", "rg_lru.recurrent_gate_$1", as_is},
                               {"input_(weight|bias)", "rg_lru.input_gate_$1", as_is},
                               {"lambda", "rg_lru.recurrent_param"}});
  c.must_be("hidden_activation", std::string("gelu_pytorch_tanh"));  // of the recurrent block, too
  r.dense(r.all(), "hidden_activation", "gelu_pytorch_tanh");
  for (DecoderBlockOptions& block : model.blocks) {
    GluOptions& feed = std::get<GluOptions>(block.feed);
    if (feed.hidden < 2) c.refuse("intermediate_size", "it must be at least 2");
    feed.hidden /= 2, feed.bias = true;
  }
  r.rename("\\.mlp\\.", ".mlp_block.");
  r.rename("input_layernorm\\.", "temporal_pre_norm.");
  r.rename("post_attention_layernorm\\.", "channel_pre_norm.");
  r.rename("^model\\.norm\\.", "model.final_norm.");
  r.rename("(_pre|final)_norm\\.weight", "$&", {.add = 1});
  c.ignore("w_init_variance_scale final_w_init_variance_scale _block_types embeddings_scale_by_sqrt_dim");
}

/// Defaults of transformers' Gemma3TextConfig for fields that config.json of Gemma 3 (4B and larger) leaves out.
constexpr const char* kGemma3 = R"({"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
  "head_dim": 256, "rms_norm_eps": 1e-06, "query_pre_attn_scalar": 256, "rope_theta": 1000000})";

constexpr const char* kGemma4Names = R"({"top_k_experts": "num_experts_per_tok"})";

}  // namespace

std::span<const ModelFamily> gemma_families() {
  static constexpr ModelFamily all[] = {
      {"gemma", read_gemma},
      {"gemma2", read_gemma},
      {"vaultgemma", read_gemma},
      {"gemma3_text", read_gemma, kGemma3},
      {"gemma3n_text", read_gemma3n, R"({"rope_theta": 1000000, "num_kv_shared_layers": 15})"},
      {"gemma4_text", read_gemma4, "{}", kGemma4Names},
      {"recurrent_gemma", read_recurrent_gemma, "{}", R"({"attention_window_size": "sliding_window"})"},
      {"gemma4_unified_text", read_gemma4, R"({"hidden_size_per_layer_input": 0})"},
  };
  return all;
}

}  // namespace sluice::detail
