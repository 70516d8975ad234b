// What rows cannot say, because it has no derivative: the conventions at kinks and ties, for the fused
// and the composed gradient alike, and what becomes of NaN and infinities wherever they stand in a tile.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/view.h>

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
  check_slopes("pow(0, e) and pow(1, e), in e",
               [](const Tensor& e) {
                 return pow(tensor_of({0, 1}, {2}, e.dtype()), e);
               },
               {2, 2}, {0, 0});
}

TEST_CASE("kinks: ties share the gradient of max and min", "[ops][kinks]") {
  auto largest = [](const Tensor& x) { return max(x, {1}); };
  auto smallest = [](const Tensor& x) { return min(x, {1}, keep); };
  check_slopes("max", largest, {1, 3, 3, 0, 2, 2, 2, 2}, {0, 0.5, 0.5, 0, 0.25, 0.25, 0.25, 0.25}, {2, 4});
  check_slopes("min", smallest, {1, 3, 3, 1, 2, 5, 7, 9}, {0.5, 0, 0, 0.5, 1, 0, 0, 0}, {2, 4});
  check_slopes("max over all", [](const Tensor& x) { return max(x); }, {4, 1, 4, 4, 0, 4},
               {0.25, 0, 0.25, 0.25, 0, 0.25}, {2, 3});
}

TEST_CASE("kinks: degenerate points have finite slopes", "[ops][kinks]") {
  check_slopes("norm at 0", [](const Tensor& x) { return norm(x, {1}); }, {0, 0, 0, -5}, {0, 0, 0, -1}, {2, 2});
  check_slopes("logsumexp of nothing but −inf", [](const Tensor& x) { return logsumexp(x, {1}); },
               {-kInf, -kInf, 5, -kInf}, {0, 0, 1, 0}, {2, 2});
  check_slopes("softmax of nothing but −inf", [](const Tensor& x) { return softmax(x) * 3.0; },
               {-kInf, -kInf, 5, -kInf}, {0, 0, 0, 0}, {2, 2});
  check_slopes("prod with one zero", [](const Tensor& x) { return prod(x); }, {2, 0, 3}, {0, 6, 0});
  check_slopes("prod with two zeros", [](const Tensor& x) { return prod(x); }, {2, 0, 3, 0}, {0, 0, 0, 0});
}

TEST_CASE("kinks: an infinite value spoils no slope that does not depend on it", "[ops][kinks]") {
  struct Point {
    const char* what;
    Tensor (*f)(const Tensor&, const Tensor&);
    double x, y, dx, dy;
  };
  const auto power = [](const Tensor& x, const Tensor& e) { return pow(x, e); };
  const Point points[] = {
      {"x·y", mul, kInf, 3, 3, kInf},
      {"x·y", mul, 2, -kInf, -kInf, 2},
      {"x/y", div, kInf, 2, 0.5, -kInf},
      {"x/y", div, 6, kInf, 0, 0},
      // As PyTorch, but for bases of 0 and less, whose slope in the exponent is 0.
      {"0⁰", power, 0, 0, 0, 0},
      {"(−0)⁰", power, -0.0, 0, 0, 0},
      {"∞⁰", power, kInf, 0, 0, kInf},
      {"1^∞", power, 1, kInf, kInf, 0},
      {"1^−∞", power, 1, -kInf, -kInf, 0},
      {"NaN⁰", power, kNan, 0, 0, kNan},
      {"(−∞)⁰", power, -kInf, 0, 0, 0},
      {"0^−1", power, 0, -1, -kInf, 0},
      {"0^½", power, 0, 0.5, kInf, 0},
      {"∞²", power, kInf, 2, kInf, kInf},
      {"2^∞", power, 2, kInf, kInf, kInf},
      {"(−2)³", power, -2, 3, 12, 0},
      {"x·e^y, a formula of one's own",
       [](const Tensor& x, const Tensor& y) { return map([](auto a, auto b) { return a * exp(b); }, x, y); }, 2, 1000,
       kInf, kInf}};
  const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  for (const Point& p : points)
    for (DType dtype : {f32, f64, bf16})
      for (bool create_graph : {false, true}) {
        const Tensor x = tensor_of({p.x}, {1}, dtype).requires_grad_();
        const Tensor y = tensor_of({p.y}, {1}, dtype).requires_grad_();
        const auto g = grad({p.f(x, y)}, {x, y}, {.create_graph = create_graph});
        INFO(p.what << " of " << p.x << ", " << p.y << ' ' << name_of(dtype)
                    << (create_graph ? " composed: " : " fused: ") << g[0].item() << ", " << g[1].item());
        CHECK(same(g[0].item(), p.dx));
        CHECK(same(g[1].item(), p.dy));
      }
  // Second slopes of x^e: by x, both ways by x and e, by e.
  const auto second = [](double base, double exponent) {
    const Tensor x = tensor_of({base}, {1}, f64).requires_grad_(), e = tensor_of({exponent}, {1}, f64).requires_grad_();
    const auto g = grad({pow(x, e)}, {x, e}, {.create_graph = true});
    const auto by_x = grad({g[0]}, {x, e}, {.retain_graph = true}), by_e = grad({g[1]}, {x, e});
    return Values{by_x[0].item(), by_x[1].item(), by_e[0].item(), by_e[1].item()};
  };
  const double l = std::log(2.0);
  CHECK(second(2, 0) == Values{0, 0.5, 0.5, l * l});
  CHECK(second(2, 1) == Values{0, 1 + l, 1 + l, 2 * l * l});
  for (double exponent : {0.0, 1.0, 2.0})
    for (double slope : second(0, exponent)) CHECK(std::isfinite(slope));
}

TEST_CASE("kinks: an infinite gradient ends at what was not chosen", "[ops][kinks]") {
  struct Choice {
    const char* what;
    Tensor (*f)(const Tensor&);
    Values want;
  };
  const Choice choices[] = {
      {"relu", relu, {0, kInf}},
      {"relu2", relu2, {0, kInf}},
      {"clamp", [](const Tensor& x) { return clamp(x, 0, 5); }, {0, kInf}},
      {"where", [](const Tensor& x) { return where(x > 0.0, x, 7.0); }, {0, kInf}},
      {"where, the other side", [](const Tensor& x) { return where(x > 0.0, 7.0, x); }, {kInf, 0}},
      {"masked_fill", [](const Tensor& x) { return masked_fill(x, x > 0.0, 7); }, {kInf, 0}},
      {"maximum", [](const Tensor& x) { return maximum(x, 0); }, {0, kInf}},
      {"minimum", [](const Tensor& x) { return minimum(x, 0); }, {kInf, 0}},
      {"max", [](const Tensor& x) { return max(x); }, {0, kInf}},
      {"min", [](const Tensor& x) { return min(x, 0, keep); }, {kInf, 0}},
      {"sign", sign, {0, 0}},
      {"floor", floor, {0, 0}}};
  for (const Choice& c : choices)
    for (DType dtype : {f32, f64, bf16})
      for (bool create_graph : {false, true}) {
        INFO(c.what << " " << name_of(dtype) << (create_graph ? " composed" : " fused"));
        const Tensor x = tensor_of({-1, 3}, {2}, dtype).requires_grad_();
        const Shape shape = c.f(x).shape();
        const Tensor g = tensor_of(Values(static_cast<std::size_t>(shape.numel()), kInf), shape, dtype);
        CHECK(library_gradient([&](const auto& v) { return std::vector{c.f(v[0])}; }, {x}, {g}, create_graph)[0]
                  .to_vector<double>() == c.want);
      }
  // The slopes of both orders of a root and a logarithm, which are infinite where the choice is 0.
  const auto orders = [](Tensor (*f)(const Tensor&), double at) {
    const Tensor x = tensor_of({-1, at}, {2}, f64).requires_grad_();
    const Tensor first = grad({sum(f(x))}, {x}, {.create_graph = true})[0];
    return std::pair(first.to_vector<double>(), grad({sum(first)}, {x})[0].to_vector<double>());
  };
  CHECK(orders([](const Tensor& x) { return sqrt(clamp(x, 0)); }, 4) ==
        std::pair(Values{0, 0.25}, Values{0, -0.03125}));
  CHECK(orders([](const Tensor& x) { return log(relu2(x)); }, 2) == std::pair(Values{0, 1}, Values{0, -0.5}));
}

TEST_CASE("kinks: the slopes of a cross entropy that is infinite are softmax − target", "[ops][kinks]") {
  // A logit of −∞ is a class of probability 0, as −10⁴ is: the loss is +∞ where the target distribution has it, no
  // slope is NaN.
  for (DType dtype : {f32, f64, bf16})
    for (double smoothing : {0.0, 0.125})
      for (bool weighted : {false, true})
        for (Reduction reduction : {Reduction::mean, Reduction::sum}) {
          CrossEntropyOptions o{.label_smoothing = smoothing, .reduction = reduction};
          if (weighted) o.weight = tensor_of({1, 2, 0.5}, {3}, dtype);
          const Tensor targets = tensor_of({1, 0, 2}, {3}, i64);
          const Tensor by = tensor_of({1, -2, 3, 0.5, 2, -1, 4, 1, -3}, {3, 3}, dtype);
          std::vector<Tensors> found;
          for (double never : {-kInf, -1e4})
            for (bool create_graph : {false, true}) {
              const Tensor x = tensor_of({1, never, 2, 0.5, never, -1, 1, 0, 2}, {3, 3}, dtype).requires_grad_();
              const Tensor loss = cross_entropy(x, targets, o);
              if (never == -kInf) CHECK(loss.item() == kInf);
              const auto g = grad({loss}, {x}, {.create_graph = create_graph});
              found.push_back({g[0].detach()});
              if (create_graph) found.back().push_back(grad({sum(g[0] * by)}, {x})[0]);
            }
          INFO(name_of(dtype) << " smoothing " << smoothing << (weighted ? ", weights of classes" : ""));
          CHECK(same_bits(found[0][0], found[2][0]));
          CHECK(same_bits(found[1][0], found[3][0]));
          CHECK(same_bits(found[1][1], found[3][1]));
          CHECK(max_abs_diff(found[0][0], found[1][0]) <= (dtype == bf16 ? 0x1p-7 : dtype == f32 ? 1e-6 : 1e-14));
          CHECK(max_abs(found[1][1]) > 0.01);
        }
}

TEST_CASE("kinks: NaN reaches the result from any place in a tile", "[ops][kinks]") {
  for (DType dtype : {f32, f64})
    for (int64_t at : {0, 1, 7, 15, 16, 100, 511, 512, 600, 1029}) {
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
    auto masked = [&](const Tensor& x) {
      return softmax(masked_fill(x, hidden, -kInf)) * tensor_of({1, 2, 3}, {3}, f64);
    };
    const auto clean = slopes(masked, {0.5, 0, 1}, create_graph), dirty = slopes(masked, {0.5, kNan, 1}, create_graph);
    CHECK(clean == dirty);
    CHECK(dirty[1] == 0);
  }
}
