#include <sluice/layers/linear_attention/mlstm.h>

#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

#include <limits>

namespace sluice {

Mlstm::Mlstm(MlstmOptions given, Rng& rng) : options(given) {
  MlstmOptions& o = options;
  check_options("mlstm", o);
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  const HeadsOptions h = detail::heads_of("mlstm", o);
  heads = Heads(checked_heads("mlstm", h), rng);
  for (Linear* const gate : {&input_gate, &forget_gate})
    *gate = Linear({o.dim, h.heads, true, {InitKind::zeros}, o.dtype}, rng);
  input_gate.bias = init_vector(h.heads, -10, o.dtype);
  forget_gate.bias = linspace(3, 6, h.heads, detail::initial(o.dtype)).requires_grad_();
  draw_gate(h, rng);
  norm = GroupNorm({h.heads, h.value_dim, NormKind::layer, o.norm_eps, o.dtype, false, false});
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The logarithms of both gates, [batch, n, heads], in f32 or f64. Padding enters nothing and forgets nothing.
struct LogGates {
  Tensor enter, keep;
};
LogGates log_gates(const Call& call, const Mlstm& layer) {
  const double cap = layer.options.gate_cap;
  const auto logit = [&](const Linear& gate) {
    const Tensor z = detail::widened(gate(call.x));
    return cap > 0 ? tanh(z * (1 / cap)) * cap : z;
  };
  const Tensor hidden = call.padding();
  return {detail::filled_tokens(logit(layer.input_gate), hidden, -kInfinity),
          detail::filled_tokens(map(formula::LogDecay{1}, logit(layer.forget_gate)), hidden, 0)};
}

/// m_t of log_gates(). A document begins with m = 0, like the text.
Tensor largest_exponent(Call& call, const LogGates& log) {
  const Tensor starts = call.starts();
  if (!starts.defined()) return call.running_max(log.enter, log.keep);
  const Tensor first = detail::filled_tokens(log.keep, logical_not(starts), -kInfinity);
  return call.running_max(maximum(log.enter, first), detail::filled_tokens(log.keep, starts, -kInfinity));
}

}  // namespace

Tensor Mlstm::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "mlstm", given, options.dim, pass);
  const HeadsOptions h = detail::heads_of("mlstm", options);
  const auto by_head = [](const Tensor& t) { return transpose(t, 1, 2); };  // and back
  const LogGates log = log_gates(call, *this);
  const Tensor m = largest_exponent(call, log), decay = by_head(log.keep + call.shift(m) - m);
  Heads::Projected x = project(h, call);
  const Tensor enter = unsqueeze(by_head(log.enter - m), -1);
  x.k = to(map(formula::Decayed{}, detail::widened(x.k), enter), x.k.dtype());
  const Tensor o = decayed(call, x, decay, options.chunk);
  x.v = ones({x.v.dim(0), h.heads, x.v.dim(2), 1}, x.v.options());
  const Tensor d = decayed(call, x, decay, options.chunk);
  const auto wide = [&](const Tensor& t) { return by_head(detail::widened(t)); };
  const Tensor mixed = map(formula::StabilisedQuotient{options.eps}, wide(o), wide(d), unsqueeze(m, -1));
  const Tensor y = norm(to(detail::merge_heads(by_head(mixed)), call.x.dtype()));
  return Dropout{options.dropout}(heads.out(glu(y, output_gate(call.x))), call.rng());
}

}  // namespace sluice
