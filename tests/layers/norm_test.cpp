// Normalisation layers: edges, parameters, errors. nn_reference.cpp says what they compute.
#include <sluice/layers/nn/norm.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;
using Doubles = std::vector<double>;

namespace {

constexpr NormKind kKinds[] = {NormKind::none,  NormKind::layer,    NormKind::rms,        NormKind::rms_plain,
                               NormKind::scale, NormKind::scale_l2, NormKind::layer_plain};

Tensor random(const Shape& shape, uint64_t seed, double scale = 1) {
  Rng rng(seed);
  return normal(shape, 0, scale, rng, {f64});
}

/// A layer with parameters that are not their initial ones.
Norm made(NormKind kind, int64_t dim, double eps = 1e-5) {
  Norm n({.dim = dim, .kind = kind, .eps = eps, .dtype = f64});
  if (n.weight.defined()) n.weight = random(n.weight.shape(), 11).requires_grad_();
  if (n.bias.defined()) n.bias = random(n.bias.shape(), 12).requires_grad_();
  return n;
}

}  // namespace

TEST_CASE("norm: groups of channels that do not fit", "[norm]") {
  CHECK_THROWS_WITH(Norm({.dim = 12, .parts = 5}), Contains("parts=5") && Contains("dim=12"));
  CHECK_THROWS_WITH(Norm({.dim = 12, .kind = NormKind::scale, .parts = 2}), Contains("parts") && Contains("scale"));
  CHECK_THROWS_WITH(Norm({.dim = 12, .parts = 2})(ones({2, 6})), Contains("[2,6]") && Contains("12"));
}

TEST_CASE("norm: rows of zeros stay finite, forward and backward", "[norm]") {
  for (NormKind kind : kKinds) {
    INFO("kind " << static_cast<int>(kind));
    Norm n = made(kind, 4);
    Tensor x = zeros({2, 4}, {f64}).requires_grad_(), y = n(x);
    for (double v : y.to_vector<double>()) CHECK(std::isfinite(v));
    backward(sum(y * random({2, 4}, 3)));
    for (double v : x.grad().to_vector<double>()) CHECK(std::isfinite(v));
    if (n.weight.defined())
      for (double v : n.weight.grad().to_vector<double>()) CHECK(std::isfinite(v));
  }
}

TEST_CASE("norm: large, small and constant rows in f32", "[norm]") {
  for (NormKind kind : {NormKind::layer, NormKind::rms_plain, NormKind::scale}) {
    INFO("kind " << static_cast<int>(kind));
    Norm n({.dim = 8, .kind = kind});
    Tensor base({1, -2, 3, -4, 5, -6, 7, -8});
    for (float scale : {1e-3f, 1.f, 1e3f, 1e15f}) {
      Tensor y = n(base * static_cast<double>(scale));
      CHECK(mean(square(y)).item() == Approx(1).epsilon(scale < 1 ? 0.5 : 1e-4));
    }
  }
  // A mean far larger than the deviation must not eat it.
  LayerNorm layer(4);
  Tensor y = layer(Tensor({10000, 10001, 10002, 10003}));
  const double s = std::sqrt(1.25 + 1e-5);
  const Doubles want{-1.5 / s, -0.5 / s, 0.5 / s, 1.5 / s};
  for (std::size_t i = 0; i < 4; ++i) CHECK(y.to_vector<double>()[i] == Approx(want[i]).epsilon(1e-5));
  for (float v : layer(full({4}, 3)).to_vector()) CHECK(std::abs(v) < 1e-4);
}

TEST_CASE("norm: parameters are those of the kind, with their initial values", "[norm]") {
  auto names = [](const Norm& n) {
    std::string s;
    for (auto& p : parameters(n)) s += p.name + str(p.tensor.shape()) + " ";
    return s;
  };
  CHECK(names(Norm({.dim = 6, .kind = NormKind::none})) == "");
  CHECK(names(Norm({.dim = 6})) == "weight[6] bias[6] ");
  CHECK(names(RMSNorm(6)) == "weight[6] ");
  CHECK(names(Norm({.dim = 6, .kind = NormKind::rms_plain})) == "");
  CHECK(names(Norm({.dim = 6, .kind = NormKind::layer_plain})) == "");
  CHECK(names(ScaleNorm(6)) == "weight[1] ");
  CHECK(LayerNorm(3).weight.to_vector<double>() == Doubles{1, 1, 1});
  CHECK(LayerNorm(3).bias.to_vector<double>() == Doubles{0, 0, 0});
  CHECK(RMSNorm(3).options.eps == 1e-6);
  CHECK(names(Norm()) == "");
  Tensor x = random({2, 3}, 1);
  CHECK(Norm()(x).ref() == x.ref());
  // A type is of its own kind, by options as by sizes.
  CHECK(names(LayerNorm({.dim = 6})) == "weight[6] bias[6] ");
  CHECK(names(RMSNorm({.dim = 6})) == "weight[6] ");
  CHECK(names(ScaleNorm({.dim = 6})) == "weight[1] ");
  CHECK(max_abs_diff(RMSNorm({.dim = 3, .eps = 1e-6, .dtype = f64})(x), RMSNorm(3, 1e-6, f64)(x)) == 0);
  CHECK(max_abs_diff(ScaleNorm({.dim = 3, .dtype = f64})(x), ScaleNorm(3, 1e-5, f64)(x)) == 0);
  CHECK(ScaleNorm({.dim = 6, .kind = NormKind::scale_l2}).options.kind == NormKind::scale_l2);
  CHECK_THROWS_WITH(RMSNorm({.dim = 6, .kind = NormKind::scale}), Contains("of kind rms") && Contains("kind scale"));
}

TEST_CASE("norm: misfit sizes are errors that name the op", "[norm]") {
  CHECK_THROWS_WITH(LayerNorm(4)(zeros({2, 5})), Contains("layer_norm") && Contains("[2,5]") && Contains("[4]"));
  CHECK_THROWS_WITH(RMSNorm(4)(zeros({2, 5})), Contains("rms_norm") && Contains("[2,5]"));
  CHECK_THROWS_AS(LayerNorm(4)(zeros({2, 4}, {f64})), DTypeError);
  CHECK_THROWS_AS(LayerNorm(4)(zeros({})), ShapeError);
}
