// Every sample of the table of layers, built with random weights, and inputs that fit. With SLUICE_LAYER_SEED=S in the
// environment the samples are others, as many: those of the table with options drawn anew, and other values.
#pragma once

#include "support/approx.h"

#include <sluice/layers/table.h>

#include <functional>
#include <string>
#include <vector>

namespace sluice::testing {

/// x, and whatever else calls bring; a Pass is for one call.
struct LayerInputs {
  Tensor x, key_mask = {}, context = {}, context_mask = {}, segments = {}, context_segments = {};
  Tensor mask = {}, bias = {}, blocks = {};
  int64_t block = 0;
  std::vector<int64_t> positions = {};

  Pass pass(Rng* rng = nullptr) const;
};
inline Tensor call(const AnyLayer& layer, const LayerInputs& in, Rng* rng = nullptr) {
  return layer(in.x, in.pass(rng));
}

struct LayerSample {
  const LayerRow& row;
  Json sample;
  Json options;  // all of them
  std::string text;
  std::unique_ptr<AnyLayer> layer;

  bool has(std::string_view option, const Json& value) const;
  /// Whether outputs depend on earlier tokens only, by the options.
  bool causal() const;
  /// Whether keys are rows of a context, not tokens of x.
  bool cross() const;
  /// The mask of the keys, and whether the layer takes one.
  Tensor& mask_of_keys(LayerInputs& in) const { return cross() ? in.context_mask : in.key_mask; }
  /// Whether x may hold several documents.
  bool documents() const;
  bool masks_keys() const { return cross() || row.key_mask; }
  /// x, and whatever else the layer needs; float ones are leaves if they are to be `traced`.
  LayerInputs inputs(int64_t batch, int64_t n, uint64_t seed, bool traced = false) const;
  /// What is trained, then x if it is of floats.
  std::vector<Tensor> leaves(const LayerInputs& in = {}) const;
};
/// The layer with all trained tensors drawn from [-0.7, 0.7], and buffers as they were; the values fit into f32.
LayerSample make_sample(const LayerRow& row, const Json& sample, DType dtype = f64);
/// The samples of a row: the table's, or drawn ones.
const std::vector<Json>& samples_of(const LayerRow& row);
/// So many others of a row: the table's samples in turn, with about a fifth of their options drawn anew.
std::vector<Json> drawn_samples(const LayerRow& row, int64_t count, uint64_t seed);
/// How many samples_of() has drawn.
int64_t drawn_layers();
/// Whether at least so many samples had what a test is about: asked of the table's, not of drawn ones.
bool enough(int64_t n, int64_t least);
/// Calls f with each sample of each layer, its name and options in every failure's message.
void each_sample(const std::function<void(LayerSample&)>& f);

}  // namespace sluice::testing
