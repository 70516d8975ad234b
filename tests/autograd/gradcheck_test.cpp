// gradcheck must accept what is right and refuse each kind of mistake; other tests rely on it.
#include <sluice/autograd/gradcheck.h>

#include "support/catch.h"

#include <sluice/autograd/function.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using Inputs = std::vector<Tensor>;

namespace {

Tensor leaf(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return normal(shape, 0, 1, rng, {f64}).requires_grad_();
}

/// y = a·sin(b), with a vjp to be judged.
TensorFunction product(CustomVjp vjp) {
  return [vjp](const Inputs& in) {
    return custom_op(
        "a·sin(b)", in, [](const Tensors& x) { return x[0] * sin(x[1]); }, vjp);
  };
}
Inputs two() { return {leaf({3}, 1), leaf({3}, 2)}; }

}  // namespace

TEST_CASE("gradcheck: accepts a right gradient, first and second order", "[gradcheck]") {
  auto f = product([](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
    return {g * sin(x[1]), g * x[0] * cos(x[1])};
  });
  auto first = gradcheck(f, two()), second = gradgradcheck(f, two());
  INFO(first.message << second.message);
  CHECK(first.ok);
  CHECK(second.ok);
  CHECK(bool(first));
  CHECK(first.max_error < 1e-8);
  CHECK(first.message.empty());
}

TEST_CASE("gradcheck: refuses wrong gradients and says where", "[gradcheck]") {
  const std::vector<std::pair<std::string, CustomVjp>> wrong{
      {"sign",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         return {g * sin(x[1]), g * x[0] * cos(x[1]) * -1.0};
       }},
      {"factor",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         return {g * sin(x[1]), g * x[0] * cos(x[1]) * 2.0};
       }},
      {"small factor",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         return {g * sin(x[1]), g * x[0] * cos(x[1]) * 1.0001};
       }},
      {"missing",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         return {g * sin(x[1]), {}};
       }},
      {"cotangent ignored",
       [](const Tensor&, const Tensors& x, const Tensor&) -> Tensors {
         return {sin(x[1]), x[0] * cos(x[1])};
       }},
      {"one element",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         Tensor keep_two = Tensor::from<double>({1, 1, 0});
         return {g * sin(x[1]), g * x[0] * cos(x[1]) * keep_two};
       }},
      {"permuted",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         return {g * sin(x[1]), flip(g * x[0] * cos(x[1]), {0})};
       }},
      {"NaN",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         return {g * sin(x[1]), g * x[0] * std::nan("")};
       }},
      {"NaN in the first element",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         return {g * sin(x[1]), g * x[0] * cos(x[1]) * Tensor::from<double>({std::nan(""), 1, 1})};
       }},
  };
  for (const auto& [name, vjp] : wrong) {
    INFO(name);
    auto r = gradcheck(product(vjp), two());
    CHECK_FALSE(r.ok);
    CHECK_FALSE(r.max_error < 1e-6);
    CHECK_THAT(r.message, Contains(name == "cotangent ignored" ? "input 0" : "input 1") && Contains("[3]") &&
                              Contains("analytic") && Contains("numeric"));
  }
  // An error only in the last element is found there.
  CHECK_THAT(gradcheck(product(wrong[5].second), two()).message, Contains("element 2"));
}

TEST_CASE("gradgradcheck: refuses a right gradient whose own gradient is wrong", "[gradcheck]") {
  const std::vector<std::pair<std::string, CustomVjp>> wrong{
      {"detached input",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         return {g * sin(x[1].detach()), g * x[0] * cos(x[1])};
       }},
      {"detached cotangent",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         return {g * sin(x[1]), g.detach() * x[0] * cos(x[1])};
       }},
      {"not recorded",
       [](const Tensor& g, const Tensors& x, const Tensor&) -> Tensors {
         NoGrad guard;
         return {g * sin(x[1]), g * x[0] * cos(x[1])};
       }},
  };
  for (const auto& [name, vjp] : wrong) {
    INFO(name);
    CHECK(gradcheck(product(vjp), two()).ok);
    auto r = gradgradcheck(product(vjp), two());
    CHECK_FALSE(r.ok);
    CHECK_FALSE(r.message.empty());
  }
  // The output saved without its history.
  auto tanh_wrong = [](const Inputs& in) {
    return custom_op(
        "tanh", in, [](const Tensors& x) { return tanh(x[0]); },
        [](const Tensor& g, const Tensors&, const Tensor& y) -> Tensors {
          Tensor c = y.detach();
          return {g * (1.0 - c * c)};
        });
  };
  CHECK(gradcheck(tanh_wrong, {leaf({4}, 3)}).ok);
  CHECK_FALSE(gradgradcheck(tanh_wrong, {leaf({4}, 3)}).ok);
}

TEST_CASE("gradcheck: f32 is refused, constants are passed through", "[gradcheck]") {
  auto f = [](const Inputs& in) { return in[0] * in[1]; };
  Tensor a = leaf({2}, 1), f32_leaf = Tensor({1, 2}).requires_grad_();
  CHECK_THROWS_AS(gradcheck(f, {f32_leaf, f32_leaf}), DTypeError);
  CHECK_THROWS_AS(gradgradcheck(f, {f32_leaf, f32_leaf}), DTypeError);
  CHECK_THROWS_AS(gradcheck([](const Inputs& in) { return to(in[0], f32); }, {a}), DTypeError);
  CHECK_THROWS_WITH(gradcheck(f, {a, Tensor()}), Contains("gradcheck") && Contains("operand 1"));
  CHECK_THROWS_WITH(gradcheck([](const Inputs&) { return Tensor(); }, {a}), Contains("returned an undefined tensor"));
  CHECK(gradcheck(f, {a, ones({2}, {f64})}).ok);
  CHECK_THROWS_AS(gradcheck(f, {a.detach(), a.detach()}), AutogradError);
  CHECK_THROWS_WITH(gradgradcheck(f, {a.detach(), a.detach()}), "gradgradcheck: no input requires a gradient");
  CHECK_THROWS_WITH(gradgradcheck(f, {a, Tensor()}), Contains("gradgradcheck") && Contains("operand 1"));
  CHECK_THROWS_WITH(gradgradcheck([](const Inputs&) { return Tensor(); }, {a}), Contains("returned an undefined"));
  CHECK_THROWS_WITH(gradgradcheck([](const Inputs& in) { return to(in[0], f32); }, {a}),
                    "gradgradcheck: the function must return f64 — got f32");
  // A constant of another type, an index say, is no obstacle.
  CHECK(gradcheck([](const Inputs& in) { return where(in[1], in[0], in[0] * 2.0); },
                  {a, Tensor::from<bool>({true, false})})
            .ok);
}

TEST_CASE("gradcheck: functions that ignore an input, return it, or have no gradient", "[gradcheck]") {
  Tensor a = leaf({2}, 1), b = leaf({3}, 2);
  auto first_only = [](const Inputs& in) { return in[0] * in[0]; };
  CHECK(gradcheck(first_only, {a, b}).ok);
  CHECK(gradgradcheck(first_only, {a, b}).ok);
  CHECK(gradcheck([](const Inputs& in) { return in[0]; }, {a}).ok);
  CHECK(gradgradcheck([](const Inputs& in) { return in[0]; }, {a}).ok);
  CHECK(gradcheck([](const Inputs& in) { return sign(in[0]); }, {a}).ok);
  // A function cut off from its input has a gradient that differences see and backward does not.
  CHECK_FALSE(gradcheck([](const Inputs& in) { return exp(in[0].detach()); }, {a}).ok);
}

TEST_CASE("gradcheck: leaves its inputs as they were, strided ones too", "[gradcheck]") {
  Tensor base = leaf({3, 2}, 1).detach(), a = transpose(base, 0, 1).requires_grad_();
  const auto before = a.to_vector<double>();
  auto f = [](const Inputs& in) { return exp(in[0]) * in[0]; };
  CHECK(gradcheck(f, {a}).ok);
  CHECK(gradgradcheck(f, {a}).ok);
  CHECK(a.to_vector<double>() == before);
  CHECK_FALSE(a.grad().defined());
  CHECK(gradcheck(f, {leaf({0, 3}, 1)}).ok);
  CHECK(gradgradcheck(f, {leaf({0, 3}, 1)}).ok);
}

TEST_CASE("gradcheck: a kink under the point is seen, a split tie agrees with the difference", "[gradcheck]") {
  Tensor at_kink = Tensor::from<double>({0.0}).requires_grad_();
  CHECK_FALSE(gradcheck([](const Inputs& in) { return relu(in[0]); }, {at_kink}).ok);
  CHECK(gradcheck([](const Inputs& in) { return maximum(in[0], like(in[0], 0)); }, {at_kink}).ok);
}

TEST_CASE("gradcheck: records also where the caller does not, and names the input by its place", "[gradcheck]") {
  const NoGrad guard;
  const Tensor ids = zeros({1}, {i64}), x = full({2}, 0.3, {f64}).requires_grad_();
  CHECK(gradcheck([](const std::vector<Tensor>& v) { return v[1] * v[1]; }, {ids, x}).ok);
  const auto wrong = gradcheck([](const std::vector<Tensor>& v) { return v[1] * v[1].detach(); }, {ids, x});
  CHECK_FALSE(wrong.ok);
  CHECK_THAT(wrong.message, Contains("input 1"));
}
