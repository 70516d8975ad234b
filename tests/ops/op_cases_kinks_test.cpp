// What rows cannot say, because it has no derivative: the conventions at kinks and ties, for the fused
// and the composed gradient alike, and what becomes of NaN and infinities wherever they stand in a tile.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/softmax.h>
#include <sluice/ops/view.h>

#include <cmath>
#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;
using Unary = std::function<Tensor(const Tensor&)>;

/// The gradient of Σ f(x), fused or composed.
Values slopes(const Unary& f, const Values& x, bool create_graph, DType dtype = f64, Shape shape = {}) {
  if (shape.empty()) shape = {static_cast<int64_t>(x.size())};
  Tensor leaf = tensor_of(x, shape, dtype).requires_grad_();
  const Tensor y = f(leaf);
  const Tensor ones = tensor_of(Values(static_cast<std::size_t>(y.numel()), 1.0), y.shape(), dtype);
  return library_gradient([&](const auto& v) { return std::vector{f(v[0])}; }, {leaf}, {ones}, create_graph)[0]
      .to_vector<double>();
}
void check_slopes(const char* what, Tensor (*f)(const Tensor&), const Values& x, const Values& want, Shape shape = {}) {
  for (DType dtype : {f32, f64})
    for (bool create_graph : {false, true}) {
      INFO(what << " " << name_of(dtype) << (create_graph ? " composed" : " fused"));
      CHECK(slopes(f, x, create_graph, dtype, shape) == want);
    }
}

}  // namespace

TEST_CASE("kinks: slopes follow the documented conventions", "[ops][kinks]") {
  check_slopes("relu", relu, {-1, 0, 2}, {0, 0, 1});
  check_slopes("relu2", relu2, {-1, 0, 2}, {0, 0, 4});
  check_slopes("leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.25); }, {-1, 0, 2}, {0.25, 0.25, 1});
  check_slopes("abs", abs, {-1, 0, 2}, {-1, 0, 1});
  check_slopes("sign", sign, {-1, 0, 2}, {0, 0, 0});
  check_slopes("floor", floor, {-1, 0.5, 2}, {0, 0, 0});
  check_slopes("clamp", [](const Tensor& x) { return clamp(x, -1, 2); }, {-1.5, -1, 0, 2, 2.5}, {0, 1, 1, 1, 0});
  check_slopes("maximum with itself", [](const Tensor& x) { return maximum(x, x); }, {-1, 0, 2}, {1, 1, 1});
  check_slopes("maximum of a tie", [](const Tensor& x) { return maximum(x, x.detach()); }, {-1, 0, 2}, {0.5, 0.5, 0.5});
  check_slopes("minimum of a tie", [](const Tensor& x) { return minimum(x, x.detach()); }, {-1, 0, 2}, {0.5, 0.5, 0.5});
  check_slopes("where", [](const Tensor& x) { return where(x > 0.0, x, zeros_like(x)); }, {-1, 0, 2}, {0, 0, 1});
  check_slopes("square at 0", square, {0}, {0});
  check_slopes("pow(x, 0) at 0", [](const Tensor& x) { return pow(x, 0); }, {0, 2}, {0, 0});
  check_slopes("pow(x, 1) at 0", [](const Tensor& x) { return pow(x, 1); }, {0, 2}, {1, 1});
  check_slopes("pow(0, e) and pow(1, e), in e", [](const Tensor& e) { return pow(tensor_of({0, 1}, {2}, e.dtype()), e); },
               {2, 2}, {0, 0});
}

TEST_CASE("kinks: ties share the gradient of max and min", "[ops][kinks]") {
  auto largest = [](const Tensor& x) { return max(x, {1}); };
  auto smallest = [](const Tensor& x) { return min(x, {1}, keep); };
  check_slopes("max", largest, {1, 3, 3, 0, 2, 2, 2, 2}, {0, 0.5, 0.5, 0, 0.25, 0.25, 0.25, 0.25}, {2, 4});
  check_slopes("min", smallest, {1, 3, 3, 1, 2, 5, 7, 9}, {0.5, 0, 0, 0.5, 1, 0, 0, 0}, {2, 4});
  check_slopes("max over all", [](const Tensor& x) { return max(x); }, {4, 1, 4, 4, 0, 4}, {0.25, 0, 0.25, 0.25, 0, 0.25}, {2, 3});
}

TEST_CASE("kinks: degenerate points have finite slopes", "[ops][kinks]") {
  check_slopes("norm at 0", [](const Tensor& x) { return norm(x, {1}); }, {0, 0, 0, -5}, {0, 0, 0, -1}, {2, 2});
  check_slopes("logsumexp of nothing but −inf", [](const Tensor& x) { return logsumexp(x, {1}); }, {-kInf, -kInf, 5, -kInf},
               {0, 0, 1, 0}, {2, 2});
  check_slopes("softmax of nothing but −inf", [](const Tensor& x) { return softmax(x) * 3.0; },
               {-kInf, -kInf, 5, -kInf}, {0, 0, 0, 0}, {2, 2});
  check_slopes("prod with one zero", [](const Tensor& x) { return prod(x); }, {2, 0, 3}, {0, 6, 0});
  check_slopes("prod with two zeros", [](const Tensor& x) { return prod(x); }, {2, 0, 3, 0}, {0, 0, 0, 0});
}

TEST_CASE("kinks: NaN reaches the result from any place in a tile", "[ops][kinks]") {
  for (DType dtype : {f32, f64})
    for (int64_t at : {0, 1, 7, 15, 16, 100, 511, 512, 600, 1029})  {
      INFO(name_of(dtype) << " NaN at " << at);
      Values v(1030, 1.0);
      v[static_cast<std::size_t>(at)] = kNan;
      const Tensor x = tensor_of(v, {1030}, dtype), one = tensor_of(Values(1030, 1.0), {1030}, dtype);
      auto only_there = [&](const char* what, const Tensor& y) {
        INFO(what);
        const auto got = y.to_vector<double>();
        bool right = true;
        for (std::size_t i = 0; i < got.size(); ++i) right &= std::isnan(got[i]) == (static_cast<int64_t>(i) == at);
        CHECK(right);
      };
      only_there("relu", relu(x));
      only_there("relu2", relu2(x));
      only_there("clamp", clamp(x, -1, 2));
      only_there("maximum", maximum(x, one));
      only_there("maximum", maximum(one, x));
      only_there("minimum", minimum(x, one));
      only_there("minimum", minimum(one, x));
      only_there("abs", abs(x));
      only_there("sign", sign(x));
      only_there("exp", exp(x));
      only_there("tanh", tanh(x));
      only_there("gelu", gelu(x));
      only_there("where", where(eq(one, one), x, one));
      CHECK(std::isnan(sum(x).item()));
      CHECK(std::isnan(mean(x).item()));
      CHECK(std::isnan(max(x).item()));
      CHECK(std::isnan(min(x).item()));
      CHECK(std::isnan(logsumexp(x).item()));
      CHECK(std::isnan(norm(x).item()));
      CHECK(std::isnan(prod(x).item()));
      CHECK(argmax(x, 0).item() == at);
      CHECK(argmin(x, 0).item() == at);
      v.back() = kNan;  // the first of several
      CHECK(argmax(tensor_of(v, {1030}, dtype), 0).item() == at);
      CHECK(argmin(tensor_of(v, {1030}, dtype), 0).item() == at);
      for (const Tensor& y : {softmax(x * 900.0), log_softmax(x * 900.0)}) {  // the whole line
        bool all = true;
        for (double e : y.to_vector<double>()) all &= std::isnan(e);
        CHECK(all);
      }
      const Tensor columns = reshape(x, {103, 10});
      CHECK(std::isnan(max(columns, {0}).to_vector<double>()[static_cast<std::size_t>(at % 10)]));
      CHECK(std::isnan(min(columns, {0}).to_vector<double>()[static_cast<std::size_t>(at % 10)]));
    }
}

TEST_CASE("kinks: a masked score hides what it masks", "[ops][kinks]") {
  // A NaN under the mask leaves value and slopes of everything else alone, fused and composed.
  for (bool create_graph : {false, true}) {
    const Tensor hidden = tensor_of({0, 1, 0}, {3}, boolean);
    auto masked = [&](const Tensor& x) { return softmax(masked_fill(x, hidden, -kInf)) * tensor_of({1, 2, 3}, {3}, f64); };
    const auto clean = slopes(masked, {0.5, 0, 1}, create_graph), dirty = slopes(masked, {0.5, kNan, 1}, create_graph);
    CHECK(clean == dirty);
    CHECK(dirty[1] == 0);
  }
}
