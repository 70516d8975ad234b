// A family of models has its own names of options and weights. Its page of rules reads config.json and says which
// blocks the model has, and which names their tensors have in the files.
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
  bool long_texts = false;               // see ModelFilesOptions
};

/// One kind of config.json.
struct ModelFamily {
  const char* model_type;                 // of config.json
  void (*read)(detail::FamilyReader& r);  // its page of rules: fills in r.plan
  const char* defaults = "{}";            // JSON: fields that published files leave out
  const char* names = "{}";               // JSON {"theirs": "usual"}: fields with other names
};
/// All families.
std::vector<ModelFamily> model_families();
/// The plan of the model with this config.json. `has` says whether the name of a tensor in the files contains a text:
/// published files of one family differ. IOError for an unknown family, naming the known ones, and for a field that the
/// family cannot follow. `long_texts` is that of ModelFilesOptions.
ModelPlan plan_of(const ModelConfig& config, const std::function<bool(const char*)>& has, bool long_texts = false);

namespace detail {

/// ModelFamily::names of GPT-2 and GPT-J.
inline constexpr const char* kGpt2Names =
    R"({"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings", "n_inner": "intermediate_size"})";

/// The part of an error that lists the values that a field may have.
std::string known(const std::vector<std::string>& values, const std::string& of = "");

/// Reads config.json for one family: what most families have in common.
struct FamilyReader {
  const ModelConfig& config;
  const std::function<bool(const char*)>& has;
  ModelPlan& plan;
  const std::string type;  // model_type
  int64_t layers = 0;
  std::string
      body;  // prefix of the names of the files' tensors outside the head; longer in a model for text and images
  /// Default share of a head's channels that RoPE turns. Without a default the configuration may say 1 only, because
  /// transformers reads its share for some families alone.
  std::optional<double> rotary_share = {};
  /// Hidden channels of an ungated feed per channel, where the file does not say. 0: it must say.
  int64_t widening = 0;

  /// Vocabulary, width, norms' eps, tied embedding; the names of what is not in a block.
  FamilyReader(const ModelConfig& config, const std::function<bool(const char*)>& has, ModelPlan& plan);

  void rename(const std::string& ours, const std::string& theirs, PyTorchStorage stored = {}) {
    plan.rules.push_back({ours, theirs, std::move(stored)});
  }
  /// The names of what holds the blocks, for files that have others than model.embed_tokens, model.layers, model.norm.
  void outer_names(const std::string& prefix, const std::string& embedding, const std::string& blocks,
                   const std::string& norm) {
    rename("^model\\.embed_tokens\\.", prefix + embedding + ".");
    rename("^model\\.layers\\.", prefix + blocks + ".");
    rename("^model\\.norm\\.", prefix + norm + ".");
  }
  /// rename() for each rule; its names are members of `module` on both sides.
  void members(const std::string& module, const PyTorchRules& rules);
  /// rename() for members of `module` that are, in this order, the parts of the member `theirs` of the files.
  void parts(const std::string& module, const std::string& theirs, const std::vector<std::string>& ours,
             int64_t groups = 1);
  /// rename() for members of the blocks in `which`. Their names begin with `ours`; `theirs` follows "layers.N.".
  void rename_in(const std::vector<int64_t>& which, const std::string& ours, const std::string& theirs);
  std::vector<int64_t> all() const { return others_than({}); }
  /// The layers for which `wanted` is true.
  std::vector<int64_t> where(const std::function<bool(int64_t)>& wanted) const;
  /// Layers whose entry in the list `name` of the configuration is `value`. IOError unless each other is in `others`.
  std::vector<int64_t> typed(const std::string& name, const std::string& value,
                             std::vector<std::string> others = {"full_attention"}) const;
  /// typed("layer_types", value, others); without this list, all layers but every n-th, where the field `turn` is n.
  std::vector<int64_t> typed_or_turns(const std::string& value, const std::string& turn, int64_t otherwise,
                                      std::vector<std::string> others = {"full_attention"}) const;
  /// All layers but these.
  std::vector<int64_t> others_than(const std::vector<int64_t>& some) const;
  /// The layers that mlp_layer_types calls dense, or the first first_k_dense_replace layers. IOError if both are there
  /// and differ, or if neither is and `otherwise` is negative.
  std::vector<int64_t> dense_layers(int64_t otherwise = -1) const;
  DecoderBlockOptions& block(int64_t layer) { return plan.options.blocks[static_cast<std::size_t>(layer)]; }
  /// Sets the same mixer in all blocks, or in those in `which`.
  void mixers(const auto& o) { mixers(all(), o); }
  void mixers(const std::vector<int64_t>& which, const auto& o) {
    for (const int64_t layer : which) block(layer).mixer = o;
  }
  /// Sets the window sliding_window in the blocks `sliding`. Without such blocks the field has no effect.
  void windows(const std::vector<int64_t>& sliding);
  /// Puts norms behind the branches and, if `before`, in front of them, too; renames the norms behind.
  void norms_behind(bool before, const std::string& mixer, const std::string& feed);
  /// Weights of norms are w − 1 in the files, except for norms inside linear_attn.
  void norms_less_one() { rename("(layernorm|[qk]_norm|model\\.norm)\\.weight", "$&", {.add = 1}); }

  /// RoPE for heads of `head_dim` channels, from rope_parameters or from rope_theta and rope_scaling; or from these in
  /// the object `under`. The default base is 10000, as for most families of transformers; others set theirs in
  /// `defaults`.
  RopeOptions rope(int64_t head_dim, const std::string& under = {}) const;
  /// Sets attention `o` in all blocks. Blocks with a window have a RoPE of their own; its base is `local` where the
  /// file does not have a RoPE for each of the two. If `local` is 0, the file must have both.
  void two_ropes(MultiHeadAttentionOptions o, const std::vector<int64_t>& sliding, double local = 0);
  /// Softmax attention: heads, RoPE, biases.
  MultiHeadAttentionOptions attention() const;
  /// rotary_dim as a share of head_dim; 1 without it.
  double rotary_dim_share() const {
    return config.has("rotary_dim") ? config.at<double>("rotary_dim") / config.at<double>("head_dim") : 1;
  }
  /// config.get() for a number that divides or counts. IOError if it is below 1.
  int64_t positive(const std::string& name, int64_t otherwise) const {
    const auto n = config.get(name, otherwise);
    if (n < 1) config.refuse(name, "it must be positive");
    return n;
  }
  /// The same for a field that must be there.
  int64_t positive(const std::string& name) const { return positive(name, config.at<int64_t>(name)); }
  /// A list with an entry for each layer: config.at(), or `otherwise` if the field is absent. IOError for more or
  /// fewer.
  template <class T> std::vector<T> of_layers(const std::string& name) const {
    const auto list = config.at<std::vector<T>>(name);
    if (std::ssize(list) != layers) config.refuse(name, str("need ", layers, " entries"));
    return list;
  }
  template <class T> std::vector<T> of_layers(const std::string& name, T otherwise) const {
    return config.has(name) ? of_layers<T>(name) : std::vector<T>(static_cast<std::size_t>(layers), otherwise);
  }
  /// config.get() for a factor or a limit of scores, logits or activations. IOError if the field is there and is not a
  /// positive normal f32.
  double factor(const std::string& name, double otherwise, double if_null) const {
    const double x = config.get(name, otherwise, if_null);
    if (config.has(name) && !(x >= 0x1p-126 && x <= 0x1p127)) config.refuse(name, "it must be positive, within f32");
    return x;
  }
  /// Multi-head latent attention and its names.
  MlaOptions latent_attention();
  /// The growth of queries in rope_parameters, which must be there (Ministral 3, Mistral 4).
  void query_growth(QueryGrowth& o) const;
  /// RoPE of latent attention, of neighbouring channels, and the scale of scores that belongs to it.
  void latent_rope(MlaOptions& o) const;
  /// The usual names of a block's members: self_attn (`linear` in the blocks `others`), mlp, and the two norms before.
  void usual_names(const std::vector<int64_t>& others = {}, const std::string& linear = "linear_attn.");
  /// Renames the convolution of `module` over q | k | v; the files may have one convolution for each.
  void convolution(const std::string& module, int64_t keys, int64_t values);
  /// Dense feed-forward layers in the blocks `which`: gate_proj, up_proj, down_proj of mlp. `field` names the
  /// activation; `otherwise` is the activation if the file has no such field.
  void dense(const std::vector<int64_t>& which, const std::string& field = "hidden_act",
             const std::string& otherwise = "silu");
  /// The same with these options, whatever the fields say.
  void dense(const std::vector<int64_t>& which, const GluOptions& o);
  /// As dense(), without a gate: `in` and `out` of mlp.
  void ungated(const std::vector<int64_t>& which, bool bias, const std::string& field = "hidden_act",
               const std::string& in = "up_proj.", const std::string& out = "down_proj.");
  /// Qwen's feeds: dense ones, and experts in every decoder_sparse_step-th layer outside mlp_only_layers, if the model
  /// has any. `norm_topk` is the value if the file does not say.
  void dense_or_sparse(bool norm_topk);
  /// A number, which may be a list of the same number for each layer; `otherwise` if absent.
  int64_t one_for_all(const std::string& name, int64_t otherwise) const;
  /// The options of a mixture of experts that families name alike.
  MoeOptions moe(std::initializer_list<const char*> names_of_experts = {"num_experts", "num_local_experts"}) const;
  /// Mixtures of experts in the blocks `which`: gate, experts and `shared` of mlp. The experts' maps are one tensor or
  /// one for each expert.
  void experts(const std::vector<int64_t>& which, const MoeOptions& o, const std::string& shared = "shared_expert");
  /// Feeds of DeepSeek, GLM and others: dense ones in the blocks `dense`, elsewhere experts by groups, with shared
  /// ones.
  void deepseek_feeds(const std::vector<int64_t>& dense);
  /// Must be called after experts(). Where the files have block_sparse_moe, this name replaces what matches `which`,
  /// and w1, w2 and w3 are the names of an expert's maps.
  void block_sparse_moe(const std::string& which = "\\.mlp\\.");
};

/// Llama and what is close to it; GPT-2 and others without RoPE; others whose mixer is softmax attention; Gemma; those
/// with latent attention, and GLM; those with the delta rule, lightning attention or short convolutions; those with
/// Mamba or Mamba-2, and Granite 3; those whose feed stands beside the mixer; those that attend to pools or blocks.
std::span<const ModelFamily> llama_families();
std::span<const ModelFamily> gpt2_families();
std::span<const ModelFamily> attention_families();
std::span<const ModelFamily> gemma_families();
std::span<const ModelFamily> latent_families();
std::span<const ModelFamily> hybrid_families();
std::span<const ModelFamily> mamba_families();
std::span<const ModelFamily> parallel_families();
std::span<const ModelFamily> compressed_families();

}  // namespace detail

}  // namespace sluice
