#include <sluice/layers/linear_attention/kda.h>

#include <sluice/ops/attention/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

namespace sluice {

Kda::Kda(KdaOptions given, Rng& rng) : options(given) {
  KdaOptions& o = options;
  check_options("kda", o);
  if (o.erase_write && o.heads.updates != 1)
    fail<ValueError>("kda: erase_write needs updates=1, got ", o.heads.updates);
  if (o.full_rank && o.rank != 0) fail<ValueError>("kda: full_rank needs rank=0, got ", o.rank);
  draw("kda", o.heads, rng);
  const DeltaOptions& h = o.heads;
  if (o.rank == 0 && !o.full_rank) o.rank = h.value_dim;
  const int64_t keys = h.value_heads * h.key_dim, values = h.value_heads * h.value_dim;
  const auto map = [&](int64_t in, int64_t to, bool bias = false) {
    return Linear({in, to, bias, h.init, h.dtype}, rng);
  };
  const int64_t inner = o.full_rank ? h.dim : o.rank;
  if (!o.full_rank) decay_down = map(h.dim, inner);
  decay_up = map(inner, keys);
  a_log =
      o.lower_bound ? init_vector(h.value_heads, 0, exact(h.dtype)) : init_a_log(h.value_heads, 1, 16, rng, h.dtype);
  dt_bias = init_dt_bias(keys, rng, h.dtype);
  if (!o.full_rank) output_gate_down = map(h.dim, inner);
  output_gate_up = map(inner, values, o.gate_bias);
  if (o.erase_write) beta = {}, erase = map(h.dim, h.heads * h.key_dim), write = map(h.dim, values);
}

Tensor Kda::log_decay(const Tensor& x) const {
  const DeltaOptions& h = options.heads;
  const auto of_heads = [&](const Tensor& t) { return unflatten(detail::widened(t), -1, {h.value_heads, h.key_dim}); };
  const Tensor z = of_heads(decay_up(options.full_rank ? x : decay_down(x))), bias = of_heads(dt_bias),
               a = unsqueeze(detail::widened(a_log), -1);
  return options.lower_bound ? map(formula::BoundedDecay{*options.lower_bound}, z, bias, a)
                             : map(formula::SoftplusDecay{}, z, bias, a);
}

Tensor Kda::gate_logits(const Tensor& x) const { return output_gate_up(options.full_rank ? x : output_gate_down(x)); }

Tensor Kda::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "kda", given, options.heads.dim, pass);
  const DeltaOptions& h = options.heads;
  Tensor e, w;
  if (options.erase_write) {
    e = unflatten(sigmoid(erase(call.x)) * h.beta_scale, -1, {h.heads, h.key_dim});
    e = detail::spread_heads(e, h.value_heads, 2);
    w = unflatten(sigmoid(write(call.x)), -1, {h.value_heads, h.value_dim});
  } else {
    e = w = strength(h, call);
  }
  const Tensor attended = scanned(h, call, unit_rows(h, call), log_decay(call.x), e, w);
  return finish(h, call, attended, gate_logits(call.x), Act::sigmoid);
}

}  // namespace sluice
