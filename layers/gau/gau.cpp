#include <sluice/layers/gau/gau.h>

#include <sluice/core/node.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/map.h>
#include <sluice/ops/view.h>

#include <cmath>

namespace sluice {

namespace {

/// [batch, n, h·w] → [batch, h, n, w], a view.
Tensor split_heads(const Tensor& x, int64_t heads) {
  return transpose(unflatten(x, -1, {heads, x.dim(-1) / heads}), 1, 2);
}
Tensor merge_heads(const Tensor& x) { return flatten(transpose(x, 1, 2), 2, 3); }

/// γ ⊙ z + β with row i of [rows, s] parameters.
Tensor scale_offset(const Tensor& z, const Tensor& gamma, const Tensor& beta, int64_t i) {
  return map(formula::ScaleOffset{}, z, select(gamma, 0, i), select(beta, 0, i));
}

GauOptions checked(GauOptions o) {
  if (o.dim < 1 || o.expansion < 0 || o.key_dim < 1 || o.heads < 1)
    fail<ValueError>("gau: sizes must be positive — got dim=", o.dim, ", expansion=", o.expansion,
                     ", key_dim=", o.key_dim, ", heads=", o.heads);
  if (o.expansion == 0) o.expansion = 2 * o.dim;
  if (o.key_dim % o.heads != 0 || o.expansion % o.heads != 0)
    fail<ValueError>("gau: heads=", o.heads, " must divide key_dim=", o.key_dim, " and expansion=", o.expansion);
  if (!o.length) o.length = o.causal ? GauLength::visible : GauLength::n;
  if (o.bias == GauBias::toeplitz && o.max_length < 1)
    fail<ValueError>("gau: max_length must be positive — got ", o.max_length);
  o.t5.causal = o.causal;
  return o;
}

}  // namespace

namespace detail {

void init_uvz(Linear& in, int64_t expansion, int64_t key_dim, Init init, Rng& rng) {
  NoGrad guard;
  auto kernel = [&](int64_t width) { return init_weight(in.weight.dim(0), width, init, rng, in.weight.dtype()); };
  Tensor wu = kernel(expansion), wv = kernel(expansion), wz = kernel(key_dim);
  copy_(in.weight, cat({wu, wv, wz}, 1));
}

Tensor init_scale(const Shape& shape, double std, Rng& rng, DType dtype) {
  return std > 0 ? init_normal(shape, std, rng, dtype) : ones(shape, {dtype}).requires_grad_();
}

}  // namespace detail

GauOptions gau_alpha_options(int64_t dim, int64_t layers, double dropout) {
  GauOptions o{.dim = dim};
  o.linear_bias = false;
  o.kind = GauKind::softmax_plus;
  o.rope.pairing = RopePairing::interleaved;
  o.norm = NormKind::rms_plain;
  o.placement = GauPlacement::post;
  o.attention_dropout = o.dropout = dropout;
  o.init = Init::deepnorm(layers);
  return o;
}

Gau::Gau(GauOptions given, Rng& rng)
    : options(checked(given)),
      norm({options.dim, options.norm, 1e-5, options.dtype}),
      in({options.dim, 2 * options.expansion + options.key_dim, options.linear_bias, {InitKind::zeros}, options.dtype}, rng),
      out({options.expansion, options.dim, options.linear_bias, options.init, options.dtype}, rng) {
  const GauOptions& o = options;
  detail::init_uvz(in, o.expansion, o.key_dim, o.init, rng);
  gamma = detail::init_scale({2, o.key_dim}, o.gamma_std, rng, o.dtype);
  beta = zeros({2, o.key_dim}, {o.dtype}).requires_grad_();
  if (o.bias == GauBias::toeplitz) toeplitz_bias = init_normal({2 * o.max_length - 1}, 0.02, rng, o.dtype);
  if (o.bias == GauBias::rope) rope_bias = init_normal({2, o.key_dim / o.heads}, 0.02, rng, o.dtype);
  if (o.bias == GauBias::t5) t5_bias = init_normal({o.t5.buckets, 1}, 0.02, rng, o.dtype);
}

Tensor Gau::relative_bias(int64_t m, int64_t n) const {
  if (m == 0 || n == 0) return {};
  switch (options.bias) {
    case GauBias::none: return {};
    case GauBias::toeplitz: return relative_toeplitz(toeplitz_bias, m, n);
    case GauBias::rope: return relative_rope(select(rope_bias, 0, 0), select(rope_bias, 0, 1), m, n, options.rope);
    case GauBias::t5: return relative_t5(t5_bias, m, n, options.t5) * std::sqrt(static_cast<double>(options.dim));
  }
  return {};
}

Gau::Projected Gau::project(const Tensor& x, int64_t position) const {
  const GauOptions& o = options;
  if (x.rank() != 3 || x.dim(-1) != o.dim) fail("gau: got x=", x, "; need [batch, n, ", o.dim, "]");
  Tensor uvz = activate(o.activation, in(o.placement == GauPlacement::pre ? norm(x) : x));
  std::vector<Tensor> part = split(uvz, {o.expansion, o.expansion, o.key_dim}, -1);
  Tensor q = split_heads(scale_offset(part[2], gamma, beta, 0), o.heads);
  Tensor k = split_heads(scale_offset(part[2], gamma, beta, 1), o.heads);
  if (o.use_rope) {
    RopeOptions r = o.rope;
    r.offset += position;
    q = rope(q, r), k = rope(k, r);
  }
  return {part[0], q, k, split_heads(part[1], o.heads)};
}

GauAttentionOptions Gau::attention_options(int64_t m, int64_t n) const {
  return {options.kind, *options.length, options.constant_length, options.causal, options.top_k,
          options.attention_dropout, relative_bias(m, n)};
}

Tensor Gau::finish(const Tensor& x, const Tensor& u, const Tensor& attended, Rng* rng) const {
  Tensor y = Dropout{options.dropout}(out(u * merge_heads(attended)), rng);
  if (options.placement == GauPlacement::pre) return x + y;
  return norm(options.residual_scale == 1 ? x + y : x * options.residual_scale + y);
}

Tensor Gau::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng) const {
  ModuleScope scope(this, type);
  if (key_mask.defined() && (x.rank() != 3 || key_mask.shape() != Shape{x.dim(0), x.dim(1)}))
    fail("gau: key_mask=", key_mask, " does not fit x=", x, "; need [batch, n]");
  const Tensor tokens = finite_padding(x, key_mask);
  auto [u, q, k, v] = project(tokens, 0);
  const int64_t n = x.dim(1);
  Tensor attended = gau_attention(q, k, v, attention_options(n, n), {},
                                  key_mask.defined() ? unsqueeze(key_mask, 1) : Tensor(), rng);
  return finish(tokens, u, attended, rng);
}

std::pair<Tensor, Gau::State> Gau::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  if (!options.causal || *options.length == GauLength::n)
    fail<ValueError>("gau: only a causal layer with length visible or constant can be streamed; with L = n every "
                     "earlier output would change");
  NoGrad guard;
  auto [u, q, k, v] = project(x, state.length);
  const int64_t m = x.dim(1), n = state.length + m, capacity = state.keys.defined() ? state.keys.dim(2) : 0;
  if (state.keys.defined() && state.keys.dim(0) != x.dim(0))
    fail("gau: a state of batch ", state.keys.dim(0), " does not continue with x=", x);
  // A copied state shares its memory: the copy that goes on first takes memory of its own.
  const auto shared = [](const Tensor& t) { return t.ref()->use_count() > 1 || t.impl().storage->use_count() > 1; };
  if (!state.keys.defined() || n > capacity || shared(state.keys) || shared(state.values)) {
    const int64_t room = n > capacity ? std::max(n, 2 * capacity) : capacity;  // doubling: O(1) a token, amortised
    auto grown = [&](const Tensor& old, const Tensor& like) {
      Tensor fresh = empty({like.dim(0), like.dim(1), room, like.dim(3)}, like.options());
      if (state.length > 0) {
        Tensor head = narrow(fresh, 2, 0, state.length);
        copy_(head, narrow(old, 2, 0, state.length));
      }
      return fresh;
    };
    state.keys = grown(state.keys, k), state.values = grown(state.values, v);
  }
  Tensor new_keys = narrow(state.keys, 2, state.length, m), new_values = narrow(state.values, 2, state.length, m);
  copy_(new_keys, k), copy_(new_values, v);
  state.length = n;
  Tensor attended = gau_attention(q, narrow(state.keys, 2, 0, n), narrow(state.values, 2, 0, n), attention_options(m, n));
  return {finish(x, u, attended, nullptr), std::move(state)};
}

// -- two streams -----------------------------------------------------------------------------------------

CrossGau::CrossGau(CrossGauOptions o, Rng& rng) : options(o) {
  if (o.dim < 1 || o.context_dim < 0 || o.expansion < 0 || o.key_dim < 1)
    fail<ValueError>("cross_gau: sizes must be positive — got dim=", o.dim, ", context_dim=", o.context_dim,
                     ", expansion=", o.expansion, ", key_dim=", o.key_dim);
  if (options.expansion == 0) options.expansion = 2 * o.dim;
  if (options.context_dim == 0) options.context_dim = o.dim;
  const int64_t e = options.expansion, c = options.context_dim;
  norm = Norm({o.dim, o.norm, 1e-5, o.dtype});
  uq = Linear({o.dim, e + o.key_dim, true, o.init, o.dtype}, rng);
  key = Linear({c, o.key_dim, true, o.init, o.dtype}, rng);
  value = Linear({c, e, true, o.init, o.dtype}, rng);
  out = Linear({e, o.dim, true, o.init, o.dtype}, rng);
}

Tensor CrossGau::operator()(const Tensor& x, const Tensor& context, const Tensor& key_mask, Rng* rng) const {
  ModuleScope scope(this, type);
  const CrossGauOptions& o = options;
  if (x.rank() != 3 || context.rank() != 3 || x.dim(-1) != o.dim || context.dim(-1) != o.context_dim ||
      x.dim(0) != context.dim(0))
    fail("cross_gau: got x=", x, ", context=", context, "; need [batch, m, ", o.dim, "], [batch, n, ", o.context_dim, "]");
  std::vector<Tensor> part = split(activate(o.activation, uq(norm(x))), {o.expansion, o.key_dim}, -1);
  GauAttentionOptions a{.kind = o.kind, .dropout = o.attention_dropout};
  if (key_mask.defined() && key_mask.shape() != Shape{context.dim(0), context.dim(1)})
    fail("cross_gau: key_mask=", key_mask, " does not fit context=", context, "; need [batch, n]");
  const Tensor seen = finite_padding(context, key_mask);
  Tensor attended = gau_attention(part[1], activate(o.activation, key(seen)), activate(o.activation, value(seen)),
                                  a, {}, key_mask, rng);
  return x + Dropout{o.dropout}(out(part[0] * attended), rng);
}

}  // namespace sluice
