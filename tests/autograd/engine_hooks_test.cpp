// Hooks, detached tensors, views and pieces, aliasing of gradients, threads.
#include <sluice/autograd/engine.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <atomic>
#include <thread>

using namespace sluice;
using Doubles = std::vector<double>;

namespace {

Tensor leaf(const Doubles& v) { return Tensor::from(v).requires_grad_(); }
Tensor leaf(const Doubles& v, const Shape& shape) { return Tensor::from(v, shape).requires_grad_(); }
Doubles values(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace

TEST_CASE("hook: observes the complete gradient, once", "[engine]") {
  Tensor x = leaf({1, 2}), h = x * 1.0;
  std::vector<Doubles> seen;
  h.register_hook([&](const Tensor& g) {
    seen.push_back(values(g));
    return Tensor();
  });
  backward(sum(h * h + h * 10.0));
  REQUIRE(seen.size() == 1);
  CHECK(seen[0] == Doubles{12, 14});
  CHECK(values(x.grad()) == Doubles{12, 14});
}

TEST_CASE("hook: replaces the gradient of a leaf, an intermediate result, a root", "[engine]") {
  Tensor x = leaf({1, 2}), h = x * 3.0, y = sum(h * h);
  y.register_hook([](const Tensor& g) { return g * 100.0; });
  h.register_hook([](const Tensor& g) { return g + 1.0; });
  x.register_hook([](const Tensor& g) { return g * -1.0; });
  backward(y, {}, {.retain_graph = true});
  CHECK(values(x.grad()) == Doubles{-3 * 601, -3 * 1201});
  CHECK(values(grad(y, h)) == Doubles{601, 1201});
}

TEST_CASE("hook: several run in order of registration", "[engine]") {
  Tensor x = leaf({1});
  x.register_hook([](const Tensor& g) { return g + 1.0; });
  x.register_hook([](const Tensor& g) { return g * 10.0; });
  backward(sum(x * 2.0));
  CHECK(values(x.grad()) == Doubles{30});
}

TEST_CASE("hook: may register another hook", "[engine]") {
  Tensor x = leaf({1});
  int calls = 0;
  x.register_hook([&](const Tensor&) {
    for (int i = 0; i < 20; ++i)
      x.register_hook([&](const Tensor&) {
        ++calls;
        return Tensor();
      });
    return Tensor();
  });
  backward(sum(x));
  CHECK(values(x.grad()) == Doubles{1});
  backward(sum(x));
  CHECK(calls >= 20);
}

TEST_CASE("hook: remove() takes it away, also from within, and lets go of what it holds", "[engine]") {
  Tensor x = leaf({1});
  const auto held = std::make_shared<int>(0);
  HookHandle once;
  once = x.register_hook([&, held](const Tensor& g) {
    once.remove();
    ++*held;
    return g * 10.0;
  });
  HookHandle first = x.register_hook([](const Tensor& g) { return g + 1.0; });
  x.register_hook([](const Tensor& g) { return g * 2.0; });  // stays without a handle
  backward(sum(x));
  CHECK(values(x.grad()) == Doubles{22});
  CHECK(*held == 1);
  CHECK(held.use_count() == 1);
  x.zero_grad(), backward(sum(x));
  CHECK(values(x.grad()) == Doubles{4});
  const HookHandle copy = first;
  first.remove(), first.remove(), HookHandle(copy).remove(), HookHandle().remove();
  x.zero_grad(), backward(sum(x));
  CHECK(values(x.grad()) == Doubles{2});
  HookHandle of_gone;
  {
    of_gone = (x * 2.0).register_hook([](const Tensor& g) { return g; });
  }
  of_gone.remove();  // its graph is gone
}

TEST_CASE("hook: a replacement of another shape or dtype is an error that names the op", "[engine]") {
  Tensor x = leaf({1, 2});
  Tensor h = tanh(x);
  h.register_hook([](const Tensor& g) { return sum(g); });
  CHECK_THROWS_WITH(backward(sum(h)), Contains("tanh") && Contains("[2]"));
  CHECK(grad_enabled());
  Tensor w = leaf({1, 2});
  w.register_hook([](const Tensor& g) { return to(g, f32); });
  CHECK_THROWS_WITH(backward(sum(w)), Contains("f32") && Contains("f64"));
}

TEST_CASE("hook: each piece of a split has its own", "[engine]") {
  Tensor x = leaf({1, 2, 3});
  auto p = split(x, {1, 2});
  p[1].register_hook([](const Tensor& g) { return g * 5.0; });
  backward(sum(p[0] * p[0]) + sum(p[1]));
  CHECK(values(x.grad()) == Doubles{2, 5, 5});
}

TEST_CASE("hook: with create_graph it becomes part of the recorded gradient", "[engine]") {
  Tensor x = leaf({3}), h = x * 1.0;
  h.register_hook([](const Tensor& g) { return g * g; });
  Tensor g = grad(sum(h * h), x, {.create_graph = true});  // (2x)²
  CHECK(g.item() == 36);
  CHECK(grad(sum(g), x).item() == 24 * 24);  // and acts on the second walk too
}

TEST_CASE("hook: only tensors that require a gradient have them", "[engine]") {
  CHECK_THROWS_AS(Tensor({1}).register_hook([](const Tensor& g) { return g; }), AutogradError);
}

TEST_CASE("split and chunk: pieces that nothing uses have gradient zero", "[engine]") {
  Tensor x = leaf({1, 2, 3, 4, 5, 6}, {2, 3});
  auto p = chunk(x, 3, 1);
  REQUIRE(p.size() == 3);
  backward(sum(p[1] * p[1]));
  CHECK(values(x.grad()) == Doubles{0, 4, 0, 0, 10, 0});
  x.zero_grad();
  auto q = split(x, {2, 0, 1}, 1);
  auto g = grad({sum(q[0]), sum(q[2] * 2.0), sum(q[1])}, {x, q[0], q[2]});
  CHECK(values(g[0]) == Doubles{1, 1, 2, 1, 1, 2});
  CHECK(g[1].shape() == Shape{2, 2});
  CHECK(values(g[2]) == Doubles{2, 2});
  // Second order through a piece.
  Tensor s = split(x, {1, 2}, 1)[1];
  Tensor d = grad(sum(s * s * s), x, {.create_graph = true});
  CHECK(values(grad(sum(d), x)) == Doubles{0, 12, 18, 0, 30, 36});
}

TEST_CASE("views that share storage: each gradient goes to its own place", "[engine]") {
  Tensor x = leaf({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor a = select(x, 0, 0), b = slice(x, 1, 0, std::nullopt, 2), c = transpose(x, 0, 1),
         d = diagonal(narrow(x, 1, 1, 2)), e = flip(x, {0, 1}), f = expand(unsqueeze(x, 0), {4, 2, 3});
  REQUIRE(a.shares_storage(e));
  REQUIRE(f.shares_storage(x));
  backward(sum(a * a) + sum(b) * 10.0 + sum(c * 100.0) + sum(d * d) + sum(narrow(e, 0, 0, 1)) * 1000.0 + sum(f));
  CHECK(values(x.grad()) == Doubles{2 + 10 + 100 + 4, 4 + 100 + 4 + 4, 6 + 10 + 100 + 4, 10 + 100 + 1000 + 4,
                                    100 + 1000 + 4, 10 + 100 + 12 + 1000 + 4});
}

TEST_CASE("detach: the same memory, no gradient", "[engine]") {
  Tensor x = leaf({2, 3}), d = x.detach();
  CHECK(d.shares_storage(x));
  CHECK_FALSE(d.requires_grad());
  CHECK(d.is_leaf());
  backward(sum(x * d));
  CHECK(values(x.grad()) == Doubles{2, 3});
  Tensor y = exp(x), z = y.detach();
  CHECK_FALSE(z.requires_grad());
  CHECK((z * x).requires_grad());
}

TEST_CASE("a copied handle is the same tensor", "[engine]") {
  Tensor x = leaf({1, 2}), y = x;
  backward(sum(x * y));
  CHECK(values(y.grad()) == Doubles{2, 4});
  y.zero_grad();
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("gradients of two leaves are not one tensor", "[engine]") {
  Tensor a = leaf({1, 2}), b = leaf({3, 4}), seed = ones({2}, {f64});
  backward(a + b, seed);
  Tensor g = a.grad();
  scale_(g, 10);
  CHECK(values(b.grad()) == Doubles{1, 1});
  CHECK(values(seed) == Doubles{1, 1});
}

TEST_CASE("a gradient can be edited element by element", "[engine]") {
  Tensor a = leaf({1, 2});
  backward(sum(a));  // the gradient of sum is one number, stretched
  Tensor g = a.grad();
  copy_(g, Tensor::from<double>({5, 6}));
  CHECK(values(g) == Doubles{5, 6});
}

TEST_CASE("two threads walk separate graphs at once", "[engine]") {
  constexpr int kRounds = 200;
  std::atomic<int> wrong{0};
  auto work = [&](int t) {
    for (int r = 0; r < kRounds; ++r) {
      double v = 0.001 * r + t;
      Tensor x = leaf({v, -v}), w = leaf({2, 0, 0, 3}, {2, 2}), h = x;
      for (int i = 0; i < 10; ++i) h = h + x * h.detach() * 0.0 + matmul(reshape(x, {1, 2}), w) * 0.0;
      Tensor y = sum(reshape(h, {2}) * x);
      backward(y);
      Doubles g = values(x.grad());
      if (g != Doubles{2 * v, -2 * v}) ++wrong;
    }
  };
  std::thread other(work, 1);
  work(2);
  other.join();
  CHECK(wrong == 0);
}

TEST_CASE("the recording mode belongs to its thread", "[engine]") {
  NoGrad guard;
  bool elsewhere = false;
  std::thread([&] { elsewhere = grad_enabled() && exp(leaf({1})).requires_grad(); }).join();
  CHECK(elsewhere);
  CHECK_FALSE(grad_enabled());
}
