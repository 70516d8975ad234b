#include <sluice/layers/gau/tutorial_gau.h>

#include <sluice/layers/gau/gau_attention.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/view.h>
#include <sluice/parallel/sequence_attention.h>

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

Tensor TutorialGau::operator()(const Tensor& given, const Tensor& key_mask) const {
  ModuleScope scope(this, type);
  if (given.rank() != 3 || given.dim(-1) != options.dim)
    fail("tutorial_gau: got x=", given, "; need [batch, n, ", options.dim, "]");
  if (key_mask.defined() && key_mask.shape() != Shape{given.dim(0), given.dim(1)})
    fail("tutorial_gau: key_mask=", key_mask, " does not fit x=", given, "; need [batch, n]");
  const Tensor x = finite_padding("tutorial_gau", given, key_mask);
  std::vector<Tensor> qk = chunk(linear(x, wu), 2, -1), vg = chunk(linear(x, wv), 2, -1);
  Tensor o = sequence_attention(qk[0], qk[1], vg[0], {.mask = {.causal = options.causal, .keys = key_mask}});
  Tensor g = options.sigmoid_gate ? sigmoid(vg[1]) : vg[1];
  // GELU(o)·g + (1 − g)·z = lerp(z, GELU(o), g)
  Tensor y = lerp(linear(x, wz), options.gelu_tanh ? gelu_tanh(o) : gelu(o), g);
  return options.project_out ? linear(y, w_out) : y;
}

}  // namespace sluice
