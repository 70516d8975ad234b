#include <sluice/layers/linear_time/retention.h>

#include <sluice/core/node.h>
#include <sluice/layers/gau/gau_attention.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/map.h>
#include <sluice/ops/rearrange.h>
#include <sluice/ops/view.h>

#include <cmath>

namespace sluice {

GroupNorm::GroupNorm(GroupNormOptions o) : options(o) {
  if (o.groups < 1 || o.dim < 1) fail("group_norm: sizes must be positive — got groups=", o.groups, ", dim=", o.dim);
  if (o.kind != NormKind::layer && o.kind != NormKind::rms && o.kind != NormKind::rms_plain)
    fail<ValueError>("group_norm: the kind is layer, rms or rms_plain");
  if (o.kind != NormKind::rms_plain) weight = init_vector(o.groups * o.dim, 1, o.dtype);
  if (o.kind == NormKind::layer) bias = init_vector(o.groups * o.dim, 0, o.dtype);
}

Tensor GroupNorm::operator()(const Tensor& x) const {
  ModuleScope scope(this, type);
  const GroupNormOptions& o = options;
  if (x.rank() < 1 || x.dim(-1) != o.groups * o.dim)
    fail("group_norm: got x=", x, "; need [..., ", o.groups * o.dim, "] for groups=", o.groups, " of dim=", o.dim);
  const Tensor grouped = unflatten(x, -1, {o.groups, o.dim});
  const Tensor y = flatten(
      o.kind == NormKind::layer ? layer_norm(grouped, {}, {}, o.eps) : rms_norm(grouped, {}, o.eps), -2, -1);
  if (bias.defined()) return map(formula::ScaleOffset{}, y, weight, bias);
  return weight.defined() ? y * weight : y;
}

Retention::Retention(RetentionOptions given, Rng& rng) : options(given) {
  RetentionOptions& o = options;
  if (o.dim < 1 || o.heads < 1)
    fail<ValueError>("retention: sizes must be positive — got dim=", o.dim, ", heads=", o.heads);
  const int64_t keys = detail::expanded_width("retention", "expand_k", o.expand_k, o.dim, o.heads);
  const int64_t values = detail::expanded_width("retention", "expand_v", o.expand_v, o.dim, o.heads);
  if (o.use_rope && keys / o.heads % 2 != 0)
    fail<ValueError>("retention: rope rotates pairs of channels; a head has ", keys / o.heads);
  if (o.gamma.empty()) o.gamma = retention_gammas(o.heads);
  log_gamma = detail::log_gammas("retention", o.gamma, o.heads, o.dtype);
  auto dense = [&](int64_t in, int64_t width) { return Linear({in, width, false, o.init, o.dtype}, rng); };
  query = dense(o.dim, keys);
  key = dense(o.dim, keys);
  value = dense(o.dim, values);
  if (o.gate) gate = dense(o.dim, values);
  out = dense(values, o.dim);
  norm = GroupNorm({o.heads, values / o.heads, o.group_norm, o.norm_eps, o.dtype});
}

detail::LinearOperands Retention::project(const Tensor& x, int64_t position) const {
  const RetentionOptions& o = options;
  if (x.rank() != 3 || x.dim(-1) != o.dim) fail("retention: got x=", x, "; need [batch, n, ", o.dim, "]");
  auto heads = [&](const Tensor& t) { return rearrange("b n (h d) -> b h n d", t, {{"h", o.heads}}); };
  Tensor q = heads(query(x)), k = heads(key(x));
  if (o.use_rope) {
    RopeOptions r = o.rope;
    r.offset += position;
    q = rope(q, r), k = rope(k, r);
  }
  LinearAttentionForm form{.direction = LinearDirection::causal, .normalize = LinearNormalize::none,
                           .scale = 1 / std::sqrt(static_cast<double>(key_dim())),
                           .log_decay = reshape(log_gamma, {1, o.heads, 1}), .chunk = o.chunk};
  return {q, k, heads(value(x)), form};
}

Tensor Retention::finish(const Tensor& x, const Tensor& attended, Rng* rng) const {
  Tensor y = norm(rearrange("b h n d -> b n (h d)", attended));
  if (options.gate) y = swiglu(y, gate(x));
  return Dropout{options.dropout}(out(y), rng);
}

Tensor Retention::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng) const {
  ModuleScope scope(this, type);
  if (key_mask.defined() && (x.rank() != 3 || key_mask.shape() != Shape{x.dim(0), x.dim(1)}))
    fail("retention: key_mask=", key_mask, " does not fit x=", x, "; need [batch, n]");
  const Tensor tokens = finite_padding(x, key_mask);
  detail::LinearOperands p = project(tokens, 0);
  p.form.key_mask = key_mask;
  return finish(tokens, linear_attention(p.q, p.k, p.v, p.form), rng);
}

std::pair<Tensor, Retention::State> Retention::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  NoGrad guard;
  detail::LinearOperands p = project(x, state.length);
  auto [attended, next] = linear_attention_recurrent(p.q, p.k, p.v, p.form, state);
  return {finish(x, attended, nullptr), std::move(next)};
}

}  // namespace sluice
