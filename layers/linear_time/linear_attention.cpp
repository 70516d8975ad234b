#include <sluice/layers/linear_time/linear_attention.h>

#include <sluice/core/node.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/gather.h>
#include <sluice/ops/formulas_of_layers.h>
#include <sluice/ops/map.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/view.h>
#include <sluice/parallel/sequence.h>

#include <cmath>

namespace sluice {

namespace {

/// Operands after prepare(): scaled, and 0 at padding.
struct Operands {
  Tensor q, k, v, decay;
};

void check_operands(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionForm& f) {
  const bool fits = q.rank() == 4 && k.rank() == 4 && v.rank() == 4 && q.dim(0) == k.dim(0) && q.dim(0) == v.dim(0) &&
                    q.dim(1) == k.dim(1) && q.dim(1) == v.dim(1) && q.dim(3) == k.dim(3) && k.dim(2) == v.dim(2);
  if (!fits)
    fail(op, ": got phi_q=", q, ", phi_k=", k, ", v=", v,
         "; need [batch, heads, n_q, m], [batch, heads, n, m], [batch, heads, n, dv]");
  if (q.dtype() != k.dtype() || q.dtype() != v.dtype() || !is_float(q.dtype()))
    fail<DTypeError>(op, ": needs f32, f64 or bf16 operands of one dtype — got phi_q=", q.dtype(), ", phi_k=", k.dtype(),
                     ", v=", v.dtype());
  if (f.direction != LinearDirection::full && q.dim(2) != k.dim(2))
    fail(op, ": only the direction `full` takes queries other than the tokens of the keys — got phi_q=", q,
         ", phi_k=", k);
  if (f.direction == LinearDirection::full && f.log_decay.defined())
    fail<ValueError>(op, ": the direction `full` has no order to forget in; `bidirectional` weighs by γ^|i − j|");
  if (f.direction == LinearDirection::full && f.rope && q.dim(2) != k.dim(2))
    fail(op, ": rope needs queries at the positions of the keys — got phi_q=", q, ", phi_k=", k);
  if (!(f.eps >= 0)) fail<ValueError>(op, ": eps must not be negative — got ", f.eps);
  if (f.chunk < 1) fail<ValueError>(op, ": chunk must be positive — got ", f.chunk);
  if (!f.key_mask.defined()) return;
  if (f.key_mask.dtype() != boolean)
    fail<DTypeError>(op, ": key_mask must be bool — got ", f.key_mask.dtype(), " of shape ", f.key_mask);
  if (f.key_mask.shape() != Shape{k.dim(0), k.dim(2)})
    fail(op, ": key_mask=", f.key_mask, " does not fit phi_k=", k, "; need [", k.dim(0), ",", k.dim(2), "]");
}

Operands prepare(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionForm& f) {
  check_operands(op, q, k, v, f);
  checked_numel(op, {q.dim(0), q.dim(1), q.dim(3), v.dim(3) + 1});  // Σ φ(k) [v, 1]
  Operands x{f.scale == 1 ? q : q * f.scale, k, v, f.log_decay};
  if (f.key_mask.defined()) {  // a padded token has no effect, and its step no decay
    const Tensor hidden = unsqueeze(logical_not(f.key_mask), 1);
    x.k = masked_fill(k, unsqueeze(hidden, -1), 0), x.v = masked_fill(v, unsqueeze(hidden, -1), 0);
    if (x.decay.defined()) x.decay = masked_fill(x.decay, x.decay.rank() == 4 ? unsqueeze(hidden, -1) : hidden, 0);
  }
  return x;
}

/// The parts of a sum over keys: the sum of v and, with a normaliser, the sum of 1, which is the denominator. RoPE
/// rotates the features of the first part only.
struct Piece {
  Tensor q, k, v;
};
std::vector<Piece> pieces(const Operands& x, const LinearAttentionForm& f, int64_t position) {
  std::vector<Piece> all{{x.q, x.k, x.v}};
  if (f.rope) {
    RopeOptions r = *f.rope;
    r.offset += position;
    all[0].q = rope(x.q, r), all[0].k = rope(x.k, r.of_keys());
  }
  if (f.normalize == LinearNormalize::sum) all.push_back({x.q, x.k, ones({x.v.dim(0), x.v.dim(1), x.v.dim(2), 1}, x.v.options())});
  return all;
}

/// Applies f to tensors [batch, heads, n, ·] in memory order. f must depend on the last dim only. The memory order is
/// token by token, as maps of tokens return it and merge_heads() needs it.
template <class F, class... Ts>
Tensor by_token(const F& f, const Ts&... xs) {
  return transpose(f(transpose(xs, 1, 2)...), 1, 2);
}

/// The quotient of the two sums of pieces; without normaliser the first sum.
Tensor divided(const std::vector<Tensor>& sums, const LinearAttentionForm& f) {
  if (f.normalize == LinearNormalize::none) return sums[0];
  return by_token([&](const Tensor& n, const Tensor& d) { return map(formula::Quotient{f.eps}, n, d); }, sums[0],
                  sums[1]);
}

/// Σ_j φ(q_i)·φ(k_j) v_j and Σ_j φ(q_i)·φ(k_j) over j <= i, or over j >= i if reverse.
std::vector<Tensor> one_way(const Operands& x, const LinearAttentionForm& f, bool reverse) {
  std::vector<Tensor> sums;
  for (const Piece& p : pieces(x, f, sequence_piece(x.k.dim(2)).first))
    sums.push_back(sequence_scan(p.q, p.k, p.v, x.decay, {.chunk = f.chunk, .reverse = reverse}));
  return sums;
}
std::vector<Tensor> every_key(const Operands& x, const LinearAttentionForm& f) {
  std::vector<Tensor> sums;
  for (const Piece& p : pieces(x, f, sequence_piece(x.k.dim(2)).first))
    sums.push_back(matmul(p.q, sequence_sum(matmul(transpose(p.k, -2, -1), p.v))));
  return sums;
}

}  // namespace

Tensor linear_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v, const LinearAttentionForm& f) {
  const Operands x = prepare("linear_attention", phi_q, phi_k, v, f);
  switch (f.direction) {
    case LinearDirection::full: return divided(every_key(x, f), f);
    case LinearDirection::causal: return divided(one_way(x, f, false), f);
    case LinearDirection::bidirectional: {
      const Tensor diagonal = sum(x.q * x.k, {-1}, keep);  // both directions include j = i
      std::vector<Tensor> sums = one_way(x, f, false), others = one_way(x, f, true);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i] + others[i] - (i == 0 ? diagonal * x.v : diagonal);
      return divided(sums, f);
    }
    case LinearDirection::two_direction_mean:
      return (divided(one_way(x, f, false), f) + divided(one_way(x, f, true), f)) * 0.5;
  }
  fail<ValueError>("linear_attention: unknown direction");
}

Tensor linear_attention_quadratic(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                                  const LinearAttentionForm& f) {
  const Operands x = prepare("linear_attention_quadratic", phi_q, phi_k, v, f);
  const int64_t n = phi_k.dim(2);
  checked_numel("linear_attention_quadratic", {phi_k.dim(0), phi_k.dim(1), phi_q.dim(2), n});
  // e^{−|G_i − G_j|}: the sums G decrease with i, so the absolute value fits both directions.
  Tensor kept;
  if (x.decay.defined()) {
    const bool channels = x.decay.rank() == 4;
    Shape shape{phi_k.dim(0), phi_k.dim(1), n};
    if (channels) shape.push_back(phi_k.dim(3));
    const Tensor total = detail::decay_sums(expand(x.decay, shape));
    kept = exp(neg(abs(to(unsqueeze(total, 3) - unsqueeze(total, 2), x.v.dtype()))));  // [batch, heads, n, n, (m)]
  }
  auto weighed = [&](const Tensor& mask) {
    std::vector<Tensor> sums;
    Tensor a;
    for (const Piece& p : pieces(x, f, 0)) {
      if (sums.empty() || f.rope) {
        if (kept.defined() && kept.rank() == 5) a = sum(unsqueeze(p.q, 3) * unsqueeze(p.k, 2) * kept, {-1});
        else a = matmul(p.q, transpose(p.k, -2, -1));
        if (kept.defined() && kept.rank() == 4) a = a * kept;
        if (mask.defined()) a = masked_fill(a, logical_not(mask), 0);
      }
      sums.push_back(matmul(a, p.v));
    }
    return divided(sums, f);
  };
  const Tensor steps = arange(n, {i64, v.device()}), i = unsqueeze(steps, 1), j = unsqueeze(steps, 0);
  switch (f.direction) {
    case LinearDirection::full: case LinearDirection::bidirectional: return weighed({});
    case LinearDirection::causal: return weighed(j <= i);
    case LinearDirection::two_direction_mean: return (weighed(j <= i) + weighed(j >= i)) * 0.5;
  }
  fail<ValueError>("linear_attention_quadratic: unknown direction");
}

std::pair<Tensor, LinearState> linear_attention_recurrent(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                                                          const LinearAttentionForm& f, const LinearState& state) {
  detail::not_cut("step", "a stream has its tokens to itself; call the layer with a piece of the sequence");
  if (f.direction != LinearDirection::causal)
    fail<ValueError>("linear_attention_recurrent: only the causal direction can be streamed; in the others every "
                     "earlier output would change");
  if (phi_q.dtype() == bf16) {  // in bf16 a running sum soon stops changing
    LinearAttentionForm wide = f;
    wide.log_decay = detail::widened(f.log_decay);
    auto [y, next] = linear_attention_recurrent(to(phi_q, f32), detail::widened(phi_k), detail::widened(v), wide, state);
    return {to(y, bf16), std::move(next)};
  }
  const Operands x = prepare("linear_attention_recurrent", phi_q, phi_k, v, f);
  const Shape want{x.k.dim(0), x.k.dim(1), x.k.dim(3), x.v.dim(3) + (f.normalize == LinearNormalize::sum)};
  if (state.sums.defined() && (state.sums.shape() != want || state.sums.dtype() != x.v.dtype()))
    fail("linear_attention_recurrent: a state of ", state.sums.dtype(), state.sums, " does not continue with phi_k=",
         phi_k, ", v=", v, "; need ", x.v.dtype(), want);
  std::vector<Tensor> sums, states;
  int64_t first = 0;  // first column of the piece in the state
  for (const Piece& p : pieces(x, f, state.length)) {
    Tensor part = state.sums.defined() ? narrow(state.sums, -1, first, p.v.dim(-1)) : Tensor();
    first += p.v.dim(-1);
    sums.push_back(detail::continued_scan(p.q, p.k, p.v, x.decay, {.chunk = f.chunk}, part));
    states.push_back(part);
  }
  return {divided(sums, f), {states.size() == 1 ? states[0] : cat(states, -1), state.length + x.k.dim(2)}};
}

// -- the layer -------------------------------------------------------------------------------------------

Tensor detail::linear_attention(Call& call, const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                                LinearAttentionForm f) {
  f.key_mask = call.key_mask();
  if (!call.streams()) return sluice::linear_attention(phi_q, phi_k, v, f);
  call.check_causal(f.direction == LinearDirection::causal);
  if (phi_q.dtype() == bf16) {  // in bf16 a running sum soon stops changing
    f.log_decay = widened(f.log_decay);
    return to(linear_attention(call, to(phi_q, f32), widened(phi_k), widened(v), f), bf16);
  }
  const Operands x = prepare("linear_attention", phi_q, phi_k, v, f);
  std::vector<Tensor> sums;
  for (const Piece& p : pieces(x, f, call.first()))
    sums.push_back(call.scan(p.q, p.k, p.v, x.decay, {.chunk = f.chunk}));
  return divided(sums, f);
}

std::vector<double> retention_gammas(int64_t heads) {
  if (heads < 0 || heads > 1 << 20) fail<ValueError>("retention_gammas: heads must be in [0, 2^20] — got ", heads);
  std::vector<double> gamma;
  for (int64_t h = 0; h < heads; ++h) gamma.push_back(1 - std::exp2(-5 - static_cast<double>(h)));
  return gamma;
}

ShortConvolution detail::linear_conv(const HeadsOptions& o, int64_t taps, Rng& rng) {
  if (taps == 0) return {};
  const int64_t channels = o.heads * o.head_dim + o.kv_heads * (o.head_dim + o.value_dim);
  return ShortConvolution({.dim = channels, .width = taps, .dtype = o.dtype}, rng);
}

Heads::Projected detail::linear_heads(const Heads& maps, const HeadsOptions& o, const ShortConvolution& conv,
                                      const Call& call) {
  Tensor q = maps.q(call.x), k = maps.k(call.x), v = maps.v(call.x);
  if (conv.weight.defined()) {
    const Tensor mixed = conv(cat({q, k, v}, -1), call.pass());
    const std::vector<Tensor> part = split(mixed, {q.dim(-1), k.dim(-1), v.dim(-1)}, -1);
    q = part[0], k = part[1], v = part[2];
  }
  Heads::Projected p = Heads::arranged(o, q, k, v, call.first());
  if (const int64_t group = o.heads / o.kv_heads; group > 1)
    p.k = repeat_interleave(p.k, group, 1), p.v = repeat_interleave(p.v, group, 1);
  return p;
}

int64_t detail::expanded_width(const char* op, const char* what, double expansion, int64_t dim, int64_t heads) {
  if (dim < 1 || heads < 1) fail<ValueError>(op, ": sizes must be positive — got dim=", dim, ", heads=", heads);
  const double width = expansion * static_cast<double>(dim);
  if (heads < 1 || !(width >= 1 && width < 1e9) || std::abs(width - std::round(width)) > 1e-6 || std::llround(width) % heads != 0)
    fail<ValueError>(op, ": heads=", heads, " must divide ", what, "·dim = ", expansion, "·", dim);
  return std::llround(width);
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

namespace {

LinearAttentionOptions checked(LinearAttentionOptions o) {
  check_options("linear_attention", o);
  const HeadsOptions h = checked_heads(
      "linear_attention",
      {.dim = o.dim, .heads = o.heads, .kv_heads = o.kv_heads, .head_dim = o.head_dim, .value_dim = o.value_dim});
  o.kv_heads = h.kv_heads, o.head_dim = h.head_dim, o.value_dim = h.value_dim;
  FeatureMapOptions& m = o.feature_map;
  if (m.dim != 0 && m.dim != o.head_dim)
    fail<ValueError>("linear_attention: feature_map.dim=", m.dim, " differs from head_dim=", o.head_dim);
  if (m.heads != 0 && m.heads != o.heads)
    fail<ValueError>("linear_attention: feature_map.heads=", m.heads, " differs from heads=", o.heads);
  m.dim = o.head_dim, m.dtype = o.dtype;
  if (m.kind == FeatureMapKind::favor && !m.input_scale)
    m.input_scale = std::pow(static_cast<double>(o.head_dim), -0.25);
  const bool random = m.kind == FeatureMapKind::favor || m.kind == FeatureMapKind::fourier;
  if (random && !o.tie_feature_map)
    fail<ValueError>("linear_attention: ", name_of(m.kind), " needs tie_feature_map; its random directions must be the "
                     "same for queries and keys");
  if (o.decay != LinearDecay::none && o.direction == LinearDirection::full)
    fail<ValueError>("linear_attention: decay needs an order; the direction `full` has none");
  if (o.decay == LinearDecay::none && !o.gamma.empty())
    fail<ValueError>("linear_attention: gamma is given, but decay is none");
  if (o.decay != LinearDecay::none && o.gamma.empty()) o.gamma = retention_gammas(o.heads);
  return o;
}

}  // namespace

LinearAttention::LinearAttention(LinearAttentionOptions given, Rng& rng) : options(checked(given)) {
  const LinearAttentionOptions& o = options;
  heads = Heads(checked_heads("linear_attention", head_options()), rng);
  feature_map = FeatureMap(o.feature_map, rng);
  if (!o.tie_feature_map) key_feature_map = FeatureMap(o.feature_map, rng);
  if (o.use_rope == LinearRope::features)
    detail::check_rope("linear_attention", o.rope, "features", feature_map.out_dim());
  if (o.decay != LinearDecay::none) {
    const Tensor g = detail::log_gammas("linear_attention", o.gamma, o.heads, f64);
    if (o.decay == LinearDecay::fixed) {
      log_gamma = to(g, o.dtype);
    } else {  // z = log γ − log(1 − γ)
      gamma_logit = to(g - log(neg(expm1(g))), o.dtype).requires_grad_();
      if (!all(isfinite(gamma_logit)).item()) fail<ValueError>("linear_attention: learned gamma must start below 1");
    }
  }
  conv = detail::linear_conv(head_options(), o.short_conv, rng);
  norm = Norm({o.value_dim, o.output_norm, o.norm_eps, o.dtype});
  if (o.output_gate) output_gate = Linear({o.dim, o.heads * o.value_dim, false, o.init, o.dtype}, rng);
}

Tensor LinearAttention::log_decay() const {
  if (options.decay == LinearDecay::none) return {};
  const Tensor g = options.decay == LinearDecay::fixed ? log_gamma : neg(softplus(neg(gamma_logit)));  // log σ(z)
  return reshape(g, {1, options.heads, 1});
}

HeadsOptions LinearAttention::head_options() const {
  const LinearAttentionOptions& o = options;
  return {.dim = o.dim, .heads = o.heads, .kv_heads = o.kv_heads, .head_dim = o.head_dim, .value_dim = o.value_dim,
          .use_rope = o.use_rope == LinearRope::inputs, .rope = o.rope, .qkv_bias = o.qkv_bias, .out_bias = o.out_bias,
          .dropout = o.dropout, .init = o.init, .dtype = o.dtype};
}

Tensor LinearAttention::operator()(const Tensor& given, const Pass& pass) const {
  const LinearAttentionOptions& o = options;
  Call call(*this, "linear_attention", given, o.dim, pass);
  const auto [q, k, v] = detail::linear_heads(heads, head_options(), conv, call);
  LinearAttentionForm form{.direction = o.direction, .normalize = o.normalize, .eps = o.eps, .scale = o.scale,
                           .log_decay = log_decay(), .chunk = o.chunk};
  if (o.use_rope == LinearRope::features) form.rope = o.rope;
  const FeatureMap& of_keys = key_feature_map ? *key_feature_map : feature_map;
  Tensor y = norm(detail::linear_attention(call, feature_map(q), of_keys(k), v, form));
  if (o.output_gate) y = detail::split_heads(swiglu(detail::merge_heads(y), output_gate(call.x)), o.heads);
  return heads.finish(head_options(), y, call.x, call.rng());
}

}  // namespace sluice
