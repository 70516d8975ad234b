#include <sluice/layers/attention/indexer.h>

#include <sluice/ops/basic.h>

#include <cmath>

namespace sluice {

Indexer::Indexer(IndexerOptions o, Rng& rng) : options(o) {
  check_options("indexer", o);
  if (o.use_rope) detail::check_rope("indexer", o.rope, "width", o.width);
  q = Linear({o.latent, o.heads * o.width, false, o.init, o.dtype}, rng);
  k = Linear({o.dim, o.width, false, o.init, o.dtype}, rng);
  weights = Linear({o.dim, o.heads, false, o.init, o.dtype}, rng);
  k_norm = Norm({o.width, NormKind::layer, 1e-6, o.dtype});
}

KeyIndex Indexer::operator()(const Tensor& x, const Tensor& z, int64_t position) const {
  const IndexerOptions& o = options;
  const auto turned = [&](const Tensor& y, const RopeOptions& rope) {
    return o.use_rope ? detail::rope_from(y, rope, position) : y;
  };
  return {turned(detail::split_heads(q(z), o.heads), o.rope),
          squeeze(turned(unsqueeze(k_norm(k(x)), 1), o.rope.of_keys()), 1),
          weights(x) * (1 / std::sqrt(static_cast<double>(o.heads * o.width)))};
}

}  // namespace sluice
