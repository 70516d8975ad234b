// What the literature on gated attention measures in a language model with attention layers.
#pragma once

#include "support/mixer.h"

namespace sluice::examples {

struct Insight {
  double first_token = 0, largest = 0;
  std::vector<double> first_by_layer, largest_by_layer;
  std::vector<GateStatistics> gates;  // of each layer; none without gates
};

/// Runs a model of attention layers on bytes [batch, n] and looks at what lies between its parts.
inline Insight look_inside(const MixerLm& model, const Tensor& bytes) {
  NoGrad guard;
  Insight r;
  std::vector<Tensor> maps, hidden;
  Tensor x = model.embed(bytes);
  for (std::size_t i = 0; i < model.mixers.size(); ++i) {
    const auto& attention = std::get<MultiHeadAttention>(model.mixers[i].layer);
    const Tensor normed = model.mixers[i].norm(x);
    maps.push_back(attention.map(normed));
    for (const AttentionGate& gate : attention.gates) r.gates.push_back(gate_statistics(gate.scores(normed)));
    x = x + attention(normed);
    if (!model.feeds.empty()) x = model.feeds[i](x);
    hidden.push_back(x);
    r.first_by_layer.push_back(first_token_share(maps.back()));
    r.largest_by_layer.push_back(max_activation({x}));
  }
  r.first_token = first_token_share(maps);
  r.largest = max_activation(hidden);
  return r;
}

}  // namespace sluice::examples
