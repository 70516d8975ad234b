#include <sluice/layers/attention/compressed_attention.h>

#include <sluice/core/node.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence_attention.h>

#include <algorithm>
#include <cmath>

namespace sluice {

/// How many last channels RoPE turns.
static int64_t turning(const CompressedAttentionOptions& o) { return o.use_rope ? o.rope_dim : 0; }

CompressedAttention::CompressedAttention(CompressedAttentionOptions o, Rng& rng) : options(o) {
  const char* op = "compressed_attention";
  check_options(op, o);
  const bool pools = o.pool > 0, index = pools && o.topk > 0;
  if (o.heads % o.out_groups != 0) fail<ValueError>(op, ": out_groups=", o.out_groups, " must divide heads=", o.heads);
  if (o.rope_dim > o.head_dim || (index && o.rope_dim > o.index_dim))
    fail<ValueError>(op, ": rope_dim=", o.rope_dim, " is more than head_dim=", o.head_dim,
                     " or index_dim=", o.index_dim);
  if (turning(o) > 0) detail::check_rope(op, o.rope, "rope_dim", o.rope_dim);
  if (turning(o) > 0 && o.rope.xpos != 0)
    fail<ValueError>(op, ": xPos would scale the values, which are the keys; got rope_xpos=", o.rope.xpos);
  const auto map = [&](int64_t in, int64_t to) { return Linear({in, to, false, o.init, o.dtype}, rng); };
  const auto rms = [&](int64_t width) { return Norm({width, NormKind::rms, o.norm_eps, o.dtype}); };
  const auto compression = [&](int64_t width) {
    return PoolCompression({o.dim, width, o.pool, o.overlap, turning(o), o.rope, o.norm_eps, o.init, o.dtype}, rng);
  };
  const int64_t width = checked_mul(op, o.heads, o.head_dim), all_ranks = checked_mul(op, o.out_groups, o.out_rank);
  q_down = map(o.dim, o.q_rank), q_norm = rms(o.q_rank), q_up = map(o.q_rank, width);
  kv = map(o.dim, o.head_dim), kv_norm = rms(o.head_dim);
  if (o.sink) sink = init_vector(o.heads, 0, o.dtype);
  if (pools) compressor = compression(o.head_dim);
  if (index) {
    index_q = map(o.q_rank, checked_mul(op, o.index_heads, o.index_dim)), index_weights = map(o.dim, o.index_heads);
    index_compressor = compression(o.index_dim);
  }
  out_down = map(width / o.out_groups, all_ranks), out_up = map(all_ranks, o.dim);
}

/// RoPE of the queries by the opposite angles.
static RopeOptions backwards(const CompressedAttentionOptions& o) {
  RopeOptions rope = o.rope;
  if (rope.frequencies.empty() && turning(o) > 0)
    rope.frequencies = rope_frequencies(rope.rot_dim > 0 ? rope.rot_dim : o.rope_dim, rope.base);
  for (double& f : rope.frequencies) f = -f;
  return rope;
}

/// t [..., n, d] with its last channels turned, from `position` on.
static Tensor turned(const CompressedAttentionOptions& o, const Tensor& t, const RopeOptions& rope, int64_t position) {
  return detail::last_channels(t, turning(o),
                               [&](const Tensor& last) { return detail::rope_from(last, rope, position); });
}

/// c.pooled() of the rows [batch, 1, n, ·] of all keys, [batch, 1, pools, d]. A stream computes the row of a pool once,
/// as long as there is no padding.
static Tensor pooled(Call& call, const PoolCompression& c, const Tensor& rows, const Tensor& keys) {
  const Tensor all = squeeze(rows, 1);
  if (!call.streams()) return unsqueeze(c.pooled(all, keys), 1);
  KvCache& kept = call.kept("pools").cache;
  if (keys.defined()) return unsqueeze(c.pooled(all, keys), 1);
  const int64_t known = kept.length, first = std::max<int64_t>(0, known - c.options.overlap),
                at = first * c.options.pool;
  PoolCompression later = c;
  later.options.rope.offset += at;
  const Tensor fresh = later.pooled(narrow(all, 1, at, all.dim(1) - at));
  return kept.append({unsqueeze(narrow(fresh, 1, known - first, fresh.dim(1) - (known - first)), 1)})[0];
}

Tensor CompressedAttention::chosen_rows(const Tensor& x, const Tensor& z, int64_t position, const Tensor& rows,
                                        const Tensor& seen) const {
  const CompressedAttentionOptions& o = options;
  const double share = 1 / std::sqrt(static_cast<double>(o.index_heads * o.index_dim));
  const KeyIndex index{turned(o, detail::split_heads(index_q(z), o.index_heads), o.rope, position), squeeze(rows, 1),
                       index_weights(x) * share};
  return index_mask(index, o.topk, {.dense = seen});
}

Tensor CompressedAttention::operator()(const Tensor& given, const Pass& pass) const {
  const CompressedAttentionOptions& o = options;
  Call call(*this, "compressed_attention", given, o.dim, pass);
  const Tensor& x = call.x;
  const int64_t position = call.first(turning(o) > 0), m = x.dim(1);
  const Tensor z = q_norm(q_down(x)),
               q = turned(o, rms_norm(detail::split_heads(q_up(z), o.heads), {}, o.norm_eps), o.rope, position),
               own = turned(o, unsqueeze(kv_norm(kv(x)), 1), o.rope.of_keys(), position);
  if (o.pool > 0 && call.segments().defined())
    fail<ValueError>("compressed_attention: a pool of keys would span documents; got segments");
  const Tensor segments = call.segments();
  // Of a sequence that is split over ranks, the keys that this rank's queries may see.
  const auto fetch = [&](AttentionMask& mask, std::vector<Tensor>& rows) {
    if (!in_sequence()) return;
    const AttentionMask rules = mask;
    RowRange seen;
    mask = detail::fetch_mask(rules, m, x.device(), seen);
    for (Tensor& t : rows) t = detail::fetch_keys_of(t, 2, rules);
  };
  std::vector<Tensor> far;  // of all tokens, what pools are made of
  AttentionMask before{.causal = true};
  if (o.pool > 0) {
    far.push_back(unsqueeze(compressor.rows(x), 1));
    if (o.topk > 0) {
      NoGrad guard;
      far.push_back(unsqueeze(index_compressor.rows(x), 1));
    }
    far = call.rows(far), before.keys = call.mask_of_keys();
    fetch(before, far);
  }
  std::vector<Tensor> near = call.rows({own}, o.window);
  AttentionOptions a{.mask = {.causal = true,
                              .window = o.window,
                              .keys = call.mask_of_keys(),
                              .query_segments = segments,
                              .key_segments = segments},
                     .sink = sink,
                     .dropout = o.attention_dropout};
  fetch(a.mask, near);
  AttentionAndLse y = attention_with_lse(q, near[0], near[0], a, call.rng());
  if (o.pool > 0) {
    const Tensor rows = pooled(call, compressor, far[0], before.keys);
    const int64_t count = rows.dim(2);
    a.sink = Tensor(), a.mask = {};
    a.mask.dense = lt(arange(count, {i64, x.device()}), pools_seen(m, far[0].dim(2), o.pool, before.keys, x.device()));
    if (o.topk > 0) {
      NoGrad guard;
      const Tensor of_index = pooled(call, index_compressor, far[1], before.keys);
      if (o.topk < count) a.mask.dense = chosen_rows(x, z, position, of_index, a.mask.dense);
    }
    if (count > 0 || in_sequence())  // ranks exchange the same gradients
      y = merge_attention(y, attention_with_lse(q, rows, rows, a, call.rng()));
  }
  const Tensor heads = detail::merge_heads(turned(o, y.out, backwards(o), position));
  const Tensor maps = transpose(unflatten(out_down.weight, -1, {o.out_groups, o.out_rank}), 0, 1);  // [g, ·, rank]
  const Tensor groups = matmul(detail::split_heads(heads, o.out_groups), maps);
  return Dropout{o.dropout}(out_up(detail::merge_heads(groups)), call.rng());
}

}  // namespace sluice
