#include <sluice/layers/gau/gau_attention.h>

#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/top_k.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence_attention.h>

#include <cmath>
#include <utility>

namespace sluice {

/// L in f32 for bf16, which broadcasts to [batch, heads, m]. L is at least 1, so that a row without visible keys gives
/// 0/1, not 0/0.
static Tensor row_lengths(const GauAttentionOptions& o, const Tensor& q, int64_t n) {
  const Tensor& keys = o.mask.keys;
  const TensorOptions wide = detail::widened(q.options());
  Tensor length;
  if (o.length == GauLength::constant) {
    length = full({}, static_cast<double>(o.constant_length), wide);
  } else if (o.length == GauLength::visible ? !o.mask.unrestricted() : o.mask.query_segments.defined()) {
    AttentionMask mask = o.mask;
    if (o.length == GauLength::n)  // the real keys in the row's document
      mask = {.keys = keys, .query_segments = o.mask.query_segments, .key_segments = o.mask.key_segments};
    if (in_sequence()) {
      RowRange seen;
      mask = detail::fetch_mask(mask, n, q.device(), seen), n = seen.length();
    }
    length = to(visible_count(mask, q.dim(0), q.dim(1), q.dim(2), n, q.device()), wide.dtype);
  } else if (keys.defined()) {
    length = to(sequence_sum(sum(keys.rank() == 2 ? unsqueeze(keys, 1) : keys, {-1}, keep)), wide.dtype);
  } else {
    length = full({}, static_cast<double>(sequence_piece(n).total), wide);
  }
  return maximum(length, 1);
}

Tensor gau_attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const GauAttentionOptions& o,
                     Rng* rng) {
  const char* op = "gau_attention";
  if (o.length == GauLength::constant && o.constant_length < 1)
    fail<ValueError>(op, ": constant_length must be positive — got ", o.constant_length);
  if (o.min_length < 1) fail<ValueError>(op, ": min_length must be positive — got ", o.min_length);
  if (o.top_k < 0) fail<ValueError>(op, ": top_k must not be negative — got ", o.top_k);
  if (o.kind == GauKind::rownorm && q_in.dtype() == bf16) {  // f32: the slopes of the quotient nearly cancel
    GauAttentionOptions wide = o;
    wide.bias = detail::widened(o.bias), wide.relative_bias = detail::widened(o.relative_bias);
    return detail::in_f32(gau_attention, q_in, k_in, v_in, wide, rng);
  }
  AttentionOptions given{
      .weighting = Weighting::relu2, .mask = o.mask, .bias = o.bias, .relative_bias = o.relative_bias};
  given.dropout = o.dropout;
  if (q_in.rank() == 3 && o.bias.defined() && o.bias.rank() == 3) given.bias = unsqueeze(o.bias, 1);
  AttentionOptions here = given;
  // The biases and masks of a split sequence cover the whole sequence, but attention_operands() sees one piece.
  if (in_sequence()) here.bias = here.relative_bias = here.mask.dense = here.mask.blocks = Tensor();
  auto [q, k, v, a, rank] = detail::attention_operands(op, q_in, k_in, v_in, here);
  a.bias = given.bias, a.relative_bias = given.relative_bias, a.mask = given.mask;
  const Tensor length = row_lengths(o, q, k.dim(2));

  // Each kind is a weighting of ρ_i·(scale·q_i·k_j + b_ij) with ρ = row_scale; the default of scale is 1/√s.
  switch (o.kind) {
    case GauKind::su: a.row_scale = rsqrt(length); break;  // relu²(x/√L) = relu²(x)/L
    case GauKind::paper_eq: a.scale = 1; break;
    case GauKind::paper_code:  // b is not divided
      a.scale = 1;
      q = to(detail::widened(q) * (length.rank() == 0 ? reciprocal(length) : unsqueeze(reciprocal(length), -1)),
             q.dtype());
      break;
    case GauKind::lucid: a.scale = 1, a.row_scale = reciprocal(length); break;
    case GauKind::laplace: a.weighting = Weighting::laplace, a.scale = 1, a.row_scale = reciprocal(length); break;
    case GauKind::rownorm: break;
    case GauKind::softmax: a.weighting = Weighting::softmax; break;
    case GauKind::softmax_plus:
      a.weighting = Weighting::softmax;
      a.row_scale = log(maximum(length, static_cast<double>(o.min_length))) * (1 / std::log(512.0));
      a.row_scale = maximum(a.row_scale, 1e-30);  // a bias of −∞ hides a key where κ = 0, too: 0·(−∞) is NaN
      break;
  }
  std::optional<SequenceScope> uncut;
  if (o.top_k > 0 && in_sequence()) {
    detail::SequenceKeys x = detail::fetch_keys(k, v, a);
    k = x.k, v = x.v, a = std::move(x.options);
    uncut.emplace();
  }
  if (o.top_k > 0 && o.top_k < k.dim(2)) a.mask.dense = detail::best_pairs(q, k, a, o.top_k);
  Tensor y = sequence_attention(q, k, v, a, rng);
  if (o.kind == GauKind::rownorm) {  // no rng for the row sums: dropout applies to the normalised weights
    const Tensor total = sequence_attention(q, k, ones({k.dim(0), k.dim(1), k.dim(2), 1}, v.options()), a);
    y = y / masked_fill(total, total.detach() == 0.0, 1);
  }
  return detail::restore_rank(y, rank);
}

}  // namespace sluice
