#include <sluice/layers/linear_attention/delta_net.h>

#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

namespace sluice {

DeltaNet::DeltaNet(DeltaNetOptions given, Rng& rng) : options(given) {
  DeltaNetOptions& o = options;
  check_options("delta_net", o);
  draw("delta_net", o.heads, rng, o.qk_activation);
  const DeltaOptions& h = o.heads;
  if (!o.use_beta) beta = {};
  if (o.output_gate) output_gate = Linear({h.dim, h.value_heads * h.value_dim, false, h.init, h.dtype}, rng);
}

Tensor DeltaNet::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "delta_net", given, options.heads.dim, pass);
  const DeltaOptions& h = options.heads;
  Rows x;
  if (options.qk_norm == DeltaNorm::l2) {
    x = unit_rows(h, call, options.qk_activation);
  } else {
    x = rows(h, call, options.qk_activation);
    const auto shares = [](const Tensor& t) {
      const Tensor total = sum(t, {-1}, keep);
      return t / masked_fill(total, total == 0.0, 1);
    };
    x.q = shares(x.q) * (1 / std::sqrt(static_cast<double>(h.key_dim))), x.k = shares(x.k);
  }
  const Tensor b = options.use_beta ? strength(h, call)
                                    : full({call.x.dim(0), call.x.dim(1) * h.updates, h.value_heads, 1}, h.beta_scale,
                                           call.x.options());
  const Tensor o = scanned(h, call, x, {}, b, b);
  return finish(h, call, o, options.output_gate ? output_gate(call.x) : Tensor());
}

GatedDeltaNet::GatedDeltaNet(GatedDeltaNetOptions given, Rng& rng) : options(given) {
  GatedDeltaNetOptions& o = options;
  check_options("gated_delta_net", o);
  draw("gated_delta_net", o.heads, rng);
  const DeltaOptions& h = o.heads;
  decay = Linear({h.dim, h.value_heads, false, h.init, h.dtype}, rng);
  a_log = init_a_log(h.value_heads, 0.01, 16, rng, h.dtype);
  dt_bias = init_dt_bias(h.value_heads, rng, h.dtype);
  if (o.output_gate != DeltaGate::none)
    output_gate = Linear({h.dim, h.value_heads * h.value_dim, false, h.init, h.dtype}, rng);
}

Tensor GatedDeltaNet::log_decay(const Tensor& x) const {
  return map(formula::SoftplusDecay{}, detail::widened(decay(x)), detail::widened(dt_bias), detail::widened(a_log));
}

Tensor GatedDeltaNet::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "gated_delta_net", given, options.heads.dim, pass);
  const DeltaOptions& h = options.heads;
  const Tensor b = strength(h, call), o = scanned(h, call, unit_rows(h, call), log_decay(call.x), b, b);
  return finish(h, call, o, options.output_gate == DeltaGate::none ? Tensor() : output_gate(call.x),
                options.output_gate == DeltaGate::sigmoid ? Act::sigmoid : Act::silu);
}

}  // namespace sluice
