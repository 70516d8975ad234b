#include <sluice/layers/attention/forgetting_attention.h>

#include <sluice/ops/shape/create.h>
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
}

Tensor ForgettingAttention::operator()(const Tensor& given, const Pass& pass) const {
  const HeadsOptions& h = options.heads;
  Call call(*this, "forgetting_attention", given, h.dim, pass);
  const Tensor& x = call.x;
  const int64_t batch = x.dim(0), n = x.dim(1), group = h.heads / h.kv_heads;
  const auto [q, k, v] = heads.project(h, x, call.first());
  Tensor log_f = neg(softplus(neg(transpose(forget(x), 1, 2))));  // log σ, [batch, heads, n]
  if (call.key_mask().defined()) log_f = masked_fill(log_f, unsqueeze(logical_not(call.key_mask()), 1), 0);
  const Tensor c = call.running_sum(log_f, 2);
  // Query head g·group + r has √dk in its column r, where KV head g has the −c_j of this query head: the scale 1/√dk
  // of the scores cancels.
  const double scale = 1 / std::sqrt(static_cast<double>(h.head_dim));
  const Tensor columns = transpose(reshape(neg(c), {batch, h.kv_heads, group, n}), 2, 3);
  const Tensor own = reshape(expand(eye(group, group, x.options()), {h.kv_heads, group, group}), {h.heads, 1, group});
  const Tensor queries = cat({q, expand(own * (1 / scale), {batch, h.heads, n, group})}, -1);
  const Tensor y = call.attend(queries, cat({k, columns}, -1), v,
                               {.scale = scale, .mask = {.causal = true}, .dropout = h.attention_dropout});
  return heads.finish(h, y, x, call.rng());
}

}  // namespace sluice
