#include <sluice/parallel/sequence_attention.h>

#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>

#include <algorithm>

namespace sluice {

namespace detail {

namespace {

/// The keys that a piece of the sequence may see by those rules of the mask that need no tensors.
RowRange visible_keys(const AttentionMask& mask, RowRange piece, int64_t total) {
  if (piece.length() == 0) return {piece.begin, piece.begin};
  RowRange keys{0, mask.causal ? piece.end : total};
  if (mask.window == 0 || !mask.global.empty()) return keys;
  int64_t reach;
  if (__builtin_mul_overflow(mask.window - 1, mask.dilation, &reach)) return keys;
  reach = std::min(reach, total);
  keys.begin = std::max<int64_t>(0, piece.begin - reach);
  keys.end = std::min(keys.end, piece.end + reach);
  return keys;
}

std::shared_ptr<const RowPlan> plan_of(const Sequence& s, const AttentionMask& mask) {
  return row_plan(s, [&](int r) { return visible_keys(mask, s.piece(r), s.total()); });
}

Tensor range(RowRange rows, Device device) {
  return arange(static_cast<double>(rows.begin), static_cast<double>(rows.end), 1, {i64, device});
}

/// The pairs that window, dilation and global positions allow, bool [rows, keys].
Tensor band_of_rows(const AttentionMask& mask, RowRange rows, RowRange keys, Device device) {
  const Tensor i = unsqueeze(to(range(rows, device), f64), 1), j = unsqueeze(to(range(keys, device), f64), 0);
  const Tensor distance = abs(i - j);
  Tensor seen = full({rows.length(), keys.length()}, 1, {boolean, device});
  if (mask.window > 0) seen = distance <= static_cast<double>(mask.window - 1) * static_cast<double>(mask.dilation);
  if (mask.dilation > 1) {
    const Tensor steps = distance / static_cast<double>(mask.dilation);
    seen = logical_and(seen, steps == floor(steps));
  }
  for (const int64_t g : mask.global) {
    const auto at = static_cast<double>(g);
    seen = logical_or(seen, logical_or(i == at, j == at));
  }
  return seen;
}

/// band_of_rows() in steps of about 260 000 pairs, because it takes 20 bytes a pair while it runs.
Tensor band(const AttentionMask& mask, RowRange rows, RowRange keys, Device device) {
  Tensor seen = empty({rows.length(), keys.length()}, {boolean, device});
  const int64_t step = (1 << 18) / std::max<int64_t>(1, keys.length()) + 1;
  for (int64_t at = rows.begin; at < rows.end; at += step) {
    const RowRange some{at, std::min(rows.end, at + step)};
    Tensor place = narrow(seen, 0, at - rows.begin, some.length());
    copy_(place, band_of_rows(mask, some, keys, device));
  }
  return seen;
}

/// The pairs of a block mask, bool [(heads,) m, n].
Tensor pairs_of_blocks(const AttentionMask& mask, RowRange rows, RowRange keys, Device device) {
  auto blocks = [&](RowRange r) { return to(floor(to(range(r, device), f64) / static_cast<double>(mask.block)), i64); };
  return index_select(index_select(to(mask.blocks, i32), -2, blocks(rows)), -1, blocks(keys)) != 0.0;
}

/// Columns `keys` of x if x has a column for each of the `total` keys; else x.
Tensor columns(const Tensor& x, int64_t total, RowRange keys) {
  if (!x.defined() || x.rank() == 0 || x.dim(-1) != total || (total == 1 && keys.length() == 1)) return x;
  return narrow(x, -1, keys.begin, keys.length());
}

}  // namespace

AttentionMask fetch_mask(const AttentionMask& given, int64_t m, Device device, RowRange& keys, bool extended) {
  const Sequence& s = sequence_of(m);
  const auto plan = plan_of(s, given);
  const RowRange rows = s.piece(s.rank());
  keys = plan->wanted[static_cast<std::size_t>(s.rank())];
  AttentionMask mask = given;
  if (mask.keys.defined()) mask.keys = fetch_rows(mask.keys, -1, s.communicator, plan);
  if (mask.key_segments.defined()) mask.key_segments = fetch_rows(mask.key_segments, -1, s.communicator, plan);
  mask.dense = columns(mask.dense, s.total(), keys);
  auto restrict_to = [&](const Tensor& pairs) {
    mask.dense = mask.dense.defined() ? logical_and(mask.dense, pairs) : pairs;
  };
  if (mask.blocks.defined() && mask.blocks.rank() == 4) {  // rows of this piece, columns of the whole
    const int64_t block = std::max<int64_t>(1, mask.block), first = keys.length() == 0 ? 0 : keys.begin;
    if (first % block != 0)
      fail<ValueError>("sequence_attention: blocks of each query and a window that begins within a block, at key ",
                       first, ", cannot be cut over ranks");
    mask.blocks = narrow(mask.blocks, -1, first / block, ceil_div(keys.length(), block));
  } else if (mask.blocks.defined()) {
    restrict_to(pairs_of_blocks(mask, rows, keys, device));
    mask.blocks = Tensor(), mask.block = 0;
  }
  if (!extended && !mask.causal && (mask.window > 0 || mask.dilation > 1)) {  // the last query is not at the last key
    restrict_to(band(mask, rows, keys, device));
    mask.window = 0, mask.dilation = 1, mask.global.clear();
  }
  return mask;
}

Tensor fetch_keys_of(const Tensor& x, int64_t dim, const AttentionMask& mask) {
  const Sequence& s = sequence_of(x.dim(dim));
  return fetch_rows(x, dim, s.communicator, plan_of(s, mask));
}

AttentionMask fetch_seen(const AttentionMask& mask, int64_t dim, std::vector<Tensor>& rows) {
  if (!in_sequence()) return mask;
  RowRange keys;
  const AttentionMask seen = fetch_mask(mask, rows[0].dim(dim), rows[0].device(), keys);
  for (Tensor& x : rows) x = fetch_keys_of(x, dim, mask);
  return seen;
}

SequenceKeys fetch_keys(const Tensor& k, const Tensor& v, const AttentionOptions& options, bool extended) {
  int64_t m = k.dim(-2);
  const Sequence& s = sequence_of(m);
  SequenceKeys x{{}, {}, options, {}};
  x.options.mask = fetch_mask(options.mask, m, k.device(), x.keys, extended);
  x.k = fetch_keys_of(k, -2, options.mask), x.v = fetch_keys_of(v, -2, options.mask);
  x.options.bias = columns(options.bias, s.total(), x.keys);
  if (options.relative_bias.defined()) {
    const int64_t first = s.piece(s.rank()).begin;
    if (extended) m = x.keys.end - first;
    const int64_t n = x.keys.length(), entries = std::max<int64_t>(0, n + m - 1);
    if (options.relative_bias.rank() != 2 || options.relative_bias.dim(1) != 2 * s.total() - 1)
      fail("sequence_attention: relative_bias=", options.relative_bias, " does not fit; need [heads or 1, ",
           2 * s.total() - 1, "] for a whole of ", s.total());
    x.options.relative_bias =
        narrow(options.relative_bias, 1, entries == 0 ? 0 : s.total() - first - m + x.keys.begin, entries);
  }
  return x;
}

bool goes_around(const AttentionOptions& o, const Rng* rng) {
  const AttentionMask& mask = o.mask;
  return mask.window == 0 && mask.dilation == 1 && !mask.blocks.defined() && !mask.dense.defined() &&
         !o.bias.defined() && !o.relative_bias.defined() && !(rng && o.dropout > 0);
}

Tensor gathered_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                          Rng* rng) {
  const AttentionMask& mask = options.mask;
  const bool extended = !mask.causal && mask.window > 0 && mask.global.empty();  // a window to both sides
  SequenceKeys x = fetch_keys(k, v, options, extended);
  if (!extended) return attention(q, x.k, x.v, x.options, rng);
  const int64_t m = q.dim(-2), more = x.keys.end - sequence_piece(m).first - m;
  auto extend = [&](Tensor& rows, int64_t dim) {  // a single row holds for all queries
    if (rows.defined() && rows.rank() >= -dim && rows.dim(dim) != 1) rows = pad(rows, dim, 0, more);
  };
  AttentionOptions& o = x.options;
  extend(o.bias, -2), extend(o.mask.dense, -2), extend(o.row_scale, -1);
  if (o.mask.query_segments.defined()) o.mask.query_segments = pad(o.mask.query_segments, -1, 0, more);
  return narrow(attention(pad(q, -2, 0, more), x.k, x.v, o, rng), -2, 0, m);
}

}  // namespace detail

Tensor sequence_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                          Rng* rng) {
  detail::check_defined("sequence_attention", {{"q", q}, {"k", k}, {"v", v}});
  if (!in_sequence()) return attention(q, k, v, options, rng);
  if (q.rank() < 2 || q.rank() > 4 || k.rank() != q.rank() || v.rank() != q.rank() || k.dim(-2) != q.dim(-2) ||
      v.dim(-2) != q.dim(-2))
    fail("sequence_attention: got q=", q, ", k=", k, ", v=", v, "; need the rows of one piece of a sequence");
  if (detail::goes_around(options, rng)) return detail::ring_attention(q, k, v, options);
  return detail::gathered_attention(q, k, v, options, rng);
}

}  // namespace sluice
