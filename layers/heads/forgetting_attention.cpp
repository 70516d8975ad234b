#include <sluice/layers/heads/forgetting_attention.h>

#include <sluice/core/node.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/view.h>
#include <sluice/parallel/sequence_attention.h>

#include <cmath>

namespace sluice {

namespace {

/// 1/√dk, of the scores without their further columns.
double scale_of(const HeadsOptions& h) { return 1 / std::sqrt(static_cast<double>(h.head_dim)); }

}  // namespace

ForgettingAttention::ForgettingAttention(ForgettingAttentionOptions given, Rng& rng) : options(given) {
  check_options("forgetting_attention", options);
  HeadsOptions& h = options.heads;
  h.causal = true;
  h = checked_heads("forgetting_attention", h);
  heads = Heads(h, rng);
  forget = Linear({h.dim, h.heads, true, h.init, h.dtype}, rng);
  forget.bias = init_vector(h.heads, options.gate_bias, h.dtype);
}

Tensor ForgettingAttention::operator()(const Tensor& given, const Tensor& key_mask, Rng* rng) const {
  ModuleScope scope(this, type);
  const HeadsOptions& h = options.heads;
  const Tensor x = checked_input("forgetting_attention", given, h.dim, key_mask);
  const Projected p = project(x, key_mask, {}, first_position(x));
  AttentionOptions a{.scale = scale_of(h), .mask = {.causal = true, .keys = key_mask}};
  if (rng) a.dropout = h.attention_dropout;
  return heads.finish(h, sequence_attention(p.q, p.k, p.v, a, rng), x, rng);
}

std::pair<Tensor, ForgettingAttention::State> ForgettingAttention::step(const Tensor& given, State state) const {
  ModuleScope scope(this, type);
  NoGrad guard;
  const HeadsOptions& h = options.heads;
  const Tensor x = checked_input("forgetting_attention", given, h.dim);
  state.cache.check_batch("forgetting_attention", x);
  const Projected p = project(x, {}, state.decayed, state.cache.length);
  const std::vector<Tensor> rows = state.cache.append({p.k, p.v});
  if (x.dim(1) > 0) state.decayed = clone(narrow(p.decayed, 2, x.dim(1) - 1, 1));
  const Tensor y = attention(p.q, rows[0], rows[1], {.scale = scale_of(h), .mask = {.causal = true}});
  return {heads.finish(h, y, x), std::move(state)};
}

ForgettingAttention::Projected ForgettingAttention::project(const Tensor& x, const Tensor& key_mask,
                                                            const Tensor& before, int64_t position) const {
  const HeadsOptions& h = options.heads;
  const int64_t batch = x.dim(0), n = x.dim(1), group = h.heads / h.kv_heads;
  auto [q, k, v] = heads.project(h, x, position);
  Tensor log_f = neg(softplus(neg(transpose(forget(x), 1, 2))));  // log σ, [batch, heads, n]
  if (key_mask.defined()) log_f = masked_fill(log_f, unsqueeze(logical_not(key_mask), 1), 0);
  Tensor c = sequence_cumsum(log_f, -1);
  if (before.defined()) c = c + before;
  // Head g·group + r reads column r of KV head g: −c_j there, and √dk in its own column r, so that the scale is 1.
  const Tensor columns = transpose(reshape(neg(c), {batch, h.kv_heads, group, n}), 2, 3);
  const Tensor own = reshape(expand(eye(group, group, x.options()), {h.kv_heads, group, group}), {h.heads, 1, group});
  return {cat({q, expand(own * (1 / scale_of(h)), {batch, h.heads, n, group})}, -1), cat({k, columns}, -1), v, c};
}

}  // namespace sluice
