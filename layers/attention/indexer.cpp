#include <sluice/layers/attention/indexer.h>

#include <sluice/ops/basic.h>
#include <sluice/ops/rows/softmax.h>

#include <cmath>

namespace sluice {

Indexer::Indexer(IndexerOptions o, Rng& rng) : options(o) {
  check_options("indexer", o);
  if (o.use_rope) detail::check_rope("indexer", o.rope, "width", o.width);
  if (o.use_rope && o.pooling == IndexPooling::gated)
    fail<ValueError>("indexer: gated pools of ", o.pool, " keys have no position; need use_rope = false");
  q = Linear({o.latent, o.heads * o.width, false, o.init, o.dtype}, rng);
  k = Linear({o.dim, o.width, false, o.init, o.dtype}, rng);
  if (o.pooling == IndexPooling::mean) {
    q_norm = k_norm = Norm({o.width, NormKind::rms, o.norm_eps, o.dtype});
    detail::unshare(detail::members(k_norm));
    return;
  }
  weights = Linear({o.dim, o.heads, false, o.init, o.dtype}, rng);
  k_norm = Norm({o.width, NormKind::layer, 1e-6, o.dtype});
  if (o.pooling == IndexPooling::none) return;
  pool_gate = Linear({o.dim, o.width, false, o.init, o.dtype}, rng);
  pool_position = init_normal({o.pool, o.width}, 0.02, rng, o.dtype);
}

/// t turned by RoPE, or t.
static Tensor turned(const IndexerOptions& o, const Tensor& t, const RopeOptions& rope, int64_t position) {
  return o.use_rope ? detail::rope_from(t, rope, position) : t;
}

KeyIndex Indexer::operator()(const Tensor& x, const Tensor& z, int64_t position) const {
  const IndexerOptions& o = options;
  const double share = 1 / std::sqrt(static_cast<double>(o.heads * o.width));
  const Tensor queries = turned(o, q_norm(detail::split_heads(q(z), o.heads)), o.rope, position);
  switch (o.pooling) {
    case IndexPooling::none:
      return {queries, squeeze(turned(o, unsqueeze(k_norm(k(x)), 1), o.rope.of_keys(), position), 1),
              weights(x) * share};
    case IndexPooling::gated: return {queries, cat({k_norm(k(x)), pool_gate(x)}, -1), weights(x) * share};
    case IndexPooling::mean: break;
  }
  return {queries, k(x), full({x.dim(0), x.dim(1), o.heads}, 1 / std::sqrt(static_cast<double>(o.width)), x.options())};
}

Tensor Indexer::pooled(const Tensor& rows, const Tensor& keys) const {
  const IndexerOptions& o = options;
  const Tensor pools = key_pools(rows, o.pool, keys);
  if (o.pooling == IndexPooling::gated) {
    const std::vector<Tensor> part = split(pools, {o.width, o.width}, -1);
    return sum(part[0] * softmax(part[1] + pool_position, 2), {2});
  }
  const Tensor means = k_norm(mean(pools, {2}));
  return o.use_rope ? turned_pools(means, rows.dim(1), o.pool, o.rope.of_keys(), keys) : means;
}

}  // namespace sluice
