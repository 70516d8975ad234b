#include <sluice/layers/models/families.h>

#include <algorithm>

namespace sluice {

std::vector<ModelFamily> model_families() {
  std::vector<ModelFamily> all;
  for (const auto& some : {detail::llama_families(), detail::gpt2_families(), detail::attention_families(),
                           detail::gemma_families(), detail::latent_families(), detail::hybrid_families(),
                           detail::mamba_families(), detail::parallel_families(), detail::compressed_families()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

/// Throws IOError unless layers/port/quantised.h can read weights that are stored as this config.json says. Names and
/// shapes of the tensors tell the rest.
static void check_quantisation(const ModelConfig& c) {
  const std::string of = "quantization_config.";
  const auto one_of = [&](const char* field, const std::vector<std::string>& names) {
    if (std::ranges::find(names, c.at<std::string>(of + field)) == names.end())
      c.refuse(of + field, detail::known(names));
  };
  if (!c.has(of + "quant_method")) return;
  one_of("quant_method", {"fp8", "mxfp4", "compressed-tensors"});
  if (c.has(of + "format")) one_of("format", {"float-quantized", "int-quantized", "naive-quantized", "pack-quantized"});
  for (const int64_t n : c.get<std::vector<int64_t>>(of + "weight_block_size", {}))
    if (n < 1 || (n & (n - 1)) != 0) c.refuse(of + "weight_block_size", "need powers of two");
  c.ignore("quantization_config");
}

ModelPlan plan_of(const ModelConfig& config, const std::function<bool(const char*)>& has, bool long_texts) {
  const std::string type = config.at<std::string>("model_type");
  std::vector<std::string> types;
  for (const ModelFamily& family : model_families()) {
    if (type == family.model_type) {
      config.rename(family.names), config.assume(family.defaults);
      check_quantisation(config);
      ModelPlan plan{.long_texts = long_texts};
      detail::FamilyReader reader(config, has, plan);
      family.read(reader);
      return plan;
    }
    types.push_back(family.model_type);
  }
  config.refuse("model_type", detail::known(types, " families"));
}

namespace detail {

std::string known(const std::vector<std::string>& values, const std::string& of) {
  std::string out;
  for (const std::string& value : values) out += (out.empty() ? "known" + of + ": " : ", ") + value;
  return out;
}

FamilyReader::FamilyReader(const ModelConfig& c, const std::function<bool(const char*)>& h, ModelPlan& p)
    : config(c), has(h), plan(p), type(c.at<std::string>("model_type")) {
  DecoderOptions& o = plan.options;
  o.vocabulary = c.at<int64_t>("vocab_size"), o.dim = c.at<int64_t>("hidden_size");
  layers = c.has("num_hidden_layers") || !c.has("layers_block_type")
               ? c.at<int64_t>("num_hidden_layers")
               : std::ssize(c.at<std::vector<std::string>>("layers_block_type"));
  if (layers < 1 || layers > 1024) c.refuse("num_hidden_layers", "it must be from 1 to 1024");
  o.blocks.resize(static_cast<std::size_t>(layers));
  // Must be given: families have different defaults.
  o.norm_eps = c.any_of<double>({"rms_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "layer_norm_eps"});
  o.tied = c.get("tie_word_embeddings", false);
  c.ignore(
      "model_type architectures transformers_version _name_or_path auto_map dtype torch_dtype bos_token_id "
      "eos_token_id pad_token_id initializer_range use_cache attention_dropout residual_dropout embedding_dropout "
      "embd_pdrop resid_pdrop hidden_dropout pretraining_tp output_router_logits router_aux_loss_coef "
      "max_position_embeddings max_sequence_length model_max_length head_dim aux_loss_alpha seq_aux "
      "mtp_num_hidden_layers mtp_use_dedicated_embeddings transformers.js_config unsloth_fixed num_logits_to_keep "
      "use_mamba_kernels vision_config image_token_id video_token_id vision_start_token_id vision_end_token_id "
      "vision_token_id");
  body = has("model.language_model.")   ? "model.language_model."
         : has("language_model.model.") ? "language_model.model."
                                        : "model.";
  rename("^embedding\\.", body + "embed_tokens.");
  rename("^norm\\.", body + "norm.");
  rename("^head\\.", has("language_model.lm_head.") ? "language_model.lm_head." : "lm_head.");
  rename("^blocks\\.", body + "layers.");
  plan.ignore = {"rotary_emb\\.inv_freq$", "^(model\\.)?mtp[._]", "^(model\\.)?visual\\.",
                 "^(model\\.)?(vision_tower|vision_model|multi_modal_projector|mm_projector)\\.",
                 "\\.attn(ention)?\\.(masked_)?bias$"};  // the last are causal masks
  // Layers that predict later tokens (MTP) stand behind the last layer.
  const int64_t more = c.get<int64_t>("num_nextn_predict_layers", c.get<int64_t>("num_mtp_layers", 0));
  for (int64_t i = 0; i < std::min<int64_t>(more, 16); ++i)
    plan.ignore.push_back(str("^model\\.layers\\.", layers + i, "\\."));
  if (o.tied) plan.ignore.push_back("^(lm_)?head\\.weight$");
}

void FamilyReader::members(const std::string& module, const PyTorchRules& rules) {
  for (const PyTorchRule& r : rules) rename(module + "\\." + r.name + "\\b", module + "." + r.as, r.stored);
}

void FamilyReader::parts(const std::string& module, const std::string& theirs, const std::vector<std::string>& ours,
                         int64_t groups) {
  int64_t part = 0;
  for (const std::string& one : ours) members(module, {{one, theirs, {.part = part++, .groups = groups}}});
}

void FamilyReader::rename_in(const std::vector<int64_t>& which, const std::string& ours, const std::string& theirs) {
  if (which.empty()) return;
  std::string numbers;
  for (const int64_t layer : which) numbers += str(numbers.empty() ? "" : "|", layer);
  rename(str("(layers\\.(?:", numbers, ")\\.)", ours), "$1" + theirs);
}

std::vector<int64_t> FamilyReader::where(const std::function<bool(int64_t)>& wanted) const {
  std::vector<int64_t> out;
  for (int64_t layer = 0; layer < layers; ++layer)
    if (wanted(layer)) out.push_back(layer);
  return out;
}

std::vector<int64_t> FamilyReader::typed(const std::string& name, const std::string& value,
                                         std::vector<std::string> others) const {
  auto types = of_layers<std::string>(name);
  std::replace(types.begin(), types.end(), std::string("mamba"), std::string("linear_attention"));  // older names
  std::replace(types.begin(), types.end(), std::string("attention"), std::string("full_attention"));
  std::erase(others, value), others.insert(others.begin(), value);
  for (const std::string& one : types)
    if (std::ranges::find(others, one) == others.end()) config.refuse(name, known(others));
  return where([&](int64_t layer) { return types[static_cast<std::size_t>(layer)] == value; });
}

std::vector<int64_t> FamilyReader::typed_or_turns(const std::string& value, const std::string& turn, int64_t otherwise,
                                                  std::vector<std::string> others) const {
  config.ignore(turn);
  if (config.has("layer_types")) return typed("layer_types", value, std::move(others));
  const int64_t n = positive(turn, otherwise);
  return where([&](int64_t layer) { return (layer + 1) % n != 0; });
}

void FamilyReader::windows(const std::vector<int64_t>& sliding) {
  config.ignore("sliding_window");
  const int64_t window = sliding.empty() ? 1 : positive("sliding_window");
  for (const int64_t layer : sliding) std::get<MultiHeadAttentionOptions>(block(layer).mixer).window = window;
}

void FamilyReader::norms_behind(bool before, const std::string& mixer, const std::string& feed) {
  for (DecoderBlockOptions& block : plan.options.blocks)
    block.mixer_norms = block.feed_norms = {.before = before, .after = true};
  rename("mixer_post_norm\\.", mixer);
  rename("feed_post_norm\\.", feed);
}

std::vector<int64_t> FamilyReader::others_than(const std::vector<int64_t>& some) const {
  return where([&](int64_t layer) { return std::find(some.begin(), some.end(), layer) == some.end(); });
}

std::vector<int64_t> FamilyReader::dense_layers(int64_t otherwise) const {
  const char *const types = "mlp_layer_types", *const count = "first_k_dense_replace";
  config.must_be<int64_t>("moe_layer_freq", 1);
  const bool typed_ones = config.has(types), counted = config.has(count);
  const int64_t first = counted || (otherwise < 0 && !typed_ones) ? config.at<int64_t>(count) : otherwise;
  std::vector<int64_t> out = where([&](int64_t layer) { return layer < first; });
  if (!typed_ones) return out;
  std::vector<int64_t> dense = typed(types, "dense", {"sparse"});
  if (counted && dense != out)
    config.refuse(types, "it must be dense in the first first_k_dense_replace layers and sparse in the others");
  return dense;
}

MultiHeadAttentionOptions FamilyReader::attention() const {
  const ModelConfig& c = config;
  const int64_t dim = plan.options.dim, heads = positive("num_attention_heads");
  MultiHeadAttentionOptions o{.heads = {.dim = dim, .heads = heads, .causal = true, .use_rope = true}};
  o.heads.kv_heads = c.get("num_key_value_heads", heads);
  o.heads.head_dim = c.get("head_dim", dim / heads);
  if (o.heads.head_dim < 1)
    c.refuse(c.has("head_dim") ? "head_dim" : "num_attention_heads", "a head must have at least one channel");
  o.heads.rope = rope(o.heads.head_dim);
  o.heads.qkv_bias = o.heads.out_bias = c.get("attention_bias", false);
  o.qk_norm_eps = plan.options.norm_eps;
  return o;
}

MlaOptions FamilyReader::latent_attention() {
  const ModelConfig& c = config;
  MlaOptions o{.dim = plan.options.dim, .heads = c.at<int64_t>("num_attention_heads")};
  o.nope_dim = c.at<int64_t>("qk_nope_head_dim"), o.rope_dim = c.at<int64_t>("qk_rope_head_dim");
  o.value_dim = c.at<int64_t>("v_head_dim");
  o.kv_rank = c.at<int64_t>("kv_lora_rank"), o.q_rank = c.get<int64_t>("q_lora_rank", 0);
  c.must_be("attention_bias", false);
  c.ignore("qk_head_dim num_key_value_heads");
  members("mixer", {{"(q|kv)_norm", "$1_a_layernorm"},
                    {"(q|kv)_up", "$1_b_proj"},
                    {"q_down", "q_a_proj"},
                    {"kv_down", "kv_a_proj_with_mqa"}});
  return o;
}

void FamilyReader::usual_names(const std::vector<int64_t>& others, const std::string& linear) {
  rename_in(others, "mixer\\.", linear);
  rename("(layers\\.\\d+\\.)mixer\\.", "$1self_attn.");
  rename("(layers\\.\\d+\\.)feed\\.", "$1mlp.");
  rename("mixer_norm\\.", "input_layernorm.");
  rename("feed_norm\\.", "post_attention_layernorm.");
  rename("self_attn\\.([qkv])\\.", "self_attn.$1_proj.");
  rename("self_attn\\.out\\.", "self_attn.o_proj.");
}

void FamilyReader::convolution(const std::string& module, int64_t keys, int64_t values) {
  if (!has("q_conv1d")) return members(module, {{"conv", "conv1d"}});
  PyTorchStorage three;
  const std::string at = module + ".";
  three.pieces = {{at + "q_conv1d.", keys}, {at + "k_conv1d.", keys}, {at + "v_conv1d.", values}};
  rename(module + "\\.conv\\.", "", std::move(three));
}

}  // namespace detail

}  // namespace sluice
