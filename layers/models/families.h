// What a family of models calls its options and its weights. A family is a page of rules: it reads config.json and says
// which blocks the model has, and which names their tensors have in the files.
#pragma once

#include <sluice/layers/models/decoder.h>
#include <sluice/layers/models/model_config.h>
#include <sluice/layers/port/pytorch.h>

#include <functional>
#include <optional>
#include <span>

namespace sluice {

namespace detail {
struct FamilyReader;
}

/// A model as its files describe it.
struct ModelPlan {
  DecoderOptions options{};
  PyTorchRules rules = {};               // from our names to those of the files
  std::vector<std::string> ignore = {};  // names of tensors that belong to no part of the decoder
};

/// One kind of config.json.
struct ModelFamily {
  const char* model_type;                 // of config.json
  void (*read)(detail::FamilyReader& r);  // its page of rules: fills in r.plan
  const char* defaults = "{}";            // JSON: fields that published files leave out
  const char* names = "{}";               // JSON: what it calls fields of other names
};
/// All families.
std::vector<ModelFamily> model_families();
/// The plan of the model with this config.json. `has` says whether the name of a tensor in the files contains a text:
/// published files of one family differ. IOError for an unknown family, naming the known ones, and for a field that the
/// family cannot follow.
ModelPlan plan_of(const ModelConfig& config, const std::function<bool(const char*)>& has);

namespace detail {

/// What an error says of a field that has another value than these.
std::string known(const std::vector<std::string>& values, const std::string& of = "");

/// Reads config.json for one family: what most families have in common.
struct FamilyReader {
  const ModelConfig& config;
  const std::function<bool(const char*)>& has;
  ModelPlan& plan;
  const std::string type;  // model_type
  int64_t layers = 0;
  /// Of a head's channels, where the configuration does not say. Without one it may say 1 only: transformers reads its
  /// share for some families alone.
  std::optional<double> rotary_share = {};

  /// Vocabulary, width, norms' eps, tied embedding; the names of what is not in a block.
  FamilyReader(const ModelConfig& config, const std::function<bool(const char*)>& has, ModelPlan& plan);

  void rename(const std::string& ours, const std::string& theirs, PyTorchStorage stored = {}) {
    plan.rules.push_back({ours, theirs, std::move(stored)});
  }
  /// rename() of each rule, whose names are those of members of `module` on both sides.
  void members(const std::string& module, const PyTorchRules& rules);
  /// rename() of members of `module` that are, in this order, the parts of the member `theirs` of the files.
  void parts(const std::string& module, const std::string& theirs, const std::vector<std::string>& ours,
             int64_t groups = 1);
  /// As rename(), of members of the blocks in `which` whose names begin with `ours`; `theirs` follows "layers.N.".
  void rename_in(const std::vector<int64_t>& which, const std::string& ours, const std::string& theirs);
  std::vector<int64_t> all() const { return others_than({}); }
  /// Those of the layers for which `wanted` is true.
  std::vector<int64_t> where(const std::function<bool(int64_t)>& wanted) const;
  /// Layers whose entry in the list `name` of the configuration is `value`. IOError unless each other is in `others`.
  std::vector<int64_t> typed(const std::string& name, const std::string& value,
                             std::vector<std::string> others = {"full_attention"}) const;
  /// typed("layer_types", value); without this list, all layers but every n-th, where the field `turn` is n.
  std::vector<int64_t> typed_or_turns(const std::string& value, const std::string& turn, int64_t otherwise) const;
  /// All layers but these.
  std::vector<int64_t> others_than(const std::vector<int64_t>& some) const;
  /// Those that mlp_layer_types calls dense, or the first first_k_dense_replace ones; IOError where both stand there
  /// and differ, or neither does and `otherwise` is negative.
  std::vector<int64_t> dense_layers(int64_t otherwise = -1) const;
  DecoderBlockOptions& block(int64_t layer) { return plan.options.blocks[static_cast<std::size_t>(layer)]; }
  /// The same mixer in all blocks, in those in `which`.
  void mixers(const auto& o) { mixers(all(), o); }
  void mixers(const std::vector<int64_t>& which, const auto& o) {
    for (const int64_t layer : which) block(layer).mixer = o;
  }
  /// The window sliding_window in the blocks `sliding`; without such blocks the field says nothing.
  void windows(const std::vector<int64_t>& sliding);
  /// Norms behind the branches and, if `before`, in front of them, too; the names of those behind.
  void norms_behind(bool before, const std::string& mixer, const std::string& feed);
  /// The norms' weights in the files are less by one, but for those inside linear_attn.
  void norms_less_one() { rename("(layernorm|[qk]_norm|model\\.norm)\\.weight", "$&", {.add = 1}); }

  /// rope_parameters, or rope_theta and rope_scaling, of heads of `head_dim` channels; or those in the object `under`.
  /// Without a base in the file it is 10000, as for most families of transformers; others have theirs in `defaults`.
  RopeOptions rope(int64_t head_dim, const std::string& under = {}) const;
  /// Attention `o` in all blocks, with a RoPE of its own in those that slide: that of base `local`, where the file does
  /// not have one for each of the two. If `local` is 0, the file must.
  void two_ropes(MultiHeadAttentionOptions o, const std::vector<int64_t>& sliding, double local = 0);
  /// Softmax attention: heads, RoPE, biases.
  MultiHeadAttentionOptions attention() const;
  /// rotary_dim as a share of head_dim; 1 without it.
  double rotary_dim_share() const {
    return config.has("rotary_dim") ? config.at<double>("rotary_dim") / config.at<double>("head_dim") : 1;
  }
  /// config.get() of a factor of scores or logits. IOError if it is there and not positive, or no normal f32.
  double factor(const std::string& name, double otherwise, double if_null) const {
    const double x = config.get(name, otherwise, if_null);
    if (config.has(name) && !(x >= 0x1p-126 && x <= 0x1p127)) config.refuse(name, "it must be positive, within f32");
    return x;
  }
  /// Multi-head latent attention and its names.
  MlaOptions latent_attention();
  /// Its RoPE, of neighbouring channels, and the scale of the scores that belongs to it.
  void latent_rope(MlaOptions& o) const;
  /// The usual names of a block's members: self_attn (`linear` in the blocks `others`), mlp, and the two norms before.
  void usual_names(const std::vector<int64_t>& others = {}, const std::string& linear = "linear_attn.");
  /// The name of the convolution of `module`, over q | k | v; the files may have one of each.
  void convolution(const std::string& module, int64_t keys, int64_t values);
  /// Dense feed-forward layers in the blocks `which`: gate_proj, up_proj, down_proj of mlp. `field` names the
  /// activation; `otherwise` is that of a file that does not.
  void dense(const std::vector<int64_t>& which, const std::string& field = "hidden_act",
             const std::string& otherwise = "silu");
  /// As dense(), without a gate: `in` and `out` of mlp.
  void ungated(const std::vector<int64_t>& which, bool bias, const std::string& field = "hidden_act",
               const std::string& in = "up_proj.", const std::string& out = "down_proj.");
  /// Qwen's feeds: dense ones, and experts in every decoder_sparse_step-th layer outside mlp_only_layers, if the model
  /// has any. `norm_topk` is that of a file that does not say.
  void dense_or_sparse(bool norm_topk);
  /// The part of a mixture of experts that families name alike.
  MoeOptions moe(std::initializer_list<const char*> names_of_experts) const;
  /// Mixtures of experts in the blocks `which`: gate, experts and `shared` of mlp. The experts' maps are one tensor or
  /// one for each expert.
  void experts(const std::vector<int64_t>& which, const MoeOptions& o, const std::string& shared = "shared_expert");
  /// Feeds of DeepSeek, GLM and others: dense ones in the blocks `dense`, elsewhere experts by groups, with shared
  /// ones.
  void deepseek_feeds(const std::vector<int64_t>& dense);
  /// After experts(): where the files have block_sparse_moe, that is the name of what matches `which`, and w1, w2 and
  /// w3 those of an expert's maps.
  void block_sparse_moe(const std::string& which = "\\.mlp\\.");
};

/// Llama and what is close to it; others whose mixer is softmax attention; those with latent attention, and GLM; those
/// with the delta rule, lightning attention or short convolutions; those with Mamba-2, and Granite 3.
std::span<const ModelFamily> llama_families();
std::span<const ModelFamily> attention_families();
std::span<const ModelFamily> latent_families();
std::span<const ModelFamily> hybrid_families();
std::span<const ModelFamily> mamba_families();

}  // namespace detail

}  // namespace sluice
