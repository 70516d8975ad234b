#include <sluice/layers/gau/gau_attention.h>

#include <sluice/core/node.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/attention_weights.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/gather.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/softmax.h>
#include <sluice/ops/sort.h>
#include <sluice/ops/view.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace sluice {

namespace {

constexpr std::pair<GauKind, std::string_view> kNames[] = {
    {GauKind::su, "su"},           {GauKind::paper_eq, "paper_eq"}, {GauKind::paper_code, "paper_code"},
    {GauKind::lucid, "lucid"},     {GauKind::rownorm, "rownorm"},   {GauKind::softmax, "softmax"},
    {GauKind::softmax_plus, "softmax_plus"}, {GauKind::laplace, "laplace"},
};

/// Which keys a row may see (bool, broadcasts to the scores; undefined when all), and how long L is
/// (broadcasts to [..., m, 1]).
struct Visibility {
  Tensor mask, length;
};

Visibility visibility(const GauAttentionOptions& o, int64_t m, int64_t n, const Tensor& key_mask, DType dtype) {
  Visibility v;
  Tensor keys = key_mask.defined() ? unsqueeze(key_mask, -2) : Tensor();  // [..., 1, n]
  if (o.causal) v.mask = causal_mask(m, n);
  if (keys.defined()) v.mask = v.mask.defined() ? logical_and(v.mask, keys) : keys;
  switch (o.length) {
    case GauLength::constant:
      v.length = full({}, static_cast<double>(o.constant_length), {dtype});
      break;
    case GauLength::n:
      v.length = keys.defined() ? to(sum(keys, {-1}, keep), dtype) : full({}, static_cast<double>(n), {dtype});
      break;
    case GauLength::visible:
      v.length = v.mask.defined() ? to(sum(v.mask, {-1}, keep), dtype) : full({}, static_cast<double>(n), {dtype});
      break;
  }
  v.length = maximum(v.length, full({}, 1, {dtype}));  // a row that sees nothing is 0/1, not 0/0
  return v;
}

/// Marks the k largest allowed scores of each row; the choice itself has no gradient.
Tensor best_of_row(const Tensor& scores, const Tensor& mask, int64_t k) {
  NoGrad guard;
  const int64_t n = scores.dim(-1);
  if (k >= n) return mask;
  Tensor s = scores.detach();
  if (mask.defined()) s = masked_fill(s, logical_not(mask), -std::numeric_limits<double>::infinity());
  Tensor index = topk(s, k).indices;
  Tensor hit = scatter_add(zeros(s.shape(), s.options()), -1, index, ones(index.shape(), s.options())) > 0.0;
  return mask.defined() ? logical_and(hit, mask) : hit;
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const GauAttentionOptions& o, const Tensor& key_mask) {
  if (q.rank() < 2 || k.rank() != q.rank() || v.rank() != q.rank() || q.dim(-1) != k.dim(-1) || k.dim(-2) != v.dim(-2))
    fail("gau_attention: got q=", q, ", k=", k, ", v=", v, "; need [..., m, s], [..., n, s], [..., n, e]");
  if (o.length == GauLength::constant && o.constant_length < 1)
    fail<ValueError>("gau_attention: constant_length must be positive — got ", o.constant_length);
  if (o.top_k < 0) fail<ValueError>("gau_attention: top_k must not be negative — got ", o.top_k);
  if (key_mask.defined() && key_mask.dtype() != boolean)
    fail<DTypeError>("gau_attention: key_mask must be bool — got ", key_mask.dtype(), " of shape ", key_mask);
  if (key_mask.defined() && key_mask.dim(-1) != k.dim(-2))
    fail("gau_attention: key_mask=", key_mask, " does not cover the ", k.dim(-2), " keys of k=", k);
}

/// L of every row, or of all at once when they agree: [..., m] or []. Broadcasts to [batch, heads, m] for
/// operands of rank 4 and key_mask [batch, n].
Tensor row_lengths(const GauAttentionOptions& o, int64_t m, int64_t n, const Tensor& key_mask, DType dtype) {
  const Tensor one = full({}, 1, {dtype});
  if (o.length == GauLength::constant) return full({}, static_cast<double>(o.constant_length), {dtype});
  const bool by_row = o.length == GauLength::visible && o.causal;
  Tensor length;
  if (!by_row) {
    length = key_mask.defined() ? to(sum(key_mask, {-1}, keep), dtype) : full({}, static_cast<double>(n), {dtype});
  } else if (!key_mask.defined()) {
    length = arange(static_cast<double>(n - m + 1), static_cast<double>(n + 1), 1, {dtype});
  } else {  // real keys up to position i + n − m; queries before the first key see none
    Tensor seen = to(cumsum(key_mask, -1), dtype);
    length = m <= n ? narrow(seen, -1, n - m, m) : pad(seen, -1, m - n, 0);
  }
  length = maximum(length, one);  // a row that sees nothing is 0/1, not 0/0
  return key_mask.defined() ? unsqueeze(length, 1) : length;
}

/// The kinds as policies of the tiled engine: s = ρ (scale·t + b), o = post ⊙ (w(s) V).
Tensor tiled(const Tensor& q, const Tensor& k, const Tensor& v, const GauAttentionOptions& o, const Tensor& bias,
             const Tensor& key_mask, Rng* rng) {
  const int64_t m = q.dim(2), n = k.dim(2);
  const Tensor length = row_lengths(o, m, n, key_mask, q.dtype());
  AttentionOptions a{.weighting = Weighting::relu2, .scale = 1 / std::sqrt(static_cast<double>(q.dim(-1)))};
  a.mask.causal = o.causal;
  a.mask.keys = key_mask;
  a.bias = bias, a.relative_bias = o.relative_bias;
  a.dropout = rng ? o.dropout : 0;
  Tensor queries = q, values = v, post;
  switch (o.kind) {
    case GauKind::su: post = reciprocal(length); break;
    case GauKind::paper_eq: a.scale = 1; break;
    case GauKind::paper_code: {  // b is not divided
      a.scale = 1;
      Tensor inverse = reciprocal(length);
      queries = q * (length.rank() == 0 ? inverse : unsqueeze(inverse, -1));
      break;
    }
    case GauKind::lucid: a.scale = 1, a.row_scale = reciprocal(length); break;
    case GauKind::laplace: a.weighting = Weighting::laplace, a.scale = 1, a.row_scale = reciprocal(length); break;
    case GauKind::rownorm: values = pad(v, -1, 0, 1, 1); break;  // a column of ones carries the row sums
    case GauKind::softmax: a.weighting = Weighting::softmax; break;
    case GauKind::softmax_plus:
      a.weighting = Weighting::softmax;
      a.row_scale = log(maximum(length, full({}, 16, {q.dtype()}))) * (1 / std::log(512.0));
      break;
  }
  Tensor y = attention(queries, k, values, a, rng);
  if (o.kind == GauKind::rownorm) {
    Tensor total = narrow(y, -1, v.dim(-1), 1);
    return narrow(y, -1, 0, v.dim(-1)) / masked_fill(total, total.detach() == 0.0, 1);
  }
  return post.defined() ? y * (post.rank() == 0 ? post : unsqueeze(post, -1)) : y;
}

}  // namespace

std::string_view name_of(GauKind kind) {
  for (auto [k, name] : kNames)
    if (k == kind) return name;
  return "unknown";
}

GauKind gau_kind_from_name(std::string_view name) {
  std::string known;
  for (auto [k, n] : kNames) {
    if (n == name) return k;
    known += (known.empty() ? "" : ", ") + std::string(n);
  }
  fail<ValueError>("gau: unknown kind \"", name, "\"; known: ", known);
}

Tensor gau_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const GauAttentionOptions& o,
                               const Tensor& bias, const Tensor& key_mask, Rng* rng) {
  check(q, k, v, o, key_mask);
  const int64_t m = q.dim(-2), n = k.dim(-2);
  const double root_s = std::sqrt(static_cast<double>(q.dim(-1)));

  Tensor keys = k, values = v;
  if (key_mask.defined()) {  // a NaN behind the mask would survive as 0·NaN
    Tensor hidden = unsqueeze(logical_not(key_mask), -1);
    keys = masked_fill(k, hidden, 0), values = masked_fill(v, hidden, 0);
  }
  Tensor t = matmul(q, transpose(keys, -2, -1));
  auto [mask, length] = visibility(o, m, n, key_mask, q.dtype());

  // Every kind is  act(t·scale + b) ⊙ weight,  with weight 0 behind the mask.
  double scale = 1;
  Tensor b = bias;
  if (o.relative_bias.defined()) {
    Tensor by_distance = relative_matrix(o.relative_bias, m, n);
    if (q.rank() < 4) by_distance = squeeze(by_distance, 0);
    b = b.defined() ? b + by_distance : by_distance;
  }
  const bool by_root = o.kind == GauKind::su || o.kind == GauKind::rownorm || o.kind == GauKind::softmax ||
                       o.kind == GauKind::softmax_plus;
  if (by_root) scale = 1 / root_s;
  if (o.kind == GauKind::paper_code || o.kind == GauKind::lucid || o.kind == GauKind::laplace) {
    if (length.rank() == 0) scale = 1 / length.item();
    else t = t / length;
    if (b.defined() && o.kind != GauKind::paper_code) b = b / length;
  }
  if (o.top_k > 0) {
    Tensor s = t.detach() * scale;
    mask = best_of_row(b.defined() ? s + b.detach() : s, mask, o.top_k);
  }

  Tensor a;
  if (o.kind == GauKind::softmax || o.kind == GauKind::softmax_plus) {
    Tensor s = b.defined() ? t * scale + b : t * scale;
    if (o.kind == GauKind::softmax_plus)
      s = s * (log(maximum(length, full({}, 16, {q.dtype()}))) * (1 / std::log(512.0)));
    if (mask.defined()) s = masked_fill(s, logical_not(mask), -std::numeric_limits<double>::infinity());
    a = softmax(s);
  } else {
    Tensor weight = mask.defined() ? to(mask, q.dtype()) : full({}, 1, {q.dtype()});
    if (o.kind == GauKind::su) weight = weight / length;
    a = o.kind == GauKind::laplace ? laplace_weight(t, b, weight, scale) : relu2_weight(t, b, weight, scale);
    if (o.kind == GauKind::rownorm) {
      Tensor total = sum(a, {-1}, keep);
      a = a / masked_fill(total, total.detach() == 0.0, 1);
    }
  }
  if (o.dropout > 0 && rng)
    a = a * detail::attention_keep_mask(o.dropout, rng->seed(), rng->reserve(detail::keep_mask_blocks(a.shape())),
                                        a.shape(), a.dtype());
  return matmul(a, values);
}

Tensor gau_attention(const Tensor& q, const Tensor& k, const Tensor& v, const GauAttentionOptions& o,
                     const Tensor& bias, const Tensor& key_mask, Rng* rng) {
  check(q, k, v, o, key_mask);
  const int rank = q.rank();
  // The k best of a row need the whole row.
  if ((o.top_k > 0 && o.top_k < k.dim(-2)) || rank > 4) return gau_attention_reference(q, k, v, o, bias, key_mask, rng);
  auto four = [rank](const Tensor& x) { return rank == 4 ? x : rank == 3 ? unsqueeze(x, 1) : unsqueeze(unsqueeze(x, 0), 0); };
  Tensor keys = key_mask, b = bias;
  if (keys.defined()) {  // to [batch or 1, n]
    if (keys.rank() == 3 && keys.dim(1) != 1) return gau_attention_reference(q, k, v, o, bias, key_mask, rng);
    keys = keys.rank() == 3 ? squeeze(keys, 1) : keys.rank() == 1 ? unsqueeze(keys, 0) : keys;
  }
  if (b.defined() && rank == 3 && b.rank() == 3) b = unsqueeze(b, 1);
  Tensor y = tiled(four(q), four(k), four(v), o, b, keys, rng);
  return rank == 4 ? y : rank == 3 ? squeeze(y, 1) : squeeze(squeeze(y, 0), 0);
}

}  // namespace sluice
