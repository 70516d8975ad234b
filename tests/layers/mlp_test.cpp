// MLP and the GLU family against their formulas in plain loops.
#include <sluice/layers/nn/mlp.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <cmath>
#include <functional>

using namespace sluice;
using namespace sluice::testing;
using Doubles = std::vector<double>;
using Scalar = std::function<double(double)>;

namespace {

double sigma(double x) { return 1 / (1 + std::exp(-x)); }
double silu_of(double x) { return x * sigma(x); }
double gelu_of(double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double relu_of(double x) { return x > 0 ? x : 0; }

Tensor random(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return normal(shape, 0, 1, rng, {f64});
}
/// x·W + b by loops; rows × in → rows × out.
Doubles times(const Doubles& x, const Linear& l) {
  const int64_t in = l.weight.dim(0), out = l.weight.dim(1), rows = static_cast<int64_t>(x.size()) / in;
  Doubles w = l.weight.to_vector<double>(), b = l.bias.defined() ? l.bias.to_vector<double>() : Doubles(static_cast<std::size_t>(out), 0), y;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < out; ++o) {
      double s = b[static_cast<std::size_t>(o)];
      for (int64_t i = 0; i < in; ++i) s += x[static_cast<std::size_t>(r * in + i)] * w[static_cast<std::size_t>(i * out + o)];
      y.push_back(s);
    }
  return y;
}
double distance(const Tensor& got, const Doubles& want) {
  const Doubles g = got.to_vector<double>();
  REQUIRE(g.size() == want.size());
  double worst = 0;
  for (std::size_t i = 0; i < g.size(); ++i) worst = std::max(worst, std::abs(g[i] - want[i]));
  return worst;
}
/// Biases start at zero; a test needs others.
void randomise(Linear& l, uint64_t seed) {
  if (l.bias.defined()) l.bias = random(l.bias.shape(), seed).requires_grad_();
}
double gelu_tanh_of(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
const std::vector<std::pair<GluKind, std::function<double(double, double)>>> kGates{
    {GluKind::glu, [](double x, double g) { return x * sigma(g); }},
    {GluKind::reglu, [](double x, double g) { return x * relu_of(g); }},
    {GluKind::geglu, [](double x, double g) { return x * gelu_of(g); }},
    {GluKind::geglu_tanh, [](double x, double g) { return x * gelu_tanh_of(g); }},
    {GluKind::swiglu, [](double x, double g) { return x * silu_of(g); }},
    {GluKind::bilinear, [](double x, double g) { return x * g; }},
    {GluKind::silu_glu, [](double x, double g) { return silu_of(x) * silu_of(g); }},
};

}  // namespace

TEST_CASE("mlp: O = φ(X·Wu)·Wo for each activation", "[mlp]") {
  const std::vector<std::pair<Act, Scalar>> activations{
      {Act::identity, [](double x) { return x; }},
      {Act::relu, relu_of},
      {Act::relu2, [](double x) { return relu_of(x) * relu_of(x); }},
      {Act::leaky_relu, [](double x) { return x > 0 ? x : 0.01 * x; }},
      {Act::elu, [](double x) { return x > 0 ? x : std::expm1(x); }},
      {Act::elu1, [](double x) { return x > 0 ? x + 1 : std::exp(x); }},
      {Act::silu, silu_of},
      {Act::gelu, gelu_of},
      {Act::gelu_tanh, gelu_tanh_of},
      {Act::tanh, [](double x) { return std::tanh(x); }},
      {Act::sigmoid, sigma},
      {Act::ns_sigmoid, [](double x) { return 0.5 + 0.5 * sigma(x); }},
      {Act::softplus, [](double x) { return std::log1p(std::exp(x)); }},
      {Act::laplace, [](double x) { return 0.5 * (1 + std::erf((x - std::sqrt(0.5)) / (std::sqrt(1 / (4 * M_PI)) * std::sqrt(2.0)))); }},
  };
  for (bool bias : {true, false})
    for (const auto& [act, phi] : activations) {
      INFO(name_of(act) << " bias " << bias);
      Rng rng(1);
      Mlp m({.dim = 4, .hidden = 7, .activation = act, .bias = bias, .dtype = f64}, rng);
      randomise(m.in, 5), randomise(m.out, 6);
      Tensor x = random({2, 3, 4}, 2);
      Doubles h = times(x.to_vector<double>(), m.in);
      for (double& v : h) v = phi(v);
      Tensor y = m(x);
      CHECK(y.shape() == Shape{2, 3, 4});
      CHECK(distance(y, times(h, m.out)) < 1e-12);
      CHECK(from_name<Act>(name_of(act)) == act);
    }
  CHECK_THROWS_AS(from_name<Act>("nonsense"), ValueError);
}

TEST_CASE("glu: O = gate(X·Wv, X·Wg)·Wo for each kind", "[mlp]") {
  for (bool bias : {true, false})
    for (const auto& [kind, gate] : kGates) {
      INFO("kind " << static_cast<int>(kind) << " bias " << bias);
      Rng rng(1);
      Glu m({.dim = 4, .hidden = 7, .kind = kind, .bias = bias, .dtype = f64}, rng);
      randomise(m.value, 5), randomise(m.gate, 6), randomise(m.out, 7);
      Tensor x = random({5, 4}, 2);
      Doubles v = times(x.to_vector<double>(), m.value), g = times(x.to_vector<double>(), m.gate);
      for (std::size_t i = 0; i < v.size(); ++i) v[i] = gate(v[i], g[i]);
      CHECK(distance(m(x), times(v, m.out)) < 1e-12);
    }
}

TEST_CASE("mlp and glu: hidden sizes by default", "[mlp]") {
  Rng rng(1);
  CHECK(Mlp({.dim = 6}, rng).in.weight.shape() == Shape{6, 24});
  for (int64_t dim : {3, 6, 64, 512}) {
    Glu g({.dim = dim}, rng);
    const int64_t hidden = g.value.weight.dim(1);
    INFO("dim " << dim << " hidden " << hidden);
    CHECK(hidden % 8 == 0);
    CHECK(3 * hidden >= 8 * dim - 3);  // 8/3·dim, rounded up
    CHECK(3 * hidden < 8 * dim + 24);
    CHECK(count(g) == 3 * dim * hidden);  // without biases by default
  }
}

TEST_CASE("mlp and glu: dropout acts on the hidden activations, only with a generator", "[mlp]") {
  Rng init(1), a(2), b(2), d(2);
  Mlp m({.dim = 8, .hidden = 64, .dropout = 0.5}, init);
  Glu g({.dim = 8, .hidden = 64, .dropout = 0.5}, init);
  Tensor x = ones({4, 8});
  CHECK(same_bits(m(x), m(x)));
  CHECK(same_bits(m(x, {.rng = &a}), m(x, {.rng = &b})));
  CHECK_FALSE(same_bits(m(x), m(x, {.rng = &a})));
  CHECK_FALSE(same_bits(g(x), g(x, {.rng = &a})));
  Tensor want = m.out(dropout(activate(m.options.activation, m.in(x)), 0.5, b));
  d.reserve(64);  // 4·64 elements, four a block
  CHECK(same_bits(want, m(x, {.rng = &d})));
}
