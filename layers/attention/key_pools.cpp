#include <sluice/layers/attention/key_pools.h>

#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/index/sort.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/parallel/sequence_attention.h>

namespace sluice {

namespace {

void check(const char* op, const Tensor& x, int64_t n, int64_t size, const Tensor& keys) {
  if (!x.defined() || x.rank() != 3) fail(op, ": got ", x, "; need [batch, rows, d]");
  if (size < 1) fail<ValueError>(op, ": size must be positive — got ", size);
  if (keys.defined() && (keys.dtype() != boolean || keys.rank() != 2 || keys.dim(1) != n ||
                         (keys.dim(0) != 1 && keys.dim(0) != x.dim(0))))
    fail(op, ": keys=", keys, " does not fit ", x, "; need bool [batch or 1, ", n, "]");
}

/// Number of real keys up to each key, i64 [batch or 1, n].
Tensor real_so_far(const Tensor& keys, int64_t n, Device device) {
  return keys.defined() ? cumsum(to(keys, i64), 1) : unsqueeze(arange(1, n + 1, 1, {i64, device}), 0);
}
/// The pool of each key; padding has that of the key before, or pool 0.
Tensor pool_of(const Tensor& so_far, int64_t size) {
  return clamp(floor_divide(so_far - 1.0, static_cast<double>(size)), 0);
}

}  // namespace

Tensor key_pools(const Tensor& x, int64_t size, const Tensor& keys) {
  check("key_pools", x, x.defined() && x.rank() == 3 ? x.dim(1) : 0, size, keys);
  const int64_t pools = x.dim(1) / size;
  Tensor rows = x;
  if (keys.defined())  // real ones first, in their order
    rows = gather(x, 1, expand(unsqueeze(argsort(to(logical_not(keys), i32), 1), -1), x.shape()));
  return unflatten(narrow(rows, 1, 0, pools * size), 1, {pools, size});
}

Tensor at_keys(const Tensor& pools, int64_t n, int64_t size, const Tensor& keys) {
  const char* op = "at_keys";
  check(op, pools, n, size, keys);
  if (n < 0 || pools.dim(1) != n / size) fail(op, ": pools=", pools, " are not those of ", n, " keys, ", size, " each");
  if (pools.dim(1) == 0) return pad(pools, 1, 0, n);  // with their history, as other ranks have it
  const Tensor of = clamp(pool_of(real_so_far(keys, n, pools.device()), size), 0, static_cast<double>(n / size - 1));
  return gather(pools, 1, expand(unsqueeze(of, -1), {pools.dim(0), n, pools.dim(2)}));
}

Tensor turned_pools(const Tensor& pools, int64_t n, int64_t size, const RopeOptions& rope, const Tensor& keys) {
  if (!keys.defined()) {
    check("turned_pools", pools, n, size, keys);
    const Tensor first = arange(0, pools.dim(1) * size, size, {i64, pools.device()});
    return squeeze(rope_at(unsqueeze(pools, 1), first, rope), 1);
  }
  const Tensor by_key = unsqueeze(at_keys(pools, n, size, keys), 1);
  return select(key_pools(squeeze(sluice::rope(by_key, rope), 1), size, keys), 2, 0);
}

Tensor pools_seen(int64_t m, int64_t n, int64_t size, const Tensor& keys, Device device) {
  const Tensor last = narrow(real_so_far(keys, n, device), 1, n - m, m);
  return unflatten(floor_divide(last, static_cast<double>(size)), 1, {1, m, 1});
}

AttentionMask choose_pools(const KeyIndex& index, int64_t n, const PoolChoice& choice, AttentionMask mask) {
  const char* op = "choose_pools";
  const int64_t size = choice.size;
  check(op, index.k, n, size, mask.keys);
  if (index.q.rank() != 4 || n < index.q.dim(2) || index.k.dim(1) != n / size)
    fail(op, ": got q=", index.q, ", k=", index.k, " for ", n, " keys; need [batch, heads, m, d], [batch, ", n / size,
         ", d]");
  if (!mask.causal || mask.query_segments.defined())
    fail<ValueError>(op, ": needs a causal mask, and no segments, because a pool would span documents");
  NoGrad guard;
  const int64_t batch = index.q.dim(0), m = index.q.dim(2), whole = n / size, all = ceil_div(n, size);
  const Device device = index.q.device();
  const Tensor so_far = real_so_far(mask.keys, n, device), number = arange(all, {i64, device});
  // How many whole pools each query sees, [batch or 1, 1, m, 1]. The next pool is the one that is not whole; if there
  // is no such pool, it holds later keys only.
  const Tensor seen = pools_seen(m, n, size, mask.keys, device);
  Tensor chosen = expand(eq(number, seen), {batch, 1, m, all});
  if (whole > 0) {
    const Tensor best = index_mask(index, choice.count, {.dense = lt(narrow(number, 0, 0, whole), seen)});
    chosen = logical_or(pad(best, -1, 0, all - whole), chosen);
  }
  if (!mask.keys.defined() && !mask.blocks.defined()) {
    mask.blocks = chosen, mask.block = size;
    return mask;
  }
  const Tensor of = unflatten(pool_of(so_far, size), 1, {1, 1, n});
  const Tensor pairs = detail::by_rows(m, 128, [&](int64_t row, int64_t rows) {
    return gather(narrow(chosen, 2, row, rows), -1, expand(of, {batch, 1, rows, n}));
  });
  mask.dense = mask.dense.defined() ? logical_and(mask.dense, pairs) : pairs;
  return mask;
}

AttentionMask choose_pools(const KeyIndex& index, const PoolChoice& choice, const AttentionMask& mask,
                           const std::function<Tensor(const Tensor& rows, const Tensor& keys)>& pooled) {
  const auto with = [&](const Tensor& rows, const AttentionMask& rules) {
    NoGrad guard;
    return choose_pools({index.q, pooled(rows, rules.keys), index.w}, rows.dim(1), choice, rules);
  };
  if (!in_sequence()) return with(index.k, mask);
  // The keys that this rank's queries may see, without the masks of pairs, which have the columns of the whole.
  AttentionMask rules{.causal = mask.causal, .keys = mask.keys, .query_segments = mask.query_segments};
  std::vector<Tensor> rows{index.k};
  rules.keys = detail::fetch_seen(rules, 1, rows).keys;
  const int64_t total = sequence_piece(index.q.dim(2)).total;
  if (mask.blocks.defined()) rules.blocks = zeros({1, 1}, {boolean, index.q.device()});  // so that pairs are chosen
  const AttentionMask chosen = with(rows[0], rules);
  AttentionMask out = mask;
  if (chosen.dense.defined()) {
    const Tensor pairs = pad(chosen.dense, -1, 0, total - rows[0].dim(1));
    out.dense = mask.dense.defined() ? logical_and(mask.dense, pairs) : pairs;
  } else {
    out.blocks = pad(chosen.blocks, -1, 0, ceil_div(total, choice.size) - chosen.blocks.dim(-1)),
    out.block = choice.size;
  }
  return out;
}

}  // namespace sluice
