#include <sluice/layers/models/per_layer_embedding.h>

#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/basic.h>

#include <cmath>
#include <numbers>

namespace sluice {

PerLayerEmbedding::PerLayerEmbedding(PerLayerEmbeddingOptions given, Rng& rng) : options(given) {
  const PerLayerEmbeddingOptions& o = options;
  if (o.vocabulary < 1 || o.width < 1)
    fail<ValueError>("per_layer_embedding: got vocabulary=", o.vocabulary, ", width=", o.width,
                     "; need at least 1 of each");
  const int64_t all = checked_mul("per_layer_embedding", o.blocks, o.width);
  table = Embedding({.count = o.vocabulary, .dim = all, .dtype = o.dtype}, rng);
  map = Linear({.in = o.dim, .out = all, .bias = false, .dtype = o.dtype}, rng);
  norm = Norm({.dim = o.width, .kind = NormKind::rms, .eps = o.norm_eps, .dtype = o.dtype});
}

Tensor PerLayerEmbedding::operator()(const Tensor& tokens, const Tensor& h) const {
  ModuleScope scope(this, type);
  const auto of_blocks = [&](const Tensor& t) { return unflatten(t, -1, {options.blocks, options.width}); };
  const Tensor read = norm(of_blocks(map(h) * (1 / std::sqrt(static_cast<double>(options.dim)))));
  const Tensor own =
      of_blocks(table(where(tokens < options.vocabulary, tokens, 0))) * std::sqrt(static_cast<double>(options.width));
  return (read + own) * (1 / std::numbers::sqrt2);
}

PerLayerGate::PerLayerGate(const PerLayerEmbeddingOptions& o, Rng& rng)
    : activation(o.activation), in({.in = o.dim, .out = o.width, .bias = false, .dtype = o.dtype}, rng),
      out({.in = o.width, .out = o.dim, .bias = false, .dtype = o.dtype}, rng),
      norm({.dim = o.dim, .kind = NormKind::rms, .eps = o.norm_eps, .dtype = o.dtype}) {}

Tensor PerLayerGate::operator()(const Tensor& h, const Tensor& p) const {
  ModuleScope scope(this, type);
  return norm(out(gated_by(activation, p, in(h))));
}

}  // namespace sluice
