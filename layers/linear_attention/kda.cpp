#include <sluice/layers/linear_attention/kda.h>

#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

namespace sluice {

Kda::Kda(KdaOptions given, Rng& rng) : options(given) {
  KdaOptions& o = options;
  check_options("kda", o);
  draw("kda", o, rng);
  if (o.rank == 0) o.rank = o.value_dim;
  const int64_t keys = o.value_heads * o.key_dim, values = o.value_heads * o.value_dim;
  const auto map = [&](int64_t in, int64_t to, bool bias = false) {
    return Linear({in, to, bias, o.init, o.dtype}, rng);
  };
  decay_down = map(o.dim, o.rank), decay_up = map(o.rank, keys);
  a_log = o.lower_bound ? init_vector(o.value_heads, 0, o.dtype) : init_a_log(o.value_heads, 0.01, 16, rng, o.dtype);
  dt_bias = init_dt_bias(keys, rng, o.dtype);
  output_gate_down = map(o.dim, o.rank), output_gate_up = map(o.rank, values, o.gate_bias);
  if (o.erase_write) beta = {}, erase = map(o.dim, o.heads * o.key_dim), write = map(o.dim, values);
}

Tensor Kda::log_decay(const Tensor& x) const {
  const KdaOptions& o = options;
  const auto of_heads = [&](const Tensor& t) { return unflatten(detail::widened(t), -1, {o.value_heads, o.key_dim}); };
  const Tensor z = of_heads(decay_up(decay_down(x))), bias = of_heads(dt_bias),
               a = unsqueeze(detail::widened(a_log), -1);
  return o.lower_bound ? map(formula::BoundedDecay{*o.lower_bound}, z, bias, a)
                       : map(formula::SoftplusDecay{}, z, bias, a);
}

Tensor Kda::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "kda", given, options.dim, pass);
  const KdaOptions& o = options;
  Tensor e, w;
  if (o.erase_write) {
    const int64_t group = o.value_heads / o.heads;
    e = unflatten(sigmoid(erase(call.x)) * o.beta_scale, -1, {o.heads, o.key_dim});
    if (group > 1) e = repeat_interleave(e, group, 2);
    w = unflatten(sigmoid(write(call.x)), -1, {o.value_heads, o.value_dim});
  } else {
    e = w = strength(o, call);
  }
  const Tensor attended = scanned(o, call, unit_rows(o, call), log_decay(call.x), e, w);
  return finish(o, call, attended, output_gate_up(output_gate_down(call.x)), Act::sigmoid);
}

}  // namespace sluice
