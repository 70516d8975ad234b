#include <sluice/layers/linear_attention/mamba2.h>

#include <sluice/layers/nn/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

#include <cmath>

namespace sluice {

Mamba2::Mamba2(Mamba2Options given, Rng& rng) : options(std::move(given)) {
  Mamba2Options& o = options;
  check_options("mamba2", o);
  const int64_t wide = checked_mul("mamba2", 2, o.dim);
  if (o.heads == 0 && wide % o.head_dim != 0)
    fail<ValueError>("mamba2: head_dim=", o.head_dim, " must divide 2*dim=", wide, ", or heads be given");
  if (o.heads == 0) o.heads = wide / o.head_dim;
  if (o.heads % o.groups != 0) fail<ValueError>("mamba2: groups=", o.groups, " must divide heads=", o.heads);
  if (o.dt_limit.size() != 2 || o.dt_limit[0] > o.dt_limit[1] || std::isinf(o.dt_limit[0]))
    fail<ValueError>("mamba2: dt_limit needs two numbers, lo <= hi, of which lo is finite — got ",
                     o.dt_limit.size() == 2 ? str(o.dt_limit[0], ", ", o.dt_limit[1]) : str(o.dt_limit.size()));
  if (!o.in_factors.empty() && o.in_factors.size() != 5)
    fail<ValueError>("mamba2: in_factors needs five numbers, of z, x, B, C and Delta, or none — got ",
                     o.in_factors.size());
  const int64_t inner = checked_mul("mamba2", o.heads, o.head_dim),
                grouped = checked_mul("mamba2", 2, checked_mul("mamba2", o.groups, o.state)),
                mixed = checked_add("mamba2", inner, grouped),
                all = checked_add("mamba2", checked_add("mamba2", inner, mixed), o.heads);
  in = Linear({o.dim, all, false, o.init, o.dtype}, rng);
  if (o.short_conv > 0)
    conv = ShortConvolution({.dim = mixed, .width = o.short_conv, .bias = o.conv_bias, .dtype = o.dtype}, rng);
  dt_bias = init_dt_bias(o.heads, rng, o.dtype);
  a_log = init_a_log(o.heads, 1, 16, rng, o.dtype);
  d = init_vector(o.d_per_channel ? inner : o.heads, 1, o.dtype);
  if (o.norm) norm = Norm({inner, NormKind::rms, o.norm_eps, o.dtype, o.groups});
  out = Linear({inner, o.dim, false, o.init, o.dtype}, rng);
}

/// u·W_in, with its parts times in_factors.
static Tensor scaled(const Tensor& map, const Mamba2Options& o) {
  if (o.in_factors.empty()) return map;
  const int64_t inner = o.heads * o.head_dim, grouped = o.groups * o.state;
  const int64_t widths[] = {inner, inner, grouped, grouped, o.heads};
  std::vector<Tensor> factors;
  for (std::size_t i = 0; i < 5; ++i) factors.push_back(full({widths[i]}, o.in_factors[i], map.options()));
  return map * cat(factors, 0);
}

Mamba2::Operands Mamba2::operands(const Call& call) const {
  const Mamba2Options& o = options;
  const int64_t inner = o.heads * o.head_dim, grouped = o.groups * o.state;
  const Tensor hidden = call.padding(), starts = call.starts();
  // Padding has z = 0, hence an output of 0, and Δ = 0: it neither writes to the state nor lets it decay.
  const Tensor u = detail::filled_tokens(call.x, hidden, 0);
  const std::vector<Tensor> maps = split(scaled(in(u), o), {inner, inner + 2 * grouped, o.heads}, -1);
  const Tensor mixed = o.short_conv > 0 ? conv(maps[1], call.pass()) : silu(maps[1]);
  const std::vector<Tensor> xbc = split(mixed, {inner, grouped, grouped}, -1);
  // For bf16, Δ, its decay and Δ·x are computed in f32: the error of a rounded exponent adds up over all tokens.
  Tensor dt = clamp(softplus(detail::widened(maps[2]) + detail::widened(dt_bias)), o.dt_limit[0], o.dt_limit[1]);
  dt = detail::filled_tokens(dt, hidden, 0);
  const Tensor log_decay = detail::filled_tokens(dt * neg(exp(detail::widened(a_log))), starts, -INFINITY);
  // Token by token, [batch, n, heads, ·]: the layout in which the maps and the scan store their results.
  const Tensor x = unflatten(xbc[0], -1, {o.heads, o.head_dim});
  const Tensor written = to(detail::widened(x) * unsqueeze(dt, -1), x.dtype());
  return {maps[0],
          x,
          detail::split_heads(xbc[2], o.groups),
          detail::split_heads(xbc[1], o.groups),
          transpose(written, 1, 2),
          transpose(log_decay, 1, 2)};
}

Tensor Mamba2::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "mamba2", given, options.dim, pass);
  const auto [z, x, q, k, v, log_decay] = operands(call);
  const Tensor scanned = call.scan(q, k, v, log_decay, {.chunk = options.chunk});
  const Tensor gain = reshape(d, {options.heads, -1});
  const Tensor y = flatten(map(formula::ScaleOffset{}, x, gain, transpose(scanned, 1, 2)), 2, 3);
  return out(options.norm_before_gate ? swiglu(norm(y), z) : norm(swiglu(y, z)));
}

}  // namespace sluice
