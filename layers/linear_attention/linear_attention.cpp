#include <sluice/layers/linear_attention/linear_attention.h>

#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>
#include <cmath>

namespace sluice {

namespace {

/// Operands after prepare(): scaled, and 0 at padding.
struct Operands {
  Tensor q, k, v, decay;
};

void check_operands(const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionForm& f) {
  const bool fits = q.rank() == 4 && k.rank() == 4 && v.rank() == 4 && q.dim(0) == k.dim(0) && q.dim(0) == v.dim(0) &&
                    q.dim(1) == k.dim(1) && q.dim(1) == v.dim(1) && q.dim(3) == k.dim(3) && k.dim(2) == v.dim(2);
  if (!fits)
    fail("linear_attention: got phi_q=", q, ", phi_k=", k, ", v=", v,
         "; need [batch, heads, n_q, m], [batch, heads, n, m], [batch, heads, n, dv]");
  detail::check_floats("linear_attention", {{"phi_q", q}, {"phi_k", k}, {"v", v}});
  if (f.direction != LinearDirection::full && q.dim(2) != k.dim(2))
    fail("linear_attention: only the direction `full` takes queries other than the tokens of the keys — got phi_q=", q,
         ", phi_k=", k);
  if (f.direction == LinearDirection::full && f.log_decay.defined())
    fail<ValueError>(
        "linear_attention: the direction `full` has no order to forget in; `bidirectional` weighs by "
        "γ^|i − j|");
  if (f.direction == LinearDirection::full && f.rope && q.dim(2) != k.dim(2))
    fail("linear_attention: rope needs queries at the positions of the keys — got phi_q=", q, ", phi_k=", k);
  if (!(f.eps >= 0)) fail<ValueError>("linear_attention: eps must not be negative — got ", f.eps);
  if (f.chunk < 1) fail<ValueError>("linear_attention: chunk must be positive — got ", f.chunk);
  if (f.starts.defined() &&
      (f.starts.dtype() != boolean || f.starts.shape() != Shape{k.dim(0), k.dim(2)} || q.dim(2) != k.dim(2)))
    fail("linear_attention: starts=", f.starts.dtype(), f.starts, " does not fit phi_q=", q, ", phi_k=", k,
         "; need bool [batch, n], and queries of the keys' tokens");
  detail::check_rows("linear_attention", "key_mask", f.key_mask, boolean, "phi_k", k);
}

Operands prepare(const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionForm& f) {
  check_operands(q, k, v, f);
  checked_numel("linear_attention", {q.dim(0), q.dim(1), q.dim(3), v.dim(3) + 1});  // Σ φ(k) [v, 1]
  const Tensor padding = detail::padding_of(f.key_mask);  // a padded token has no effect, and its step no decay
  const auto real = [&](const Tensor& t) { return detail::filled_tokens(t, padding, 0, 2); };
  Operands x{f.scale == 1 ? q : q * f.scale, real(k), real(v), real(f.log_decay)};
  if (!f.starts.defined()) return x;
  // A decay of −∞ lets nothing of earlier documents pass, nor, in reverse, of later ones.
  if (!x.decay.defined()) x.decay = zeros({}, detail::widened(k.options()));
  x.decay = detail::filled_tokens(x.decay, f.starts, -std::numeric_limits<double>::infinity(), 2);
  return x;
}

/// [batch, heads, n, ·] ↔ [batch, n, heads, ·], the order in memory: maps of tokens write it, merge_heads() needs it.
Tensor token_major(const Tensor& x) { return transpose(x, 1, 2); }

/// `sum` computes Σ_j (q_i·k_j) v_j. Returns this sum for v; with a normaliser divided by the sum for v = 1. RoPE turns
/// φ(q) and φ(k) of the numerator only; `first` is the position of the first token.
template <class Sum>
Tensor numerator_and_denominator(const Operands& x, const LinearAttentionForm& f, int64_t first, const Sum& sum) {
  const Tensor q = f.rope ? detail::rope_from(x.q, *f.rope, first) : x.q;
  const Tensor k = f.rope ? detail::rope_from(x.k, f.rope->of_keys(), first) : x.k;
  const Tensor numerator = sum(q, k, x.v);
  if (f.normalize == LinearNormalize::none) return numerator;
  const Tensor denominator = sum(x.q, x.k, ones({x.v.dim(0), x.v.dim(1), x.v.dim(2), 1}, x.v.options()));
  return token_major(map(formula::Quotient{f.eps}, token_major(numerator), token_major(denominator)));
}

Tensor full_sum(const Tensor& q, const Tensor& k, const Tensor& v) {
  return matmul(q, sequence_sum(matmul(transpose(k, -2, -1), v)));
}

}  // namespace

Tensor linear_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v, const LinearAttentionForm& f) {
  const Operands x = prepare(phi_q, phi_k, v, f);
  const auto attended = [&](const auto& sum) {
    return numerator_and_denominator(x, f, sequence_piece(x.k.dim(2)).first, sum);
  };
  const auto scan = [&](bool reverse) {  // over j <= i; in reverse, over j >= i
    return [&x, &f, reverse](const Tensor& q, const Tensor& k, const Tensor& values) {
      return sequence_scan(q, k, values, x.decay, {.chunk = f.chunk, .reverse = reverse});
    };
  };
  switch (f.direction) {
    case LinearDirection::full:
      if (!f.starts.defined()) return attended(full_sum);
      [[fallthrough]];  // as bidirectional: all tokens of a document
    case LinearDirection::bidirectional:
      return attended([&](const Tensor& q, const Tensor& k, const Tensor& values) {  // both directions include j = i
        return scan(false)(q, k, values) + scan(true)(q, k, values) - sum(q * k, {-1}, keep) * values;
      });
    case LinearDirection::causal: return attended(scan(false));
    case LinearDirection::two_direction_mean: return (attended(scan(false)) + attended(scan(true))) * 0.5;
  }
  fail<ValueError>("linear_attention: unknown direction");
}

Tensor detail::linear_attention(Call& call, const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                                LinearAttentionForm f) {
  f.key_mask = call.key_mask(), f.starts = call.starts();
  if (!call.streams()) return sluice::linear_attention(phi_q, phi_k, v, f);
  call.check_causal(f.direction == LinearDirection::causal);
  const Operands x = prepare(phi_q, phi_k, v, f);
  const auto scan = [&](const Tensor& q, const Tensor& k, const Tensor& values) {
    return call.scan(q, k, values, x.decay, {.chunk = f.chunk});
  };
  return numerator_and_denominator(x, f, call.first(f.rope.has_value()), scan);
}

// -- the layer -------------------------------------------------------------------------------------------

std::vector<double> retention_gammas(int64_t heads) {
  if (heads < 0 || heads > 1 << 20) fail<ValueError>("retention_gammas: heads must be in [0, 2^20] — got ", heads);
  std::vector<double> gamma;
  for (int64_t h = 0; h < heads; ++h) gamma.push_back(1 - std::exp2(-5 - static_cast<double>(h)));
  return gamma;
}

Tensor detail::log_gammas(const char* op, const std::vector<double>& gamma, int64_t heads, DType dtype) {
  if (static_cast<int64_t>(gamma.size()) != heads)
    fail<ValueError>(op, ": needs a gamma for each of heads=", heads, " — got ", gamma.size());
  std::vector<double> logs;
  for (double g : gamma) {
    if (!(g > 0 && g <= 1)) fail<ValueError>(op, ": gamma must lie in (0, 1] — got ", g);
    logs.push_back(std::log(g));
  }
  return to(Tensor::from(logs), dtype);
}

static LinearAttentionOptions checked(LinearAttentionOptions o) {
  check_options("linear_attention", o);
  const HeadsOptions h = checked_heads("linear_attention", detail::heads_of("linear_attention", o));
  o.kv_heads = h.kv_heads, o.head_dim = h.head_dim, o.value_dim = h.value_dim;
  FeatureMapOptions& m = o.feature_map;
  if (m.dim != 0 && m.dim != o.head_dim)
    fail<ValueError>("linear_attention: feature_map.dim=", m.dim, " differs from head_dim=", o.head_dim);
  if (m.heads != 0 && m.heads != o.heads)
    fail<ValueError>("linear_attention: feature_map.heads=", m.heads, " differs from heads=", o.heads);
  m.dim = o.head_dim, m.dtype = o.dtype;
  if (m.kind == FeatureMapKind::favor && !m.input_scale)
    m.input_scale = std::pow(static_cast<double>(o.head_dim), -0.25);
  if (is_random(m.kind) && !o.tie_feature_map)
    fail<ValueError>("linear_attention: ", name_of(m.kind),
                     " needs tie_feature_map; its random directions must be the "
                     "same for queries and keys");
  if (o.decay != LinearDecay::none && o.direction == LinearDirection::full)
    fail<ValueError>("linear_attention: decay needs an order; the direction `full` has none");
  if (o.decay == LinearDecay::none && !o.gamma.empty())
    fail<ValueError>("linear_attention: gamma is given, but decay is none");
  if (o.decay != LinearDecay::none && o.gamma.empty()) {
    o.gamma = retention_gammas(o.heads);
    if (o.decay == LinearDecay::learned)  // σ(z) is below 1, but 1 − 2^{−5−h} is rounded to 1 from head 49 on
      for (double& g : o.gamma) g = std::min(g, 1 - 0x1p-53);
  }
  return o;
}

LinearAttention::LinearAttention(LinearAttentionOptions given, Rng& rng) : options(checked(given)) {
  const LinearAttentionOptions& o = options;
  const HeadsOptions h = head_options();
  heads = Heads(checked_heads("linear_attention", h), rng);
  feature_map = FeatureMap(o.feature_map, rng);
  if (!o.tie_feature_map) key_feature_map = FeatureMap(o.feature_map, rng);
  if (o.use_rope == LinearRope::features)
    detail::check_rope("linear_attention", o.rope, "features", feature_map.out_dim());
  if (o.decay != LinearDecay::none) {
    const Tensor g = detail::log_gammas("linear_attention", o.gamma, o.heads, f64);
    if (o.decay == LinearDecay::fixed) {
      log_gamma = to(g, exact(o.dtype));
    } else {  // z = log γ − log(1 − γ)
      for (const double gamma : o.gamma)
        if (gamma == 1) fail<ValueError>("linear_attention: learned gamma must start below 1 — got ", gamma);
      gamma_logit = to(g - log(neg(expm1(g))), exact(o.dtype)).requires_grad_();
    }
  }
  draw_conv(h, o.short_conv, rng);
  if (o.output_gate) draw_gate(h, rng);
  norm = Norm({o.value_dim, o.output_norm, o.norm_eps, o.dtype});
}

Tensor LinearAttention::log_decay() const {
  if (options.decay == LinearDecay::none) return {};
  const Tensor g = options.decay == LinearDecay::fixed ? log_gamma : neg(softplus(neg(gamma_logit)));  // log σ(z)
  return reshape(g, {1, options.heads, 1});
}

HeadsOptions LinearAttention::head_options() const {
  HeadsOptions h = detail::heads_of("linear_attention", options);
  h.use_rope = options.use_rope == LinearRope::inputs, h.rope = options.rope;
  h.qkv_bias = options.qkv_bias, h.out_bias = options.out_bias;
  return h;
}

Tensor LinearAttention::operator()(const Tensor& given, const Pass& pass) const {
  const LinearAttentionOptions& o = options;
  Call call(*this, "linear_attention", given, o.dim, pass);
  const HeadsOptions h = head_options();
  auto [q, k, v] = project(h, call);
  const Tensor padding = call.padding();  // features of padding may overflow
  q = detail::filled_tokens(q, padding, 0, 2), k = detail::filled_tokens(k, padding, 0, 2);
  LinearAttentionForm form{.direction = o.direction,
                           .normalize = o.normalize,
                           .eps = o.eps,
                           .scale = o.scale,
                           .log_decay = log_decay(),
                           .chunk = o.chunk};
  if (o.use_rope == LinearRope::features) form.rope = o.rope;
  const FeatureMap& of_keys = key_feature_map ? *key_feature_map : feature_map;
  return finish(h, detail::merge_heads(norm(detail::linear_attention(call, feature_map(q), of_keys(k), v, form))),
                call);
}

}  // namespace sluice
