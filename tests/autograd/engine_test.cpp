// backward() and grad() on small graphs whose gradients are known by hand.
#include <sluice/autograd/engine.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using Doubles = std::vector<double>;

namespace {

Tensor leaf(const Doubles& v, const Shape& shape) { return Tensor::from(v, shape).requires_grad_(); }
Tensor leaf(const Doubles& v) { return Tensor::from(v).requires_grad_(); }
Tensor leaf(double v) { return leaf(Doubles{v}, Shape{}); }
Doubles values(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace

TEST_CASE("backward: a product and a sum have the gradients of school", "[engine]") {
  Tensor a = leaf({1, 2, 3}), b = leaf({4, 5, 6});
  backward(sum(a * b + a));
  CHECK(values(a.grad()) == Doubles{5, 6, 7});
  CHECK(values(b.grad()) == Doubles{1, 2, 3});
  CHECK(a.grad().dtype() == f64);
  CHECK(a.grad().shape() == Shape{3});
}

TEST_CASE("backward: a one-element root of any rank needs no gradient", "[engine]") {
  Tensor x = leaf({3}, {1, 1});
  backward(x * x);
  CHECK(values(x.grad()) == Doubles{6});
  CHECK(x.grad().shape() == Shape{1, 1});
}

TEST_CASE("grad: of one tensor, and of a list of one", "[engine]") {
  const Tensor x = leaf({1, 2, 3}), y = sum(x * x);
  CHECK(values(grad(y, x, {.create_graph = true})) == Doubles{2, 4, 6});
  CHECK(values(grad({y}, {x}, {.create_graph = true})[0]) == Doubles{2, 4, 6});  // a gradient, not its first element
}

TEST_CASE("backward: with a gradient it computes the vector-Jacobian product", "[engine]") {
  Tensor x = leaf({1, 2, 3});
  backward(x * x, Tensor::from<double>({10, 100, 1000}));
  CHECK(values(x.grad()) == Doubles{20, 400, 6000});
}

TEST_CASE("backward: the root may be a leaf itself", "[engine]") {
  Tensor x = leaf(2);
  backward(x);
  CHECK(x.grad().item() == 1);
  CHECK(grad(x, x).item() == 1);
  CHECK(x.grad().item() == 1);
}

TEST_CASE("backward: paths of a diamond add up", "[engine]") {
  // y = a·b, a = x², b = x³: y = x⁵.
  Tensor x = leaf(2), a = x * x, b = a * x;
  backward(a * b);
  CHECK(x.grad().item() == 5 * 16);
}

TEST_CASE("backward: nested diamonds are walked once per node, not once per path", "[engine]") {
  Tensor x = leaf(1), y = x;
  for (int i = 0; i < 50; ++i) y = y + y;  // 2^50 paths
  backward(y);
  CHECK(x.grad().item() == std::ldexp(1, 50));
}

TEST_CASE("backward: a leaf used many times gets the sum of its gradients", "[engine]") {
  Tensor x = leaf({1, 2}), y = x * 0.0;
  for (int i = 1; i <= 100; ++i) y = y + x * static_cast<double>(i);
  backward(sum(y));
  CHECK(values(x.grad()) == Doubles{5050, 5050});
}

TEST_CASE("backward: many gradients of a bf16 leaf add up; what was written to .grad() counts", "[engine][bf16]") {
  Tensor w = to(ones({2}), bf16).requires_grad_();
  const auto walks = [&](int n) {
    while (n--) backward(sum(w));
  };
  walks(1000);
  CHECK(w.grad().dtype() == bf16);
  CHECK(values(w.grad()) == Doubles{1000, 1000});  // added up in bf16: 256
  const Tensor seen = w.grad();                    // not changed behind its owner's back
  walks(8);
  CHECK(values(seen) == Doubles{1000, 1000});
  CHECK(values(w.grad()) == Doubles{1008, 1008});
  Tensor g = w.grad();
  scale_(g, 0.5);
  walks(8);
  CHECK(values(w.grad()) == Doubles{512, 512});
  w.set_grad(to(full({2}, 256), bf16));
  walks(16);
  CHECK(values(w.grad()) == Doubles{272, 272});
  w.zero_grad();
  walks(1);
  CHECK(values(w.grad()) == Doubles{1, 1});
  backward(sum(w), {}, {.create_graph = true});
  walks(2);
  CHECK(values(w.grad()) == Doubles{4, 4});
  CHECK(!w.grad().requires_grad());
}

TEST_CASE("backward: of a bf16 leaf whose gradients somebody holds, what took .grad()'s place counts",
          "[engine][bf16]") {
  std::vector<Tensor> held;  // so that each .grad() is another tensor, of the same version
  Tensor w = full({1}, 1, {bf16}).requires_grad_();
  const auto walk = [&](double slope, bool create_graph = false) {
    backward(sum(w * slope), {}, {.create_graph = create_graph});
    held.push_back(w.grad());
  };
  walk(64), walk(64);
  w.set_grad(full({1}, 5, {bf16}));
  walk(1);
  CHECK(values(w.grad()) == Doubles{6});
  w.zero_grad();
  walk(64), walk(64), walk(64, true), walk(1), walk(1);
  CHECK(values(w.grad()) == Doubles{194});
  w.zero_grad(), held.clear();
}

TEST_CASE("backward: a long and a short path to the same node arrive together", "[engine]") {
  Tensor x = leaf(0.5), h = x * 3.0, deep = h;
  for (int i = 0; i < 20; ++i) deep = sin(deep);
  Tensor y = deep + h * 7.0;
  double d = 1.5, slope = 1;
  for (int i = 0; i < 20; ++i) slope *= std::cos(d), d = std::sin(d);
  backward(y);
  CHECK(x.grad().item() == Approx(3 * (slope + 7)).epsilon(1e-13));
}

TEST_CASE("backward: two calls accumulate, zero_grad forgets", "[engine]") {
  Tensor x = leaf({1, 2});
  backward(sum(x * x));
  backward(sum(x * 10.0));
  CHECK(values(x.grad()) == Doubles{12, 14});
  x.zero_grad();
  CHECK_FALSE(x.grad().defined());
  backward(sum(x * x));
  CHECK(values(x.grad()) == Doubles{2, 4});
}

TEST_CASE("backward: a gradient that somebody holds is not edited by the next call", "[engine]") {
  Tensor x = leaf({1, 2});
  backward(sum(x * x));
  Tensor held = x.grad();
  backward(sum(x * x));
  CHECK(values(held) == Doubles{2, 4});
  CHECK(values(x.grad()) == Doubles{4, 8});
}

TEST_CASE("grad: a gradient that the caller gave is not edited, nor what shares its memory", "[engine]") {
  Tensor x = leaf({1, 2}), h = x * 3.0, other = h * 2.0, view = reshape(h, {2, 1});  // the view's gradient comes first
  const Tensor given = Tensor::from<double>({5, 7}, {2, 1});
  const auto g = grad({other, view}, {x}, {.grad_outputs = {Tensor::from<double>({1, 1}), given}});
  CHECK(values(g[0]) == Doubles{21, 27});
  CHECK(values(given) == Doubles{5, 7});
}

TEST_CASE("backward: only leaves get a .grad()", "[engine]") {
  Tensor x = leaf(3), h = x * x;
  backward(h * h);
  CHECK(x.grad().item() == 4 * 27);
  CHECK_FALSE(h.grad().defined());
  CHECK_FALSE(h.is_leaf());
}

TEST_CASE("backward: constants take part without a gradient", "[engine]") {
  Tensor x = leaf(3), c = Tensor::from<double>({5}, {});
  backward(x * c);
  CHECK(x.grad().item() == 5);
  CHECK_FALSE(c.requires_grad());
  CHECK_FALSE(c.grad().defined());
}

TEST_CASE("backward: gradients of broadcast operands are summed to their shapes", "[engine]") {
  Tensor row = leaf({1, 2, 3}), column = leaf({1, 2}, {2, 1}), scalar = leaf(2),
         full_ = leaf({1, 2, 3, 4, 5, 6}, {2, 3}), ones_ = leaf({3}, {1, 1, 1});
  backward(sum(full_ * row * column * scalar * ones_));
  CHECK(values(row.grad()) == Doubles{6 * (1 + 8), 6 * (2 + 10), 6 * (3 + 12)});
  CHECK(values(column.grad()) == Doubles{6 * 14, 6 * 32});
  CHECK(scalar.grad().item() == 3 * (14 + 2 * 32));
  CHECK(scalar.grad().shape() == Shape{});
  CHECK(ones_.grad().shape() == Shape{1, 1, 1});
  CHECK(ones_.grad().item() == 2 * (14 + 2 * 32));
  CHECK(values(full_.grad()) == Doubles{6, 12, 18, 12, 24, 36});
}

TEST_CASE("sum_to: sums exactly the broadcast dims, and refuses what was not broadcast", "[engine]") {
  Tensor g = reshape(arange(0, 24, 1, {f64}), {2, 3, 4});
  CHECK(values(sum_to(g, {3, 1})) == Doubles{6 + 54, 22 + 70, 38 + 86});
  CHECK(sum_to(g, {3, 1}).shape() == Shape{3, 1});
  CHECK(sum_to(g, {}).item() == 276);
  CHECK(sum_to(g, {2, 3, 4}).ref() == g.ref());
  CHECK(values(sum_to(zeros({0, 2}, {f64}), {1, 2})) == Doubles{0, 0});
  CHECK_THROWS_AS(sum_to(g, {2, 4}), ShapeError);
  CHECK_THROWS_AS(sum_to(g, {1, 2, 3, 4}), ShapeError);
}

TEST_CASE("grad: touches no .grad()", "[engine]") {
  Tensor x = leaf({1, 2}), w = leaf({3, 4});
  Tensor g = grad(sum(x * w), x);
  CHECK(values(g) == Doubles{3, 4});
  CHECK_FALSE(x.grad().defined());
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("grad: inputs may be intermediate results, in any order and twice", "[engine]") {
  Tensor x = leaf(2), h = x * x, y = h * h * x;  // h² x
  std::vector<Tensor> g = grad({y}, {h, x, h});
  CHECK(g[0].item() == 2 * 4 * 2);
  CHECK(g[1].item() == 5 * 16);
  CHECK(g[2].item() == 16);
}

TEST_CASE("grad: several outputs with their weights", "[engine]") {
  Tensor x = leaf({1, 2}), a = x * x, b = x * 3.0;
  auto w = Tensor::from<double>({1, 10}), v = Tensor::from<double>({100, 1000});
  CHECK(values(grad({a, b}, {x}, {.grad_outputs = {w, v}})[0]) == Doubles{302, 3040});
  // The same output twice counts twice.
  Tensor s = sum(x * x);
  CHECK(values(grad({s, s}, {x})[0]) == Doubles{4, 8});
}

TEST_CASE("grad: an output that is also an input has gradient 1", "[engine]") {
  Tensor x = leaf(2), y = exp(x);
  std::vector<Tensor> g = grad({y}, {y, x});
  CHECK(g[0].item() == 1);
  CHECK(g[1].item() == Approx(std::exp(2)));
}

TEST_CASE("grad: allow_unused gives undefined gradients where nothing depends", "[engine]") {
  Tensor x = leaf(2), other = leaf(1), constant = Tensor::from<double>({1}, {});
  std::vector<Tensor> g = grad({x * x}, {x, other, constant}, {.allow_unused = true});
  CHECK(g[0].item() == 4);
  CHECK_FALSE(g[1].defined());
  CHECK_FALSE(g[2].defined());
  CHECK_THROWS_WITH(grad({x * x}, {x, other}), Contains("grad") && Contains("input 1") && Contains("allow_unused"));
  CHECK_THROWS_AS(grad({x * x}, {constant}), AutogradError);
  // An output without history is passed over as well.
  CHECK_FALSE(grad(constant, x, {.allow_unused = true}).defined());
}

TEST_CASE("grad: the third derivative of x^5 is 60 x²", "[engine]") {
  Tensor x = leaf({-1.5, 0, 2}), y = x * x * x * x * x;
  auto seed = ones({3}, {f64});
  for (int i = 0; i < 3; ++i) y = grad(y, x, {.create_graph = true, .grad_outputs = {seed}});
  Doubles got = values(y);
  for (int i = 0; i < 3; ++i) {
    double v = x.data<double>()[i];
    CHECK(got[static_cast<std::size_t>(i)] == Approx(60 * v * v).margin(1e-12));
  }
  CHECK(grad(sum(y), x).to_vector<double>()[2] == Approx(240));
}

TEST_CASE("grad: the third derivative of tanh, and of its power forms", "[engine]") {
  for (double v : {-0.7, 0.0, 1.3}) {
    Tensor x = leaf(v), y = tanh(x);
    for (int i = 0; i < 3; ++i) y = grad(y, x, {.create_graph = true});
    double t = std::tanh(v), s = 1 - t * t;
    CHECK(y.item() == Approx(-2 * s * s + 4 * t * t * s).epsilon(1e-12).margin(1e-12));
    Tensor z = pow(exp(x), 2.0);  // e^{2x}: every derivative doubles
    for (int i = 0; i < 4; ++i) z = grad(z, x, {.create_graph = true});
    CHECK(z.item() == Approx(16 * std::exp(2 * v)).epsilon(1e-12));
  }
}

TEST_CASE("backward: create_graph makes gradients that can be walked again", "[engine]") {
  Tensor x = leaf(3);
  backward(x * x * x, {}, {.create_graph = true});
  Tensor first = x.grad();
  CHECK(first.item() == 27);
  REQUIRE(first.requires_grad());
  x.zero_grad();
  backward(first);
  CHECK(x.grad().item() == 18);
}

TEST_CASE("grad: a mixed second derivative is the same in both orders", "[engine]") {
  Tensor a = leaf(0.3), b = leaf(1.1), y = sin(a * b) * exp(a);
  auto ab = grad(grad(y, a, {.create_graph = true}), b, {.retain_graph = true});
  auto ba = grad(grad(y, b, {.create_graph = true}), a, {.retain_graph = true});
  CHECK(ab.item() == Approx(ba.item()).epsilon(1e-14));
}

TEST_CASE("grad: only the part between outputs and inputs is visited and freed", "[engine]") {
  Tensor x = leaf(0.4), h = exp(x), y = tanh(h);
  int visits = 0;
  h.register_hook([&](const Tensor&) {
    ++visits;
    return Tensor();
  });
  CHECK(grad(y, h).item() == Approx(1 - std::pow(std::tanh(std::exp(0.4)), 2)));
  CHECK(visits == 1);
  // What lies before h was not walked, so it can still be.
  CHECK(grad(h, x).item() == Approx(std::exp(0.4)));
}

TEST_CASE("backward: options by name without a gradient, and a list of numbers is one", "[engine]") {
  const auto leaf = [] { return Tensor({1, 2}).requires_grad_(); };
  Tensor a = leaf();
  backward(sum(a * a * a), {.create_graph = true});
  CHECK(a.grad().requires_grad());
  a.zero_grad();
  Tensor b = leaf(), y = sum(b * b);
  backward(y, {.retain_graph = true});
  backward(y, {.retain_graph = false});
  CHECK(b.grad().to_vector<float>() == std::vector<float>{4, 8});
  Tensor c = Tensor(3).requires_grad_(), d = leaf();
  backward(c * sum(d), {.inputs = {c}});
  CHECK(c.grad().item() == 3);
  CHECK(!d.grad().defined());
  Tensor e = leaf();
  backward(e * e, {1, 2});
  CHECK(e.grad().to_vector<float>() == std::vector<float>{2, 8});
  backward(sum(e), {});
  backward(sum(e), {}, {.retain_graph = true});
  backward(sum(e), 2.0f);
  CHECK(e.grad().to_vector<float>() == std::vector<float>{6, 12});
  for (DType dtype : {f64, bf16}) {  // a number is of the root's dtype, and of its shape if that has one element
    Tensor f = to(Tensor({1, 2}), dtype).detach().requires_grad_();
    backward(sum(f), 2.5);
    backward(sum(f, {}, true), 1);
    CHECK(to(f.grad(), f32).to_vector<float>() == std::vector<float>{3.5, 3.5});
    CHECK_THROWS_AS(backward(f * f, 1), ShapeError);
  }
}
