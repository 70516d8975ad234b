// The list of all layers. Tests, layer_check and the umbrella header use it. A new layer needs its own files, its
// header in the list of includes, and its row in table_*.cpp; layers/ADD_A_LAYER.md has an example.
#pragma once

#include <sluice/layers/gau/flash.h>
#include <sluice/layers/gau/flash_model.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/gau/tutorial_gau.h>
#include <sluice/layers/attention/compressed_attention.h>
#include <sluice/layers/attention/diff_attention.h>
#include <sluice/layers/attention/forgetting_attention.h>
#include <sluice/layers/attention/fused_attention.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/attention/gated_cross_attention.h>
#include <sluice/layers/attention/hierarchical.h>
#include <sluice/layers/attention/mla.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/attention/qsa_attention.h>
#include <sluice/layers/attention/selected_attention.h>
#include <sluice/layers/attention/sparse_layers.h>
#include <sluice/layers/linear_attention/delta_net.h>
#include <sluice/layers/linear_attention/feature_map.h>
#include <sluice/layers/linear_attention/gla.h>
#include <sluice/layers/linear_attention/kda.h>
#include <sluice/layers/linear_attention/lightning_attention.h>
#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/layers/linear_attention/mamba.h>
#include <sluice/layers/linear_attention/mamba2.h>
#include <sluice/layers/linear_attention/mlstm.h>
#include <sluice/layers/linear_attention/retention.h>
#include <sluice/layers/linear_attention/rg_lru.h>
#include <sluice/layers/linear_attention/rwkv7.h>
#include <sluice/layers/nn/gated_residual.h>
#include <sluice/layers/nn/gated_short_convolution.h>
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
  virtual void convert(DType dtype) = 0;
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
  /// Samples with one of these options are not linear in the values that dropout scales, so the mean over dropout masks
  /// is not the layer without dropout. An empty object means all samples.
  std::optional<Json::Object> nonlinear_after_dropout = std::nullopt;
  /// An option without which, at 0, all samples take the row's segments; with it they refuse them.
  std::string refuses_segments = {};
  std::function<LayerDraft()> draft;

  /// Builds the layer of a sample. `dtype` replaces the sample's dtype.
  std::unique_ptr<AnyLayer> make(const Json& sample, Rng& rng, std::optional<DType> dtype = std::nullopt) const;
};
/// All rows.
const std::vector<LayerRow>& layer_table();
/// The row of a name. Throws ValueError for an unknown name, with the most similar name and the list of known names.
const LayerRow& layer_row(std::string_view name);

}  // namespace sluice
