// A bool operand counts as 0 and 1 and has no gradient, of any order: the same numbers as with the operand converted.
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/rows/reduce.h>

#include <functional>

using namespace sluice;

namespace {

using Function = std::function<Tensor(const Tensor& x, const Tensor& m)>;

/// y, dy/dx and d(Σ (dy/dx)²)/dx.
std::vector<std::vector<double>> derivatives(const Function& f, const Tensor& m) {
  const Tensor x = Tensor::from(std::vector<double>{0.3, -1.2, 0.7, 2.5}).requires_grad_();
  const Tensor y = f(x, m);
  const Tensor first = grad(sum(y), x, {.create_graph = true, .allow_unused = true});
  std::vector<std::vector<double>> all{y.to_vector<double>()};
  if (!first.defined()) return all;
  all.push_back(first.to_vector<double>());
  if (!first.requires_grad()) return all;
  const Tensor second = grad(sum(square(first)), x, {.allow_unused = true});
  if (second.defined()) all.push_back(second.to_vector<double>());
  return all;
}

}  // namespace

TEST_CASE("bool operands: gradients of both orders equal those of the converted operand", "[ops][autograd]") {
  const std::vector<std::pair<const char*, Function>> functions = {
      {"x + m", [](auto& x, auto& m) { return square(x) + m; }},
      {"m - x", [](auto& x, auto& m) { return m - square(x); }},
      {"x · m", [](auto& x, auto& m) { return square(x) * m; }},
      {"x / (m + x²)", [](auto& x, auto& m) { return x / (m + square(x)); }},
      {"m / x", [](auto& x, auto& m) { return m / x; }},
      {"maximum", [](auto& x, auto& m) { return maximum(square(x), m); }},
      {"minimum", [](auto& x, auto& m) { return minimum(m, square(x)); }},
      {"pow(x², m)", [](auto& x, auto& m) { return pow(square(x), m); }},
      {"pow(m, x²)", [](auto& x, auto& m) { return pow(m, square(x)); }},
      {"lerp, weight", [](auto& x, auto& m) { return lerp(x, square(x), m); }},
      {"lerp, ends", [](auto& x, auto& m) { return lerp(m, m, x); }},
      {"glu", [](auto& x, auto& m) { return glu(x, m); }},
      {"glu, gate", [](auto& x, auto& m) { return glu(m, x); }},
      {"reglu", [](auto& x, auto& m) { return reglu(m, x); }},
      {"geglu", [](auto& x, auto& m) { return geglu(m, x); }},
      {"swiglu", [](auto& x, auto& m) { return swiglu(m, x); }},
      {"swiglu, gate", [](auto& x, auto& m) { return swiglu(x, m); }},
      {"bilinear", [](auto& x, auto& m) { return bilinear(square(x), m); }},
      {"silu_glu", [](auto& x, auto& m) { return silu_glu(x, m); }},
      {"l1_loss", [](auto& x, auto& m) { return l1_loss(x, m, Reduction::none); }},
      {"huber_loss", [](auto& x, auto& m) { return huber_loss(x, m, 0.5, Reduction::none); }},
      {"bce_with_logits, weights", [](auto& x, auto& m) { return bce_with_logits(x, m, Reduction::none, square(x)); }},
      {"mse_loss", [](auto& x, auto& m) { return mse_loss(x, m, Reduction::none); }},
      {"bce_with_logits", [](auto& x, auto& m) { return bce_with_logits(x, m, Reduction::none); }},
      {"kl_div", [](auto& x, auto& m) { return kl_div(square(x), m, Reduction::none); }},
      {"where", [](auto& x, auto& m) { return where(gt(m, like(x, 0.5)), square(x), exp(x)); }},
      {"map", [](auto& x, auto& m) { return map([](auto a, auto b) { return a * a / (b + exp(a * b)); }, x, m); }},
  };
  const Tensor m = Tensor::from(std::vector<bool>{true, false, false, true});
  for (const auto& [name, f] : functions) {
    INFO(name);
    const auto as_bool = derivatives(f, m), as_number = derivatives(f, to(m, f64));
    CHECK(as_bool.size() >= 2);
    CHECK(Catch::Detail::stringify(as_bool) == Catch::Detail::stringify(as_number));  // NaN equals NaN
  }
}
