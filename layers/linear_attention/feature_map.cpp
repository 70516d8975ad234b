#include <sluice/layers/linear_attention/feature_map.h>

#include <sluice/core/node.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/rows/softmax.h>

#include <cmath>

namespace sluice {

namespace {

constexpr int64_t kMostFeatures = int64_t{1} << 24;

FeatureMapOptions checked(FeatureMapOptions o) {
  check_options("feature_map", o);
  if (o.kind == FeatureMapKind::poly_kernel)
    for (int64_t r = 0, m = 1; r < o.degree; ++r)
      if ((m *= o.dim + 1) > kMostFeatures)
        fail<ValueError>("feature_map: poly_kernel of degree=", o.degree, " over dim=", o.dim, " has more than ",
                         kMostFeatures, " features");
  if (o.features == 0 && o.kind != FeatureMapKind::relu) o.features = o.dim;
  if (o.hidden == 0) o.hidden = 2 * o.dim;
  return o;
}

/// A weight [in, out]; with a map for each head [heads, in, out].
Tensor make_weight(const FeatureMapOptions& o, int64_t in, int64_t out, Rng& rng) {
  return o.heads == 0 ? init_weight(in, out, o.init, rng, o.dtype)
                      : init_weights(o.heads, in, out, o.init, rng, o.dtype);
}
Tensor make_bias(const FeatureMapOptions& o, int64_t out) {
  if (!o.bias) return {};
  return zeros(o.heads == 0 ? Shape{out} : Shape{o.heads, 1, out}, detail::initial(o.dtype)).requires_grad_();
}
/// x·W + b
Tensor project(const Tensor& x, const Tensor& w, const Tensor& b) {
  if (w.rank() == 2) return linear(x, w, b);
  Tensor y = matmul(x, w);
  return b.defined() ? y + b : y;
}

/// y with the feature √s, if s > 0.
Tensor smoothed(const Tensor& y, double s) { return s > 0 ? pad(y, -1, 0, 1, std::sqrt(s)) : y; }

/// Random directions ω [dim, features]: columns N(0, I/σ²), with σ = 1 for favor. With `orthogonal`, Gram-Schmidt makes
/// the columns orthogonal within blocks of dim columns; each column then gets the norm of an independently drawn
/// direction.
Tensor draw_directions(const FeatureMapOptions& o, Rng& rng) {
  if (const TensorOptions made = detail::initial(o.dtype); made.device == meta) return empty({o.dim, o.features}, made);
  NoGrad guard;
  const double spread = o.kind == FeatureMapKind::fourier ? 1 / o.sigma : 1;
  if (!o.orthogonal) return normal({o.dim, o.features}, 0, spread, rng, {o.dtype});
  std::vector<double> rows = normal({o.features, o.dim}, 0, 1, rng, {f64}).to_vector<double>();
  const std::vector<double> norms = norm(normal({o.features, o.dim}, 0, spread, rng, {f64}), {-1}).to_vector<double>();
  double* at = rows.data();
  const auto dot = [n = o.dim](const double* a, const double* b) {
    double s = 0;
    for (int64_t c = 0; c < n; ++c) s += a[c] * b[c];
    return s;
  };
  for (int64_t i = 0; i < o.features; ++i) {
    double* row = at + i * o.dim;
    for (int pass = 0; pass < 2; ++pass)  // the second pass removes the rounding errors of the first
      for (int64_t j = i / o.dim * o.dim; j < i; ++j) {
        const double along = dot(row, at + j * o.dim);
        for (int64_t c = 0; c < o.dim; ++c) row[c] -= along * at[j * o.dim + c];
      }
    const double length = std::sqrt(dot(row, row));
    for (int64_t c = 0; c < o.dim; ++c) row[c] /= length;
  }
  return contiguous(
      to(transpose(Tensor::from(rows, {o.features, o.dim}) * unsqueeze(Tensor::from(norms), -1), 0, 1), o.dtype));
}

}  // namespace

FeatureMap::FeatureMap(FeatureMapOptions given, Rng& rng) : options(checked(given)) {
  const FeatureMapOptions& o = options;
  switch (o.kind) {
    case FeatureMapKind::relu:
      if (o.features > 0) weight = make_weight(o, o.dim, o.features, rng);
      break;
    case FeatureMapKind::t2r:
      weight = make_weight(o, o.dim, o.features, rng);
      bias = make_bias(o, o.features);
      break;
    case FeatureMapKind::mlp:
      weight = make_weight(o, o.dim, o.hidden, rng), bias = make_bias(o, o.hidden);
      weight2 = make_weight(o, o.hidden, o.features, rng), bias2 = make_bias(o, o.features);
      break;
    case FeatureMapKind::hedgehog:
      weight = eye(o.dim, -1, detail::initial(o.dtype));
      if (o.heads > 0) weight = clone(expand(weight, {o.heads, o.dim, o.dim}));
      weight.requires_grad_();
      bias = make_bias(o, o.dim);
      break;
    default:
      if (is_random(o.kind)) omega = draw_directions(o, rng);
  }
}

int64_t FeatureMap::out_dim() const {
  const FeatureMapOptions& o = options;
  switch (o.kind) {
    case FeatureMapKind::identity:
    case FeatureMapKind::exp:
    case FeatureMapKind::elu1: return o.dim;
    case FeatureMapKind::relu: return o.features > 0 ? o.features : o.dim;
    case FeatureMapKind::t2r:
    case FeatureMapKind::mlp:
    case FeatureMapKind::favor: return o.features;
    case FeatureMapKind::poly_elem: return o.degree * o.dim;
    case FeatureMapKind::poly_kernel: {
      int64_t m = 1;
      for (int64_t r = 0; r < o.degree; ++r) m *= o.dim + 1;
      return m + (o.smoothing > 0 ? 1 : 0);
    }
    case FeatureMapKind::fourier: return 2 * o.features + (o.smoothing > 0 ? 1 : 0);
    case FeatureMapKind::hedgehog: return 2 * o.dim;
  }
  return 0;
}

Tensor FeatureMap::operator()(const Tensor& given) const {
  ModuleScope scope(this, type);
  const FeatureMapOptions& o = options;
  if (given.rank() < 1 || given.dim(-1) != o.dim)
    fail("feature_map: ", o.kind, " got x=", given, "; need [..., ", o.dim, "]");
  if (o.heads > 0 && weight.defined() && (given.rank() < 3 || given.dim(-3) != o.heads))
    fail("feature_map: ", o.kind, " with maps of ", o.heads, " heads got x=", given, "; need [..., ", o.heads, ", n, ",
         o.dim, "]");
  const double factor = o.input_scale.value_or(1);
  const Tensor x = factor == 1 ? given : given * factor;
  switch (o.kind) {
    case FeatureMapKind::identity: return x;
    case FeatureMapKind::exp: return exp(x);
    case FeatureMapKind::elu1: return elu1(x);
    case FeatureMapKind::relu:
    case FeatureMapKind::t2r: {
      Tensor y = weight.defined() ? project(x, weight, bias) : x;
      return o.offset == 0 ? relu(y) : map(formula::ReluOffset{o.offset}, y);
    }
    case FeatureMapKind::poly_elem: {
      std::vector<Tensor> powers{x};
      for (int64_t r = 1; r < o.degree; ++r) powers.push_back(powers.back() * x);
      return cat(powers, -1);
    }
    case FeatureMapKind::poly_kernel: {
      const Tensor factor_row = unsqueeze(pad(x, -1, 0, 1, std::sqrt(o.constant)), -2);
      Tensor y = squeeze(factor_row, -2);
      for (int64_t r = 1; r < o.degree; ++r) y = flatten(unsqueeze(y, -1) * factor_row, -2, -1);
      return smoothed(y, o.smoothing);
    }
    case FeatureMapKind::favor:
      return map(formula::FavorFeature{1 / std::sqrt(static_cast<double>(o.features)), o.offset}, matmul(x, omega),
                 sum(square(x), {-1}, keep));
    case FeatureMapKind::fourier: {
      const Tensor p = matmul(x, omega);
      const Tensor y = cat({cos(p), sin(p)}, -1) * (1 / std::sqrt(static_cast<double>(o.features)));
      return smoothed(y, o.smoothing);
    }
    case FeatureMapKind::mlp: return softplus(project(relu(project(x, weight, bias)), weight2, bias2));
    case FeatureMapKind::hedgehog: {
      const Tensor y = project(x, weight, bias) * 2;
      return softmax(cat({y, neg(y)}, -1));
    }
  }
  fail<ValueError>("feature_map: unknown kind");
}

}  // namespace sluice
