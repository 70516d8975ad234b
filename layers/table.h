// The list of all layers. Tests, layer_check and the umbrella header use it. A new layer needs its own files, its
// header in the list of includes, and its row below; layers/ADD_A_LAYER.md has an example.
#pragma once

#include <sluice/layers/gau/flash.h>
#include <sluice/layers/gau/flash_model.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/gau/tutorial_gau.h>
#include <sluice/layers/attention/diff_attention.h>
#include <sluice/layers/attention/forgetting_attention.h>
#include <sluice/layers/attention/fused_attention.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/attention/gated_cross_attention.h>
#include <sluice/layers/attention/hierarchical.h>
#include <sluice/layers/attention/mla.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/attention/selected_attention.h>
#include <sluice/layers/attention/sparse_layers.h>
#include <sluice/layers/linear_attention/delta_net.h>
#include <sluice/layers/linear_attention/feature_map.h>
#include <sluice/layers/linear_attention/gla.h>
#include <sluice/layers/linear_attention/kda.h>
#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/layers/linear_attention/mamba2.h>
#include <sluice/layers/linear_attention/retention.h>
#include <sluice/layers/linear_attention/rwkv7.h>
#include <sluice/layers/nn/gated_residual.h>
#include <sluice/layers/nn/hyper_connection.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/moe.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/short_convolution.h>
#include <sluice/layers/report/cost.h>

#include <functional>
#include <memory>

namespace sluice {

/// The common interface of layers of all types.
class AnyLayer {
 public:
  virtual ~AnyLayer() = default;
  /// Calls the layer. For GatedResidual, F(x) is the context of the pass; for HyperConnection, F(x) is x.
  virtual Tensor operator()(const Tensor& x, const Pass& pass = {}) const = 0;
  /// The functions of layers/nn/module.h: state_dict(), load_state(), to(), save(), load_model().
  virtual std::vector<NamedTensor> state() const = 0;
  virtual void load(const std::map<std::string, Tensor>& state) = 0;
  virtual void move(Device device) = 0;
  virtual void save(const std::string& path) const = 0;
  virtual std::unique_ptr<AnyLayer> reloaded(const std::string& path) const = 0;
  virtual OptionList options() const = 0;
  /// cost() of layers/report/cost.h.
  virtual Cost cost(int64_t n, int64_t context = 0) const = 0;
  /// The layer itself, of the type in its row.
  virtual const void* object() const = 0;
};

/// Options with their defaults, which the caller may change, and what makes of them: the layer, its cost().
struct LayerDraft {
  OptionList options;
  std::function<std::unique_ptr<AnyLayer>(Rng&)> build;
  std::function<Cost(int64_t n, int64_t context)> cost;
};

/// Which fields of a Pass a layer reads, and whether the layer can be streamed.
struct LayerTakes {
  bool key_mask = false, segments = false;
  bool positions = false;  // of self attention
  bool context = false;    // context and context_mask, if the options ask for a context
  bool scores = false;     // mask, bias, blocks
  bool branch = false;     // F(x) of a gated residual
  bool streams = false;    // can be streamed if its options are causal
};

struct LayerRow : LayerTakes {
  std::string name;           // "gau"
  const char* type;           // "Gau"
  std::vector<Json> samples;  // small sets of options, which together reach all branches of the layer
  bool dropout = false;       // whether the options have a dropout
  /// Options for a layer with defaults, in addition to the required options of samples[0], if these alone do not make a
  /// layer: for example heads that divide the small dim. May replace required options.
  Json::Object bare = {};
  /// Samples with these options are not linear in the values that dropout scales, so the mean over dropout masks is not
  /// the layer without dropout. An empty object means all samples.
  std::optional<Json::Object> nonlinear_after_dropout = std::nullopt;
  std::function<LayerDraft()> draft;

  /// Builds the layer of a sample. `dtype` replaces the sample's dtype.
  std::unique_ptr<AnyLayer> make(const Json& sample, Rng& rng, std::optional<DType> dtype = std::nullopt) const;
};
/// All rows.
const std::vector<LayerRow>& layer_table();
/// The row of a name. Throws ValueError for an unknown name, with the most similar name and the list of known names.
const LayerRow& layer_row(std::string_view name);

namespace detail {

constexpr LayerTakes kMasked{.key_mask = true, .streams = true};
constexpr LayerTakes kDocuments{.key_mask = true, .segments = true, .streams = true};
constexpr LayerTakes kScored{.key_mask = true, .segments = true, .positions = true, .scores = true, .streams = true};
constexpr LayerTakes kCrossed{.key_mask = true, .context = true, .streams = true};

// The rows: name, fields of the pass, options of the first sample, and the changes of these options in each further
// sample. Each room has its own function, so that it compiles in its own file.

template <class Rows> void nn_rows(Rows& rows) {
  rows.template add<Linear>("linear", {}, R"({"in_dim": 5, "out_dim": 7})", {R"({"bias": false})"});
  rows.template add<Embedding>("embedding", {}, R"({"count": 11, "dim": 4})");
  rows.template add<Mlp>("mlp", {}, R"({"dim": 4})",
                         {R"({"bias": false, "hidden": 5, "activation": "silu", "dropout": 0.3})"});
  rows.template add<Glu>(
      "glu", {}, R"({"dim": 4})",
      {R"({"bias": true, "hidden": 5, "kind": "silu_glu", "dropout": 0.3})", R"({"kind": "geglu_tanh"})"});
  rows.template add<Moe>(
      "moe", {}, R"({"dim": 4, "experts": 3})",
      {R"({"hidden": 5, "top_k": 1, "norm_topk": false, "scale": 2, "shared_hidden": 3})",
       R"({"router": "sigmoid", "experts": 5, "router_bias": true, "shared_hidden": 2, "shared_gate": false})",
       R"({"experts": 1, "top_k": 1})",
       R"({"experts": 6, "groups": 3, "top_groups": 2, "top_k": 3, "norm_topk": false, "scale": 2})",
       R"({"router": "sigmoid", "experts": 8, "groups": 4, "top_groups": 2, "group_best": 2, "router_bias": true,
           "top_k": 3, "scale": 2.5, "shared_hidden": 3, "shared_gate": false})",
       R"({"logit_bias": true, "expert_bias": true, "activation": "swiglu_oai", "swiglu_limit": 0.3,
           "swiglu_alpha": 1.3, "hidden": 5, "shared_hidden": 3})"});
  rows.template add<Norm>("norm", {}, R"({"dim": 4})",
                          {R"({"kind": "none"})", R"({"kind": "rms"})", R"({"kind": "rms_plain"})",
                           R"({"kind": "scale"})", R"({"kind": "scale_l2"})", R"({"parts": 2, "eps": 0.01})",
                           R"({"parts": 2, "kind": "rms"})", R"({"parts": 4, "kind": "rms_plain", "eps": 0.1})"});
  rows.template add<ShortConvolution>("short_convolution", kDocuments, R"({"dim": 4})",
                                      {R"({"width": 2, "bias": true, "activation": "identity"})"});
  rows.template add<GatedResidual>(
      "gated_residual", {.branch = true}, R"({"dim": 4})",
      {R"({"kind": "per_channel"})", R"({"kind": "input"})", R"({"kind": "input_token"})"});
  rows.template add<HyperConnection>(
      "hyper_connection", {}, R"({"dim": 2, "streams": 3, "iterations": 3})",
      {R"({"streams": 1, "eps": 0.01, "norm_eps": 0.1})", R"({"kind": "gated", "norm_eps": 0.1})",
       R"({"kind": "gated", "dim": 4, "streams": 2, "rank": 3})"});
}

template <class Rows> void gau_rows(Rows& rows) {
  rows.template add<Gau>(
          "gau", {.key_mask = true, .segments = true, .scores = true, .streams = true},
          R"({"dim": 4, "key_dim": 6, "expansion": 5, "linear_bias": false})",
          {R"({"bias": "toeplitz", "norm": "none", "causal": true, "max_length": 70, "gamma_std": 1})",
           R"({"bias": "rope", "norm": "scale", "kind": "softmax_plus", "attention_dropout": 0.3})",
           R"({"bias": "t5", "norm": "rms_plain", "placement": "post", "kind": "laplace", "linear_bias": true})",
           R"({"heads": 2, "expansion": 6, "bias": "rope", "rope_rot_dim": 2, "use_rope": false, "causal": true})",
           R"({"top_k": 2, "length": "constant", "kind": "rownorm", "causal": true, "dropout": 0.3})",
           R"({"causal": true, "window": 3, "kind": "lucid"})", R"({"kind": "paper_code"})", R"({"kind": "paper_eq"})",
           R"({"causal": true, "kind": "softmax", "bias": "rope", "length": "constant", "placement": "post", "heads": 2,
           "key_dim": 8, "expansion": 6, "top_k": 3, "rope_pairing": "interleaved", "rope_offset": 3,
           "attention_dropout": 0.3})",
           R"({"causal": true, "kind": "softmax_plus", "bias": "t5", "window": 4})",
           R"({"causal": true, "kind": "laplace", "bias": "toeplitz", "max_length": 70, "length": "constant"})",
           R"({"causal": true, "kind": "paper_code", "bias": "t5"})",
           R"({"causal": true, "kind": "paper_eq", "top_k": 3})",
           R"({"causal": true, "kind": "softmax", "qk_norm": true, "norm_eps": 0.01, "residual": false,
           "rope_xpos": 16})",
           R"({"causal": true, "kind": "softmax_plus", "min_length": 1, "heads": 2, "expansion": 6, "qk_norm": true,
           "qk_norm_kind": "layer", "qk_norm_eps": 0.1, "placement": "post", "residual": false, "rope_rot_dim": 2,
           "rope_frequencies": [0.7], "rope_factor": 1.2})"})
      .nonlinear_after_dropout = Json::Object{{"placement", "post"}};
  rows.template add<CrossGau>("cross_gau", kCrossed, R"({"dim": 4, "key_dim": 6, "expansion": 5})",
                              {R"({"context_dim": 3, "kind": "softmax", "dropout": 0.3})", R"({"kind": "rownorm"})",
                               R"({"kind": "softmax_plus", "min_length": 2, "norm_eps": 0.01})"});
  rows.template add<TutorialGau>(
      "tutorial_gau", kMasked, R"({"dim": 4, "expansion": 6})",
      {R"({"causal": true, "project_out": true})", R"({"sigmoid_gate": false, "gelu_tanh": true})"});
  rows.template add<Flash>(
      "flash", kDocuments, R"({"dim": 4, "key_dim": 6, "expansion": 5, "chunk": 4, "linear_bias": false})",
      {R"({"bias": "toeplitz", "norm": "layer", "causal": true})",
       R"({"bias": "rope", "norm": "none", "scaling": "paper_code", "token_shift": true})",
       R"({"bias": "t5", "norm": "rms", "scaling": "lucid", "linear_bias": true, "dropout": 0.3})",
       R"({"causal": true, "token_shift": true, "kind": "softmax", "scaling": "lucid", "attention_dropout": 0.3})",
       R"({"causal": true, "kind": "rownorm", "bias": "rope", "scaling": "paper_code", "length": "visible"})",
       R"({"causal": true, "kind": "softmax_plus", "bias": "t5", "scaling": "eq", "chunk": 1, "token_shift": true})",
       R"({"causal": true, "kind": "laplace", "linear": false, "bias": "rope", "rope_pairing": "interleaved",
           "rope_offset": 3})",
       R"({"causal": true, "quadratic": false, "chunk": 3})",
       R"({"kind": "paper_eq", "across_chunks": false, "length": "visible", "attention_dropout": 0.3})",
       R"({"kind": "paper_code", "scaling": "lucid", "count_padding": true})",
       R"({"kind": "softmax_plus", "scaling": "chunk", "min_length": 2, "norm_eps": 0.01})",
       R"({"causal": true, "scaling": "chunk", "rope_xpos": 16})"});
  rows.template add<ScaledSinusoidal>("scaled_sinusoidal", {}, R"({"dim": 4})", {R"({"base": 100})"});
  rows.template add<FlashBlock>("flash_block", kDocuments, R"({"dim": 4, "key_dim": 6, "expansion": 5, "chunk": 4})",
                                {R"({"layers": 3, "causal": true, "norm": "layer"})"});
  rows.template add<FlashModel>(
          "flash_model", kDocuments, R"({"layers": 1, "dim": 4, "key_dim": 6, "expansion": 5, "chunk": 4})",
          {R"({"layers": 2, "causal": true, "vocabulary": 11, "outputs": 11, "model_dropout": 0.3})",
           R"({"causal": true, "positions": false, "final_norm": "layer", "norm_eps": 0.01})"})
      .nonlinear_after_dropout = Json::Object{};
  LayerRow& mc_tfm = rows.template add<McTfm>(
      "mc_tfm", kDocuments, R"({"dim": 8, "heads": 2, "chunk": 4})",
      {R"({"causal": true, "linear_bias": false})",
       R"({"norm": "scale", "hidden": 5, "use_rope": false, "dropout": 0.3, "scaling": "lucid",
                                "count_padding": true, "across_chunks": false})",
       R"({"causal": true, "kind": "softmax_plus", "min_length": 2, "norm_eps": 0.01, "rope_xpos": 16})"});
  mc_tfm.bare = {{"heads", 2}}, mc_tfm.nonlinear_after_dropout = Json::Object{};
}

template <class Rows> void attention_rows(Rows& rows) {
  rows.template add<MultiHeadAttention>(
      "multi_head_attention",
      {.key_mask = true, .segments = true, .positions = true, .context = true, .scores = true, .streams = true},
      R"({"dim": 6, "heads": 4, "kv_heads": 2, "head_dim": 4})",
      {R"({"causal": true, "use_rope": true, "qk_norm": true, "norm": "rms", "residual": true, "gates": [{}]})",
       R"({"context_dim": 5, "gates": [{"position": "g2"}, {"position": "g4"}], "attention_dropout": 0.3})",
       R"({"causal": true, "gates": [{"granularity": "headwise", "bias": true}, {"position": "g2", "sharing": "scores"},
           {"position": "g3", "mode": "add", "activation": "silu"}, {"position": "g4", "after_qk_norm": true},
           {"position": "g5", "input_independent": true}]})",
       R"({"window": 2, "dilation": 2, "global_positions": [0], "separate_global_projections": true,
           "attention_dropout": 0.3})",
       R"({"causal": true, "position_bias": "t5", "sink": "learned", "qkv_bias": true, "out_bias": true,
           "dropout": 0.3})",
       R"({"position_bias": "toeplitz", "max_length": 70, "sink": "off_by_one", "ablation": "head_norm",
           "value_dim": 3, "project_out": false})",
       R"({"causal": true, "position_bias": "alibi", "norm": "layer", "sandwich_norm": true, "ablation": "silu"})",
       R"({"causal": true, "window": 3, "use_rope": true})",
       R"({"causal": true, "window": 3, "dilation": 2, "global_positions": [4, 0], "sink": "learned",
           "position_bias": "toeplitz", "max_length": 70, "kv_heads": 1})",
       R"({"causal": true, "heads": 2, "use_rope": true, "rope_frequencies": [1, 0.3], "rope_factor": 1.2,
           "softcap": 1.5, "qk_norm": true, "qk_norm_kind": "layer", "qk_norm_over": "width", "qk_norm_eps": 0.1,
           "position_bias": "t5",
           "gates": [{"source": "query"},
                     {"position": "g5", "granularity": "headwise", "bias": true, "source": "query"}]})",
       R"({"qk_norm": true, "qk_norm_over": "per_head", "use_rope": true, "rope_rot_dim": 2, "rope_xpos": 8,
           "softcap": 2, "sink": "learned", "ablation": "head_norm", "ablation_eps": 0.1})",
       R"({"causal": true, "qk_norm": true, "qk_norm_kind": "rms_plain", "scale": 1.7, "ablation": "head_norm",
           "ablation_norm": "rms_plain", "gates": [{"head_bias": true}]})",
       R"({"causal": true, "value_dim": 3, "ablation": "head_norm", "ablation_norm": "layer",
           "gates": [{"granularity": "headwise", "activation": "softplus"},
                     {"position": "g2", "activation": "softplus", "sharing": "logits", "head_bias": true}]})",
       R"({"causal": true, "forget_gate": "input", "forget_gate_bias": 1, "window": 3, "norm": "rms", "gates": [{}],
           "position_bias": "alibi", "scale": 0.7, "attention_dropout": 0.3})",
       R"({"causal": true, "forget_gate": "learned", "forget_decay_first": 2, "forget_decay_last": 9, "kv_heads": 1,
           "window": 3, "global_positions": [1], "use_rope": true, "ablation": "head_norm", "ablation_per_head": true,
           "ablation_norm": "layer"})",
       R"({"kv_shift": true, "norm": "rms", "qk_norm": true, "gates": [{"position": "g3"}], "ablation": "head_norm",
           "ablation_norm": "rms_plain", "ablation_per_head": true})"});
  rows.template add<GatedAttention>(
      "gated_attention", kScored, R"({"dim": 4, "heads": 2})",
      {R"({"causal": true, "gate_query": true, "gate_key": true, "gate_value": true, "use_rope": true})",
       R"({"output": "from_query", "granularity": "headwise", "qkv_bias": true, "attention_dropout": 0.3})",
       R"({"causal": true, "head_dim": 3, "output": "none", "project_out": false})"});
  rows.template add<GatedCrossAttention>(
      "gated_cross_attention", kCrossed, R"({"dim": 4, "heads": 2})",
      {R"({"reading": "pooled", "value_dim": 3, "context_dim": 5, "attention_dropout": 0.3})",
       R"({"reading": "flamingo", "qkv_bias": true, "out_bias": true})"});
  rows.template add<ForgettingAttention>(
          "forgetting_attention", kScored, R"({"dim": 4, "heads": 4, "kv_heads": 2, "head_dim": 3, "gate_bias": 1})",
          {R"({"kv_heads": 4, "use_rope": true, "rope_rot_dim": 2, "attention_dropout": 0.3})",
           R"({"kv_heads": 1, "value_dim": 2, "qkv_bias": true, "residual": true, "dropout": 0.3})",
           R"({"kv_shift": true, "qk_norm": true, "output_norm": true, "output_gate": true, "value_dim": 2})",
           R"({"kv_shift": true, "qk_norm": true, "shared_qk_norm": true, "qk_norm_eps": 0.1, "output_norm": true,
           "output_norm_eps": 0.2, "use_rope": true, "rope_rot_dim": 2})",
           R"({"gate": "learned", "decay_first": 1, "decay_last": 5, "attention_dropout": 0.3})",
           R"({"gate": "fixed", "kv_heads": 1, "decay_first": 3, "decay_last": 0.5})",
           R"({"gate": "none", "kv_shift": true, "kv_heads": 4})"})
      .nonlinear_after_dropout = Json::Object{{"output_norm", true}};
  rows.template add<Mla>(
      "mla", {.key_mask = true, .segments = true, .scores = true, .streams = true},
      R"({"dim": 6, "heads": 2, "nope_dim": 3, "rope_dim": 4, "value_dim": 5, "kv_rank": 7, "causal": true})",
      {R"({"q_rank": 5, "gate": "headwise", "form": "absorbed", "kv_rank": 3, "q_factor": 1.1, "kv_factor": 0.8})",
       R"({"gate": "elementwise", "use_rope": false, "scale": 0.4, "attention_dropout": 0.3, "kv_rank": 2})",
       R"({"causal": false, "rope_norm": true, "norm_eps": 0.1, "rope_pairing": "half", "form": "absorbed"})",
       R"({"q_rank": 3, "rope_frequencies": [1, 0.3], "rope_factor": 1.2, "rope_norm": true, "form": "expanded",
           "dropout": 0.3})",
       R"({"heads": 1, "rope_dim": 0})",
       R"({"q_rank": 3, "topk": 3, "index_heads": 3, "index_dim": 5, "form": "absorbed"})",
       R"({"q_rank": 2, "topk": 2, "index_heads": 2, "index_dim": 6, "index_pairing": "interleaved", "causal": false,
           "rope_frequencies": [1, 0.3], "q_factor": 1.5})",
       R"({"q_rank": 3, "raw_latent": true, "gate": "elementwise", "topk": 3, "index_heads": 3, "index_dim": 5})",
       R"({"q_rank": 5, "raw_latent": true, "gate": "headwise", "q_factor": 1.1, "sink": true})",
       R"({"gate": "elementwise", "sink": true, "rope_pairing": "half", "form": "absorbed", "kv_rank": 3})"});
  rows.template add<NsaAttention>(
      "nsa_attention", kMasked,
      R"({"dim": 6, "heads": 4, "kv_heads": 2, "head_dim": 4, "block": 2, "stride": 1, "select": 2, "count": 3,
          "window": 3, "local": 1})",
      {R"({"block": 4, "stride": 2, "select": 4, "count": 2, "initial": 0, "use_rope": true, "dropout": 0.3})",
       R"({"kv_heads": 4, "block": 1, "select": 1, "count": 4, "local": 3, "value_dim": 3, "qkv_bias": true})",
       R"({"kv_heads": 1, "block": 3, "stride": 3, "select": 3, "window": 1, "attention_dropout": 0.3})",
       R"({"separate_keys": true, "compression": "linear", "use_rope": true, "value_dim": 3, "qkv_bias": true})",
       R"({"kv_heads": 1, "separate_keys": true, "compression": "mlp", "compression_hidden": 3, "block": 3, "stride": 1,
           "attention_dropout": 0.3})",
       R"({"compression": "mlp", "block": 2, "stride": 2, "select": 4, "dropout": 0.3})"});
  rows.template add<MobaAttention>(
      "moba_attention", kMasked, R"({"dim": 6, "heads": 4, "kv_heads": 2, "head_dim": 4, "block": 2, "topk": 2})",
      {R"({"block": 3, "topk": 1, "use_rope": true, "dropout": 0.3})",
       R"({"kv_heads": 1, "block": 1, "topk": 3, "value_dim": 3, "residual": true, "attention_dropout": 0.3})"});
  rows.template add<MsaAttention>(
      "msa_attention", kMasked, R"({"dim": 6, "heads": 4, "kv_heads": 2, "head_dim": 4, "block": 2, "count": 2})",
      {R"({"block": 3, "count": 2, "local": 2, "use_rope": true, "rope_rot_dim": 2, "index_dim": 5, "norm_eps": 0.1,
           "dropout": 0.3})",
       R"({"shared_choice": true, "qk_norm": false, "use_rope": true, "rope_xpos": 8, "attention_dropout": 0.3})",
       R"({"kv_heads": 1, "block": 1, "count": 3, "value_dim": 3, "index_dim": 2, "residual": true})"});
  rows.template add<DiffAttention>(
          "diff_attention", kDocuments, R"({"dim": 8, "heads": 4, "kv_heads": 2, "head_dim": 4, "causal": true})",
          {R"({"version": 1})", R"({"version": 1, "pairing": "halves", "norm": "rms_plain", "norm_eps": 0.1})",
           R"({"version": 1, "kv_heads": 1, "causal": false, "lambda_init": 0.5, "attention_dropout": 0.3})",
           R"({"kv_heads": 4, "use_rope": false, "causal": false, "attention_dropout": 0.3})",
           R"({"kv_heads": 1, "dropout": 0.3})",
           R"({"version": 1, "heads": 2, "norm": "none", "rope_pairing": "half", "rope_rot_dim": 2})"})
      .nonlinear_after_dropout = Json::Object{{"version", 1}};
  rows.template add<FusedAttention>("fused_attention", kMasked, R"({"dim": 4, "heads": 2})",
                                    {R"({"causal": true, "gate": "per_head", "use_rope": true, "chunk": 3})",
                                     R"({"gate": "per_token", "project_out": false, "attention_dropout": 0.3})",
                                     R"({"causal": true, "head_dim": 3, "qkv_bias": true})"});
  rows.template add<TopKAttention>("topk_attention_layer", kMasked, R"({"dim": 4, "heads": 2, "k": 2})",
                                   {R"({"ties": "threshold", "qkv_bias": true, "attention_dropout": 0.3})",
                                    R"({"causal": true, "use_rope": true, "window": 4})",
                                    R"({"causal": true, "ties": "threshold", "head_dim": 4, "out_bias": true})"});
  rows.template add<PairScore>("pair_score", {}, R"({"dim": 4})", {R"({"kind": "mlp", "width": 3})"});
  rows.template add<ThresholdAttention>(
      "threshold_attention_layer", kMasked, R"({"dim": 4, "heads": 2})",
      {R"({"score": "mlp", "score_width": 3, "mode": "soft"})",
       R"({"mode": "soft", "causal": true, "attention_dropout": 0.3})", R"({"mode": "hard", "causal": true})",
       R"({"score": "mlp", "causal": true, "use_rope": true})"});
  rows.template add<SinkhornAttention>(
      "sinkhorn_attention", {.key_mask = true}, R"({"dim": 4, "heads": 2})",
      {R"({"top_k": 3, "attention_dropout": 0.3})", R"({"variant": "literal", "iterations": 3, "use_rope": true})",
       R"({"last": "columns", "iterations": 2, "qkv_bias": true})"});
  rows.template add<SinkhornBlockAttention>("sinkhorn_block_attention", {.key_mask = true},
                                            R"({"dim": 4, "heads": 2, "block": 2})",
                                            {R"({"attention_dropout": 0.3, "out_bias": true})",
                                             R"({"block": 4, "last": "columns", "iterations": 1, "use_rope": true})"});
  rows.template add<GlobalLocalAttention>(
      "global_local_attention", {.key_mask = true, .segments = true, .positions = true, .scores = true},
      R"({"dim": 4, "heads": 2, "w": 1})", {R"({"separate_global": false, "attention_dropout": 0.3})"});
}

template <class Rows> void linear_attention_rows(Rows& rows) {
  rows.template add<FeatureMap>(
      "feature_map", {}, R"({"dim": 3})",
      {R"({"kind": "identity"})", R"({"kind": "exp"})", R"({"kind": "relu", "features": 4})", R"({"kind": "t2r"})",
       R"({"kind": "poly_elem", "degree": 3})", R"({"kind": "poly_kernel"})", R"({"kind": "favor", "features": 4})",
       R"({"kind": "favor", "features": 4, "offset": 0.1})", R"({"kind": "fourier", "smoothing": 0.1})",
       R"({"kind": "mlp", "hidden": 4})", R"({"kind": "hedgehog"})"});
  rows.template add<LinearAttention>(
          "linear_attention", kDocuments, R"({"dim": 4, "heads": 2, "chunk": 3})",
          {R"({"direction": "causal", "decay": "learned", "output_norm": "rms", "qkv_bias": true, "out_bias": true})",
           R"({"direction": "bidirectional", "decay": "fixed", "gamma": [0.9, 0.5], "dropout": 0.3})",
           R"({"direction": "two_direction_mean", "feature_map_kind": "t2r", "tie_feature_map": false,
           "feature_map_offset": 0.1})",
           R"({"feature_map_kind": "mlp", "feature_map_heads": 2, "head_dim": 3, "value_dim": 2})",
           R"({"direction": "causal", "feature_map_kind": "favor", "feature_map_features": 6, "use_rope": "features"})",
           R"({"direction": "causal", "normalize": "none", "use_rope": "inputs"})",
           R"({"direction": "causal", "feature_map_kind": "hedgehog", "decay": "fixed", "gamma": [0.9, 0.5],
           "use_rope": "inputs", "rope_offset": 2})",
           R"({"direction": "two_direction_mean", "decay": "learned", "use_rope": "features", "output_norm": "layer"})",
           R"({"direction": "causal", "kv_heads": 1, "short_conv": 3, "output_norm": "rms", "norm_eps": 0.1,
               "output_gate": true,
           "decay": "fixed", "gamma": [0.9, 0.5], "use_rope": "inputs", "rope_xpos": 16})",
           R"({"kv_heads": 1, "value_dim": 3, "short_conv": 2, "output_gate": true})"})
      .bare = {{"dim", 16}};
  rows.template add<GroupNorm>(
      "group_norm", {}, R"({"groups": 2, "dim": 3})",
      {R"({"kind": "rms"})", R"({"kind": "rms_plain"})", R"({"shared": true})", R"({"kind": "rms", "shared": true})"});
  rows.template add<Retention>(
          "retention", kDocuments, R"({"dim": 8, "heads": 2, "chunk": 3})",
          {R"({"gate": false, "group_norm": "rms_plain", "expand_k": 0.5, "dropout": 0.3})",
           R"({"group_norm": "rms", "use_rope": false, "gamma": [0.9, 1]})",
           R"({"group_norm": "rms", "shared_norm": true, "kv_heads": 1, "short_conv": 3, "rope_xpos": 16})"})
      .bare = {{"heads", 2}};
  rows.template add<Gla>(
      "gla", kDocuments, R"({"dim": 8, "heads": 2, "chunk": 3, "gate_temperature": 2})",
      {R"({"gate": "per_head", "output_gate": false, "norm": "none", "scale": 1, "dropout": 0.3})",
       R"({"expand_k": 1, "gate_rank": 3, "norm": "layer"})", R"({"kv_heads": 1, "short_conv": 3, "norm_eps": 0.1})",
       R"({"gate": "per_head", "kv_heads": 1, "short_conv": 2})"});
  rows.template add<DeltaNet>(
      "delta_net", kDocuments, R"({"dim": 4, "heads": 2, "chunk": 3})",
      {R"({"value_heads": 4, "key_dim": 3, "value_dim": 1, "beta_scale": 2, "output_gate": true})",
       R"({"qk_activation": "elu1", "qk_norm": "sum", "short_conv": 0, "dropout": 0.3})",
       R"({"qk_activation": "identity", "use_beta": false, "updates": 2, "norm_eps": 0.1})"});
  rows.template add<GatedDeltaNet>(
      "gated_delta_net", kDocuments, R"({"dim": 4, "heads": 2, "chunk": 3})",
      {R"({"value_heads": 4, "key_dim": 3, "value_dim": 1, "beta_scale": 2, "updates": 3, "output_gate": "sigmoid"})",
       R"({"short_conv": 0, "output_gate": "none", "norm_eps": 0.1, "dropout": 0.3})"});
  rows.template add<Kda>("kda", kDocuments, R"({"dim": 4, "heads": 2, "chunk": 3})",
                         {R"({"value_heads": 4, "key_dim": 3, "beta_scale": 2, "lower_bound": -5, "gate_bias": true})",
                          R"({"updates": 2, "short_conv": 2})",
                          R"({"full_rank": true, "lower_bound": -5, "value_heads": 4, "value_dim": 3})",
                          R"({"erase_write": true, "value_heads": 4, "rank": 3, "short_conv": 2, "dropout": 0.3})",
                          R"({"erase_write": true, "beta_scale": 2, "short_conv": 0, "norm_eps": 0.1})"});
  rows.template add<Mamba2>(
          "mamba2", kDocuments, R"({"dim": 4, "heads": 4, "head_dim": 3, "state": 5, "groups": 2, "chunk": 3})",
          {R"({"heads": 0, "head_dim": 2, "groups": 1, "dt_limit": [0.5, 0.8], "norm_before_gate": true})",
           R"({"short_conv": 0, "norm": false, "d_per_channel": true})",
           R"({"short_conv": 2, "conv_bias": false, "norm_eps": 0.1, "dt_limit": [0.6, "inf"]})"})
      .bare = {{"head_dim", 4}};
  rows.template add<Rwkv7>("rwkv7", kDocuments, R"({"dim": 6, "head_dim": 3, "chunk": 3})",
                           {R"({"dim": 8, "head_dim": 4, "decay_rank": 2, "rate_rank": 3, "gate_rank": 5})",
                            R"({"head_dim": 6, "norm_eps": 0.1, "value_residual": true, "value_rank": 2})"})
      .bare = {{"head_dim", 3}};
}

}  // namespace detail

}  // namespace sluice
