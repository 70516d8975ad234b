// Feature maps: ranks, what is learned, the kernels they stand for, and what the textbook claims of them.
// linear_layers_reference.cpp says what they compute.
#include "layers/linear_attention_reference.h"
#include "support/identities.h"
#include "support/worse.h"

#include <sluice/layers/train/models.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Every kind, and every option that changes its formula, over x of width 3.
std::vector<FeatureMapOptions> samples() {
  using K = FeatureMapKind;
  std::vector<FeatureMapOptions> all;
  for (K kind : {K::identity, K::exp, K::elu1, K::relu, K::t2r, K::poly_elem, K::poly_kernel, K::favor, K::fourier,
                 K::mlp, K::hedgehog})
    all.push_back({.kind = kind, .dim = 3});
  all.push_back({.kind = K::relu, .dim = 3, .features = 4, .offset = 1e-3});
  all.push_back({.kind = K::relu, .dim = 3, .features = 4, .heads = 2});
  all.push_back({.kind = K::t2r, .dim = 3, .features = 5, .offset = 0.25, .heads = 2});
  all.push_back({.kind = K::t2r, .dim = 3, .features = 5, .bias = false});
  all.push_back({.kind = K::poly_elem, .dim = 3, .degree = 1});
  all.push_back({.kind = K::poly_elem, .dim = 3, .degree = 4});
  all.push_back({.kind = K::poly_kernel, .dim = 3, .degree = 1, .constant = 0.5});
  all.push_back({.kind = K::poly_kernel, .dim = 3, .degree = 3, .constant = 2});
  all.push_back({.kind = K::poly_kernel, .dim = 3, .degree = 2, .constant = 0});
  all.push_back({.kind = K::poly_kernel, .dim = 3, .degree = 2, .smoothing = 1});
  all.push_back({.kind = K::favor, .dim = 3, .features = 5, .input_scale = 0.7});
  all.push_back({.kind = K::favor, .dim = 3, .features = 7, .orthogonal = true});
  all.push_back({.kind = K::favor, .dim = 3, .features = 5, .offset = 0.3});
  all.push_back({.kind = K::fourier, .dim = 3, .features = 5, .sigma = 1.7, .smoothing = 0.5});
  all.push_back({.kind = K::fourier, .dim = 3, .features = 2, .sigma = 0.6, .orthogonal = true});
  all.push_back({.kind = K::mlp, .dim = 3, .features = 2, .hidden = 4, .heads = 2});
  all.push_back({.kind = K::mlp, .dim = 3, .features = 2, .hidden = 4, .bias = false});
  all.push_back({.kind = K::hedgehog, .dim = 3, .heads = 2, .input_scale = 0.5});
  all.push_back({.kind = K::exp, .dim = 3, .input_scale = -0.5});
  return all;
}

FeatureMap make(FeatureMapOptions o, Rand& rand) {
  o.dtype = f64;
  Rng rng(5);
  return randomised(FeatureMap(o, rng), rand);
}

std::string describe(const FeatureMapOptions& o) {
  return str(name_of(o.kind), " features ", o.features, " degree ", o.degree, " heads ", o.heads, " bias ", o.bias);
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double s = 0;
  for (std::size_t c = 0; c < a.size(); ++c) s += a[c] * b[c];
  return s;
}
/// κ(x_i, y_j) as φ makes it.
Tensor kernel_of(const FeatureMap& map, const Tensor& x, const Tensor& y) {
  return matmul(map(x), transpose(map(y), -2, -1));
}
/// κ(x_i, y_j) as `formula` says.
Tensor kernel_of(const Tensor& x, const Tensor& y,
                 const std::function<double(const std::vector<double>&, const std::vector<double>&)>& formula) {
  std::vector<double> all;
  for (const auto& a : matrix_of(x))
    for (const auto& b : matrix_of(y)) all.push_back(formula(a, b));
  return Tensor::from(all, {x.dim(0), y.dim(0)});
}

}  // namespace

TEST_CASE("feature_map: rows stand alone, whatever the rank; f32 agrees; no rows", "[feature_map]") {
  for (const FeatureMapOptions& o : samples()) {
    Rand rand(1);
    const FeatureMap map = make(o, rand);
    const Tensor x = random_tensor({2, 2, 4, 3}, f64, rand, -1.5, 1.5), y = map(x);
    INFO(describe(o));
    CHECK(y.shape() == Shape{2, 2, 4, map.out_dim()});
    if (o.heads == 0) CHECK(max_abs_diff(map(select(select(x, 0, 1), 0, 1)), select(select(y, 0, 1), 0, 1)) < 1e-15);
    FeatureMap single = clone(map);
    to(single, f32);
    CHECK(max_abs_diff(to(single(to(x, f32)), f64), y) < 1e-5 * std::max(1.0, max_abs(y)));
    CHECK(map(narrow(x, 2, 0, 0)).shape() == Shape{2, 2, 0, map.out_dim()});
  }
}

TEST_CASE("feature_map: which tensors are learned and which are fixed", "[feature_map]") {
  Rng rng(1);
  for (const FeatureMapOptions& o : samples()) {
    const FeatureMap map(o, rng);
    const bool random = o.kind == FeatureMapKind::favor || o.kind == FeatureMapKind::fourier;
    INFO(describe(o));
    CHECK(map.omega.defined() == random);
    CHECK(state_dict(map).size() == parameters(map).size() + (random ? 1 : 0));
    const int64_t f = map.options.features, h = std::max<int64_t>(o.heads, 1), d = 3;
    int64_t want = 0;
    if (o.kind == FeatureMapKind::relu) want = o.features > 0 ? h * d * f : 0;
    if (o.kind == FeatureMapKind::t2r) want = h * (d * f + (o.bias ? f : 0));
    if (o.kind == FeatureMapKind::mlp)
      want = h * (d * map.options.hidden + map.options.hidden * f + (o.bias ? map.options.hidden + f : 0));
    if (o.kind == FeatureMapKind::hedgehog) want = h * (d * d + (o.bias ? d : 0));
    CHECK(count(map) == want);
  }
  const FeatureMap hedgehog({.kind = FeatureMapKind::hedgehog, .dim = 3, .heads = 2}, rng);
  for (int64_t h : {0, 1}) CHECK(max_abs_diff(select(hedgehog.weight, 0, h), eye(3)) == 0);
  CHECK(max_abs(hedgehog.bias) == 0);
}

TEST_CASE("feature_map: random directions", "[feature_map]") {
  Rng rng(3);
  for (bool orthogonal : {false, true}) {
    const FeatureMap map({.kind = FeatureMapKind::fourier,
                          .dim = 4,
                          .features = 4002,
                          .sigma = 2,
                          .orthogonal = orthogonal,
                          .dtype = f64},
                         rng);
    const Matrix w = matrix_of(transpose(map.omega, 0, 1));
    REQUIRE(w.size() == 4002);
    double squares = 0, across = 0, means = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      squares += dot(w[i], w[i]);
      for (double v : w[i]) means += v;
      if (i % 4 > 0) across = worse(across, std::abs(dot(w[i], w[i - 1])));
    }
    CHECK(squares / (4 * 4002.0) == Approx(0.25).epsilon(0.05));  // N(0, I/σ²)
    CHECK(std::abs(means / (4 * 4002.0)) < 0.02);
    if (orthogonal) CHECK(across < 1e-12);
    else CHECK(across > 0.1);
  }
  Rng a(7), b(7);
  const FeatureMapOptions o{.kind = FeatureMapKind::favor, .dim = 4};
  CHECK(same_bits(FeatureMap(o, a).omega, FeatureMap(o, b).omega));
  CHECK_FALSE(same_bits(FeatureMap(o, a).omega, FeatureMap(o, a).omega));
}

TEST_CASE("feature_map: the kernels they stand for", "[feature_map][identity]") {
  using K = FeatureMapKind;
  Rand rand(4);
  const Tensor x = random_tensor({5, 4}, f64, rand), y = random_tensor({6, 4}, f64, rand);
  using V = const std::vector<double>&;
  check_identity("kernel: exp(x).exp(y) = sum_c exp(x_c + y_c)",
                 kernel_of(make({.kind = K::exp, .dim = 4}, rand), x, y),
                 kernel_of(x, y,
                           [](V a, V b) {
                             double s = 0;
                             for (std::size_t c = 0; c < a.size(); ++c) s += std::exp(a[c] + b[c]);
                             return s;
                           }),
                 1e-12);
  for (int64_t p : {1, 2, 3, 5})
    for (double c : {0.0, 0.5, 1.0, 3.0})
      for (double s : {0.0, 0.75})
        check_identity(
            "kernel: poly_kernel = (x.y + c)^p + s",
            kernel_of(make({.kind = K::poly_kernel, .dim = 4, .degree = p, .constant = c, .smoothing = s}, rand), x, y),
            kernel_of(x, y, [&](V a, V b) { return std::pow(dot(a, b) + c, static_cast<double>(p)) + s; }), 1e-10);
  for (int64_t p : {1, 2, 3})
    check_identity("kernel: poly_elem = sum_r sum_c (x_c y_c)^r",
                   kernel_of(make({.kind = K::poly_elem, .dim = 4, .degree = p}, rand), x, y),
                   kernel_of(x, y,
                             [&](V a, V b) {
                               double s = 0;
                               for (int64_t r = 1; r <= p; ++r)
                                 for (std::size_t c = 0; c < a.size(); ++c)
                                   s += std::pow(a[c] * b[c], static_cast<double>(r));
                               return s;
                             }),
                   1e-12);
  const auto elu = [](double t) { return t > 0 ? t : std::exp(t) - 1; };
  const auto elu_kernel = [&](double plus) {
    return kernel_of(x, y, [&, plus](V a, V b) {
      double s = 0;
      for (std::size_t c = 0; c < a.size(); ++c) s += (elu(a[c]) + plus) * (elu(b[c]) + plus);
      return s;
    });
  };
  const Tensor elu1_kernel = kernel_of(make({.kind = K::elu1, .dim = 4}, rand), x, y);
  check_identity("kernel: elu+1 with its +1", elu1_kernel, elu_kernel(1), 1e-12);
  CHECK(max_abs_diff(elu1_kernel, elu_kernel(0)) > 1);  // the textbook's kernel, without it
}

TEST_CASE("feature_map: random features tend to their kernels", "[feature_map][identity]") {
  Rand rand(5);
  const Tensor x = random_tensor({4, 4}, f64, rand, -0.6, 0.6), y = random_tensor({3, 4}, f64, rand, -0.6, 0.6);
  using V = const std::vector<double>&;
  const Tensor exponential = kernel_of(x, y, [](V a, V b) { return std::exp(dot(a, b)); });
  const Tensor scaled = kernel_of(x, y, [](V a, V b) { return std::exp(dot(a, b) / 2); });
  const auto gaussian = [&](double sigma) {
    return kernel_of(
        x, y, [sigma](V a, V b) { return std::exp(-(dot(a, a) + dot(b, b) - 2 * dot(a, b)) / (2 * sigma * sigma)); });
  };
  // A mean over f = 10⁵ directions: errors of about 1/√f times the spread of one, which is below 2.
  double last = INFINITY;
  for (bool orthogonal : {false, true}) {
    for (int64_t f : {100, 100000}) {
      FeatureMapOptions o{.kind = FeatureMapKind::favor, .dim = 4, .features = f, .orthogonal = orthogonal};
      const double error = max_abs_diff(kernel_of(make(o, rand), x, y), exponential);
      if (f > 1000) {
        check_identity("kernel: favor tends to exp(x.y)", error, 0.02);
        CHECK(error < last);
      }
      last = error;
    }
    FeatureMapOptions o{.kind = FeatureMapKind::favor, .dim = 4, .features = 100000, .orthogonal = orthogonal};
    o.input_scale = std::pow(4.0, -0.25);  // e^{x·y/√d}
    CHECK(max_abs_diff(kernel_of(make(o, rand), x, y), scaled) < 0.02);
    for (double sigma : {0.7, 1.0, 2.0}) {
      o = {.kind = FeatureMapKind::fourier, .dim = 4, .features = 50000, .sigma = sigma, .orthogonal = orthogonal};
      check_identity("kernel: Fourier tends to the Gaussian kernel", kernel_of(make(o, rand), x, y), gaussian(sigma),
                     0.02);
      o.smoothing = 0.5;
      CHECK(max_abs_diff(kernel_of(make(o, rand), x, y), gaussian(sigma) + 0.5) < 0.02);
    }
  }
  // "exp elementwise is exp(xᵀy)" is false by orders of magnitude.
  Rng rng(6);
  const Tensor a = normal({64, 4}, 0, 0.7, rng, {f64}), b = normal({64, 4}, 0, 0.7, rng, {f64});
  const Tensor claimed = kernel_of(a, b, [](V p, V q) { return std::exp(dot(p, q)); });
  CHECK(max(abs(kernel_of(make({.kind = FeatureMapKind::exp, .dim = 4}, rand), a, b) - claimed) / claimed).item() >
        100);
}

TEST_CASE("feature_map: favor of large inputs underflows and never overflows", "[feature_map]") {
  Rng rng(1);
  const FeatureMap map({.kind = FeatureMapKind::favor, .dim = 4, .features = 64}, rng);
  const Tensor y = map(full({1, 4}, 100.0));
  CHECK(all(isfinite(y)).item() == 1);
  CHECK(max_abs(y) < 1e-30);
}

TEST_CASE("feature_map: names and what is refused", "[feature_map]") {
  for (const FeatureMapOptions& o : samples()) CHECK(from_name<FeatureMapKind>(name_of(o.kind)) == o.kind);
  CHECK_THROWS_WITH(from_name<FeatureMapKind>("cosine"), Contains("cosine") && Contains("hedgehog"));
  Rng rng(1);
  using K = FeatureMapKind;
  CHECK_THROWS_WITH(FeatureMap({.kind = K::exp}, rng), Contains("feature_map: ") && Contains("dim=0"));
  CHECK_THROWS_WITH(FeatureMap({.kind = K::poly_kernel, .dim = 64, .degree = 40}, rng), Contains("degree=40"));
  const FeatureMap map({.kind = K::elu1, .dim = 3}, rng);
  CHECK_THROWS_WITH(map(ones({2, 4})), Contains("elu1") && Contains("[2,4]") && Contains("3"));
  const FeatureMap heads({.kind = K::t2r, .dim = 3, .heads = 2}, rng);
  CHECK_THROWS_WITH(heads(ones({5, 4, 3})), Contains("[5,4,3]") && Contains("2"));
}
