#include <sluice/layers/nn/gated_short_convolution.h>

#include <sluice/ops/basic.h>

namespace sluice {

GatedShortConvolution::GatedShortConvolution(GatedShortConvolutionOptions o, Rng& rng) : options(o) {
  check_options("gated_short_convolution", o);
  in = Linear({o.dim, checked_mul("gated_short_convolution", 3, o.dim), o.bias, o.init, o.dtype}, rng);
  conv = ShortConvolution({o.dim, o.width, o.bias, Act::identity, o.init, o.dtype}, rng);
  out = Linear({o.dim, o.dim, o.bias, o.init, o.dtype}, rng);
}

Tensor GatedShortConvolution::operator()(const Tensor& given, const Pass& pass) const {
  const Call call(*this, "gated_short_convolution", given, options.dim, pass);
  const std::vector<Tensor> bcx = split(in(call.x), {options.dim, options.dim, options.dim}, -1);
  return out(bcx[1] * conv(bcx[0] * bcx[2], call.pass()));
}

}  // namespace sluice
