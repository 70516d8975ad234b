#include <sluice/layers/attention/compressed_attention.h>

#include <sluice/core/node.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence_attention.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

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

namespace {

/// The rows [batch, 1, n, ·] of the keys from pool `first` on, one tensor for each compressor, and which keys are real.
struct PoolKeys {
  std::vector<Tensor> rows;
  Tensor real;
  int64_t first = 0;
};

/// What a stream keeps of keys: the rows of whole pools, as long as no padding has come, and behind these the keys.
class PoolStream {
 public:
  PoolStream(Call& call, const PoolCompressionOptions& o) : kept_(call.kept("pools")), o_(o) {}

  /// Puts the keys that the stream keeps before those of this step.
  void join(PoolKeys& keys) const {
    keys.first = std::max<int64_t>(0, kept_.cache.length - o_.overlap);
    if (kept_.tensors.empty()) return;
    const Tensor before = kept_.tensors[0];
    const auto marks = [&](const Tensor& real, const Tensor& rows) {
      return real.defined() ? real : ones({rows.dim(0), rows.dim(2)}, {boolean, rows.device()});
    };
    if (before.defined() || keys.real.defined())
      keys.real = cat({marks(before, kept_.tensors[1]), marks(keys.real, keys.rows[0])}, 1);
    for (std::size_t i = 0; i < keys.rows.size(); ++i) keys.rows[i] = cat({kept_.tensors[i + 1], keys.rows[i]}, 2);
  }
  /// Takes the rows of the pools of `keys`; returns those of all pools.
  std::vector<Tensor> add(const PoolKeys& keys, std::vector<Tensor> pools) {
    const int64_t known = kept_.cache.length, twice = known - keys.first;  // pools of which there are rows
    for (Tensor& t : pools) t = narrow(t, 2, twice, t.dim(2) - twice);
    int64_t whole = 0;  // keys that no later pool reads
    if (!keys.real.defined()) {
      pools = kept_.cache.append(pools);
      whole = std::max<int64_t>(0, kept_.cache.length - o_.overlap - keys.first) * o_.pool;
    } else if (known > 0) {
      const std::vector<Tensor> before = kept_.cache.rows();
      for (std::size_t i = 0; i < pools.size(); ++i) pools[i] = cat({before[i], pools[i]}, 2);
    }
    kept_.tensors = {keys.real};
    for (const Tensor& t : keys.rows) kept_.tensors.push_back(clone(narrow(t, 2, whole, t.dim(2) - whole)));
    return pools;
  }

 private:
  Stream::Kept& kept_;
  const PoolCompressionOptions& o_;
};

/// c.pooled() as [batch, 1, pools, d].
Tensor pooled(PoolCompression c, const PoolKeys& keys, std::size_t i) {
  c.options.rope.offset += keys.first * c.options.pool;
  return unsqueeze(c.pooled(squeeze(keys.rows[i], 1), keys.real), 1);
}

}  // namespace

std::vector<Tensor> CompressedAttention::pool_rows(Call& call, Tensor& seen) const {
  const bool index = options.topk > 0;
  PoolKeys keys{{unsqueeze(compressor.rows(call.x), 1)}, call.key_mask()};
  const auto of_index = [&](auto make, std::vector<Tensor>& to) {
    NoGrad guard;
    if (index) to.push_back(make());
  };
  of_index([&] { return unsqueeze(index_compressor.rows(call.x), 1); }, keys.rows);
  std::optional<PoolStream> stream;
  if (call.streams()) stream.emplace(call, compressor.options), stream->join(keys);
  keys.real = detail::fetch_seen({.causal = true, .keys = keys.real}, 2, keys.rows).keys;
  std::vector<Tensor> rows{pooled(compressor, keys, 0)};
  of_index([&] { return pooled(index_compressor, keys, 1); }, rows);
  if (stream) rows = stream->add(keys, std::move(rows));
  const Tensor whole = pools_seen(call.x.dim(1), keys.rows[0].dim(2), options.pool, keys.real, call.x.device());
  seen = lt(arange(-keys.first, rows[0].dim(2) - keys.first, 1, {i64, call.x.device()}), whole);
  return rows;
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
  const int64_t position = call.first(turning(o) > 0);
  const Tensor z = q_norm(q_down(x)),
               q = turned(o, rms_norm(detail::split_heads(q_up(z), o.heads), {}, o.norm_eps), o.rope, position),
               own = turned(o, unsqueeze(kv_norm(kv(x)), 1), o.rope.of_keys(), position);
  if (o.pool > 0 && call.segments().defined())
    fail<ValueError>("compressed_attention: a pool of keys would span documents; got segments");
  const Tensor segments = call.segments();
  std::vector<Tensor> near = call.rows({own}, o.window);
  AttentionOptions a{.mask = {.causal = true,
                              .window = o.window,
                              .keys = call.mask_of_keys(),
                              .query_segments = segments,
                              .key_segments = segments},
                     .sink = sink,
                     .dropout = o.attention_dropout};
  a.mask = detail::fetch_seen(a.mask, 2, near);
  AttentionAndLse y = attention_with_lse(q, near[0], near[0], a, call.rng());
  if (o.pool > 0) {
    a.sink = Tensor(), a.mask = {};
    const std::vector<Tensor> rows = pool_rows(call, a.mask.dense);
    if (o.topk > 0 && o.topk < rows[0].dim(2)) a.mask.dense = chosen_rows(x, z, position, rows[1], a.mask.dense);
    if (rows[0].dim(2) > 0 || in_sequence())  // ranks exchange the same gradients
      y = merge_attention(y, attention_with_lse(q, rows[0], rows[0], a, call.rng()));
  }
  const Tensor heads = detail::merge_heads(turned(o, y.out, backwards(o), position));
  const Tensor maps = transpose(unflatten(out_down.weight, -1, {o.out_groups, o.out_rank}), 0, 1);  // [g, ·, rank]
  const Tensor groups = matmul(detail::split_heads(heads, o.out_groups), maps);
  return Dropout{o.dropout}(out_up(detail::merge_heads(groups)), call.rng());
}

}  // namespace sluice
