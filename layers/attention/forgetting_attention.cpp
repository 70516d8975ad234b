#include <sluice/layers/attention/forgetting_attention.h>

#include <sluice/ops/attention/exact_parts.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

namespace sluice {

namespace {

/// b_f [heads]. With decay times T, σ(b_f) = e^{−1/T}.
Tensor initial_bias(const ForgettingAttentionOptions& o) {
  const int64_t heads = o.heads.heads;
  if (o.decay_first == 0) return init_vector(heads, o.gate_bias, o.heads.dtype);
  std::vector<double> bias;
  for (int64_t h = 0; h < heads; ++h) {
    const double share = heads == 1 ? 0 : static_cast<double>(h) / static_cast<double>(heads - 1);
    const double time = o.decay_first * std::pow(o.decay_last / o.decay_first, share);
    bias.push_back(-1 / time - std::log(-std::expm1(-1 / time)));
  }
  return to(Tensor::from(bias, {heads}), o.heads.dtype).requires_grad_();
}

}  // namespace

ForgettingAttention::ForgettingAttention(ForgettingAttentionOptions o, Rng& rng)
    : options(checked_layer("forgetting_attention", o)), heads(options.heads, rng) {
  HeadsOptions& h = options.heads;
  h.causal = true;
  if ((o.decay_first > 0) != (o.decay_last > 0))
    fail<ValueError>("forgetting_attention: decay times of both ends or of none — got decay_first=", o.decay_first,
                     ", decay_last=", o.decay_last);
  if (o.gate == ForgetGate::input) forget = Linear({h.dim, h.heads, true, h.init, h.dtype}, rng);
  if (o.gate != ForgetGate::none) forget.bias = initial_bias(o);
  if (o.gate == ForgetGate::fixed) forget.bias = forget.bias.detach();
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
  const Tensor now = detail::filled_tokens(rows, call.padding(), 0);
  const Tensor before = detail::filled_tokens(call.shift(now), call.starts(), 0);
  const auto parts = [&](const Tensor& t) { return unflatten(t, -1, {heads, t.dim(-1) / heads}); };
  return flatten(lerp(parts(now), parts(before), unsqueeze(sigmoid(map(call.x)), -1)), -2, -1);
}

/// A norm of each of `heads` parts of a row, which has weights for all of them or for one.
Tensor normed(const Norm& norm, const Tensor& rows, int64_t heads) {
  if (norm.options.dim == rows.dim(-1)) return norm(rows);
  return flatten(norm(unflatten(rows, -1, {heads, norm.options.dim})), -2, -1);
}

}  // namespace

Tensor ForgettingAttention::decays(Call& call) const {
  // In f32 for bf16: sums of many small numbers.
  Tensor z = detail::widened(forget.bias);
  if (forget.weight.defined()) z = linear(detail::widened(call.x), detail::widened(forget.weight), z);
  const Tensor log_f = neg(softplus(neg(expand(z, {call.x.dim(0), call.x.dim(1), z.dim(-1)}))));  // log σ
  return transpose(call.running_sum(detail::filled_tokens(log_f, call.padding(), 0), 1), 1, 2);
}

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
  const AttentionMask mask{.causal = true, .query_segments = call.segments(), .key_segments = call.segments()};
  const double scale = 1 / std::sqrt(static_cast<double>(h.head_dim));
  std::vector<Tensor> queries{q}, keys{k};
  if (o.gate != ForgetGate::none) {
    // Query head g·group + r has 1 in its column r, where KV head g has −c_j·√dk of this query head.
    const Tensor w = neg(decays(call)) * (1 / scale);
    const Tensor own = reshape(expand(eye(group, group, x.options()), {h.kv_heads, group, group}), {h.heads, 1, group});
    for (const Tensor& part : detail::exact_parts(w, x.dtype())) {
      keys.push_back(transpose(reshape(part, {batch, h.kv_heads, group, n}), 2, 3));
      queries.push_back(expand(own, {batch, h.heads, n, group}));
    }
  }
  Tensor y = detail::merge_heads(
      call.attend(cat(queries, -1), cat(keys, -1), v, {.scale = scale, .mask = mask, .dropout = h.attention_dropout}));
  if (o.output_norm) y = output_norm(y);
  if (o.output_gate) y = glu(y, output_gate(x));
  return heads.finish(h, detail::split_heads(y, h.heads), x, call.rng());
}

}  // namespace sluice
