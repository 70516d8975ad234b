#include <sluice/layers/heads/fused_attention.h>

#include <sluice/core/node.h>
#include <sluice/layers/gau/gau_attention.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/create.h>
#include <sluice/ops/map.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/view.h>

namespace sluice {

namespace {

/// φ(q), φ(k) and the values with a column of ones, whose sum is the denominator.
struct LinearParts {
  Tensor q, k, values;
};
LinearParts linear_parts(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& key_mask) {
  Tensor phi_k = elu1(k), values = v;
  if (key_mask.defined()) {
    const Tensor hidden = unsqueeze(unsqueeze(logical_not(key_mask), 1), -1);  // [batch, 1, n, 1]
    phi_k = masked_fill(elu1(masked_fill(k, hidden, 0)), hidden, 0);           // no 0·NaN, also in gradients
    values = masked_fill(v, hidden, 0);
  }
  const Tensor one = expand(ones({1, 1, 1, 1}, v.options()), {v.dim(0), v.dim(1), v.dim(2), 1});
  return {elu1(q), phi_k, cat({values, one}, -1)};
}

/// g·softmax + (1 − g)·numerator/(denominator + eps), the last two side by side in `linear`. Where nothing is
/// visible both are 0, and without eps 0/0 counts as 0.
Tensor mix(const Tensor& softmax, const Tensor& linear, const Tensor& gate, double eps) {
  const int64_t dv = softmax.dim(-1);
  return map(
      [eps](auto a, auto numerator, auto denominator, auto g) {
        auto total = denominator + eps;
        auto b = numerator / select(total == 0.0, like(total, 1), total);
        return b + g * (a - b);
      },
      softmax, narrow(linear, -1, 0, dv), narrow(linear, -1, dv, 1), gate);
}

FusedAttentionOptions checked(FusedAttentionOptions o) {
  if (o.dim < 1 || o.heads < 1 || o.head_dim < 0 || o.chunk < 1)
    fail<ValueError>("fused_attention: sizes must be positive — got dim=", o.dim, ", heads=", o.heads,
                     ", head_dim=", o.head_dim, ", chunk=", o.chunk);
  if (o.head_dim == 0) {
    if (o.dim % o.heads != 0)
      fail<ValueError>("fused_attention: heads=", o.heads, " must divide dim=", o.dim, ", or head_dim be given");
    o.head_dim = o.dim / o.heads;
  }
  return o;
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
  AttentionOptions a;
  a.mask.causal = form.causal, a.mask.keys = key_mask;
  if (rng) a.dropout = form.dropout;
  const Tensor softmax = attention(q, k, v, a, rng);
  const LinearParts p = linear_parts(q, k, v, key_mask);
  const Tensor linear = form.causal ? linear_scan(p.q, p.k, p.values, {}, {.chunk = form.chunk})
                                    : matmul(p.q, matmul(transpose(p.k, -2, -1), p.values));
  return mix(softmax, linear, gate, form.eps);
}

FusedAttention::FusedAttention(FusedAttentionOptions given, Rng& rng) : options(checked(given)) {
  const FusedAttentionOptions& o = options;
  const int64_t width = o.heads * o.head_dim;
  query = Linear({o.dim, width, o.linear_bias, o.init, o.dtype}, rng);
  key = Linear({o.dim, width, o.linear_bias, o.init, o.dtype}, rng);
  value = Linear({o.dim, width, o.linear_bias, o.init, o.dtype}, rng);
  const int64_t scores = o.gate == FusedGate::per_channel ? width : o.gate == FusedGate::per_head ? o.heads : 1;
  gate = Linear({o.dim, scores, false, o.gate_init, o.dtype}, rng);
  gate.bias = init_vector(scores, o.gate_bias, o.dtype);
  if (o.project_out) out = Linear({width, o.dim, o.linear_bias, o.init, o.dtype}, rng);
}

FusedAttention::Projected FusedAttention::project(const Tensor& x, int64_t position) const {
  const FusedAttentionOptions& o = options;
  if (x.rank() != 3 || x.dim(-1) != o.dim) fail("fused_attention: got x=", x, "; need [batch, n, ", o.dim, "]");
  Tensor q = detail::split_heads(query(x), o.heads), k = detail::split_heads(key(x), o.heads);
  if (o.use_rope) {
    RopeOptions r = o.rope;
    r.offset += position;
    q = rope(q, r), k = rope(k, r);
  }
  const int64_t gate_heads = o.gate == FusedGate::per_token ? 1 : o.heads;
  return {q, k, detail::split_heads(value(x), o.heads), detail::split_heads(sigmoid(gate(x)), gate_heads)};
}

Tensor FusedAttention::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng) const {
  ModuleScope scope(this, type);
  if (key_mask.defined() && (x.rank() != 3 || key_mask.shape() != Shape{x.dim(0), x.dim(1)}))
    fail("fused_attention: key_mask=", key_mask, " does not fit x=", x, "; need [batch, n]");
  const Projected p = project(finite_padding(x, key_mask), 0);
  const FusedAttentionForm form{options.causal, options.eps, options.chunk, options.attention_dropout};
  const Tensor y = detail::merge_heads(fused_attention(p.q, p.k, p.v, p.gate, form, key_mask, rng));
  return options.project_out ? out(y) : y;
}

std::pair<Tensor, FusedAttention::State> FusedAttention::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  if (!options.causal) fail<ValueError>("fused_attention: only a causal layer can be streamed");
  NoGrad guard;
  const Projected p = project(x, state.cache.length);
  const std::vector<Tensor> rows = state.cache.append({p.k, p.v});
  AttentionOptions a;
  a.mask.causal = true;
  const Tensor softmax = attention(p.q, rows[0], rows[1], a);
  const LinearParts l = linear_parts(p.q, p.k, p.v, {});
  Tensor linear = linear_scan(l.q, l.k, l.values, {}, {.chunk = options.chunk});
  if (state.sums.defined()) linear = linear + linear_scan_carry(l.q, state.sums);
  state.sums = linear_scan_state(l.k, l.values, {}, state.sums);
  const Tensor y = detail::merge_heads(mix(softmax, linear, p.gate, options.eps));
  return {options.project_out ? out(y) : y, std::move(state)};
}

}  // namespace sluice
