#include <sluice/layers/gau/tutorial_gau.h>

#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/basic.h>

namespace sluice {

TutorialGau::TutorialGau(TutorialGauOptions o, Rng& rng) : options(o) {
  check_options("tutorial_gau", o);
  if (options.expansion == 0) options.expansion = 2 * o.dim;
  const int64_t e = options.expansion;
  if (e % 2) fail<ValueError>("tutorial_gau: needs an even expansion — got ", e);
  wu = init_weight(o.dim, e, o.init, rng, o.dtype);
  wv = init_weight(o.dim, e, o.init, rng, o.dtype);
  wz = init_weight(o.dim, e / 2, o.init, rng, o.dtype);
  if (o.project_out) w_out = init_weight(e / 2, o.dim, o.init, rng, o.dtype);
}

Tensor TutorialGau::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "tutorial_gau", given, options.dim, pass);
  const Tensor& x = call.x;
  const std::vector<Tensor> qk = chunk(linear(x, wu), 2, -1), vg = chunk(linear(x, wv), 2, -1);
  const auto head = [](const Tensor& t) { return unsqueeze(t, 1); };
  const Tensor o = squeeze(call.attend(head(qk[0]), head(qk[1]), head(vg[0]), {.mask = {.causal = options.causal}}), 1);
  const Tensor g = options.sigmoid_gate ? sigmoid(vg[1]) : vg[1];
  // GELU(o)·g + (1 − g)·z = lerp(z, GELU(o), g)
  const Tensor y = lerp(linear(x, wz), options.gelu_tanh ? gelu_tanh(o) : gelu(o), g);
  return options.project_out ? linear(y, w_out) : y;
}

}  // namespace sluice
