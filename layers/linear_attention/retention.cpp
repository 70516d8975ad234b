#include <sluice/layers/linear_attention/retention.h>

#include <sluice/ops/shape/view.h>

namespace sluice {

Retention::Retention(RetentionOptions given, Rng& rng) : options(given) {
  RetentionOptions& o = options;
  check_options("retention", o);
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  const HeadsOptions h = detail::heads_of("retention", o);
  heads = Heads(checked_heads("retention", h), rng);
  if (o.gamma.empty()) o.gamma = retention_gammas(o.heads);
  log_gamma = detail::log_gammas("retention", o.gamma, o.heads, exact(o.dtype));
  if (o.gate) draw_gate(h, rng);
  draw_conv(h, o.short_conv, rng);
  norm = GroupNorm({o.heads, h.value_dim, o.group_norm, o.norm_eps, o.dtype, o.shared_norm});
}

Tensor Retention::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "retention", given, options.dim, pass);
  const HeadsOptions h = detail::heads_of("retention", options);
  const Heads::Projected x = project(h, call);
  const Tensor o = decayed(call, x, reshape(log_gamma, {1, h.heads, 1}), options.chunk);
  return finish(h, norm(detail::merge_heads(o)), call);
}

}  // namespace sluice
