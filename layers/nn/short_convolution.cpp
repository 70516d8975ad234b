#include <sluice/layers/nn/short_convolution.h>

#include <sluice/ops/scan/causal_conv.h>
#include <sluice/ops/basic.h>

namespace sluice {

ShortConvolution::ShortConvolution(ShortConvolutionOptions o, Rng& rng) : options(o) {
  check_options("short_convolution", o);
  weight = init_weight(o.width, o.dim, o.init, rng, o.dtype);
  if (o.bias) bias = init_vector(o.dim, 0, o.dtype);
}

/// The sum of the convolution, in which the rows before a token's document count as zeros.
static Tensor within_documents(Call& call, const Tensor& x, const Tensor& starts, const Tensor& weight,
                               const Tensor& bias) {
  const int64_t last = weight.dim(0) - 1;
  Tensor earlier = x, y = x * select(weight, 0, last);
  for (int64_t lag = 1; lag <= last; ++lag) {
    earlier = detail::filled_tokens(call.shift(earlier), starts, 0);
    y = y + earlier * select(weight, 0, last - lag);
  }
  return bias.defined() ? y + bias : y;
}

Tensor ShortConvolution::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "short_convolution", given, options.dim, pass);
  const Tensor x = detail::filled_tokens(call.x, call.padding(), 0), starts = call.starts();
  if (starts.defined()) return activate(options.activation, within_documents(call, x, starts, weight, bias));
  return causal_conv1d(x, weight, bias, call.before(x, options.width - 1), options.activation);
}

void detail::convolve(const ShortConvolution& conv, const Call& call, Tensor& q, Tensor& k, Tensor& v) {
  if (!conv.weight.defined()) return;
  const std::vector<Tensor> part = split(conv(cat({q, k, v}, -1), call.pass()), {q.dim(-1), k.dim(-1), v.dim(-1)}, -1);
  q = part[0], k = part[1], v = part[2];
}

}  // namespace sluice
