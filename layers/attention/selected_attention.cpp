#include <sluice/layers/attention/selected_attention.h>

#include <sluice/core/node.h>
#include <sluice/layers/attention/gathered_keys.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence_attention.h>

#include <algorithm>
#include <vector>

namespace sluice {

namespace {

/// f(rows, options) with the rows [batch, ·, n, ·] of all keys that this rank's queries may see.
template <class F> Tensor over_all_keys(std::vector<Tensor> rows, const SelectedOptions& o, F f) {
  if (!in_sequence()) return f(rows, o);
  SelectedOptions here = o;
  here.keys = detail::fetch_seen({.causal = true, .keys = o.keys}, 2, rows).keys;
  SequenceScope uncut;
  return f(rows, here);
}

/// attention() to the chosen blocks.
Tensor attend_to_blocks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& blocks, int64_t block,
                        const SelectedOptions& o, Rng* rng) {
  const AttentionMask mask{.causal = true, .keys = o.keys, .blocks = blocks, .block = block};
  return attention(q, k, v, {.scale = o.scale, .mask = mask, .dropout = o.dropout}, rng);
}

void check_operands(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const SelectedOptions& o) {
  if (q.rank() != 4 || k.rank() != 4)
    fail(op, ": got q=", q, ", k=", k, "; need [batch, heads, m, d], [batch, kv_heads, n, d]");
  detail::attention_operands(op, q, k, v, {.mask = {.keys = o.keys}});
  if (o.keys.defined() && o.keys.rank() != 2)
    fail(op, ": keys=", o.keys, " does not fit k=", k, "; need [batch or 1, n]");
  if (k.dim(2) < q.dim(2)) fail(op, ": ", q.dim(2), " queries need as many keys; got k=", k);
}

/// Which means the queries at positions first … first + rows − 1 see: those whose last key is not later. Returns bool
/// [batch or 1, 1, rows, means].
Tensor seen_means(const BlockRows& means, const NsaSizes& s, int64_t first, int64_t rows) {
  const TensorOptions whole{i64, means.rows.device()};
  const Tensor last =
      arange(means.rows.dim(2), whole) * static_cast<double>(s.stride) + static_cast<double>(s.block - 1);
  const Tensor seen = le(unsqueeze(last, 0), unsqueeze(arange(first, first + rows, 1, whole), 1));
  return means.real.defined() ? logical_and(seen, unsqueeze(unsqueeze(means.real, 1), 1))
                              : unflatten(seen, 0, {1, 1, rows});
}

Tensor nsa_blocks_of(const Tensor& q, const BlockRows& means, const NsaSizes& s, int64_t n, const SelectedOptions& o) {
  NoGrad guard;
  const int64_t m = q.dim(2), kv_heads = means.rows.dim(1), group = q.dim(1) / std::max<int64_t>(1, kv_heads);
  const int64_t blocks = ceil_div(n, s.select), count = means.rows.dim(2);
  // In strides, block j covers [j·S, (j + 1)·S) and mean c covers [c, c + L). x = c − j·S runs from 1 − L to S − 1.
  const int64_t S = s.select / s.stride, L = s.block / s.stride;
  const Tensor rows_of = detail::widened(q.detach()), keys = detail::widened(means.rows.detach());
  return detail::by_rows(m, 128, [&](int64_t row, int64_t rows) {
    const int64_t first = n - m + row;
    const AttentionOptions a{.scale = o.scale, .mask = {.dense = seen_means(means, s, first, rows)}};
    const Tensor p = attention_map(narrow(rows_of, 2, row, rows), keys, a);
    const Tensor shared = pad(sum(unflatten(p, 1, {kv_heads, group}), {2}), -1, L - 1, blocks * S - count);
    Tensor scores = zeros({q.dim(0), kv_heads, rows, blocks}, p.options());
    for (int64_t x = 1 - L; x < S && blocks > 0; ++x) {  // in the order of means, so that equal sums have equal bits
      const int64_t at = x + L - 1, overlap = std::min(S, x + L) - std::max<int64_t>(0, x);
      scores = scores + slice(shared, -1, at, at + (blocks - 1) * S + 1, S) * static_cast<double>(overlap);
    }
    return choose_blocks(scores, first, {s.select, s.count, s.initial, s.local}, o.keys);
  });
}

}  // namespace

// -- NSA -----------------------------------------------------------------------------------------------------------

void check_nsa(const char* op, const NsaSizes& s) {
  check_options(op, s);
  if (s.block % s.stride != 0 || s.select % s.stride != 0)
    fail<ValueError>(op, ": stride must divide block and select — got stride=", s.stride, ", block=", s.block,
                     ", select=", s.select);
  if (s.initial > s.count - s.local)
    fail<ValueError>(op, ": count=", s.count, " blocks must hold initial=", s.initial, " and local=", s.local);
}

Tensor nsa_blocks(const Tensor& q, const Tensor& k, const NsaSizes& sizes, const SelectedOptions& o) {
  check_nsa("nsa_blocks", sizes), check_operands("nsa_blocks", q, k, k, o);
  return nsa_blocks_of(q, block_means(k, sizes.block, sizes.stride, o.keys), sizes, k.dim(2), o);
}

Tensor nsa_attention(const Tensor& q, const NsaKeys& x, const Tensor& gates, const NsaSizes& s,
                     const SelectedOptions& o, Rng* rng) {
  const char* op = "nsa_attention";
  check_nsa(op, s), check_operands(op, q, x.selected_k, x.selected_v, o);
  if (gates.shape() != Shape{q.dim(0), q.dim(1), q.dim(2), 3})
    fail(op, ": gates=", gates, " do not fit q=", q, "; need [batch, heads, m, 3]");
  const int64_t n = x.selected_k.dim(2), m = q.dim(2), blocks = n < s.block ? 0 : (n - s.block) / s.stride + 1;
  const Tensor& compressed = x.compressed_k.rows;
  if (x.window_k.shape() != x.selected_k.shape() || x.window_v.dim(2) != n || compressed.rank() != 4 ||
      compressed.dim(2) != blocks || x.compressed_v.dim(2) != blocks)
    fail(op, ": keys of the branches do not fit — got compressed ", compressed, ", ", x.compressed_v, ", selected ",
         x.selected_k, ", ", x.selected_v, ", window ", x.window_k, ", ", x.window_v, "; need ", blocks,
         " compressed rows and ", n, " of the others");
  const AttentionOptions to_compressed{
      .scale = o.scale, .mask = {.dense = seen_means(x.compressed_k, s, n - m, m)}, .dropout = o.dropout};
  const AttentionOptions near{
      .scale = o.scale, .mask = {.causal = true, .window = s.window, .keys = o.keys}, .dropout = o.dropout};
  const Tensor chosen = nsa_blocks_of(q, x.compressed_k, s, n, o);
  const auto gate = [&](int64_t branch) { return narrow(gates, 3, branch, 1); };
  return gate(0) * attention(q, compressed, x.compressed_v, to_compressed, rng) +
         gate(1) * attend_to_blocks(q, x.selected_k, x.selected_v, chosen, s.select, o, rng) +
         gate(2) * attention(q, x.window_k, x.window_v, near, rng);
}

Tensor nsa_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gates, const NsaSizes& s,
                     const SelectedOptions& options, Rng* rng) {
  check_nsa("nsa_attention", s), check_operands("nsa_attention", q, k, v, options);
  return over_all_keys({k, v}, options, [&](const std::vector<Tensor>& rows, const SelectedOptions& o) {
    const auto means = [&](const Tensor& x) { return block_means(x, s.block, s.stride, o.keys); };
    const NsaKeys keys{means(rows[0]), means(rows[1]).rows, rows[0], rows[1], rows[0], rows[1]};
    return nsa_attention(q, keys, gates, s, o, rng);
  });
}

// -- MoBA ----------------------------------------------------------------------------------------------------------

Tensor moba_blocks(const Tensor& q, const Tensor& k, const MobaSizes& s, const SelectedOptions& o) {
  check_options("moba_blocks", s), check_operands("moba_blocks", q, k, k, o);
  NoGrad guard;
  const int64_t m = q.dim(2), n = k.dim(2), blocks = ceil_div(n, s.block);
  const Tensor means = detail::widened(block_means(k.detach(), s.block, s.block, o.keys).rows),
               rows_of = detail::widened(q.detach());
  return detail::by_rows(m, 128, [&](int64_t row, int64_t rows) {
    const Tensor s_of = detail::attention_products(narrow(rows_of, 2, row, rows), means, {.scale = 1});
    return choose_blocks(pad(s_of, -1, 0, blocks - means.dim(2)), n - m + row, {s.block, s.topk}, o.keys);
  });
}

Tensor moba_attention(const Tensor& q, const Tensor& k, const Tensor& v, const MobaSizes& sizes,
                      const SelectedOptions& options, Rng* rng) {
  check_options("moba_attention", sizes), check_operands("moba_attention", q, k, v, options);
  return over_all_keys({k, v}, options, [&](const std::vector<Tensor>& rows, const SelectedOptions& o) {
    return attend_to_blocks(q, rows[0], rows[1], moba_blocks(q, rows[0], sizes, o), sizes.block, o, rng);
  });
}

// -- MSA -----------------------------------------------------------------------------------------------------------

static void check_msa(const char* op, const MsaSizes& s) {
  check_options(op, s);
  if (s.local > s.count) fail<ValueError>(op, ": count=", s.count, " blocks must hold local=", s.local);
}

Tensor msa_blocks(const Tensor& index_q, const Tensor& index_k, const MsaSizes& s, const SelectedOptions& o) {
  check_msa("msa_blocks", s), check_operands("msa_blocks", index_q, index_k, index_k, o);
  NoGrad guard;
  Tensor scores = block_maxima(index_q, index_k, s.block, o.keys);
  if (s.shared_choice) scores = max(scores, {1}, keep);
  return choose_blocks(scores, index_k.dim(2) - index_q.dim(2), {s.block, s.count, 0, s.local}, o.keys);
}

Tensor msa_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q, const Tensor& index_k,
                     const MsaSizes& sizes, const SelectedOptions& options, Rng* rng) {
  const char* op = "msa_attention";
  check_msa(op, sizes), check_operands(op, q, k, v, options);
  const auto fits = [&](const Tensor& x, int64_t heads, int64_t rows) {
    return x.rank() == 4 && x.dim(0) == q.dim(0) && x.dim(1) == heads && x.dim(2) == rows;
  };
  if (!fits(index_q, k.dim(1), q.dim(2)) || !fits(index_k, 1, k.dim(2)))
    fail(op, ": index_q=", index_q, ", index_k=", index_k, " do not fit q=", q, ", k=", k,
         "; need [batch, kv_heads, m, di], [batch, 1, n, di]");
  return over_all_keys({k, v, index_k}, options, [&](const std::vector<Tensor>& rows, const SelectedOptions& o) {
    const Tensor blocks = msa_blocks(index_q, rows[2], sizes, o);
    return attend_to_blocks(q, rows[0], rows[1], blocks, sizes.block, o, rng);
  });
}

// -- DSA -----------------------------------------------------------------------------------------------------------

/// The mean number of keys that a query sees.
static double seen_keys(int64_t queries, int64_t keys, bool causal) {
  const auto m = static_cast<double>(queries), n = static_cast<double>(keys);
  return causal ? std::max(n / 2, n - m / 2) : n;
}

Tensor dsa_attention(const Tensor& q, const Tensor& k, const Tensor& v, const KeyIndex& index, int64_t topk,
                     const AttentionOptions& options, Rng* rng) {
  if (in_sequence()) {
    const detail::SequenceKeys x = detail::fetch_keys(k, v, options);
    const KeyIndex all{index.q, detail::fetch_keys_of(index.k, 1, options.mask), index.w};
    SequenceScope uncut;
    return dsa_attention(q, x.k, x.v, all, topk, x.options, rng);
  }
  AttentionOptions o = options;
  AttentionMask candidates = o.mask;
  candidates.dense = candidates.blocks = Tensor(), candidates.block = 0;
  if (q.rank() == 4 && k.rank() == 4 && detail::may_gather_keys(o, q.device(), rng && o.dropout > 0) &&
      detail::gathered_pairs(q.dim(1), k.dim(1), topk) < seen_keys(q.dim(2), k.dim(2), o.mask.causal))
    return attention_to_keys(q, k, v, index_keys(index, topk, candidates), o);
  const Tensor chosen = index_mask(index, topk, candidates);
  o.mask.dense = o.mask.dense.defined() ? logical_and(o.mask.dense, chosen) : chosen;
  return attention(q, k, v, o, rng);
}

// -- layers --------------------------------------------------------------------------------------------------------

namespace {

/// The heads of map(x), normed and then, with use_rope, rotated.
Tensor side(const HeadsOptions& h, const Tensor& x, const Linear& map, const Norm& norm, int64_t heads,
            const RopeOptions& rope, int64_t position) {
  const Tensor y = norm(detail::split_heads(map(x), heads));
  return h.use_rope ? detail::rope_from(y, rope, position) : y;
}

/// The output of a layer. f(rows, options) returns the attended values. Its rows are `fresh`, those of x, behind those
/// of earlier tokens of a stream.
template <class F>
Tensor finished(const HeadsOptions& h, const Heads& heads, Call& call, const std::vector<Tensor>& fresh, F f) {
  const std::vector<Tensor> rows = call.rows(fresh);
  const SelectedOptions o{.keys = call.mask_of_keys(), .dropout = h.attention_dropout};
  return heads.finish(h, f(rows, o), call.x, call.rng());
}

}  // namespace

NsaAttention::NsaAttention(NsaAttentionOptions given, Rng& rng)
    : options(checked_layer("nsa_attention", given)), heads(options.heads, rng) {
  const NsaAttentionOptions& o = options;
  check_nsa("nsa_attention", o.sizes);
  options.heads.causal = true;
  const HeadsOptions& h = o.heads;
  const auto rows = [&](int64_t width) {
    return Linear({h.dim, h.kv_heads * width, h.qkv_bias, h.init, h.dtype}, rng);
  };
  if (o.separate_keys) {
    compressed_k = rows(h.head_dim), compressed_v = rows(h.value_dim);
    window_k = rows(h.head_dim), window_v = rows(h.value_dim);
  }
  const auto compression = [&](int64_t width) {
    return BlockCompression(
        {h.kv_heads, width, o.sizes.block, o.sizes.stride, o.compression, o.compression_hidden, h.init, h.dtype}, rng);
  };
  k_compression = compression(h.head_dim), v_compression = compression(h.value_dim);
  gate = Linear({h.dim, 3 * h.heads, false, h.init, h.dtype}, rng);
}

std::pair<BlockRows, Tensor> NsaAttention::compressed(Call& call, const Tensor& k, const Tensor& v,
                                                      const Tensor& real) const {
  if (!call.streams()) return {k_compression(k, real), v_compression(v, real).rows};
  KvCache& earlier = call.kept("blocks").cache;
  const int64_t from = earlier.length * options.sizes.stride, left = k.dim(2) - from;
  const auto fresh = [&](const BlockCompression& compress, const Tensor& x) {
    return compress(narrow(x, 2, from, left), real.defined() ? narrow(real, 1, from, left) : real).rows;
  };
  const std::vector<Tensor> all = earlier.append({fresh(k_compression, k), fresh(v_compression, v)});
  BlockRows blocks{all[0], {}};
  if (real.defined())
    blocks.real = earlier.length == 0 ? narrow(real, 1, 0, 0)
                                      : any(unfold(real, 1, options.sizes.block, options.sizes.stride), {-1});
  return {blocks, all[1]};
}

Tensor NsaAttention::operator()(const Tensor& given, const Pass& pass) const {
  const HeadsOptions& h = options.heads;
  Call call(*this, "nsa_attention", given, h.dim, pass);
  const Tensor& x = call.x;
  const auto [q, k, v] = heads.project(h, x, call.first(h.use_rope));
  const Tensor gates = sigmoid(detail::split_heads(gate(x), h.heads));
  std::vector<Tensor> fresh{k, v};
  if (options.separate_keys)
    for (const auto& [of_k, of_v] : {std::pair{&compressed_k, &compressed_v}, std::pair{&window_k, &window_v}}) {
      fresh.push_back(side(h, x, *of_k, {}, h.kv_heads, h.rope.of_keys(), call.first(h.use_rope)));
      fresh.push_back(detail::split_heads((*of_v)(x), h.kv_heads));
    }
  return finished(h, heads, call, fresh, [&, &q = q](const std::vector<Tensor>& own, const SelectedOptions& here) {
    return over_all_keys(own, here, [&](const std::vector<Tensor>& rows, const SelectedOptions& o) {
      const std::size_t at = options.separate_keys ? 2 : 0;  // index of the compressed branch's keys; window: 2·at
      const auto [blocks_k, blocks_v] = compressed(call, rows[at], rows[at + 1], o.keys);
      const NsaKeys keys{blocks_k, blocks_v, rows[0], rows[1], rows[2 * at], rows[2 * at + 1]};
      return nsa_attention(q, keys, gates, options.sizes, o, call.rng());
    });
  });
}

MobaAttention::MobaAttention(MobaAttentionOptions o, Rng& rng)
    : options(checked_layer("moba_attention", o)), heads(options.heads, rng) {
  options.heads.causal = true;
}

Tensor MobaAttention::operator()(const Tensor& given, const Pass& pass) const {
  const HeadsOptions& h = options.heads;
  Call call(*this, "moba_attention", given, h.dim, pass);
  const auto [q, k, v] = heads.project(h, call.x, call.first(h.use_rope));
  return finished(h, heads, call, {k, v}, [&, &q = q](const std::vector<Tensor>& rows, const SelectedOptions& o) {
    return moba_attention(q, rows[0], rows[1], options.sizes, o, call.rng());
  });
}

/// RoPE of MSA's index.
static RopeOptions rope_of_index(const HeadsOptions& h) {
  RopeOptions rope = h.rope;
  if (rope.rot_dim == 0) rope.rot_dim = h.head_dim;
  return rope;
}

MsaAttention::MsaAttention(MsaAttentionOptions given, Rng& rng)
    : options(checked_layer("msa_attention", given)), heads(options.heads, rng) {
  MsaAttentionOptions& o = options;
  check_msa("msa_attention", o.sizes);
  HeadsOptions& h = o.heads;
  h.causal = true;
  if (o.index_dim == 0) o.index_dim = h.head_dim;
  if (h.use_rope) detail::check_rope("msa_attention", rope_of_index(h), "index_dim", o.index_dim);
  index_q = Linear({h.dim, h.kv_heads * o.index_dim, false, h.init, h.dtype}, rng);
  index_k = Linear({h.dim, o.index_dim, false, h.init, h.dtype}, rng);
  const auto rms = [&](int64_t width) { return Norm({width, NormKind::rms, o.norm_eps, h.dtype}); };
  if (o.qk_norm) q_norm = rms(h.head_dim), k_norm = rms(h.head_dim);
  index_q_norm = rms(o.index_dim), index_k_norm = rms(o.index_dim);
}

MsaAttention::Index MsaAttention::index(const Tensor& x, int64_t position) const {
  const HeadsOptions& h = options.heads;
  const RopeOptions rope = rope_of_index(h);
  return {side(h, x, index_q, index_q_norm, h.kv_heads, rope, position),
          side(h, x, index_k, index_k_norm, 1, rope.of_keys(), position)};
}

Tensor MsaAttention::operator()(const Tensor& given, const Pass& pass) const {
  const HeadsOptions& h = options.heads;
  Call call(*this, "msa_attention", given, h.dim, pass);
  const int64_t position = call.first(h.use_rope);
  const Tensor q = side(h, call.x, heads.q, q_norm, h.heads, h.rope, position),
               k = side(h, call.x, heads.k, k_norm, h.kv_heads, h.rope.of_keys(), position),
               v = detail::split_heads(heads.v(call.x), h.kv_heads);
  const Index by = index(call.x, position);
  const std::vector<Tensor> fresh{k, v, by.k.detach()};
  return finished(h, heads, call, fresh, [&](const std::vector<Tensor>& rows, const SelectedOptions& o) {
    return msa_attention(q, rows[0], rows[1], by.q.detach(), rows[2], options.sizes, o, call.rng());
  });
}

}  // namespace sluice
