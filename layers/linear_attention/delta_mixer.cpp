#include <sluice/layers/linear_attention/delta_mixer.h>

#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/rows/norm.h>

#include <cmath>
#include <limits>

namespace sluice {

/// t [batch, n, updates·heads·c] as [batch, n·updates, heads, c].
static Tensor by_update(const Tensor& t, int64_t updates, int64_t heads) {
  return reshape(t, {t.dim(0), t.dim(1) * updates, heads, t.dim(2) / (updates * heads)});
}

Tensor detail::among_updates(const Tensor& t, int64_t updates, int64_t at) {
  if (updates == 1 || !t.defined()) return t;
  return flatten(pad(unsqueeze(t, 2), 2, at, updates - 1 - at), 1, 2);
}

void DeltaMixer::draw(const char* layer, DeltaOptions& o, Rng& rng, Act activation) {
  if (o.value_heads == 0) o.value_heads = o.heads;
  if (o.value_heads % o.heads != 0)
    fail<ValueError>(layer, ": heads=", o.heads, " must divide value_heads=", o.value_heads);
  if (o.key_dim == 0) {
    if (o.dim % o.heads != 0) fail<ValueError>(layer, ": without key_dim, heads=", o.heads, " must divide dim=", o.dim);
    o.key_dim = o.dim / o.heads;
  }
  if (o.value_dim == 0) o.value_dim = o.key_dim;
  const int64_t queries = checked_mul(layer, o.heads, o.key_dim), read = checked_mul(layer, o.value_heads, o.value_dim);
  const int64_t keys = checked_mul(layer, o.updates, queries), values = checked_mul(layer, o.updates, read);
  const auto map = [&](int64_t in, int64_t to) { return Linear({in, to, false, o.init, o.dtype}, rng); };
  q = map(o.dim, queries), k = map(o.dim, keys), v = map(o.dim, values), out = map(read, o.dim);
  beta = map(o.dim, checked_mul(layer, o.updates, o.value_heads));
  if (o.short_conv > 0)
    conv = ShortConvolution({.dim = checked_add(layer, checked_add(layer, queries, keys), values),
                             .width = o.short_conv,
                             .activation = activation == Act::silu ? Act::silu : Act::identity,
                             .dtype = o.dtype},
                            rng);
  norm = Norm({o.value_dim, NormKind::rms, o.norm_eps, o.dtype});
}

DeltaMixer::Rows DeltaMixer::rows(const DeltaOptions& o, const Call& call, Act activation) const {
  Tensor queries = q(call.x), keys = k(call.x), values = v(call.x);
  detail::convolve(conv, call, queries, keys, values);
  const bool activated = conv.weight.defined() && conv.options.activation != Act::identity;
  if (!activated) queries = activate(activation, queries), keys = activate(activation, keys), values = silu(values);
  return {by_update(queries, 1, o.heads), by_update(keys, o.updates, o.heads),
          by_update(values, o.updates, o.value_heads)};
}

DeltaMixer::Rows DeltaMixer::unit_rows(const DeltaOptions& o, const Call& call, Act activation) const {
  const Rows x = rows(o, call, activation);
  const auto width = static_cast<double>(o.key_dim);
  const auto unit = [&](const Tensor& t, double weight) {  // x/√(Σ x² + 10⁻⁶) as an RMS norm
    // A weight rounded to bf16 would make all lengths wrong by the same factor.
    if (t.dtype() == bf16) return rms_norm(t, {}, 1e-6 / width) * weight;
    return rms_norm(t, full({o.key_dim}, weight, t.options()), 1e-6 / width);
  };
  return {unit(x.q, 1 / width), unit(x.k, 1 / std::sqrt(width)), x.v};
}

Tensor DeltaMixer::strength(const DeltaOptions& o, const Call& call) const {
  const Tensor b = by_update(sigmoid(beta(call.x)), o.updates, o.value_heads);
  return o.beta_scale == 1 ? b : b * o.beta_scale;
}

Tensor DeltaMixer::scanned(const DeltaOptions& o, Call& call, const Rows& x, const Tensor& log_decay,
                           const Tensor& erase, const Tensor& write) {
  using detail::among_updates, detail::filled_tokens;
  Tensor padding = call.padding();
  const Tensor starts = call.starts();
  Tensor g = log_decay;
  if (!g.defined() && starts.defined()) g = zeros({x.q.dim(0), x.q.dim(1), o.value_heads}, x.v.options());
  g = filled_tokens(filled_tokens(g, padding, 0), starts, -std::numeric_limits<double>::infinity());
  const int64_t n = x.q.dim(1), m = o.updates;
  g = among_updates(g, m, 0);
  if (m > 1 && padding.defined()) padding = repeat_interleave(padding, m, 1);
  const Tensor keys = detail::spread_heads(x.k, o.value_heads, 2);
  const Tensor read = call.delta_scan(transpose(among_updates(x.q, m, m - 1), 1, 2), transpose(x.k, 1, 2),
                                      transpose(filled_tokens(erase, padding, 0) * keys, 1, 2),
                                      transpose(filled_tokens(write, padding, 0) * x.v, 1, 2),
                                      g.defined() ? transpose(g, 1, 2) : g, {.chunk = o.chunk});
  return m == 1 ? read : select(unflatten(read, 2, {n, m}), 3, m - 1);
}

Tensor DeltaMixer::finish(const DeltaOptions& o, const Call& call, const Tensor& attended, const Tensor& gate,
                          Act activation) const {
  Tensor y = flatten(norm(transpose(attended, 1, 2)), 2, 3);
  if (gate.defined()) y = gated_by(activation, y, gate);
  return Dropout{o.dropout}(out(y), call.rng());
}

}  // namespace sluice
