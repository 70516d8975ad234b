#include <sluice/layers/attention/forgetting_attention.h>

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

namespace sluice {

ForgettingAttention::ForgettingAttention(ForgettingAttentionOptions o, Rng& rng)
    : options(checked_layer("forgetting_attention", o)), heads(options.heads, rng) {
  HeadsOptions& h = options.heads;
  h.causal = true;
  forget = Linear({h.dim, h.heads, true, h.init, h.dtype}, rng);
  forget.bias = init_vector(h.heads, options.gate_bias, h.dtype);
  if (o.kv_shift)
    for (Linear* shift : {&k_shift, &v_shift}) *shift = Linear({h.dim, h.kv_heads, false, h.init, h.dtype}, rng);
  if (o.qk_norm) {
    const auto of = [&](int64_t count) {
      const int64_t parts = o.shared_qk_norm ? 1 : count;
      return Norm(NormOptions{parts * h.head_dim, NormKind::rms, o.qk_norm_eps, h.dtype, parts});
    };
    q_norm = of(h.heads), k_norm = of(h.kv_heads);
  }
  if (o.output_norm)
    output_norm = Norm(NormOptions{h.heads * h.value_dim, NormKind::rms, o.output_norm_eps, h.dtype, h.heads});
  if (o.output_gate) output_gate = Linear({h.dim, h.heads * h.value_dim, false, h.init, h.dtype}, rng);
}

ForgettingAttentionOptions forgetting_pro_options(HeadsOptions heads) {
  return {.heads = std::move(heads), .kv_shift = true, .qk_norm = true, .output_norm = true, .output_gate = true};
}

namespace {

/// α_t rows_{t−1} + (1 − α_t) rows_t with α = σ(x·W), one for each of `heads` parts of a row. Padding counts as zeros.
Tensor shifted(Call& call, const Linear& map, const Tensor& rows, int64_t heads) {
  const Tensor& real = call.key_mask();
  const Tensor now = real.defined() ? masked_fill(rows, unsqueeze(logical_not(real), -1), 0) : rows;
  const auto parts = [&](const Tensor& t) { return unflatten(t, -1, {heads, t.dim(-1) / heads}); };
  return flatten(lerp(parts(now), parts(call.shift(now)), unsqueeze(sigmoid(map(call.x)), -1)), -2, -1);
}

/// A norm of each of `heads` parts of a row, which has weights for all of them or for one.
Tensor normed(const Norm& norm, const Tensor& rows, int64_t heads) {
  if (norm.options.dim == rows.dim(-1)) return norm(rows);
  return flatten(norm(unflatten(rows, -1, {heads, norm.options.dim})), -2, -1);
}

}  // namespace

Tensor ForgettingAttention::operator()(const Tensor& given, const Pass& pass) const {
  const ForgettingAttentionOptions& o = options;
  const HeadsOptions& h = o.heads;
  Call call(*this, "forgetting_attention", given, h.dim, pass);
  const Tensor& x = call.x;
  const int64_t batch = x.dim(0), n = x.dim(1), group = h.heads / h.kv_heads;
  Tensor xq = heads.q(x), xk = heads.k(x), xv = heads.v(x);
  if (o.kv_shift) xk = shifted(call, k_shift, xk, h.kv_heads), xv = shifted(call, v_shift, xv, h.kv_heads);
  if (o.qk_norm) xq = normed(q_norm, xq, h.heads), xk = normed(k_norm, xk, h.kv_heads);
  const auto [q, k, v] = Heads::arranged(h, xq, xk, xv, call.first());
  Tensor log_f = neg(softplus(neg(transpose(forget(x), 1, 2))));  // log σ, [batch, heads, n]
  if (call.key_mask().defined()) log_f = masked_fill(log_f, unsqueeze(logical_not(call.key_mask()), 1), 0);
  const Tensor c = call.running_sum(log_f, 2);
  // Query head g·group + r has √dk in its column r, where KV head g has the −c_j of this query head: the scale 1/√dk
  // of the scores cancels.
  const double scale = 1 / std::sqrt(static_cast<double>(h.head_dim));
  const Tensor columns = transpose(reshape(neg(c), {batch, h.kv_heads, group, n}), 2, 3);
  const Tensor own = reshape(expand(eye(group, group, x.options()), {h.kv_heads, group, group}), {h.heads, 1, group});
  const Tensor queries = cat({q, expand(own * (1 / scale), {batch, h.heads, n, group})}, -1);
  Tensor y = detail::merge_heads(call.attend(
      queries, cat({k, columns}, -1), v, {.scale = scale, .mask = {.causal = true}, .dropout = h.attention_dropout}));
  if (o.output_norm) y = output_norm(y);
  if (o.output_gate) y = glu(y, output_gate(x));
  return heads.finish(h, detail::split_heads(y, h.heads), x, call.rng());
}

}  // namespace sluice
