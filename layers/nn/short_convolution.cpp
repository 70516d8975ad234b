#include <sluice/layers/nn/short_convolution.h>

#include <sluice/ops/scan/causal_conv.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/parallel/sequence.h>

namespace sluice {

ShortConvolution::ShortConvolution(ShortConvolutionOptions o, Rng& rng) : options(o) {
  check_options("short_convolution", o);
  weight = init_depthwise(o.width, o.dim, o.init, rng, o.dtype);
  if (o.bias) bias = init_vector(o.dim, 0, o.dtype);
}

/// The sum of the convolution, in which the rows before a token's document count as zeros; f32 for bf16.
static Tensor within_documents(Call& call, const Tensor& x, const Tensor& starts, const Tensor& weight,
                               const Tensor& bias) {
  const int64_t last = weight.dim(0) - 1, n = x.dim(1);
  const Tensor w = detail::widened(weight), before = call.before(x, last),
               rows = detail::widened(before.defined() ? cat({before, x}, 1) : pad(x, 1, last, 0));
  Tensor y = narrow(rows, 1, last, n) * select(w, 0, last),
         apart = starts;  // where the row `lag` before is of another document
  for (int64_t lag = 1; lag <= last; ++lag) {
    const Tensor earlier = detail::filled_tokens(narrow(rows, 1, last - lag, n), apart, 0);
    y = map(formula::ScaleOffset{}, earlier, select(w, 0, last - lag), y);
    apart = logical_or(starts, sequence_shift(apart, 1));
  }
  return bias.defined() ? y + detail::widened(bias) : y;
}

Tensor ShortConvolution::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "short_convolution", given, options.dim, pass);
  const Tensor x = detail::filled_tokens(call.x, call.padding(), 0), starts = call.starts();
  if (starts.defined())
    return to(activate(options.activation, within_documents(call, x, starts, weight, bias)), x.dtype());
  return causal_conv1d(x, weight, bias, call.before(x, options.width - 1), options.activation);
}

void detail::convolve(const ShortConvolution& conv, const Call& call, Tensor& q, Tensor& k, Tensor& v) {
  if (!conv.weight.defined()) return;
  const std::vector<Tensor> part = split(conv(cat({q, k, v}, -1), call.pass()), {q.dim(-1), k.dim(-1), v.dim(-1)}, -1);
  q = part[0], k = part[1], v = part[2];
}

}  // namespace sluice
