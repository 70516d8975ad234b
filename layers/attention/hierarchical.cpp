#include <sluice/layers/attention/hierarchical.h>

namespace sluice {

AttentionStackOptions hierarchical_options(const MultiHeadAttentionOptions& layer,
                                           const std::vector<int64_t>& windows) {
  AttentionStackOptions o;
  for (int64_t w : windows) {
    o.layers.push_back(layer);
    o.layers.back().window = w;
  }
  return o;
}

AttentionStackOptions local_global_options(const MultiHeadAttentionOptions& layer, const LocalGlobalOptions& stages) {
  if (stages.window < 1)
    fail<ValueError>("local_global_options: the first stage needs a window >= 1 — got ", stages.window);
  AttentionStackOptions o = hierarchical_options(layer, {stages.window, stages.global.empty() ? 0 : stages.window});
  o.layers[1].dilation = stages.dilation;
  o.layers[1].global = stages.global;
  return o;
}

AttentionStack::AttentionStack(AttentionStackOptions o, Rng& rng) {
  if (o.layers.empty()) fail<ValueError>("attention_stack: needs at least one layer");
  for (MultiHeadAttentionOptions& layer : o.layers) {
    if (layer.heads.dim != o.layers[0].heads.dim)
      fail<ValueError>("attention_stack: layers of dim=", o.layers[0].heads.dim, " and dim=", layer.heads.dim,
                       " do not fit together");
    if (layer.heads.context_dim > 0) fail<ValueError>("attention_stack: cross attention has no place in it");
    layers.emplace_back(std::move(layer), rng);
  }
}

Tensor AttentionStack::operator()(const Tensor& x, const Pass& pass) const {
  ModuleScope scope(this, type);
  Tensor y = x;
  for (const MultiHeadAttention& layer : layers) y = layer(y, pass);
  return y;
}

}  // namespace sluice
