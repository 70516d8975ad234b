// Anomaly mode: the first bad value, forward or backward, is named with its op and module.
#include <sluice/autograd/anomaly.h>

#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>

#include <cmath>
#include <limits>
#include <thread>
#include <utility>

using namespace sluice;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Block {
  static constexpr const char* type = "Block";
  Linear first, second;
  bool take_root = false, take_log = false;
  Tensor operator()(const Tensor& x) const {
    ModuleScope scope(this, type);
    Tensor h = first(x);
    if (take_log) h = log(h * 0.0 - 1.0);
    if (take_root) h = sqrt(h * 0.0);  // finite forward, infinite slope
    return second(h);
  }
  SLUICE_PARTS(first, second);
};
struct Model {
  static constexpr const char* type = "Model";
  std::vector<Block> blocks;
  explicit Model(Rng& rng) {
    for (int i = 0; i < 3; ++i) blocks.push_back({Linear({4, 4}, rng), Linear({4, 4}, rng)});
  }
  Tensor operator()(Tensor x) const {
    ModuleScope scope(this, type);
    for (const Block& b : blocks) x = b(x);
    return sum(x);
  }
  SLUICE_PARTS(blocks);
};
struct Normed {  // its first member's scope has the type of a base
  static constexpr const char* type = "Normed";
  RMSNorm norm{4};
  SLUICE_PARTS(norm);
};
struct NormedModel {
  std::vector<Normed> blocks = std::vector<Normed>(1);
  Tensor operator()(const Tensor& x) const { return blocks[0].norm(x); }
  SLUICE_PARTS(blocks);
};

/// The text of the anomaly that f runs into.
template <class F> std::string anomaly(F f, AnomalyOptions options = {}) {
  AnomalyMode mode(std::move(options));
  try {
    f();
  } catch (const AutogradError& e) { return e.what(); }
  return "none";
}

}  // namespace

TEST_CASE("anomaly: a NaN in forward is named with op, counts and shape", "[anomaly]") {
  Tensor x = Tensor({{1, -1, 2}, {-3, 4, 5}}).requires_grad_();
  CHECK_THAT(anomaly([&] { log(x); }),
             Contains("forward of log") && Contains("2 NaN") && Contains("of 6") && Contains("[2,3]"));
  CHECK_THAT(anomaly([&] { sqrt(x.detach()); }), Contains("forward of sqrt"));  // constants too
  CHECK_THAT(anomaly([&] {
               NoGrad guard;
               log(x);
             }),
             Contains("forward of log"));
  CHECK_THAT(anomaly([&] { matmul(Tensor({{0, 1}}), Tensor({{kInf, 1}, {1, 1}})); }), Contains("forward of matmul"));
  CHECK(anomaly([&] { exp(x); }) == "none");
}

TEST_CASE("anomaly: a NaN in backward is named with op and input", "[anomaly]") {
  Tensor x = Tensor({4, 0}).requires_grad_();
  CHECK_THAT(anomaly([&] {
               backward(sum(sqrt(x) * Tensor({1, 0})));
             }),
             Contains("backward of sqrt") && Contains("1 NaN") && Contains("input 0") && Contains("[2]"));
  CHECK_THAT(anomaly([&] { backward(sum(sqrt(x))); }), Contains("backward of sqrt") && Contains("1 infinite"));
  CHECK_THAT(anomaly([&] {
               backward(sum(custom_op(
                   "mine", {x}, [](const Tensors& in) { return in[0] * 1.0; },
                   [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors {
                     return {full(g.shape(), std::nan(""), g.options())};
                   })));
             }),
             Contains("backward of mine"));
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("anomaly: an op inside a vjp is blamed on the backward pass", "[anomaly]") {
  Tensor x = Tensor({4, 0}).requires_grad_();
  // create_graph writes the slope of sqrt in ops.
  CHECK_THAT(anomaly([&] { backward(sum(sqrt(x)), {}, {.create_graph = true}); }), Contains("backward of sqrt"));
  CHECK_THAT(anomaly([&] {
               backward(sum(custom_op(
                   "mine", {x}, [](const Tensors& in) { return in[0] * 1.0; },
                   [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {log(g * -1.0)}; })));
             }),
             Contains("backward of mine"));
}

TEST_CASE("anomaly: +inf is caught, -inf is a mask, both by choice", "[anomaly]") {
  Tensor masked = masked_fill(Tensor({1, 2}), Tensor::from<bool>({false, true}), -kInf);
  CHECK(anomaly([&] { softmax(masked + 0.0, -1); }) == "none");
  CHECK_THAT(anomaly([&] { masked + 0.0; }, {.minus_infinity = true}), Contains("1 infinite"));
  CHECK_THAT(anomaly([&] { exp(Tensor({100})); }), Contains("forward of exp") && Contains("1 infinite"));
  CHECK(anomaly([&] { exp(Tensor({100})); }, {.infinity = false}) == "none");
  CHECK_THAT(anomaly([&] { log(Tensor({-1})); }, {.infinity = false}), Contains("1 NaN"));
  CHECK_THAT(anomaly([&] { log(to(Tensor({-1}), bf16)); }), Contains("forward of log") && Contains("1 NaN"));
}

TEST_CASE("anomaly: modules are named by their path, else by type", "[anomaly]") {
  Rng rng(1);
  Model m(rng);
  Tensor x = ones({2, 4});
  CHECK(anomaly([&] { backward(m(x)); }, {.modules = name_modules(m)}) == "none");

  m.blocks[1].take_log = true;
  std::string named = anomaly([&] { m(x); }, {.modules = name_modules(m)});
  CHECK_THAT(named, Contains("forward of log") && Contains(" — in blocks.1 (Block)"));
  std::string typed = anomaly([&] { m(x); });
  CHECK_THAT(typed, Contains("Model / Block") && !Contains("blocks.1"));

  m.blocks[1].take_log = false;
  m.blocks[2].take_root = true;
  std::string back = anomaly([&] { backward(m(x)); }, {.modules = name_modules(m)});
  CHECK_THAT(back, Contains("backward of sqrt") && Contains(" — in blocks.2 (Block)"));

  m.blocks[2].take_root = false;
  {
    NoGrad guard;
    fill_(m.blocks[0].second.weight, std::nan(""));
  }
  CHECK_THAT(anomaly([&] { m(x); }, {.modules = name_modules(m)}),
             Contains("forward of linear") && Contains(" — in blocks.0.second (Linear)"));
}

TEST_CASE("anomaly: a module and its first member are told apart", "[anomaly]") {
  Rng rng(1);
  Model m(rng);
  REQUIRE(static_cast<const void*>(&m.blocks[0]) == static_cast<const void*>(&m.blocks[0].first));
  m.blocks[0].take_log = true;
  std::string text = anomaly([&] { m(ones({2, 4})); }, {.modules = name_modules(m)});
  CHECK_THAT(text, Contains(" — in blocks.0 (Block)"));
  CHECK_THAT(text, !Contains("first"));
  const NormedModel normed;
  CHECK_THAT(anomaly(
                 [&] {
                   normed(full({2, 4}, kInf));
                 },
                 {.modules = name_modules(normed)}),
             Contains(" — in blocks.0.norm (Norm)"));
}

TEST_CASE("anomaly: the mode ends with its scope, and only one is on", "[anomaly]") {
  {
    AnomalyMode mode;
    CHECK_THROWS_AS(AnomalyMode(), AutogradError);
    CHECK_THROWS_AS(log(Tensor({-1})), AutogradError);  // still on
  }
  CHECK(std::isnan(log(Tensor({-1})).item()));
  Tensor x = Tensor({0}).requires_grad_();
  backward(sqrt(x));
  CHECK(std::isinf(x.grad().item()));
  AnomalyMode again;
  CHECK_THROWS_AS(log(Tensor({-1})), AutogradError);
}

TEST_CASE("anomaly: other threads are watched as well", "[anomaly]") {
  AnomalyMode mode;
  bool caught = false;
  std::thread([&] {
    try {
      log(Tensor({-1}));
    } catch (const AutogradError&) { caught = true; }
  }).join();
  CHECK(caught);
}

TEST_CASE("anomaly: values, gradients and what stays allocated are as without it", "[anomaly]") {
  Rng rng(1);
  Model m(rng);
  Tensor x = ones({2, 4}), y = m(x);
  backward(y);
  auto want = m.blocks[0].first.weight.grad().to_vector();
  zero_grad(m);
  AnomalyMode mode;
  Tensor z = m(x);
  backward(z);
  CHECK(z.item() == y.item());
  CHECK(m.blocks[0].first.weight.grad().to_vector() == want);
}

TEST_CASE("anomaly: a sum of gradients in a leaf is checked, too", "[anomaly]") {
  Tensor x = Tensor({1e-3F}).requires_grad_();
  AnomalyMode mode;
  CHECK_THROWS_WITH(backward(sum(x * 3e38) + sum(x * 3e38)), Contains("the sum of its gradients"));
}

TEST_CASE("anomaly: each flag has an infinity of its own", "[anomaly]") {
  const Tensor zero = zeros({1}), huge = full({1}, 1e30);
  {
    AnomalyMode mode({.infinity = false, .minus_infinity = true});
    CHECK_THROWS_AS(log(zero), AutogradError);
    CHECK_NOTHROW(exp(huge));
  }
  AnomalyMode mode({.infinity = true, .minus_infinity = false});
  CHECK_NOTHROW(log(zero));
  CHECK_THROWS_AS(exp(huge), AutogradError);
}

TEST_CASE("anomaly: its own work is in no profile", "[anomaly][profile]") {
  const Tensor x = ones({64, 64});
  const auto calls = [&] {
    detail::WorkCounter counter;
    const Tensor y = x * 2.0;
    return std::pair(counter.calls(), counter.work().bytes);
  };
  const auto alone = calls();
  AnomalyMode mode;
  CHECK(calls() == alone);
}
