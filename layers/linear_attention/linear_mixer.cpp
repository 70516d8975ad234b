#include <sluice/layers/linear_attention/linear_mixer.h>

#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

namespace sluice {

Heads::Projected LinearMixer::project(const HeadsOptions& h, const Call& call, Act activation) const {
  const auto of = [&](const Linear& map) { return activate(activation, map(call.x)); };
  Tensor q = of(heads.q), k = of(heads.k), v = of(heads.v);
  detail::convolve(conv, call, q, k, v);
  const Heads::Projected p = Heads::arranged(h, q, k, v, call.first(h.use_rope));
  return {p.q, detail::spread_heads(p.k, h.heads), detail::spread_heads(p.v, h.heads)};
}

Tensor LinearMixer::decayed(Call& call, const Heads::Projected& x, const Tensor& log_decay, int64_t chunk,
                            std::optional<double> scale) {
  return detail::linear_attention(call, x.q, x.k, x.v,
                                  {.direction = LinearDirection::causal,
                                   .normalize = LinearNormalize::none,
                                   .scale = scale.value_or(1 / std::sqrt(static_cast<double>(x.q.dim(-1)))),
                                   .log_decay = log_decay,
                                   .chunk = chunk});
}

Tensor LinearMixer::finish(const HeadsOptions& h, const Tensor& normed, const Call& call) const {
  const Tensor y = output_gate.weight.defined() ? swiglu(normed, output_gate(call.x)) : normed;
  return Dropout{h.dropout}(heads.out(y), call.rng());
}

void LinearMixer::draw_conv(const HeadsOptions& h, int64_t taps, Rng& rng) {
  const int64_t channels = h.heads * h.head_dim + h.kv_heads * (h.head_dim + h.value_dim);
  if (taps > 0) conv = ShortConvolution({.dim = channels, .width = taps, .dtype = h.dtype}, rng);
}

void LinearMixer::draw_gate(const HeadsOptions& h, Rng& rng) {
  output_gate = Linear({h.dim, h.heads * h.value_dim, false, h.init, h.dtype}, rng);
}

int64_t detail::expanded_width(const char* layer, const char* what, double expansion, int64_t dim, int64_t heads) {
  if (dim < 1 || heads < 1) fail<ValueError>(layer, ": sizes must be positive — got dim=", dim, ", heads=", heads);
  const double width = expansion * static_cast<double>(dim);
  if (!(width >= 1 && width < 1e9) || std::abs(width - std::round(width)) > 1e-6 || std::llround(width) % heads != 0)
    fail<ValueError>(layer, ": heads=", heads, " must divide ", what, "·dim = ", expansion, "·", dim);
  return std::llround(width) / heads;
}

}  // namespace sluice
