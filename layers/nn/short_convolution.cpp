#include <sluice/layers/nn/short_convolution.h>

#include <sluice/ops/scan/causal_conv.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

namespace sluice {

ShortConvolution::ShortConvolution(ShortConvolutionOptions o, Rng& rng) : options(o) {
  check_options("short_convolution", o);
  weight = init_weight(o.width, o.dim, o.init, rng, o.dtype);
  if (o.bias) bias = init_vector(o.dim, 0, o.dtype);
}

Tensor ShortConvolution::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "short_convolution", given, options.dim, pass);
  Tensor x = call.x;
  if (call.key_mask().defined()) x = masked_fill(x, unsqueeze(logical_not(call.key_mask()), -1), 0);
  return activate(options.activation, causal_conv1d(x, weight, bias, call.before(x, options.width - 1)));
}

}  // namespace sluice
