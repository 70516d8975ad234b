#include <sluice/layers/gau_attention.h>

#include <sluice/core/node.h>
#include <sluice/ops/attention_weights.h>
#include <sluice/ops/create.h>
#include <sluice/ops/dropout.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/gather.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/reduce.h>
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

/// Rows are taken in blocks, each with the keys up to its end only: half of a causal score matrix is never
/// computed. Not for L = n, which counts keys that a block does not see.
constexpr int64_t kCausalBlock = 128;

Tensor causal_in_blocks(const Tensor& q, const Tensor& k, const Tensor& v, const GauAttentionOptions& o,
                        const Tensor& bias, const Tensor& key_mask, Rng* rng) {
  std::vector<Tensor> rows;
  for (int64_t first = 0, n = q.dim(-2); first < n; first += kCausalBlock) {
    const int64_t count = std::min(kCausalBlock, n - first), end = first + count;
    auto upto = [n, end](const Tensor& x, int64_t dim) {
      return x.defined() && x.dim(dim) == n ? narrow(x, dim, 0, end) : x;
    };
    Tensor b = upto(bias, -1);
    if (b.defined() && b.rank() > 1 && b.dim(-2) == n) b = narrow(b, -2, first, count);
    rows.push_back(gau_attention(narrow(q, -2, first, count), upto(k, -2), upto(v, -2), o, b, upto(key_mask, -1), rng));
  }
  return cat(rows, -2);
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

Tensor finite_padding(const Tensor& x, const Tensor& key_mask) {
  if (!key_mask.defined()) return x;
  Tensor padded = unsqueeze(logical_not(key_mask), -1);
  return masked_fill(x, logical_and(padded, logical_not(isfinite(x))), 0);
}

Tensor gau_attention(const Tensor& q, const Tensor& k, const Tensor& v, const GauAttentionOptions& o,
                     const Tensor& bias, const Tensor& key_mask, Rng* rng) {
  if (q.rank() < 2 || k.rank() != q.rank() || v.rank() != q.rank() || q.dim(-1) != k.dim(-1) || k.dim(-2) != v.dim(-2))
    fail("gau_attention: got q=", q, ", k=", k, ", v=", v, "; need [..., m, s], [..., n, s], [..., n, e]");
  if (o.length == GauLength::constant && o.constant_length < 1)
    fail<ValueError>("gau_attention: constant_length must be positive — got ", o.constant_length);
  if (o.top_k < 0) fail<ValueError>("gau_attention: top_k must not be negative — got ", o.top_k);
  if (key_mask.defined() && key_mask.dtype() != boolean)
    fail<DTypeError>("gau_attention: key_mask must be bool — got ", key_mask.dtype(), " of shape ", key_mask);
  if (key_mask.defined() && key_mask.dim(-1) != k.dim(-2))
    fail("gau_attention: key_mask=", key_mask, " does not cover the ", k.dim(-2), " keys of k=", k);
  const int64_t m = q.dim(-2), n = k.dim(-2);
  if (o.causal && m == n && n > kCausalBlock && o.length != GauLength::n)
    return causal_in_blocks(q, k, v, o, bias, key_mask, rng);
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
  if (o.dropout > 0 && rng) a = dropout(a, o.dropout, *rng);
  return matmul(a, values);
}

}  // namespace sluice
