// Ops of one's own, and Jacobian-vector products.
#include <sluice/autograd/function.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using Doubles = std::vector<double>;

namespace {

Tensor leaf(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return normal(shape, 0, 1, rng, {f64}).requires_grad_();
}

/// tanh(x·w), with the vjp through the saved output.
Tensor tanh_matmul(const Tensor& x, const Tensor& w) {
  return custom_op(
      "tanh_matmul", {x, w}, [](const Tensors& in) { return tanh(matmul(in[0], in[1])); },
      [](const Tensor& g, const Tensors& in, const Tensor& y) -> Tensors {
        Tensor d = g * (1.0 - y * y);
        return {matmul(d, transpose(in[1], 0, 1)), matmul(transpose(in[0], 0, 1), d)};
      });
}

}  // namespace

TEST_CASE("custom_op: first and second order equal the composition", "[function]") {
  Tensor x = leaf({3, 2}, 1), w = leaf({2, 4}, 2);
  auto f = [](const std::vector<Tensor>& in) { return tanh_matmul(in[0], in[1]); };
  auto first = gradcheck(f, {x, w}), second = gradgradcheck(f, {x, w});
  INFO(first.message << " | " << second.message);
  CHECK(first.ok);
  CHECK(second.ok);
  Tensor a = sum(tanh_matmul(x, w)), b = sum(tanh(matmul(x, w)));
  auto ga = grad({a}, {x, w}), gb = grad({b}, {x, w});
  CHECK(testing::max_abs_diff(ga[0], gb[0]) < 1e-14);
  CHECK(testing::max_abs_diff(ga[1], gb[1]) < 1e-14);
  CHECK(std::string(tanh_matmul(x, w).impl().history->name()) == "tanh_matmul");
}

TEST_CASE("custom_op: a vjp records a computation of its own under GradMode", "[function]") {
  // x ← tanh(x·w), three times. The vjp keeps x and w alone, and runs the steps again.
  const auto step = [](const Tensor& x, const Tensor& w) { return tanh(matmul(x, w)); };
  const auto steps = [&](bool records, const Tensor& x, const Tensor& w) {
    return custom_op(
        "steps", {x, w}, [&](const Tensors& in) { return step(step(step(in[0], in[1]), in[1]), in[1]); },
        [=](const Tensor& g, const Tensors& in, const Tensor&) -> Tensors {
          const GradMode mode(records);
          const Tensor a = clone(in[0].detach()).requires_grad_(), b = clone(in[1].detach()).requires_grad_();
          const auto slopes = grad({step(step(step(a, b), b), b)}, {a, b}, {.grad_outputs = {g}});
          return {slopes[0], slopes[1]};
        });
  };
  const Tensor x = leaf({2, 3}, 1), w = leaf({3, 3}, 2);
  const auto expected = grad({sum(step(step(step(x, w), w), w))}, {x, w});
  const auto got = grad({sum(steps(true, x, w))}, {x, w});
  CHECK(testing::max_abs_diff(got[0], expected[0]) < 1e-14);
  CHECK(testing::max_abs_diff(got[1], expected[1]) < 1e-14);
  CHECK_THROWS_WITH(backward(sum(steps(false, x, w))),
                    Contains("has no history") && Contains("backward pass of steps"));
}

TEST_CASE("custom_op: forward runs without recording, once", "[function]") {
  Tensor x = leaf({2}, 1);
  int runs = 0;
  bool recorded = true;
  Tensor y = custom_op(
      "probe", {x},
      [&](const Tensors& in) {
        ++runs;
        recorded = grad_enabled();
        return in[0] * 2.0;
      },
      [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g * 2.0}; });
  backward(sum(y));
  CHECK(runs == 1);
  CHECK_FALSE(recorded);
  CHECK(grad_enabled());
}

TEST_CASE("custom_op: undefined gradients mean zero, broadcast ones are summed", "[function]") {
  Tensor x = leaf({2, 3}, 1), b = leaf({3}, 2), c = leaf({}, 3);
  Tensor y = custom_op(
      "partial", {x, b, c}, [](const Tensors& in) { return in[0] + in[1] + in[2]; },
      [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors {
        return {{}, g, g};
      });
  backward(sum(y));
  CHECK_FALSE(x.grad().defined());
  CHECK(b.grad().to_vector<double>() == Doubles{2, 2, 2});
  CHECK(c.grad().item() == 6);
}

TEST_CASE("custom_op: a wrong number, shape or dtype of gradients is an error that names the op", "[function]") {
  Tensor x = leaf({2}, 1), w = leaf({2}, 2);
  auto with = [&](CustomVjp vjp) {
    return sum(custom_op(
        "my_op", {x, w}, [](const Tensors& in) { return in[0] * in[1]; }, std::move(vjp)));
  };
  auto few = with([](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g}; });
  auto many = with([](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g, g, g}; });
  auto shape = with([](const Tensor&, const Tensors&, const Tensor&) -> Tensors { return {ones({5}, {f64}), {}}; });
  auto dtype = with([](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {to(g, f32), {}}; });
  CHECK_THROWS_WITH(backward(few), Contains("my_op") && Contains("1 gradients") && Contains("2 inputs"));
  CHECK_THROWS_WITH(backward(many), Contains("my_op") && Contains("3 gradients"));
  CHECK_THROWS_WITH(backward(shape), Contains("[5]") && Contains("[2]") && Contains("my_op"));
  CHECK_THROWS_WITH(backward(dtype), Contains("my_op") && Contains("f32"));
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("custom_op: the identity leaves its input as it was", "[function]") {
  Tensor x = leaf({2}, 1);
  Tensor y = custom_op(
      "straight_through", {x}, [](const Tensors& in) { return in[0]; },
      [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g * 3.0}; });
  CHECK(x.is_leaf());
  CHECK(y.shares_storage(x));
  backward(sum(y));
  CHECK(x.grad().to_vector<double>() == Doubles{3, 3});
}

TEST_CASE("custom_op: a captured result keeps its own history", "[function]") {
  Tensor x = leaf({2}, 1), constant = ones({2}, {f64}), w = leaf({2}, 2), h = exp(w);
  auto to_x = [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g}; };
  for (Tensor captured : {constant, w, h}) {
    const auto before = captured.impl().history;
    Tensor y = custom_op(
        "capture", {x}, [&](const Tensors&) { return captured; }, to_x);
    CHECK(y.requires_grad());
    CHECK(captured.impl().history == before);
  }
}

TEST_CASE("custom_op: a view as result, an edited input, an undefined input", "[function]") {
  Tensor x = leaf({2, 3}, 1);
  Tensor y = custom_op(
      "turn", {x, Tensor()}, [](const Tensors& in) { return transpose(in[0], 0, 1); },
      [](const Tensor& g, const Tensors& in, const Tensor&) -> Tensors {
        CHECK_FALSE(in[1].defined());
        return {transpose(g, 0, 1), {}};
      });
  CHECK(y.shape() == Shape{3, 2});
  backward(y, reshape(arange(0, 6, 1, {f64}), {3, 2}), {.retain_graph = true});
  CHECK(x.grad().to_vector<double>() == Doubles{0, 2, 4, 1, 3, 5});
  {
    NoGrad guard;
    fill_(x, 0);
  }
  CHECK_THROWS_WITH(backward(sum(y)), Contains("turn") && Contains("edited in place"));
}

TEST_CASE("custom_op: without a recorded input there is no history, and no vjp is kept", "[function]") {
  auto token = std::make_shared<int>(0);
  auto call = [&](const Tensor& x) {
    return custom_op(
        "quiet", {x}, [](const Tensors& in) { return in[0] * 1.0; },
        [token](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g}; });
  };
  Tensor y = call(ones({2}));
  CHECK_FALSE(y.requires_grad());
  NoGrad guard;
  Tensor z = call(leaf({2}, 1));
  CHECK_FALSE(z.requires_grad());
  CHECK(token.use_count() == 1);
}

TEST_CASE("custom_op: exceptions of forward pass through and restore the mode", "[function]") {
  Tensor x = leaf({2}, 1);
  CHECK_THROWS_AS(custom_op(
                      "bad", {x}, [](const Tensors&) -> Tensor { throw 7; },
                      [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g}; }),
                  int);
  CHECK(grad_enabled());
  CHECK_THROWS_AS(custom_op("empty", {x}, [](const Tensors&) { return Tensor(); }, {}), Error);
  CHECK_THROWS_WITH(custom_op(
                        "lost", {x}, [](const Tensors&) { return Tensor(); },
                        [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g}; }),
                    "custom_op: the forward function of lost returned an undefined tensor");
  CHECK(x.is_leaf());
}

TEST_CASE("jvp: equals central differences along v", "[function]") {
  Tensor w = leaf({4, 3}, 5).detach();
  const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> fs{
      {"elementwise", [](const Tensor& x) { return sin(x) * exp(x); }},
      {"matmul", [&](const Tensor& x) { return matmul(x, w); }},
      {"softmax", [](const Tensor& x) { return softmax(x, -1); }},
      {"reduction", [](const Tensor& x) { return logsumexp(x); }},
      {"views",
       [](const Tensor& x) {
         return cat({transpose(x, 0, 1), flip(transpose(x, 0, 1), {0})});
       }},
      {"gate", [](const Tensor& x) { return swiglu(x, x * x); }},
      {"checkpoint",
       [](const Tensor& x) {
         return checkpoint([](const std::vector<Tensor>& in) { return tanh(in[0]) * in[0]; }, {x});
       }},
  };
  Tensor x = leaf({2, 4}, 1).detach(), v = leaf({2, 4}, 2).detach();
  for (const auto& [name, f] : fs) {
    INFO(name);
    const double h = 1e-5;
    Tensor numeric = (f(x + v * h) - f(x - v * h)) * (0.5 / h), got = jvp(f, x, v);
    CHECK(got.shape() == numeric.shape());
    CHECK(testing::max_abs_diff(got, numeric) < 1e-8);
    CHECK_FALSE(got.requires_grad());
  }
}

TEST_CASE("jvp: constants, the identity and misfit directions", "[function]") {
  Tensor x = leaf({3}, 1), v = leaf({3}, 2).detach(), c = ones({2}, {f64});
  CHECK(jvp([&](const Tensor&) { return c; }, x, v).to_vector<double>() == Doubles{0, 0});
  CHECK(testing::same_bits(jvp([](const Tensor& in) { return in; }, x, v), v));
  CHECK(jvp([](const Tensor& in) { return sign(in); }, x, v).to_vector<double>() == Doubles{0, 0, 0});
  CHECK_THROWS_WITH(jvp([](const Tensor& in) { return in; }, x, ones({2}, {f64})), Contains("jvp") && Contains("[2]"));
  CHECK_FALSE(x.grad().defined());
  const auto identity = [](const Tensor& in) { return in; };
  const auto nothing = [](const Tensor&) { return Tensor(); };
  CHECK_THROWS_WITH(jvp(identity, x, {}), Contains("jvp") && Contains("v is undefined"));
  CHECK_THROWS_WITH(hvp(identity, {}, v), Contains("hvp") && Contains("x is undefined"));
  CHECK_THROWS_WITH(jacobian(identity, {}), Contains("jacobian") && Contains("x is undefined"));
  CHECK_THROWS_WITH(jvp(identity, x, ones({3})), "jvp: v is f32[3], x is f64[3]");
  CHECK_THROWS_WITH(jvp(nothing, x, v), "jvp: the function returned an undefined tensor");
  CHECK_THROWS_WITH(hvp(nothing, x, v), "hvp: the function returned an undefined tensor");
  CHECK_THROWS_WITH(jacobian(nothing, x), "jacobian: the function returned an undefined tensor");
  const Tensor whole = arange(3);
  const auto rounded = [](const Tensor& in) { return to(in, i64); };
  CHECK_THROWS_WITH(jvp(identity, whole, whole), "jvp: needs f32, f64 or bf16 — got i64 of shape [3]");
  CHECK_THROWS_WITH(hvp(identity, whole, whole), Contains("hvp: needs f32"));
  CHECK_THROWS_WITH(jacobian(identity, whole), Contains("jacobian: needs f32"));
  CHECK_THROWS_WITH(jvp(rounded, x, v), "jvp: the function must return f32, f64 or bf16 — got i64[3]");
  CHECK_THROWS_WITH(hvp(rounded, x, v), Contains("hvp: the function must return f32"));
  CHECK_THROWS_WITH(jacobian(rounded, x), Contains("jacobian: the function must return f32"));
  NoGrad guard;  // works here as well, and leaves the mode
  CHECK(testing::max_abs_diff(jvp([](const Tensor& in) { return in * in; }, x, v), x.detach() * v * 2.0) < 1e-15);
  CHECK_FALSE(grad_enabled());
}

namespace {
/// (x·y, x + 2y, [index of x]) as one op.
std::vector<Tensor> product_and_sum(const Tensor& x, const Tensor& y) {
  return custom_op(
      "product_and_sum", {x, y},
      [](const Tensors& in) {
        return Tensors{in[0] * in[1], in[0] + 2 * in[1], arange(3)};
      },
      [](const Tensors& gs, const Tensors& in, const Tensors& ys) -> Tensors {
        // dx = g0·y + g1, dy = g0·x + 2 g1; x is taken from the outputs, so that their history is tested, too.
        const Tensor x_again = ys[1] - 2 * in[1];
        return {gs[0] * in[1] + gs[1], gs[0] * x_again + 2 * gs[1]};
      });
}
}  // namespace

TEST_CASE("custom_op: several outputs have gradients of both orders, together and each alone", "[function]") {
  Tensor x = leaf({2, 3}, 1), y = leaf({2, 3}, 2);
  for (int which = 0; which < 3; ++which) {
    CAPTURE(which);
    auto f = [&](const std::vector<Tensor>& in) {
      const auto out = product_and_sum(in[0], in[1]);
      return which == 2 ? exp(out[0] * 0.3) * out[1] : sin(out[static_cast<std::size_t>(which)]);
    };
    const auto first = gradcheck(f, {x, y}), second = gradgradcheck(f, {x, y});
    INFO(first.message << " | " << second.message);
    CHECK(first.ok);
    CHECK(second.ok);
  }
  const auto out = product_and_sum(x, y);
  CHECK(out[1].to_vector<double>() == (x + 2 * y).to_vector<double>());
  CHECK(out[0].requires_grad());
  CHECK_FALSE(out[2].requires_grad());  // integers
  CHECK_FALSE(product_and_sum(x.detach(), y.detach())[0].requires_grad());
  NoGrad guard;
  CHECK_FALSE(product_and_sum(x, y)[1].requires_grad());
}

TEST_CASE("hvp and jacobian: equal their definitions", "[function]") {
  const Tensor a = leaf({3, 3}, 1).detach(), x = leaf({3}, 2).detach(), v = leaf({3}, 3).detach();
  const auto quadratic = [&](const Tensor& u) { return sum(u * matmul(a, u)); };  // H = a + aᵀ
  CHECK(testing::max_abs_diff(hvp(quadratic, x, v), matmul(a + transpose(a, 0, 1), v)) < 1e-14);
  const auto f = [&](const Tensor& u) { return exp(matmul(a, u)); };  // J = diag(f)·a
  const Tensor j = jacobian(f, x);
  CHECK(j.shape() == Shape{3, 3});
  CHECK(testing::max_abs_diff(j, unsqueeze(f(x), 1) * a) < 1e-13);
  CHECK_FALSE(j.requires_grad());
  const auto gradient = [&](const Tensor& u) { return grad(quadratic(u), u, {.create_graph = true}); };
  CHECK(testing::max_abs_diff(jacobian(gradient, x), a + transpose(a, 0, 1)) < 1e-14);
  const Tensor m = leaf({2, 3}, 4).detach();
  CHECK(jacobian([](const Tensor& u) { return sum(u, {1}); }, m).shape() == Shape{2, 2, 3});
  CHECK(jacobian([](const Tensor& u) { return transpose(u, 0, 1); }, m).shape() == Shape{3, 2, 2, 3});

  const Tensor c = ones({2}, {f64});
  CHECK(jacobian([&](const Tensor&) { return c; }, x).to_vector<double>() == Doubles(6, 0.0));
  CHECK(hvp([](const Tensor& u) { return sum(u); }, x, v).to_vector<double>() == Doubles{0, 0, 0});
  CHECK(hvp([&](const Tensor&) { return sum(c); }, x, v).to_vector<double>() == Doubles{0, 0, 0});
  CHECK_THROWS_WITH(hvp(f, x, v), Contains("hvp: needs a function with one element"));
  CHECK_THROWS_WITH(hvp(quadratic, x, ones({2}, {f64})), Contains("hvp: v=[2]"));
  NoGrad guard;
  CHECK(testing::max_abs_diff(hvp(quadratic, x, v), matmul(a + transpose(a, 0, 1), v)) < 1e-14);
  CHECK(testing::max_abs_diff(jacobian(f, x), unsqueeze(f(x), 1) * a) < 1e-13);
  CHECK_FALSE(grad_enabled());
}

TEST_CASE("empty functions are refused when they are given", "[function]") {
  Tensor x = leaf({2}, 1);
  const CustomForward forward = [](const Tensors& in) { return in[0] * 2.0; };
  const CustomVjp vjp = [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g}; };
  CHECK_THROWS_AS(custom_op("mine", {x}, nullptr, vjp), ValueError);
  CHECK_THROWS_WITH(custom_op("mine", {x}, forward, nullptr), Contains("custom_op: mine"));
  CHECK_THROWS_AS(checkpoint(nullptr, {x}), ValueError);
  CHECK_THROWS_AS(jvp(nullptr, x, x), ValueError);
  CHECK_THROWS_AS(hvp(nullptr, x, x), ValueError);
  CHECK_THROWS_AS(jacobian(nullptr, x), ValueError);
  CHECK_THROWS_AS(custom_op(
                      "mine", {x}, [](const Tensors& in) { return Tensors{in[0]}; }, nullptr),
                  ValueError);
  CHECK_THROWS_AS(gradcheck(nullptr, {x}), ValueError);
  CHECK_THROWS_AS(gradgradcheck(nullptr, {x}), ValueError);
  CHECK_THROWS_AS(x.register_hook(nullptr), ValueError);
}
