#include <sluice/layers/attention/mla.h>

#include <sluice/layers/attention/gathered_keys.h>
#include <sluice/layers/attention/selected_attention.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence_attention.h>

#include <algorithm>
#include <cmath>

namespace sluice {

MlaOptions yarn_mla(MlaOptions o, double factor, int64_t length, double mscale) {
  o.rope = yarn_rope(o.rope, o.rope_dim, factor, length);
  o.rope.factor = 1;
  const double m = 0.1 * mscale * std::log(factor) + 1;
  o.scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(o.nope_dim + o.rope_dim))) * m * m;
  return o;
}

/// Number of the gate's logits behind each head's q.
static int64_t width_with_q(const MlaOptions& o) {
  return !o.raw_latent || o.gate == MlaGate::none ? 0 : o.gate == MlaGate::headwise ? 1 : o.value_dim;
}

static Tensor scaled(const Tensor& t, double factor) { return factor == 1 ? t : t * factor; }

Mla::Mla(MlaOptions given, Rng& rng) : options(given) {
  const MlaOptions& o = options;
  check_options("mla", o);
  if (o.use_rope) detail::check_rope("mla", o.rope, "rope_dim", o.rope_dim);
  const auto map = [&](int64_t in, int64_t to) { return Linear({in, to, false, o.init, o.dtype}, rng); };
  const auto rms = [&](int64_t width) { return Norm({width, NormKind::rms, o.norm_eps, o.dtype}); };
  if (o.q_rank == 0 && (o.topk > 0 || o.raw_latent))
    fail<ValueError>("mla: topk=", o.topk, ", raw_latent=", o.raw_latent, " read the queries' latent: need a q_rank");
  const int64_t width = checked_add("mla", checked_add("mla", o.nope_dim, o.rope_dim), width_with_q(o)),
                queries = checked_mul("mla", o.heads, width);
  if (o.q_rank == 0) q = map(o.dim, queries);
  else q_down = map(o.dim, o.q_rank), q_norm = rms(o.q_rank), q_up = map((o.raw_latent ? 2 : 1) * o.q_rank, queries);
  kv_down = map(o.dim, o.kv_rank + o.rope_dim), kv_norm = rms(o.kv_rank);
  if (o.rope_norm && o.rope_dim > 0) rope_norm = rms(o.rope_dim);
  kv_up = map(o.kv_rank, o.heads * (o.nope_dim + o.value_dim));
  const auto of_gate = o.gate == MlaGate::headwise ? GateGranularity::headwise : GateGranularity::elementwise;
  if (o.gate != MlaGate::none && !o.raw_latent)
    gate = AttentionGate({.granularity = of_gate, .init = o.init}, o.dim, o.heads, o.value_dim, rng, o.dtype);
  if (o.sink) sink = init_vector(o.heads, 0, o.dtype);
  out = map(o.heads * o.value_dim, o.dim);
  if (o.index_pool > 0 && (o.topk == 0 || o.topk % o.index_pool != 0 || !o.causal))
    fail<ValueError>("mla: index_pool=", o.index_pool,
                     " needs causal = true and a topk that it divides — got topk=", o.topk);
  if (o.topk == 0) return;
  RopeOptions rope = o.rope;
  rope.rot_dim = rope.rot_dim > 0 ? rope.rot_dim : o.rope_dim, rope.pairing = o.index_pairing;
  IndexerOptions of_index{o.dim, o.q_rank, o.index_heads, o.index_dim, o.use_rope && o.rope_dim > 0,
                          rope,  o.init,   o.dtype};
  if (o.index_pool > 0) of_index.pooling = IndexPooling::gated, of_index.pool = o.index_pool;
  indexer = Indexer(of_index, rng);
}

Tensor Mla::latents(const Tensor& x, int64_t position) const {
  const MlaOptions& o = options;
  const std::vector<Tensor> part = split(kv_down(x), {o.kv_rank, o.rope_dim}, -1);
  const Tensor k = rope_norm(part[1]);
  return cat({scaled(kv_norm(part[0]), o.kv_factor), o.use_rope ? detail::rope_from(k, o.rope.of_keys(), position) : k},
             -1);
}

bool Mla::absorbs(double m, double n, bool gathers) const {
  const MlaOptions& o = options;
  if (o.form != MlaForm::cheapest) return o.form == MlaForm::absorbed;
  const auto wide = static_cast<double>(o.nope_dim + o.value_dim), rank = static_cast<double>(o.kv_rank),
             turned = static_cast<double>(o.rope_dim);
  const auto keys_for = [&](int64_t kv_heads) {
    return gathers ? std::min(n, (o.causal ? 2 : 1) * detail::gathered_pairs(o.heads, kv_heads, o.topk)) : n;
  };
  const double expanded = n * rank * wide + m * keys_for(o.heads) * (wide + turned),
               absorbed = m * rank * wide + m * keys_for(1) * (2 * rank + turned);
  return absorbed < expanded;
}

Tensor Mla::operator()(const Tensor& given, const Pass& pass) const {
  const MlaOptions& o = options;
  Call call(*this, "mla", given, o.dim, pass);
  call.check_causal(o.causal);
  const Tensor& x = call.x;
  const int64_t position = call.first(o.use_rope || o.growth.beta != 0), dn = o.nope_dim, r = o.kv_rank;
  const Tensor raw = o.q_rank == 0 ? Tensor() : q_down(x), z = o.q_rank == 0 ? raw : scaled(q_norm(raw), o.q_factor);
  const Tensor mixed = o.q_rank == 0 ? q(x) : q_up(o.raw_latent ? cat({z, raw}, -1) : z);
  const std::vector<Tensor> qs = split(detail::split_heads(mixed, o.heads), {dn, o.rope_dim, width_with_q(o)}, -1);
  const Tensor q_n = detail::grown(qs[0], o.growth, position),
               q_r = detail::grown(o.use_rope ? detail::rope_from(qs[1], o.rope, position) : qs[1], o.growth, position);
  std::vector<Tensor> kept{unsqueeze(latents(x, position), 1)};  // [batch, 1, n, r + dr]
  KeyIndex index;
  if (o.topk > 0) index = indexer(x, o.raw_latent ? raw : z, position), kept.push_back(unsqueeze(index.k, 1));
  kept = call.rows(kept);
  if (o.topk > 0) index.k = squeeze(kept[1], 1);
  const Tensor rows = kept[0];
  AttentionOptions a{.scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(dn + o.rope_dim))),
                     .mask = call.mask(),
                     .bias = pass.bias,
                     .sink = sink,
                     .dropout = o.attention_dropout};
  a.mask.causal = o.causal;
  if (o.index_pool > 0)
    a.mask = choose_pools(index, {o.index_pool, o.topk / o.index_pool}, a.mask,
                          [&](const Tensor& all, const Tensor& real) { return indexer.pooled(all, real); });
  const bool by_key = o.topk > 0 && o.index_pool == 0;
  const auto attend = [&](const Tensor& queries, const Tensor& keys, const Tensor& values) {
    return by_key ? dsa_attention(queries, keys, values, index, o.topk, a, call.rng())
                  : sequence_attention(queries, keys, values, a, call.rng());
  };

  const auto [m, n] = call.extent(rows);
  const bool gathers = by_key && detail::may_gather_keys(a, x.device(), call.rng() && a.dropout > 0);
  const Tensor c = narrow(rows, -1, 0, r);
  Tensor y;
  if (absorbs(static_cast<double>(m), static_cast<double>(n), gathers)) {
    const std::vector<Tensor> up = split(transpose(unflatten(kv_up.weight, -1, {o.heads, dn + o.value_dim}), 0, 1),
                                         {dn, o.value_dim}, -1);  // Wuk [h, r, dn], Wuv [h, r, dv]
    const Tensor queries = cat({matmul(q_n, transpose(up[0], 1, 2)), q_r}, -1);
    y = matmul(attend(queries, rows, c), up[1]);
  } else {
    const std::vector<Tensor> kv = split(detail::split_heads(kv_up(squeeze(c, 1)), o.heads), {dn, o.value_dim}, -1);
    const Tensor shared = expand(narrow(rows, -1, r, o.rope_dim), {x.dim(0), o.heads, rows.dim(2), o.rope_dim});
    y = attend(cat({q_n, q_r}, -1), cat({kv[0], shared}, -1), kv[1]);
  }
  if (o.gate != MlaGate::none) y = o.raw_latent ? glu(y, qs[2]) : gate(y, x);
  return Dropout{o.dropout}(out(detail::merge_heads(y)), call.rng());
}

}  // namespace sluice
