#include <sluice/layers/attention/fused_attention.h>

#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/parallel/sequence_attention.h>

namespace sluice {

namespace {

/// φ(q), φ(k), and the values with an additional column of ones. The sum of this column is the denominator.
struct LinearParts {
  Tensor q, k, values;
};
LinearParts linear_parts(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& key_mask) {
  const Tensor padding = detail::padding_of(key_mask);
  const auto real = [&](const Tensor& t) { return detail::filled_tokens(t, padding, 0, 2); };
  const Tensor one = expand(ones({1, 1, 1, 1}, v.options()), {v.dim(0), v.dim(1), v.dim(2), 1});
  return {elu1(q), real(elu1(real(k))), cat({real(v), one}, -1)};  // no 0·NaN, also in gradients
}

/// g·softmax + (1 − g)·numerator/(denominator + eps). The functions `attend` and `scan` decide which tokens are read:
/// those of one call, or of a stream.
Tensor mixture(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate, const FusedAttentionForm& form,
               const Tensor& key_mask, auto&& attend, auto&& scan) {
  const AttentionOptions a{.mask = {.causal = form.causal, .keys = key_mask}, .dropout = form.dropout};
  const Tensor softmax = attend(a);
  const LinearParts p = linear_parts(q, k, v, key_mask);
  // [numerator | denominator]
  const Tensor linear = form.causal ? scan(p) : matmul(p.q, sequence_sum(matmul(transpose(p.k, -2, -1), p.values)));
  const int64_t dv = v.dim(3);
  return map(formula::MixedQuotient{form.eps}, softmax, narrow(linear, -1, 0, dv), narrow(linear, -1, dv, 1), gate);
}

}  // namespace

Tensor fused_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                       const FusedAttentionForm& form, const Tensor& key_mask, Rng* rng) {
  if (q.rank() != 4 || k.shape() != q.shape() || v.rank() != 4 || v.dim(0) != q.dim(0) || v.dim(1) != q.dim(1) ||
      v.dim(2) != q.dim(2))
    fail("fused_attention: got q=", q, ", k=", k, ", v=", v,
         "; need [batch, heads, n, d], [batch, heads, n, d], [batch, heads, n, dv]");
  if (broadcast("fused_attention", gate.shape(), v.shape()) != v.shape())
    fail("fused_attention: gate=", gate, " does not broadcast to v=", v);
  return mixture(
      q, k, v, gate, form, key_mask, [&](const AttentionOptions& a) { return sequence_attention(q, k, v, a, rng); },
      [&](const LinearParts& p) { return sequence_scan(p.q, p.k, p.values, {}, {.chunk = form.chunk}); });
}

FusedAttention::FusedAttention(FusedAttentionOptions o, Rng& rng)
    : options(checked_layer("fused_attention", o, {.grouped = false})), heads(options.heads, rng) {
  const HeadsOptions& h = options.heads;
  const int64_t scores = o.gate == FusedGate::per_channel ? h.heads * h.value_dim
                         : o.gate == FusedGate::per_head  ? h.heads
                                                          : 1;
  gate = Linear({h.dim, scores, false, o.gate_init, h.dtype}, rng);
  gate.bias = init_vector(scores, o.gate_bias, h.dtype);
}

Tensor FusedAttention::gate_of(const Tensor& x) const {
  return detail::split_heads(sigmoid(gate(x)), options.gate == FusedGate::per_token ? 1 : options.heads.heads);
}

Tensor FusedAttention::operator()(const Tensor& given, const Pass& pass) const {
  const HeadsOptions& h = options.heads;
  Call call(*this, "fused_attention", given, h.dim, pass);
  const auto [q, k, v] = heads.project(h, call.x, call.first(h.use_rope));
  const Tensor y = mixture(
      q, k, v, gate_of(call.x), {h.causal, options.eps, options.chunk, h.attention_dropout}, call.key_mask(),
      [&, &q = q, &k = k, &v = v](const AttentionOptions& a) { return call.attend(q, k, v, a); },
      [&](const LinearParts& p) { return call.scan(p.q, p.k, p.values, {}, {.chunk = options.chunk}); });
  return heads.finish(h, y, call.x, call.rng());
}

}  // namespace sluice
