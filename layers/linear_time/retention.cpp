#include <sluice/layers/linear_time/retention.h>

#include <sluice/core/node.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/map.h>
#include <sluice/ops/view.h>

#include <cmath>

namespace sluice {

GroupNorm::GroupNorm(GroupNormOptions o) : options(o) {
  check_options("group_norm", o);
  if (o.kind != NormKind::layer && o.kind != NormKind::rms && o.kind != NormKind::rms_plain)
    fail<ValueError>("group_norm: the kind is layer, rms or rms_plain");
  const int64_t width = o.shared ? o.dim : o.groups * o.dim;
  if (o.kind != NormKind::rms_plain) weight = init_vector(width, 1, o.dtype);
  if (o.kind == NormKind::layer) bias = init_vector(width, 0, o.dtype);
}

Tensor GroupNorm::operator()(const Tensor& x) const {
  ModuleScope scope(this, type);
  const GroupNormOptions& o = options;
  if (x.rank() < 1 || x.dim(-1) != o.groups * o.dim)
    fail("group_norm: got x=", x, "; need [..., ", o.groups * o.dim, "] for groups=", o.groups, " of dim=", o.dim);
  if (!o.shared) return detail::group_norm(x, o.groups, o.kind, weight, bias, o.eps);
  const Tensor each = unflatten(x, -1, {o.groups, o.dim});
  return flatten(o.kind == NormKind::layer ? layer_norm(each, weight, bias, o.eps) : rms_norm(each, weight, o.eps), -2, -1);
}

Retention::Retention(RetentionOptions given, Rng& rng) : options(given) {
  RetentionOptions& o = options;
  check_options("retention", o);
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  heads = Heads(checked_heads("retention", head_options()), rng);
  if (o.gamma.empty()) o.gamma = retention_gammas(o.heads);
  log_gamma = detail::log_gammas("retention", o.gamma, o.heads, o.dtype);
  const int64_t values = o.heads * value_dim();
  if (o.gate) gate = Linear({o.dim, values, false, o.init, o.dtype}, rng);
  conv = detail::linear_conv(head_options(), o.short_conv, rng);
  norm = GroupNorm({o.heads, value_dim(), o.group_norm, o.norm_eps, o.dtype, o.shared_norm});
}

HeadsOptions Retention::head_options() const {
  const RetentionOptions& o = options;
  return {.dim = o.dim, .heads = o.heads, .kv_heads = o.kv_heads,
          .head_dim = detail::expanded_width("retention", "expand_k", o.expand_k, o.dim, o.heads) / o.heads,
          .value_dim = detail::expanded_width("retention", "expand_v", o.expand_v, o.dim, o.heads) / o.heads,
          .use_rope = o.use_rope, .rope = o.rope, .dropout = o.dropout, .init = o.init, .dtype = o.dtype};
}

Tensor Retention::operator()(const Tensor& given, const Pass& pass) const {
  const RetentionOptions& o = options;
  Call call(*this, "retention", given, o.dim, pass);
  const auto [q, k, v] = detail::linear_heads(heads, head_options(), conv, call);
  Tensor y = norm(detail::merge_heads(detail::linear_attention(call, q, k, v,
      {.direction = LinearDirection::causal, .normalize = LinearNormalize::none,
       .scale = 1 / std::sqrt(static_cast<double>(key_dim())), .log_decay = reshape(log_gamma, {1, o.heads, 1}),
       .chunk = o.chunk})));
  if (o.gate) y = swiglu(y, gate(call.x));
  return heads.finish(head_options(), detail::split_heads(y, o.heads), call.x, call.rng());
}

}  // namespace sluice
