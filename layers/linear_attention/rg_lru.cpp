#include <sluice/layers/linear_attention/rg_lru.h>

#include <sluice/layers/nn/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

#include <limits>
#include <utility>

namespace sluice {

RgLru::RgLru(RgLruOptions given, Rng& rng) : options(given) {
  RgLruOptions& o = options;
  check_options("rg_lru", o);
  if (o.inner == 0) o.inner = o.dim;
  if (o.inner % o.heads != 0)
    fail<ValueError>("rg_lru: heads ", o.heads, " must divide the ", o.inner, " channels of the state");
  const int64_t width = o.inner / o.heads;
  in = Linear({o.dim, o.inner, o.bias, o.init, o.dtype}, rng);
  gate = Linear({o.dim, o.inner, o.bias, o.init, o.dtype}, rng);
  if (o.short_conv > 0)
    conv = ShortConvolution(
        {.dim = o.inner, .width = o.short_conv, .bias = o.bias, .activation = Act::identity, .dtype = o.dtype}, rng);
  for (auto [weight, bias] : {std::pair(&forget_weight, &forget_bias), std::pair(&input_weight, &input_bias)}) {
    *weight = init_weights(o.heads, width, width, o.init, rng, o.dtype);
    *bias = zeros({o.heads, width}, detail::initial(o.dtype)).requires_grad_();
  }
  const Tensor squares = uniform({o.inner}, 0.9 * 0.9, 0.999 * 0.999, rng, detail::initial(exact(o.dtype)));
  lambda = log(expm1(log(squares) * -0.5)).requires_grad_();
  out = Linear({o.inner, o.dim, o.bias, o.init, o.dtype}, rng);
}

Tensor RgLru::by_blocks(const Tensor& x, const Tensor& weight, const Tensor& bias) const {
  return matmul(detail::split_heads(x, options.heads), weight) + unsqueeze(bias, 1);
}

constexpr double kForgets = -std::numeric_limits<double>::infinity();

/// True at the first real token of each sequence and document, bool [batch, n]. `one` is [batch, 1, n, 1].
static Tensor first_tokens(Call& call, const Tensor& one, const Tensor& starts) {
  const Tensor& mask = call.key_mask();
  const Tensor real = mask.defined() ? reshape(to(mask, one.dtype()), one.shape()) : one;
  const Tensor decay = starts.defined() ? detail::filled_tokens(zeros_like(one), starts, kForgets, 2) : Tensor();
  const Tensor count = call.scan(one, one, real, decay, {});  // of real tokens
  return reshape(logical_and(real == 1.0, count == 1.0), {one.dim(0), one.dim(2)});
}

Tensor RgLru::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "rg_lru", given, options.dim, pass);
  const int64_t heads = options.heads;
  const Tensor hidden = call.padding(), starts = call.starts();
  const Tensor mapped = in(call.x), x = options.short_conv > 0 ? conv(mapped, call.pass()) : mapped;
  // For bf16 the decay and √(1 − a²) are computed in f32: the error of a rounded exponent adds up over all tokens.
  const Tensor rate = reshape(softplus(detail::widened(lambda)) * -8.0, {heads, 1, options.inner / heads});
  const Tensor forget = detail::widened(by_blocks(x, forget_weight, forget_bias)),
               admit = detail::widened(by_blocks(x, input_weight, input_bias));
  const Tensor one = ones({x.dim(0), 1, x.dim(1), 1}, x.options());
  const Tensor log_decay = detail::filled_tokens(glu(rate, forget), first_tokens(call, one, starts), kForgets, 2);
  const Tensor written = map(formula::GatedInput{}, detail::widened(detail::split_heads(x, heads)), admit, log_decay);
  // Padding neither writes to the state nor lets it decay.
  const Tensor v = to(detail::filled_tokens(written, hidden, 0, 2), x.dtype()),
               kept = detail::filled_tokens(log_decay, hidden, 0, 2);
  const Tensor h = call.scan(one, one, v, kept, {.decay_on_values = true});
  return out(geglu_tanh(detail::merge_heads(h), gate(call.x)));
}

}  // namespace sluice
