#include <sluice/layers/gau/gau.h>

#include <sluice/core/node.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/map.h>
#include <sluice/ops/view.h>
#include <sluice/parallel/sequence.h>

#include <cmath>

namespace sluice {

namespace {

/// γ ⊙ z + β with row i of [rows, s] parameters.
Tensor scale_offset(const Tensor& z, const Tensor& gamma, const Tensor& beta, int64_t i) {
  return map(formula::ScaleOffset{}, z, select(gamma, 0, i), select(beta, 0, i));
}

GauOptions checked(GauOptions o) {
  check_options("gau", o);
  if (o.expansion == 0) o.expansion = 2 * o.dim;
  if (o.key_dim % o.heads != 0 || o.expansion % o.heads != 0)
    fail<ValueError>("gau: heads=", o.heads, " must divide key_dim=", o.key_dim, " and expansion=", o.expansion);
  if (o.use_rope || o.bias == GauBias::rope)
    detail::check_rope("gau", o.rope, o.heads == 1 ? "key_dim" : "key_dim/heads", o.key_dim / o.heads);
  if (!o.length) o.length = o.causal ? GauLength::visible : GauLength::n;
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
      norm({options.dim, options.norm, options.norm_eps, options.dtype}),
      in({options.dim, 2 * options.expansion + options.key_dim, options.linear_bias, {InitKind::zeros}, options.dtype}, rng),
      out({options.expansion, options.dim, options.linear_bias, options.init, options.dtype}, rng) {
  const GauOptions& o = options;
  detail::init_uvz(in, o.expansion, o.key_dim, o.init, rng);
  gamma = detail::init_scale({2, o.key_dim}, o.gamma_std, rng, o.dtype);
  beta = zeros({2, o.key_dim}, {o.dtype}).requires_grad_();
  if (o.qk_norm) {
    const NormOptions of_head{o.key_dim / o.heads, o.qk_norm_kind, o.qk_norm_eps, o.dtype};
    q_norm = Norm(of_head), k_norm = Norm(of_head);
  }
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
  const Tensor uvz = in(o.placement == GauPlacement::pre ? norm(x) : x);
  std::vector<Tensor> part = split(uvz, {o.expansion, o.expansion, o.key_dim}, -1);
  const Tensor z = activate(o.activation, part[2]);
  Tensor q = q_norm(detail::split_heads(scale_offset(z, gamma, beta, 0), o.heads));
  Tensor k = k_norm(detail::split_heads(scale_offset(z, gamma, beta, 1), o.heads));
  if (o.use_rope) q = detail::rope_from(q, o.rope, position), k = detail::rope_from(k, o.rope.of_keys(), position);
  return {part[0], q, k, detail::split_heads(activate(o.activation, part[1]), o.heads)};
}

GauAttentionOptions Gau::attention_options(int64_t m, int64_t n, AttentionMask mask) const {
  mask.causal = options.causal, mask.window = options.window;
  return {.kind = options.kind, .length = *options.length, .constant_length = options.constant_length,
          .min_length = options.min_length, .mask = std::move(mask), .top_k = options.top_k, .dropout = options.attention_dropout,
          .relative_bias = relative_bias(m, n)};
}

Tensor Gau::finish(const Tensor& x, const Tensor& gate, const Tensor& attended, Rng* rng) const {
  Tensor y = Dropout{options.dropout}(out(gated_by(options.activation, detail::merge_heads(attended), gate)), rng);
  if (options.placement == GauPlacement::pre) return options.residual ? x + y : y;
  if (!options.residual) return norm(y);
  return norm(options.residual_scale == 1 ? x + y : x * options.residual_scale + y);
}

Tensor Gau::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng, const AttentionMask& mask) const {
  ModuleScope scope(this, type);
  if (key_mask.defined() && (x.rank() != 3 || key_mask.shape() != Shape{x.dim(0), x.dim(1)}))
    fail("gau: key_mask=", key_mask, " does not fit x=", x, "; need [batch, n]");
  if (mask.keys.defined() || mask.causal || mask.window != 0 || mask.dilation != 1)
    fail<ValueError>("gau: keys of a mask are the argument key_mask; causal and window belong to the layer's options");
  const Tensor tokens = finite_padding("gau", x, key_mask);
  const auto [first, total] = sequence_piece(x.dim(1));
  auto [gate, q, k, v] = project(tokens, first);
  GauAttentionOptions a = attention_options(total, total, mask);
  a.mask.keys = key_mask;
  return finish(tokens, gate, gau_attention(q, k, v, a, rng), rng);
}

std::pair<Tensor, Gau::State> Gau::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  if (!options.causal || *options.length == GauLength::n)
    fail<ValueError>("gau: only a causal layer with length visible or constant can be streamed; with L = n every "
                     "earlier output would change");
  NoGrad guard;
  state.check_batch("gau", x);
  auto [gate, q, k, v] = project(x, state.length);
  const std::vector<Tensor> rows = state.append({k, v}, options.window);
  const GauAttentionOptions a = attention_options(x.dim(1), rows[0].dim(2), {});
  return {finish(x, gate, gau_attention(q, rows[0], rows[1], a), nullptr), std::move(state)};
}

// -- two streams -----------------------------------------------------------------------------------------

CrossGau::CrossGau(CrossGauOptions o, Rng& rng) : options(o) {
  check_options("cross_gau", o);
  if (options.expansion == 0) options.expansion = 2 * o.dim;
  if (options.context_dim == 0) options.context_dim = o.dim;
  const int64_t e = options.expansion, c = options.context_dim;
  norm = Norm({o.dim, o.norm, o.norm_eps, o.dtype});
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
  std::vector<Tensor> part = split(uq(norm(x)), {o.expansion, o.key_dim}, -1);
  const GauAttentionOptions a{.kind = o.kind, .min_length = o.min_length, .mask = {.keys = key_mask}, .dropout = o.attention_dropout};
  if (key_mask.defined() && key_mask.shape() != Shape{context.dim(0), context.dim(1)})
    fail("cross_gau: key_mask=", key_mask, " does not fit context=", context, "; need [batch, n]");
  const Tensor seen = finite_padding("cross_gau", context, key_mask);
  SequenceScope uncut;  // all queries see the whole context
  Tensor attended = gau_attention(activate(o.activation, part[1]), activate(o.activation, key(seen)),
                                  activate(o.activation, value(seen)), a, rng);
  return x + Dropout{o.dropout}(out(gated_by(o.activation, attended, part[0])), rng);
}

}  // namespace sluice
