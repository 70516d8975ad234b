#include <sluice/layers/linear_attention/rwkv7.h>

#include <sluice/layers/linear_attention/delta_mixer.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/basic.h>

#include <cmath>
#include <limits>

namespace sluice {

namespace {

/// The row of `mix`.
enum class Mixed { r, w, k, v, a, g };
constexpr double kShares[] = {0.2, 0.9, 0.7, 0.7, 0.9, 0.2};  // p of μ = 1 − (c/dim)^p

int64_t rank_of(int64_t given, double wanted) {
  return given ? given : std::max<int64_t>(32, 32 * std::llround(wanted / 32));
}

Tensor trained(const Shape& shape, DType dtype, auto value) {
  if (const TensorOptions o = detail::initial(dtype); o.device.kind == DeviceKind::meta)
    return empty(shape, o).requires_grad_();
  std::vector<double> values;
  for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(value(i));
  return to(Tensor::from(values, shape), dtype).requires_grad_();
}

}  // namespace

Rwkv7::Rwkv7(Rwkv7Options given, Rng& rng) : options(given) {
  Rwkv7Options& o = options;
  check_options("rwkv7", o);
  if (o.dim % o.head_dim != 0) fail<ValueError>("rwkv7: head_dim=", o.head_dim, " must divide dim=", o.dim);
  const auto width = static_cast<double>(o.dim);
  o.decay_rank = rank_of(o.decay_rank, 1.8 * std::sqrt(width)),
  o.rate_rank = rank_of(o.rate_rank, 1.8 * std::sqrt(width));
  o.value_rank = rank_of(o.value_rank, 1.3 * std::sqrt(width)),
  o.gate_rank = rank_of(o.gate_rank, 0.6 * std::pow(width, 0.8));
  const auto map = [&](int64_t in, int64_t to, bool bias = false) {
    return Linear({in, to, bias, o.init, o.dtype}, rng);
  };
  mix = trained({6, o.dim}, o.dtype,
                [&](int64_t i) { return 1 - std::pow(static_cast<double>(i % o.dim) / width, kShares[i / o.dim]); });
  r = map(o.dim, o.dim), k = map(o.dim, o.dim), v = map(o.dim, o.dim), out = map(o.dim, o.dim);
  decay_down = map(o.dim, o.decay_rank), decay_up = map(o.decay_rank, o.dim);
  decay_bias = trained({o.dim}, exact(o.dtype),
                       [&](int64_t c) { return 6 * static_cast<double>(c) / std::max(1.0, width - 1) - 5.5; });
  rate_down = map(o.dim, o.rate_rank), rate_up = map(o.rate_rank, o.dim, true);
  if (o.value_residual) value_down = map(o.dim, o.value_rank), value_up = map(o.value_rank, o.dim, true);
  gate_down = map(o.dim, o.gate_rank), gate_up = map(o.gate_rank, o.dim);
  removal = init_vector(o.dim, 1, o.dtype), rate_mix = init_vector(o.dim, 1, o.dtype);
  bonus = init_vector(o.dim, 0, o.dtype);
  norm = GroupNorm({.groups = o.dim / o.head_dim, .dim = o.head_dim, .eps = o.norm_eps, .dtype = o.dtype});
}

Tensor Rwkv7::log_decay(const Tensor& x) const {
  return sigmoid(detail::widened(decay_up(tanh(decay_down(x)))) + detail::widened(decay_bias)) * -std::exp(-0.5);
}

Tensor Rwkv7::operator()(const Tensor& x, const Pass& pass) const {
  Tensor first_values;
  return (*this)(x, first_values, pass);
}

Tensor Rwkv7::operator()(const Tensor& given, Tensor& first_values, const Pass& pass) const {
  using detail::among_updates, detail::filled_tokens, detail::widened;
  Call call(*this, "rwkv7", given, options.dim, pass);
  const Tensor padding = call.padding(), starts = call.starts();
  const Tensor x = filled_tokens(call.x, padding, 0), before = filled_tokens(call.shift(x), starts, 0);
  const auto mixed = [&](Mixed i) { return lerp(x, before, select(mix, 0, static_cast<int64_t>(i))); };
  const auto of_heads = [&](const Tensor& t) { return unflatten(t, -1, {norm.options.groups, options.head_dim}); };

  const Tensor read = r(mixed(Mixed::r)), key = k(mixed(Mixed::k)), xv = mixed(Mixed::v);
  const Tensor rate = sigmoid(rate_up(rate_down(mixed(Mixed::a))));
  Tensor value = v(xv);
  if (!first_values.defined()) first_values = value;
  if (first_values.shape() != value.shape())
    fail("rwkv7: first_values=", first_values, " does not fit x=", given, "; need ", value.shape());
  if (options.value_residual) value = lerp(value, first_values, sigmoid(value_up(value_down(xv))));
  const Tensor written = key * ((rate - 1) * rate_mix + 1);

  const Tensor w = of_heads(log_decay(mixed(Mixed::w))), direction = of_heads(widened(key * removal));
  const Tensor kappa = direction / sqrt(clamp(sum(direction * direction, {-1}, keep), 1e-24));
  const auto rows = [&](const Tensor& first, const Tensor& second) {
    return transpose(among_updates(first, 2, 0) + among_updates(second, 2, 1), 1, 2);
  };
  const auto row = [&](const Tensor& t, int64_t at) { return transpose(among_updates(t, 2, at), 1, 2); };
  const Tensor g = filled_tokens(filled_tokens(w, padding, 0), starts, -std::numeric_limits<double>::infinity());
  const Tensor erase = filled_tokens(to(kappa * exp(neg(w)), key.dtype()), padding, 0);
  const Tensor scanned = call.delta_scan(
      row(of_heads(read), 1), rows(to(kappa, key.dtype()) * of_heads(rate), of_heads(written)), row(erase, 0),
      row(of_heads(filled_tokens(value, padding, 0)), 1), row(g, 0), {.chunk = options.chunk});
  const Tensor attended = detail::merge_heads(select(unflatten(scanned, 2, {x.dim(1), 2}), 3, 1));
  const Tensor own = sum(of_heads(read * written * bonus), {-1}, keep) * of_heads(value);
  return out((norm(attended) + flatten(own, 2, 3)) * gate_up(sigmoid(gate_down(mixed(Mixed::g)))));
}

}  // namespace sluice
