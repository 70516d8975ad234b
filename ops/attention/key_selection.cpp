#include <sluice/ops/attention/key_selection.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/attention/top_k.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/gemm/operand.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/index/sort.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace sluice {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Checks the keys of n tokens, beside x [batch, …].
void check_keys(const char* op, const Tensor& x, const Tensor& keys, int64_t n) {
  if (!keys.defined()) return;
  detail::check_devices(op, {x, keys});
  const int64_t batch = x.dim(0);
  if (keys.dtype() != boolean) fail<DTypeError>(op, ": keys must be bool — got ", keys.dtype(), keys);
  if (keys.rank() != 2 || (keys.dim(0) != batch && keys.dim(0) != 1) || keys.dim(1) != n)
    fail(op, ": keys=", keys, " does not fit; need [", batch, " or 1, ", n, "]");
}

void check_index(const char* op, const KeyIndex& x) {
  detail::check_floats(op, {{"q", x.q}, {"k", x.k}, {"w", x.w}});
  if (x.q.rank() != 4 || x.k.rank() != 3 || x.w.rank() != 3 || x.k.dim(0) != x.q.dim(0) || x.w.dim(0) != x.q.dim(0) ||
      x.k.dim(2) != x.q.dim(3) || x.w.dim(1) != x.q.dim(2) || x.w.dim(2) != x.q.dim(1))
    fail(op, ": operands do not fit — got q=", x.q, ", k=", x.k, ", w=", x.w,
         "; need [batch, heads, m, d], [batch, n, d], [batch, m, heads]");
}

}  // namespace

Tensor detail::by_rows(int64_t m, int64_t size, const std::function<Tensor(int64_t row, int64_t rows)>& f) {
  NoGrad guard;
  if (m <= size) return f(0, m);
  std::vector<Tensor> pieces;
  for (int64_t row = 0; row < m; row += size) pieces.push_back(f(row, std::min(size, m - row)));
  return cat(pieces, 2);
}

Tensor choose_blocks(const Tensor& given, int64_t first, const BlockChoice& o, const Tensor& keys) {
  const char* op = "choose_blocks";
  NoGrad guard;
  if (o.block < 1 || o.count < 1 || o.initial < 0 || o.local < 1 || o.initial > o.count - o.local)
    fail<ValueError>(op,
                     ": need block >= 1, initial >= 0, local >= 1 and count >= initial + local — got block=", o.block,
                     ", count=", o.count, ", initial=", o.initial, ", local=", o.local);
  detail::check_floats(op, {{"scores", given}});
  if (given.rank() != 4 || first < 0 || first > int64_t{1} << 52 ||
      given.dim(3) < ceil_div(first + given.dim(2), o.block))
    fail(op, ": got scores=", given, " from position ", first, "; need [batch, heads, m, blocks of ", o.block, "]");
  const int64_t m = given.dim(2), blocks = given.dim(3);
  const TensorOptions whole{i64, given.device()};
  const Tensor p = unsqueeze(arange(first, first + m, 1, whole), 1), j = unsqueeze(arange(blocks, whole), 0);
  const auto size = static_cast<double>(std::min(o.block, std::max<int64_t>(1, first + m)));  // of a block, or of all
  const auto local = static_cast<double>(std::min(o.local, blocks + 1));
  Tensor allowed = le(j * size, p);
  const Tensor always = logical_or(gt((j + local) * size, p), j < static_cast<double>(o.initial));
  if (keys.defined()) {
    check_keys(op, given, keys, keys.rank() == 2 ? keys.dim(1) : first + m);
    const Tensor real = any(detail::in_blocks(keys, -1, o.block), {-1});
    if (real.dim(1) != blocks) fail(op, ": keys=", keys, " does not fit scores=", given, " of blocks of ", o.block);
    allowed = logical_and(allowed, unsqueeze(unsqueeze(real, 1), 1));
  }
  return topk_mask(masked_fill(detail::widened(given.detach()), always, kInf), o.count, TopKTies::index, allowed);
}

BlockRows block_means(const Tensor& x, int64_t block, int64_t stride, const Tensor& keys) {
  const char* op = "block_means";
  detail::check_floats(op, {{"x", x}});
  if (x.rank() != 4) fail(op, ": got x=", x, "; need [batch, heads, n, d]");
  if (stride < 1 || block < stride || block % stride != 0)
    fail<ValueError>(op, ": stride must divide block — got block=", block, ", stride=", stride);
  const int64_t n = x.dim(2), strides = n / stride, per_block = block / stride;
  check_keys(op, x, keys, n);
  const int64_t blocks = std::max<int64_t>(0, strides - per_block + 1);
  if (blocks == 0) return {narrow(x, 2, 0, 0), keys.defined() ? narrow(keys, 1, 0, 0) : Tensor()};
  const auto sums = [&](const Tensor& y) {
    const Tensor one = sum(unflatten(narrow(y, 2, 0, strides * stride), 2, {strides, stride}), {3});
    Tensor all = narrow(one, 2, 0, blocks);
    for (int64_t a = 1; a < per_block; ++a) all = all + narrow(one, 2, a, blocks);
    return all;
  };
  const Tensor wide = detail::widened(x);
  if (!keys.defined()) return {to(sums(wide) / static_cast<double>(block), x.dtype()), {}};
  const Tensor real = unsqueeze(unsqueeze(keys, 1), -1), counts = sums(to(real, wide.dtype()));
  const Tensor rows = sums(masked_fill(wide, logical_not(real), 0)) / masked_fill(counts, counts == 0.0, 1);
  return {to(rows, x.dtype()), squeeze(squeeze(counts, -1), 1) > 0.0};
}

Tensor block_maxima(const Tensor& q, const Tensor& k, int64_t block, const Tensor& keys) {
  const char* op = "block_maxima";
  detail::check_floats(op, {{"q", q}, {"k", k}});
  if (q.rank() != 4 || k.rank() != 4 || k.dim(0) != q.dim(0) || (k.dim(1) != 1 && k.dim(1) != q.dim(1)) ||
      k.dim(3) != q.dim(3) || k.dim(2) < q.dim(2))
    fail(op, ": got q=", q, ", k=", k, "; need [batch, heads, m, d], [batch, 1 or heads, n, d]");
  if (block < 1) fail<ValueError>(op, ": block must be positive — got ", block);
  const int64_t m = q.dim(2), n = k.dim(2);
  check_keys(op, q, keys, n);
  checked_numel(op, {q.dim(0), q.dim(1), std::min<int64_t>(m, 128), n});  // the scores of some rows
  if (q.numel() > 0 && detail::beyond_blas(q.device(), 1, q.dim(3), n))
    fail(op, ": a dimension exceeds 2^31 — got q=", q, ", k=", k);
  return detail::by_rows(m, 128, [&](int64_t row, int64_t rows) {
    const AttentionMask mask{.causal = true, .keys = keys.defined() ? narrow(keys, 1, 0, n - m + row + rows) : keys};
    const int64_t seen = n - m + row + rows;
    const Tensor s =
        matmul(detail::widened(narrow(q, 2, row, rows)), transpose(detail::widened(narrow(k, 2, 0, seen)), -2, -1));
    const Tensor hidden = logical_not(visible_pairs(mask, q.dim(0), 1, rows, seen, q.device()));
    return max(detail::in_blocks(pad(masked_fill(s, hidden, -kInf), -1, 0, n - seen, -kInf), -1, block, -kInf), {-1});
  });
}

Tensor index_scores(const KeyIndex& index) {
  check_index("index_scores", index);
  const Tensor q = detail::widened(index.q), k = detail::widened(index.k), w = detail::widened(index.w);
  // All heads' rows in one product with the keys, and a product with w that adds the heads up.
  const Tensor s = relu(matmul(flatten(transpose(q, 1, 2), 1, 2), transpose(k, 1, 2)));  // [batch, m·heads, n]
  const Tensor sums = matmul(unsqueeze(w, 2), unflatten(s, 1, {q.dim(2), q.dim(1)}));    // [batch, m, 1, n]
  return to(squeeze(sums, 2), index.q.dtype());
}

/// Calls f(scores, visible) for some rows of index_scores() [batch, 1, rows, n] at a time and joins the results.
/// `visible` has the same rows; undefined if all pairs are visible.
template <class F>
static Tensor by_index(const char* op, const KeyIndex& index, int64_t top, const AttentionMask& mask, F f) {
  check_index(op, index);
  if (top < 1) fail<ValueError>(op, ": top must be positive — got ", top);
  const int64_t batch = index.q.dim(0), heads = index.q.dim(1), m = index.q.dim(2), n = index.k.dim(1);
  const Tensor visible = mask.unrestricted() ? Tensor() : visible_pairs(mask, batch, 1, m, n, index.q.device());
  if (visible.defined() && visible.dim(1) > 1) fail<ValueError>(op, ": mask must be the same for all heads");
  const Tensor q = detail::widened(index.q), k = detail::widened(index.k), w = detail::widened(index.w);
  const int64_t size = std::clamp<int64_t>((1 << 22) / std::max<int64_t>(1, batch * heads * n), 1, 128);
  return detail::by_rows(m, size, [&](int64_t row, int64_t rows) {
    const Tensor s = index_scores({narrow(q, 2, row, rows), k, narrow(w, 1, row, rows)});
    return f(unsqueeze(s, 1), visible.defined() ? narrow(visible, 2, row, rows) : visible);
  });
}

Tensor index_mask(const KeyIndex& index, int64_t top, const AttentionMask& mask) {
  return by_index("index_mask", index, top, mask,
                  [&](const Tensor& s, const Tensor& visible) { return topk_mask(s, top, TopKTies::index, visible); });
}

Tensor index_keys(const KeyIndex& index, int64_t top, const AttentionMask& mask) {
  return by_index("index_keys", index, top, mask, [&](const Tensor& s, const Tensor& visible) {
    const Tensor places = topk(detail::ranked_scores(s, visible), std::min(top, s.dim(-1)), -1).indices;
    if (!visible.defined()) return places;
    return masked_fill(places, gather(logical_not(expand(visible, s.shape())), -1, places), -1);
  });
}

}  // namespace sluice
