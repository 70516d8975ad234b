// Losses: probabilities as targets.
#include <sluice/ops/rows/loss.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>

#include <cmath>

using namespace sluice;

TEST_CASE("cross_entropy: a class of probability 0 counts nothing, even with a logit of −∞", "[loss]") {
  Tensor x = Tensor::from<double>({-INFINITY, 0, 0}), q = Tensor::from<double>({0, 0.25, 0.75});
  x.requires_grad_(), q.requires_grad_();
  const Tensor y = cross_entropy(x, q);
  backward(y);
  CHECK(y.item() == Approx(std::log(2)));
  CHECK(testing::max_abs(x.grad() - Tensor::from<double>({0, 0.25, -0.25})) < 1e-15);
  CHECK(testing::max_abs(q.grad() - Tensor::from<double>({0, std::log(2), std::log(2)})) < 1e-15);
  x.zero_grad();
  const Tensor beyond = cross_entropy(x, q, {.label_smoothing = 0.3});
  backward(beyond);
  CHECK(beyond.item() == INFINITY);
  CHECK(testing::max_abs(x.grad() - Tensor::from<double>({-0.1, 0.225, -0.125})) < 1e-15);
}

TEST_CASE("cross_entropy: probabilities that do not fit are refused", "[loss]") {
  const Tensor x = zeros({2, 3}), q = full({2, 3}, 1.0 / 3);
  CHECK(cross_entropy(x, q).item() == Approx(std::log(3)));
  for (const Tensor& other : {ones({2}), ones({3, 2}), ones({2, 3, 1})})
    CHECK_THROWS_WITH(cross_entropy(x, other), Contains("cross_entropy: logits=[2,3] and probabilities f32[") &&
                                                   Contains("] do not fit; need [..., C] of both"));
  CHECK_THROWS_WITH(cross_entropy(x, to(q, f64)), "cross_entropy: dtypes differ — got logits=f32, targets=f64");
  CHECK_THROWS_AS(cross_entropy(x, to(q, meta)), DeviceError);
  CHECK_THROWS_AS(cross_entropy(zeros({2, 0}), zeros({2, 0})), ShapeError);
  CHECK_THROWS_WITH(cross_entropy(x, q, {.ignore_index = 0}),
                    "cross_entropy: ignore_index 0 is for classes, but targets [2,3] are probabilities");
  CHECK_THROWS_AS(cross_entropy(x, q, {.label_smoothing = 1.5}), ValueError);
  CHECK_THROWS_WITH(cross_entropy(x, q, {.weight = ones({2})}),
                    "cross_entropy: weight=[2] does not fit logits=[2,3]; need [C]");
  CHECK_THROWS_AS(nll_loss(x, q), DTypeError);
}
