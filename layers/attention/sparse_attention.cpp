#include <sluice/layers/attention/sparse_attention.h>

#include <sluice/core/node.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/parallel/sequence_attention.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// -- neighbour lists ---------------------------------------------------------------------------------------

/// The lists as row numbers of k and v, viewed as [batch, kv_heads·n, ·]: key j of query head h is row
/// ⌊h/(heads/kv_heads)⌋·n + j. Entries −1 read row 0 and are hidden.
struct Gathered {
  Tensor rows;    // i64 [heads·m·K]
  Tensor hidden;  // bool, broadcasts to [batch, heads, m, K]
};

Gathered read_lists(const Tensor& neighbours, const Tensor& keys, int64_t heads, int64_t kv_heads, int64_t n) {
  NoGrad guard;
  const int64_t lists = neighbours.dim(0), m = neighbours.dim(1), width = neighbours.dim(2);
  const Device device = neighbours.device();
  Tensor hidden = unsqueeze(neighbours == -1.0, 0);
  const Tensor wanted = reshape(neighbours + to(squeeze(hidden, 0), i64), {lists * m * width});  // −1 becomes 0
  Tensor local = empty(wanted.shape(), wanted.options());
  // Selecting from arange(n) returns `wanted`, and throws for entries out of range.
  kernel::index_select("neighbour_attention", arange(std::max<int64_t>(1, n), {i64, device}), 0, wanted, local);
  const int64_t per_head = heads / std::max<int64_t>(1, kv_heads);
  // The first row of each query head.
  const Tensor first = repeat_interleave(arange(kv_heads, {i64, device}) * static_cast<double>(n), per_head, 0);
  const Tensor rows = flatten(reshape(local, {lists, m * width}) + unsqueeze(first, 1));
  if (keys.defined() && n > 0) {
    const Tensor padded = index_select(to(logical_not(keys), i32), 1, local);  // [batch or 1, lists·m·K]
    hidden = logical_or(hidden, reshape(padded, {keys.dim(0), lists, m, width}) != 0.0);
  }
  return {rows, hidden};
}

}  // namespace

Tensor neighbour_attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& neighbours,
                           const NeighbourOptions& options, Rng* rng) {
  const char* op = "neighbour_attention";
  detail::not_cut(op, "its lists name keys of the whole sequence");
  const AttentionOptions given{.scale = options.scale, .mask = {.keys = options.keys}, .dropout = options.dropout};
  auto [q, k, v, o, rank] = detail::attention_operands(op, q_in, k_in, v_in, given);
  const int64_t batch = q.dim(0), heads = q.dim(1), m = q.dim(2), n = k.dim(2);
  if (neighbours.dtype() != i64)
    fail<DTypeError>(op, ": neighbours must be i64 — got ", neighbours.dtype(), neighbours);
  const Tensor lists = neighbours.rank() == 2 ? unsqueeze(neighbours, 0) : neighbours;
  if (lists.rank() != 3 || (lists.dim(0) != heads && lists.dim(0) != 1) || lists.dim(1) != m)
    fail(op, ": neighbours=", neighbours, " does not fit q=", q_in, "; need [", heads, " or 1, ", m, ", K]");
  const int64_t width = lists.dim(2);
  if (options.keys.defined() && options.keys.rank() != 2)
    fail(op, ": keys=", options.keys, " does not fit k=", k_in, "; need [", batch, " or 1, ", n, "]");
  const Gathered at = read_lists(lists, options.keys, heads, k.dim(1), n);
  if (n == 0 || width == 0)  // with their history
    return detail::restore_rank(attention(q, narrow(k, 2, 0, 0), narrow(v, 2, 0, 0)), rank);

  // A hidden slot reads row 0 or a padded row, which may hold NaN. The slot is set to 0, since 0·NaN is NaN.
  auto gathered = [&](const Tensor& x) {  // [batch, heads, m, K, ·]
    const Tensor rows = index_select(flatten(x, 1, 2), 1, at.rows);
    return masked_fill(reshape(rows, {batch, heads, m, width, x.dim(3)}), unsqueeze(at.hidden, -1), 0);
  };
  Tensor s = squeeze(matmul(unsqueeze(q, 3), transpose(gathered(k), -2, -1)), 3) * *o.scale;
  Tensor w = softmax(masked_fill(s, at.hidden, -kInf));
  if (o.dropout > 0 && rng) w = dropout(w, o.dropout, *rng);
  return detail::restore_rank(squeeze(matmul(unsqueeze(w, 3), gathered(v)), 3), rank);
}

Tensor topk_attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const TopKOptions& options,
                      Rng* rng) {
  if (options.k < 1) fail<ValueError>("topk_attention: k must be positive — got ", options.k);
  if (in_sequence()) {
    const detail::SequenceKeys x = detail::fetch_keys(k_in, v_in, options.attention);
    TopKOptions here = options;
    here.attention = x.options;
    SequenceScope uncut;
    return topk_attention(q_in, x.k, x.v, here, rng);
  }
  auto [q, k, v, o, rank] = detail::attention_operands("topk_attention", q_in, k_in, v_in, options.attention);
  AttentionOptions chosen = o;
  chosen.mask.dense = detail::best_pairs(q, k, o, options.k, options.ties);
  return detail::restore_rank(attention(q, k, v, chosen, rng), rank);
}

/// `first` is the key at the position of the first query; without it, the last query is at the last key.
static Tensor attend_above(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& f,
                           const ThresholdOptions& options, std::optional<int64_t> first, Rng* rng) {
  const char* op = "threshold_attention";
  const auto x = detail::attention_operands(op, q_in, k_in, v_in, options.attention);
  const Tensor &q = x.q, &k = x.k, &v = x.v;
  const AttentionOptions& o = x.options;
  const Shape scores{q.dim(0), q.dim(1), q.dim(2), k.dim(2)};
  if (f.dtype() != q.dtype()) fail<DTypeError>(op, ": f is ", f.dtype(), f, " beside q=", q.dtype(), q_in);
  if (f.rank() > 4 || broadcast(op, f.shape(), scores) != scores)
    fail(op, ": f=", f, " does not broadcast to the scores ", scores);
  if (!(options.temperature > 0) || std::isnan(options.tau))
    fail<ValueError>(op, ": need temperature > 0 and a tau — got temperature=", options.temperature,
                     ", tau=", options.tau);
  if (o.weighting != Weighting::softmax) fail<ValueError>(op, ": only the softmax weighting has a threshold");
  const bool self = options.include_self.value_or(options.mode != ThresholdMode::soft);
  Tensor diagonal;
  if (self) {
    const int64_t m = scores[2], n = scores[3], row = first.value_or(n - m);
    const TensorOptions whole{i64, q.device()};
    diagonal = eq(unsqueeze(arange(row, row + m, 1, whole), 1), unsqueeze(arange(n, whole), 0));
  }

  auto hard = [&] {
    Tensor above = f.detach() > options.tau;
    if (self) above = logical_or(above, diagonal);
    AttentionOptions a = o;
    a.mask.dense = o.mask.dense.defined() ? logical_and(o.mask.dense, above) : above;
    return a;
  };
  auto soft = [&] {  // log σ((f − τ)/T) = −softplus((τ − f)/T)
    Tensor gate = neg(softplus((f - options.tau) * (-1 / options.temperature)));
    if (self) gate = masked_fill(gate, diagonal, 0);
    AttentionOptions a = o;
    a.bias = o.bias.defined() ? o.bias + gate : gate;
    return a;
  };
  if (options.mode == ThresholdMode::hard) return detail::restore_rank(attention(q, k, v, hard(), rng), x.rank);
  if (options.mode == ThresholdMode::soft) return detail::restore_rank(attention(q, k, v, soft(), rng), x.rank);

  std::optional<Rng> again;  // a copy, so that both calls drop the same weights
  if (rng) again = *rng;
  Tensor y;
  {
    NoGrad guard;
    y = attention(q, k, v, hard(), rng);
  }
  if (grad_enabled()) {
    const Tensor smooth = attention(q, k, v, soft(), again ? &*again : nullptr);
    y = y + (smooth - smooth.detach());  // adds exactly 0
  }
  return detail::restore_rank(y, x.rank);
}

Tensor threshold_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& f,
                           const ThresholdOptions& options, Rng* rng) {
  if (!in_sequence()) return attend_above(q, k, v, f, options, std::nullopt, rng);
  const auto [first, total] = sequence_piece(q.dim(-2));
  if (f.rank() == 0 || f.dim(-1) != total)
    fail("threshold_attention: f=", f, " of a piece of a sequence needs a column for each of its ", total, " keys");
  const detail::SequenceKeys x = detail::fetch_keys(k, v, options.attention);
  ThresholdOptions here = options;
  here.attention = x.options;
  SequenceScope uncut;
  return attend_above(q, x.k, x.v, narrow(f, -1, x.keys.begin, x.keys.length()), here, first - x.keys.begin, rng);
}

Tensor global_local_attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                              const AttentionOptions& options, const GlobalRows& rows, Rng* rng) {
  const char* op = "global_local_attention";
  detail::not_cut(op, "its global queries attend to all tokens");
  const auto [q, k, v, o, rank] = detail::attention_operands(op, q_in, k_in, v_in, options);
  const int64_t n = k.dim(2), count = static_cast<int64_t>(options.mask.global.size());
  if (q.dim(2) != n) fail(op, ": got q=", q_in, ", k=", k_in, "; need as many queries as keys");
  std::vector<int64_t> sorted = options.mask.global;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() ||
      (count > 0 && (sorted.front() < 0 || sorted.back() >= n)))
    fail<ValueError>(op, ": global positions must be distinct and in [0, ", n, ")");
  if (!rows.q.defined() || count == 0) return detail::restore_rank(attention(q, k, v, o, rng), rank);
  const auto g = detail::attention_operands(op, rows.q, rows.k, rows.v, {});
  if (g.q.dim(2) != count || g.k.dim(2) != n || g.q.dim(1) != q.dim(1) || g.q.dim(0) != q.dim(0) ||
      g.v.dim(3) != v.dim(3))
    fail(op, ": rows.q=", rows.q, ", rows.k=", rows.k, ", rows.v=", rows.v, " do not fit q=", q_in, " with ", count,
         " global positions");
  return detail::restore_rank(detail::attention_with_rows(op, q, k, v, o, {g.q, g.k, g.v}, rng), rank);
}

Tensor detail::attention_with_rows(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options, const GlobalRows& rows, Rng* rng) {
  const Tensor y = attention(q, k, v, options, rng);  // which checks the mask that rows are taken from
  const AttentionOptions own = options_of_rows(op, options, k.dim(2), q.device());
  return with_rows(y, options.mask.global, attention(rows.q, rows.k, rows.v, own, rng));
}

AttentionOptions detail::options_of_rows(const char* op, const AttentionOptions& given, int64_t n, Device device) {
  if (given.mask.blocks.defined()) fail<ValueError>(op, ": rows of their own do not go together with a block mask");
  const std::vector<int64_t>& rows = given.mask.global;
  const Tensor index = to(Tensor::from(rows), device);
  auto of_rows = [&](const Tensor& t) { return t.rank() >= 2 && t.dim(-2) == n ? index_select(t, -2, index) : t; };
  AttentionOptions o = given;
  AttentionMask& mask = o.mask;
  mask.causal = false, mask.window = 0, mask.dilation = 1, mask.global.clear();
  if (mask.query_segments.defined()) mask.query_segments = index_select(mask.query_segments, 1, index);
  if (mask.dense.defined()) mask.dense = of_rows(mask.dense);
  if (given.mask.causal) {
    const Tensor earlier = le(unsqueeze(arange(n, index.options()), 0), unsqueeze(index, 1));
    mask.dense = mask.dense.defined() ? logical_and(mask.dense, earlier) : earlier;
  }
  if (o.bias.defined()) o.bias = of_rows(o.bias);
  if (given.relative_bias.defined()) {
    std::vector<Tensor> line;  // the bias of each row, [heads, n]
    for (const int64_t r : rows) line.push_back(narrow(given.relative_bias, 1, n - 1 - r, n));
    const Tensor relative = stack(line, 1);
    o.bias = o.bias.defined() ? o.bias + relative : relative;
    o.relative_bias = Tensor();
  }
  return o;
}

Tensor detail::with_rows(const Tensor& y, const std::vector<int64_t>& rows, const Tensor& fresh) {
  std::vector<bool> hit(static_cast<std::size_t>(y.dim(2)), false);
  for (const int64_t r : rows) hit[static_cast<std::size_t>(r)] = true;
  const Tensor there = unsqueeze(to(Tensor::from(hit), y.device()), 1), index = to(Tensor::from(rows), y.device());
  return index_add(masked_fill(y, there, 0), 2, index, fresh);
}

}  // namespace sluice
