#include <sluice/layers/linear_attention/gla.h>

#include <sluice/ops/attention/heads.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/shape/view.h>

namespace sluice {

Tensor gla_log_decay(const Tensor& z, double temperature) {
  if (!(temperature > 0)) fail<ValueError>("gla_log_decay: temperature must be positive — got ", temperature);
  return map(formula::LogDecay{1 / temperature}, z);
}

Gla::Gla(GlaOptions given, Rng& rng) : options(given) {
  GlaOptions& o = options;
  check_options("gla", o);
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  const HeadsOptions h = detail::heads_of("gla", o);
  heads = Heads(checked_heads("gla", h), rng);
  const bool channels = o.gate == GlaGate::per_channel;
  if (channels) gate_down = Linear({o.dim, o.gate_rank, false, o.init, o.dtype}, rng);
  gate_up = channels ? Linear({o.gate_rank, h.kv_heads * h.head_dim, true, o.init, o.dtype}, rng)
                     : Linear({o.dim, h.heads, true, o.init, o.dtype}, rng);
  if (o.output_gate) draw_gate(h, rng);
  draw_conv(h, o.short_conv, rng);
  norm = Norm({h.value_dim, o.norm, o.norm_eps, o.dtype});
}

Tensor Gla::log_decay(const Tensor& x) const {
  const bool channels = options.gate == GlaGate::per_channel;
  const Tensor g = gla_log_decay(gate_up(channels ? gate_down(x) : x), options.gate_temperature);
  if (!channels) return transpose(g, 1, 2);
  return detail::spread_heads(detail::split_heads(g, options.kv_heads), options.heads);
}

Tensor Gla::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "gla", given, options.dim, pass);
  const HeadsOptions h = detail::heads_of("gla", options);
  const Heads::Projected x = project(h, call);
  const Tensor o = decayed(call, x, log_decay(call.x), options.chunk, options.scale);
  return finish(h, detail::merge_heads(norm(o)), call);
}

}  // namespace sluice
