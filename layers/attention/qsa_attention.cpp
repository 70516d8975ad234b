#include <sluice/layers/attention/qsa_attention.h>

#include <sluice/ops/basic.h>

namespace sluice {

static MultiHeadAttentionOptions attention_of(const QsaAttentionOptions& o) {
  MultiHeadAttentionOptions m{.heads = o.heads, .qk_norm = o.qk_norm, .qk_norm_eps = o.norm_eps};
  m.heads.causal = true;
  if (o.gate) m.gates = {AttentionGateOptions{.init = o.heads.init}};
  return m;
}

QsaAttention::QsaAttention(QsaAttentionOptions given, Rng& rng)
    : MultiHeadAttention({type, "qsa_attention"}, attention_of(checked_layer("qsa_attention", given)), rng),
      options(given) {
  QsaAttentionOptions& o = options;
  o.heads = MultiHeadAttention::options.heads;
  if (o.topk % o.pool != 0)
    fail<ValueError>("qsa_attention: pool must divide topk — got pool=", o.pool, ", topk=", o.topk);
  const HeadsOptions& h = o.heads;
  IndexerOptions of_index{h.dim, h.dim, o.index_heads, o.index_dim, h.use_rope, h.rope, h.init, h.dtype};
  if (of_index.rope.rot_dim == 0) of_index.rope.rot_dim = h.head_dim;
  if (h.use_rope) detail::check_rope("qsa_attention", of_index.rope, "index_dim", o.index_dim);
  of_index.pooling = IndexPooling::mean, of_index.pool = o.pool, of_index.norm_eps = o.norm_eps;
  indexer = Indexer(of_index, rng);
}

Tensor QsaAttention::operator()(const Tensor& given, const Pass& pass) const {
  return attend(given, pass, [&](Call& call, AttentionMask& mask) {
    if (mask.query_segments.defined())
      fail<ValueError>("qsa_attention: a pool of keys would span documents; got segments");
    KeyIndex index = indexer(call.x, call.x, call.first(options.heads.use_rope));
    index.k = squeeze(call.rows({unsqueeze(index.k.detach(), 1)})[0], 1);
    mask = choose_pools(index, {options.pool, options.topk / options.pool}, mask,
                        [&](const Tensor& rows, const Tensor& keys) { return indexer.pooled(rows, keys); });
  });
}

}  // namespace sluice
