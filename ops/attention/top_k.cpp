#include <sluice/ops/attention/top_k.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/key_selection.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/index/sort.h>

#include <limits>

namespace sluice {

Tensor topk_mask(const Tensor& scores, int64_t k, TopKTies ties, const Tensor& allowed) {
  detail::check_float("topk_mask", scores);
  detail::check_devices("topk_mask", {scores, allowed});
  if (k < 0) fail<ValueError>("topk_mask: k must not be negative — got ", k);
  if (scores.rank() < 1) fail("topk_mask: got scores=", scores, "; need [..., n]");
  if (allowed.defined() && allowed.dtype() != boolean)
    fail<DTypeError>("topk_mask: allowed is ", allowed.dtype(), allowed, "; need bool");
  if (allowed.defined() && !stretches_to(allowed.shape(), scores.shape()))
    fail("topk_mask: allowed=", allowed, " does not fit scores=", scores);
  NoGrad guard;
  if (k >= scores.dim(-1))
    return allowed.defined() ? contiguous(expand(allowed, scores.shape()))
                             : ones(scores.shape(), {boolean, scores.device()});
  if (k == 0) return zeros(scores.shape(), {boolean, scores.device()});
  const Tensor s = detail::ranked_scores(scores.detach(), allowed);
  const Sorted best = topk(s, k);
  Tensor hit;
  if (ties == TopKTies::threshold) {
    const Tensor least = narrow(best.values, -1, k - 1, 1);
    hit = logical_or(ge(s, least), isnan(least));  // NaN is the lowest, and equals NaN
  } else {
    const TensorOptions bits{boolean, s.device()};
    hit = scatter(zeros(s.shape(), bits), -1, best.indices, ones(best.indices.shape(), bits));
  }
  return allowed.defined() ? logical_and(hit, allowed) : hit;
}

Tensor detail::ranked_scores(const Tensor& scores, const Tensor& allowed) {
  if (!allowed.defined()) return scores;
  const double lowest = scores.dtype() == f64 ? std::numeric_limits<double>::lowest() : -0x1.FEp127;  // of bf16
  const auto ranked = [lowest](auto score, auto may) {
    return select(may != 0.0, select(score > lowest, score, lowest), -std::numeric_limits<double>::infinity());
  };
  return map(ranked, scores, allowed);
}

namespace detail {

namespace {

/// The options of rows [first, first + count) of m, as for a call with these rows alone.
AttentionOptions rows_of(const AttentionOptions& o, int64_t first, int64_t count, int64_t m, int64_t n) {
  AttentionOptions part = o;
  auto cut = [&](Tensor& x, int64_t dim) {
    if (x.defined() && x.rank() >= -dim && x.dim(dim) == m) x = narrow(x, dim, first, count);
  };
  cut(part.bias, -2), cut(part.row_scale, -1);
  // Entry n − 1 + p_j − p_i, p_i = i + n − m: rows that end earlier read further to the right.
  if (o.relative_bias.defined()) part.relative_bias = narrow(o.relative_bias, 1, m - first - count, n + count - 1);
  return part;
}

}  // namespace

Tensor best_pairs(const Tensor& q, const Tensor& k, const AttentionOptions& o, int64_t top, TopKTies ties) {
  NoGrad guard;
  if (q.dtype() == bf16) return best_pairs(widened(q), widened(k), widened(o), top, ties);  // rounded, scores would tie
  const int64_t m = q.dim(2), n = k.dim(2);
  const Tensor visible = visibility_of(o, q, k);
  if (top >= n) return visible;
  return by_rows(m, 128, [&](int64_t first, int64_t count) {
    const Tensor s = attention_scores(narrow(q, 2, first, count), k, rows_of(o, first, count, m, n));
    return topk_mask(s, top, ties, visible.defined() ? narrow(visible, 2, first, count) : Tensor());
  });
}

}  // namespace detail

}  // namespace sluice
