#include <sluice/layers/linear_time/gla.h>

#include <sluice/core/node.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/formulas_of_layers.h>
#include <sluice/ops/map.h>
#include <sluice/ops/rearrange.h>
#include <sluice/ops/view.h>

#include <cmath>

namespace sluice {

Tensor gla_log_decay(const Tensor& z, double temperature) {
  if (!(temperature > 0)) fail<ValueError>("gla_log_decay: temperature must be positive — got ", temperature);
  return map(formula::LogDecay{1 / temperature}, z);
}

Gla::Gla(GlaOptions given, Rng& rng) : options(given) {
  GlaOptions& o = options;
  check_options("gla", o);
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  heads = Heads(checked_heads("gla", head_options()), rng);
  const int64_t keys = o.kv_heads * key_dim();
  auto dense = [&](int64_t in, int64_t width, bool bias) { return Linear({in, width, bias, o.init, o.dtype}, rng); };
  if (o.gate == GlaGate::per_channel) gate_down = dense(o.dim, o.gate_rank, false);
  gate_up = o.gate == GlaGate::per_channel ? dense(o.gate_rank, keys, true) : dense(o.dim, o.heads, true);
  if (o.output_gate) output_gate = dense(o.dim, o.heads * value_dim(), false);
  conv = detail::linear_conv(head_options(), o.short_conv, rng);
  norm = Norm({value_dim(), o.norm, o.norm_eps, o.dtype});
}

HeadsOptions Gla::head_options() const {
  const GlaOptions& o = options;
  return {.dim = o.dim, .heads = o.heads, .kv_heads = o.kv_heads,
          .head_dim = detail::expanded_width("gla", "expand_k", o.expand_k, o.dim, o.heads) / o.heads,
          .value_dim = detail::expanded_width("gla", "expand_v", o.expand_v, o.dim, o.heads) / o.heads,
          .dropout = o.dropout, .init = o.init, .dtype = o.dtype};
}

Tensor Gla::log_decay(const Tensor& x) const {
  const bool channels = options.gate == GlaGate::per_channel;
  const Tensor g = gla_log_decay(gate_up(channels ? gate_down(x) : x), options.gate_temperature);
  if (!channels) return rearrange("b n h -> b h n", g);
  const Tensor each = rearrange("b n (h d) -> b h n d", g, {{"h", options.kv_heads}});
  const int64_t group = options.heads / options.kv_heads;
  return group > 1 ? repeat_interleave(each, group, 1) : each;
}

Tensor Gla::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "gla", given, options.dim, pass);
  const auto [q, k, v] = detail::linear_heads(heads, head_options(), conv, call);
  const Tensor o = detail::linear_attention(call, q, k, v,
      {.direction = LinearDirection::causal, .normalize = LinearNormalize::none,
       .scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(key_dim()))), .log_decay = log_decay(call.x),
       .chunk = options.chunk});
  Tensor y = detail::merge_heads(norm(o));
  if (options.output_gate) y = swiglu(y, output_gate(call.x));
  return heads.finish(head_options(), detail::split_heads(y, options.heads), call.x, call.rng());
}

}  // namespace sluice
