#include <sluice/layers/gau/gau.h>

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/parallel/sequence.h>

#include <numeric>

namespace sluice {

static GauOptions checked(GauOptions o) {
  check_options("gau", o);
  if (o.expansion == 0) o.expansion = 2 * o.dim;
  if (o.key_dim % o.heads != 0 || o.expansion % o.heads != 0)
    fail<ValueError>("gau: heads=", o.heads, " must divide key_dim=", o.key_dim, " and expansion=", o.expansion);
  if (o.use_rope || o.bias == GauBias::rope)
    detail::check_rope("gau", o.rope, o.heads == 1 ? "key_dim" : "key_dim/heads", o.key_dim / o.heads);
  if (!o.length) o.length = o.causal ? GauLength::visible : GauLength::n;
  o.t5.causal = o.causal;
  if (o.bias == GauBias::t5) detail::check_t5("gau", o.t5);
  return o;
}

Linear detail::fused_linear(int64_t in, const std::vector<int64_t>& widths, bool bias, Init init, DType dtype,
                            Rng& rng) {
  Linear map({in, std::reduce(widths.begin(), widths.end()), bias, {InitKind::zeros}, dtype}, rng);
  NoGrad guard;
  std::vector<Tensor> each;
  for (const int64_t width : widths) each.push_back(init_weight(in, width, init, rng, dtype));
  copy_(map.weight, cat(each, 1));
  return map;
}

Tensor detail::scale_offset(const Tensor& z, const Tensor& gamma, const Tensor& beta, int64_t i) {
  return map(formula::ScaleOffset{}, z, select(gamma, 0, i), select(beta, 0, i));
}

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

Gau::Gau(GauOptions given, Rng& rng) : options(checked(given)) {
  const GauOptions& o = options;
  const int64_t width = o.key_dim / o.heads;
  detail::draw_gau(*this, 2, o.max_length, width, rng);
  if (!o.qk_norm) return;
  const NormOptions of_head{width, o.qk_norm_kind, o.qk_norm_eps, o.dtype};
  q_norm = Norm(of_head), k_norm = Norm(of_head);
}

Tensor Gau::relative_bias(int64_t m, int64_t n) const {
  return m == 0 || n == 0 ? Tensor() : detail::relative_bias(*this, m, n, options.dim);
}

Gau::Projected Gau::project(const Tensor& x, int64_t position) const {
  const GauOptions& o = options;
  const Tensor uvz = in(o.placement == GauPlacement::pre ? norm(x) : x);
  std::vector<Tensor> part = split(uvz, {o.expansion, o.expansion, o.key_dim}, -1);
  const Tensor z = activate(o.activation, part[2]);
  Tensor q = q_norm(detail::split_heads(detail::scale_offset(z, gamma, beta, 0), o.heads));
  Tensor k = k_norm(detail::split_heads(detail::scale_offset(z, gamma, beta, 1), o.heads));
  if (o.use_rope) q = detail::rope_from(q, o.rope, position), k = detail::rope_from(k, o.rope.of_keys(), position);
  return {part[0], q, k, detail::split_heads(activate(o.activation, part[1]), o.heads)};
}

Tensor Gau::finish(const Tensor& x, const Tensor& gate, const Tensor& attended, Rng* rng) const {
  Tensor y = Dropout{options.dropout}(out(gated_by(options.activation, detail::merge_heads(attended), gate)), rng);
  if (options.placement == GauPlacement::pre) return options.residual ? x + y : y;
  if (!options.residual) return norm(y);
  return norm(options.residual_scale == 1 ? x + y : x * options.residual_scale + y);
}

Tensor Gau::operator()(const Tensor& given, const Pass& pass) const {
  const GauOptions& o = options;
  Call call(*this, "gau", given, o.dim, pass);
  call.check_causal(o.causal);
  call.check_causal(*o.length != GauLength::n,
                    "only length visible or constant can be streamed; with L = n every earlier output would change");
  const auto [gate, q, k, v] = project(call.x, call.first(o.use_rope));
  const std::vector<Tensor> rows = call.rows({k, v}, o.window);
  const auto [m, n] = call.extent(rows[0]);
  GauAttentionOptions a{.kind = o.kind,
                        .length = *o.length,
                        .constant_length = o.constant_length,
                        .min_length = o.min_length,
                        .mask = call.mask(),
                        .top_k = o.top_k,
                        .dropout = o.attention_dropout,
                        .bias = pass.bias,
                        .relative_bias = relative_bias(m, n)};
  a.mask.causal = o.causal, a.mask.window = o.window;
  return finish(call.x, gate, gau_attention(q, rows[0], rows[1], a, call.rng()), call.rng());
}

// -- two sequences ---------------------------------------------------------------------------------------

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

Tensor CrossGau::operator()(const Tensor& given, const Pass& pass) const {
  const CrossGauOptions& o = options;
  Call call(*this, "cross_gau", given, o.dim, pass);
  const std::vector<Tensor> seen = call.of_context(3, [&] {
    const Tensor source = call.context(o.context_dim);
    return std::vector<Tensor>{activate(o.activation, key(source)), activate(o.activation, value(source)),
                               pass.context_mask};
  });
  const std::vector<Tensor> part = split(uq(norm(call.x)), {o.expansion, o.key_dim}, -1);
  const GauAttentionOptions a{
      .kind = o.kind, .min_length = o.min_length, .mask = {.keys = seen[2]}, .dropout = o.attention_dropout};
  SequenceScope uncut;  // all queries see the whole context
  const Tensor attended = gau_attention(activate(o.activation, part[1]), seen[0], seen[1], a, call.rng());
  return call.x + Dropout{o.dropout}(out(gated_by(o.activation, attended, part[0])), call.rng());
}

}  // namespace sluice
