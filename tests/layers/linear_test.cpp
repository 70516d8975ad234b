// Linear, Embedding, Dropout: ranks, initial values, gradients, errors.
#include <sluice/layers/nn/linear.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;
using Doubles = std::vector<double>;

namespace {

Tensor random(const Shape& shape, uint64_t seed, DType dtype = f64) {
  Rng rng(seed);
  return normal(shape, 0, 1, rng, {dtype});
}
std::size_t at(int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

TEST_CASE("linear: any leading dims", "[linear]") {
  Rng rng(1);
  const Linear layer({.in = 5, .out = 4, .dtype = f64}, rng);
  const Tensor x = random({2, 3, 5}, 2), y = layer(x);
  for (const Shape& shape : {Shape{0, 5}, Shape{2, 0, 5}, Shape{5}, Shape{1, 5}, Shape{2, 1, 3, 5}}) {
    Shape want = shape;
    want[want.rank() - 1] = 4;
    CHECK(layer(zeros(shape, {f64})).shape() == want);
  }
  CHECK(max_abs_diff(layer(flatten(x, 0, 1)), flatten(y, 0, 1)) < 1e-14);
  CHECK(max_abs_diff(layer(select(select(x, 0, 1), 0, 2)), select(select(y, 0, 1), 0, 2)) < 1e-14);
}

TEST_CASE("linear: strided inputs and weights are read in place", "[linear]") {
  Rng rng(1);
  Linear layer({.in = 5, .out = 4, .dtype = f64}, rng);
  Tensor t = random({5, 3}, 2), x = transpose(t, 0, 1);
  CHECK(max_abs_diff(layer(x), layer(clone(x))) < 1e-14);
  Linear turned = layer;
  turned.weight = transpose(clone(transpose(layer.weight.detach(), 0, 1)), 0, 1);
  REQUIRE_FALSE(turned.weight.is_contiguous());
  CHECK(max_abs_diff(layer(x), turned(x)) < 1e-14);
}

TEST_CASE("linear: the initial values are those of the options", "[linear]") {
  Rng rng(1);
  auto spread = [&](Init init) {
    Linear layer({.in = 200, .out = 300, .init = init}, rng);
    CHECK(layer.weight.shape() == Shape{200, 300});
    CHECK(layer.bias.to_vector<double>() == Doubles(300, 0));
    CHECK(std::abs(mean(layer.weight).item()) < 5 * std::sqrt(mean(square(layer.weight)).item() / 60000) + 1e-12);
    return std::sqrt(mean(square(layer.weight)).item());
  };
  CHECK(spread(Init::lecun()) == Approx(std::sqrt(1 / 200.0)).epsilon(0.02));
  CHECK(spread(Init::xavier()) == Approx(std::sqrt(2 / 500.0)).epsilon(0.02));
  CHECK(spread(Init::paper()) == Approx(0.02).epsilon(0.02));
  CHECK(spread({InitKind::he, 1}) == Approx(std::sqrt(2 / 200.0)).epsilon(0.02));
  CHECK(spread(Init::deepnorm(8)) == Approx(std::sqrt(2 / 500.0) / 4).epsilon(0.02));
  CHECK(spread({InitKind::zeros, 1}) == 0);
}

TEST_CASE("linear: a misfit input is an error with both shapes", "[linear]") {
  Rng rng(1);
  Linear layer({5, 4}, rng);
  CHECK_THROWS_WITH(layer(zeros({3, 6})), Contains("linear") && Contains("[3,6]") && Contains("[5,4]"));
  CHECK_THROWS_AS(layer(zeros({3, 5}, {f64})), DTypeError);
  CHECK_THROWS_AS(layer(zeros({})), ShapeError);
  CHECK_THROWS_AS(Linear()(zeros({3, 5})), Error);
}

TEST_CASE("embedding: picks rows, and adds their gradients", "[linear]") {
  Rng rng(1);
  Embedding e({.count = 4, .dim = 3, .dtype = f64}, rng);
  Tensor index = Tensor::from<int64_t>({2, 0, 2, 3}, {2, 2}), y = e(index);
  REQUIRE(y.shape() == Shape{2, 2, 3});
  Doubles w = e.weight.to_vector<double>(), got = y.to_vector<double>();
  const std::vector<int64_t> rows{2, 0, 2, 3};
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t d = 0; d < 3; ++d) CHECK(got[at(r * 3 + d)] == w[at(rows[at(r)] * 3 + d)]);
  backward(sum(y * reshape(arange(0, 12, 1, {f64}), {2, 2, 3})));
  CHECK(e.weight.grad().to_vector<double>() == Doubles{3, 4, 5, 0, 0, 0, 0 + 6, 1 + 7, 2 + 8, 9, 10, 11});
  CHECK_THROWS_AS(e(Tensor::from<int64_t>({4})), ValueError);
  CHECK_THROWS_AS(e(Tensor::from<int64_t>({-1})), ValueError);
  CHECK_THROWS_AS(e(Tensor({1})), DTypeError);
}

TEST_CASE("dropout: zeros a share p, scales the rest, and its gradient has the same mask", "[linear]") {
  Tensor x = ones({200, 100}).requires_grad_();
  for (double p : {0.1, 0.5, 0.9}) {
    Rng rng(3);
    x.zero_grad();
    Tensor y = Dropout{p}(x, &rng);
    int64_t kept = 0;
    const auto values = y.to_vector();
    for (float v : values) {
      if (v == 0) continue;
      ++kept;
      REQUIRE(v == Approx(1 / (1 - p)).epsilon(1e-6));
    }
    CHECK(std::abs(static_cast<double>(kept) / 20000 - (1 - p)) < 5 * std::sqrt(p * (1 - p) / 20000));
    backward(sum(y));
    CHECK(x.grad().to_vector() == values);
  }
}

TEST_CASE("dropout: without a generator or with p = 0 it is the identity", "[linear]") {
  Tensor x = random({3}, 1);
  Rng rng(1);
  CHECK(Dropout{0.5}(x, nullptr).ref() == x.ref());
  CHECK(Dropout{0}(x, &rng).ref() == x.ref());
  CHECK(rng.offset() == 0);
  CHECK(Dropout{1}(x, &rng).to_vector<double>() == Doubles{0, 0, 0});
  CHECK_THROWS_AS(Dropout{1.5}(x, &rng), ValueError);
  CHECK_THROWS_AS(Dropout{std::nan("")}(x, &rng), ValueError);
  CHECK_THROWS_AS(Dropout{-0.5}(x, &rng), ValueError);
}

TEST_CASE("dropout: one generator gives a new mask each time, the same seed the same masks", "[linear]") {
  Tensor x = ones({1000});
  Rng a(1), b(1);
  Tensor first = Dropout{0.5}(x, &a), second = Dropout{0.5}(x, &a);
  CHECK_FALSE(same_bits(first, second));
  CHECK(same_bits(first, Dropout{0.5}(x, &b)));
  CHECK(same_bits(second, Dropout{0.5}(x, &b)));
}
