#include <sluice/layers/linear_attention/mamba.h>

#include <sluice/layers/nn/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

#include <cmath>

namespace sluice {

Mamba::Mamba(MambaOptions given, Rng& rng) : options(given) {
  MambaOptions& o = options;
  check_options("mamba", o);
  if (o.norm != NormKind::none && o.norm != NormKind::rms && o.norm != NormKind::rms_plain)
    fail<ValueError>("mamba: the norm is none, rms or rms_plain — got ", name_of(o.norm));
  if (o.inner == 0) o.inner = checked_mul("mamba", 2, o.dim);
  if (o.dt_rank == 0) o.dt_rank = ceil_div(o.dim, 16);
  const int64_t chosen = checked_add("mamba", o.dt_rank, checked_mul("mamba", 2, o.state));
  in = Linear({o.dim, checked_mul("mamba", 2, o.inner), o.bias, o.init, o.dtype}, rng);
  if (o.short_conv > 0)
    conv = ShortConvolution({.dim = o.inner, .width = o.short_conv, .bias = o.conv_bias, .dtype = o.dtype}, rng);
  select = Linear({o.inner, chosen, false, o.init, o.dtype}, rng);
  dt_norm = Norm({o.dt_rank, o.norm, o.norm_eps, o.dtype});
  b_norm = Norm({o.state, o.norm, o.norm_eps, o.dtype});
  c_norm = Norm({o.state, o.norm, o.norm_eps, o.dtype});
  dt = Linear({o.dt_rank, o.inner, false, o.init, o.dtype}, rng);
  const double bound = 1 / std::sqrt(static_cast<double>(o.dt_rank));
  dt.weight = uniform(dt.weight.shape(), -bound, bound, rng, detail::initial(o.dtype)).requires_grad_();
  dt_bias = init_dt_bias(o.inner, rng, o.dtype);
  const Tensor numbers = log(arange(1.0, static_cast<double>(o.state) + 1, 1.0, detail::initial(exact(o.dtype))));
  a_log = clone(expand(numbers, {o.inner, o.state})).requires_grad_();
  d = init_vector(o.inner, 1, o.dtype);
  out = Linear({o.inner, o.dim, o.bias, o.init, o.dtype}, rng);
}

Mamba::Operands Mamba::operands(const Call& call) const {
  const MambaOptions& o = options;
  const Tensor hidden = call.padding(), starts = call.starts();
  const std::vector<Tensor> maps = split(in(call.x), {o.inner, o.inner}, -1);
  // Padding has x = 0, hence B = C = 0 and an output of 0, and Δ = 0: it neither writes to the state nor lets it decay.
  const Tensor mixed = o.short_conv > 0 ? conv(maps[0], call.pass()) : silu(maps[0]);
  const Tensor x = detail::filled_tokens(mixed, hidden, 0);
  const std::vector<Tensor> chosen = split(select(x), {o.dt_rank, o.state, o.state}, -1);
  // For bf16, Δ, its decay and Δ·x are computed in f32: the error of a rounded exponent adds up over all tokens.
  const Tensor step = softplus(detail::widened(dt(dt_norm(chosen[0]))) + detail::widened(dt_bias)),
               delta = detail::filled_tokens(step, hidden, 0);
  const Tensor a = neg(exp(detail::widened(a_log)));
  const Tensor log_decay = unsqueeze(transpose(delta, 1, 2), -1) * unsqueeze(a, 1);
  const Tensor written = to(detail::widened(x) * delta, x.dtype());
  return {maps[1],
          x,
          detail::split_heads(c_norm(chosen[2]), 1),
          detail::split_heads(b_norm(chosen[1]), 1),
          unsqueeze(transpose(written, 1, 2), -1),
          detail::filled_tokens(log_decay, starts, -INFINITY, 2)};
}

Tensor Mamba::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "mamba", given, options.dim, pass);
  const auto [z, x, q, k, v, log_decay] = operands(call);
  const Tensor scanned = transpose(squeeze(call.scan(q, k, v, log_decay, {.chunk = options.chunk}), -1), 1, 2);
  return out(swiglu(map(formula::ScaleOffset{}, x, d, scanned), z));
}

}  // namespace sluice
