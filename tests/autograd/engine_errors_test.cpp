// What the engine refuses, by which error, and that it is usable afterwards.
#include <sluice/autograd/engine.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/function.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/view.h>

#include <functional>

using namespace sluice;
using Doubles = std::vector<double>;

namespace {

Tensor leaf(const Doubles& v) { return Tensor::from(v).requires_grad_(); }

template <class E, class F> void refused(F f, const std::string& part, const std::string& other = "") {
  INFO(part);
  try {
    f();
    FAIL_CHECK("nothing was thrown");
  } catch (const E& e) { CHECK_THAT(e.what(), Contains(part) && Contains(other)); }
  CHECK(grad_enabled());
}

}  // namespace

TEST_CASE("backward: a second walk over a freed graph is an error that names the op", "[engine]") {
  Tensor x = leaf({1, 2}), y = sum(tanh(x));
  backward(y);
  refused<AutogradError>([&] { backward(y); }, "tanh", "retain_graph");
  Tensor z = sum(exp(x));
  CHECK(grad(z, x, {.retain_graph = true}).defined());
  CHECK(grad(z, x, {.create_graph = true}).defined());
  backward(z, {}, {.retain_graph = true});
  backward(z);
  refused<AutogradError>([&] { grad(z, x); }, "exp", "retain_graph");
}

TEST_CASE("backward: a graph of which a part was freed names that part", "[engine]") {
  Tensor x = leaf({0.5}), h = tanh(x), a = exp(h), b = h * 2.0;
  backward(a);
  refused<AutogradError>([&] { backward(b); }, "tanh", "freed");
}

TEST_CASE("backward: roots that are not scalars, without history, or with a misfit gradient", "[engine]") {
  Tensor x = leaf({1, 2}), y = x * x;
  refused<AutogradError>([&] { backward(y); }, "backward", "[2]");
  refused<AutogradError>([&] { backward(Tensor({1, 2})); }, "backward", "no history");
  refused<ShapeError>([&] { backward(y, ones({3}, {f64})); }, "[3]", "[2]");
  refused<ShapeError>([&] { backward(y, ones({1}, {f64})); }, "[1]", "[2]");
  refused<DTypeError>([&] { backward(y, ones({2})); }, "f32", "f64");
  refused<Error>([&] { backward(Tensor()); }, "undefined");
  refused<AutogradError>([&] { grad({y, y}, {x}, {.grad_outputs = {ones({2}, {f64})}}); }, "grad_outputs", "2");
  refused<AutogradError>([&] { grad({sum(y)}, {Tensor()}, {.allow_unused = true}); }, "grad", "undefined");
  refused<AutogradError>(
      [&] {
        NoGrad guard;
        backward(sum(x * x));
      },
      "no history");
  CHECK_FALSE(x.grad().defined());
  backward(y, ones({2}, {f64}));  // none of these freed it
  CHECK(x.grad().to_vector<double>() == Doubles{2, 4});
}

TEST_CASE("requires_grad_: leaves of floats only", "[engine]") {
  Tensor x = leaf({1}), y = exp(x);
  refused<AutogradError>([&] { y.requires_grad_(); }, "requires_grad_", "exp");
  refused<AutogradError>([&] { y.requires_grad_(false); }, "exp", "detach");
  refused<DTypeError>([&] { arange(3).requires_grad_(); }, "i64");
  CHECK(to(Tensor({1}), bf16).requires_grad_().requires_grad());
  refused<ValueError>([&] { Tensor().requires_grad_(); }, "undefined");
  x.requires_grad_();  // twice is once
  backward(sum(x * 2.0));
  x.requires_grad_();
  CHECK(x.grad().item() == 2);
  x.requires_grad_(false);
  CHECK_FALSE(x.requires_grad());
  CHECK_FALSE((x * x).requires_grad());
}

TEST_CASE("backward: an undefined input is refused, a constant left alone", "[engine]") {
  const Tensor w = ones({2}).requires_grad_(), constant = ones({2});
  CHECK_THROWS_WITH(backward(sum(w * w), {.inputs = {w, Tensor()}}), Contains("backward") && Contains("operand 1"));
  CHECK(!w.grad().defined());
  backward(sum(w * w * constant), {.inputs = {constant}});
  CHECK(!w.grad().defined());
}

TEST_CASE("set_grad: only fitting gradients of leaves", "[engine]") {
  Tensor x = leaf({1, 2});
  refused<ShapeError>([&] { x.set_grad(ones({3}, {f64})); }, "[3]", "[2]");
  refused<DTypeError>([&] { x.set_grad(ones({2})); }, "f32", "f64");
  refused<AutogradError>(
      [&] {
        Tensor y = exp(x);
        y.set_grad(ones({2}, {f64}));
      },
      "exp");
  refused<AutogradError>(
      [&] {
        Tensor c({1});
        c.set_grad(ones({1}));
      },
      "does not require");
}

TEST_CASE("dtypes: f32 and f64 do not mix silently, forward or backward", "[engine]") {
  Tensor x = leaf({1, 2}), f = Tensor({1, 2});
  refused<DTypeError>([&] { x* f; }, "mul", "f32");
  refused<DTypeError>([&] { f* to(f, bf16); }, "f32", "bf16");
  Tensor wrong = custom_op(
      "wrong_type", {x}, [](const Tensors& in) { return in[0] * 2.0; },
      [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {to(g, f32)}; });
  refused<AutogradError>([&] { backward(sum(wrong)); }, "wrong_type", "f32");
  // A conversion on the way converts the gradient back.
  backward(sum(to(x, f32) * f));
  CHECK(x.grad().dtype() == f64);
  CHECK(x.grad().to_vector<double>() == Doubles{1, 2});
}

TEST_CASE("devices: a gradient that lies elsewhere is an error, at a root, from a hook, from a vjp", "[engine]") {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor here = ones({2}, {f64}), far = to(here, meta);
  refused<DeviceError>([&] { backward(a + b, far); }, "backward", "meta");
  refused<DeviceError>([&] { grad({a + b}, {a}, {.grad_outputs = {far}}); }, "grad", "meta");
  Tensor hooked = exp(a);
  hooked.register_hook([&](const Tensor&) { return far; });
  refused<AutogradError>([&] { backward(hooked, here); }, "exp", "meta");
  Tensor moved = custom_op(
      "moved", {a}, [](const Tensors& in) { return in[0] * 2.0; },
      [&](const Tensor&, const Tensors&, const Tensor&) -> Tensors { return {far}; });
  refused<AutogradError>([&] { backward(moved, here); }, "moved", "meta");
  CHECK_FALSE(a.grad().defined());
}

TEST_CASE("in place: a tensor that requires a gradient is refused outside NoGrad", "[engine]") {
  Tensor x = leaf({1, 2}), y = exp(x), view = reshape(x, {2, 1}), c = Tensor::from<double>({3, 4});
  for (Tensor t : {x, y}) {
    refused<AutogradError>([&] { fill_(t, 1); }, "fill_", "[2]");
    refused<AutogradError>([&] { copy_(t, c); }, "copy_");
    refused<AutogradError>([&] { add_(t, c); }, "add_");
    refused<AutogradError>([&] { scale_(t, 2); }, "scale_");
  }
  refused<AutogradError>([&] { fill_(view, 1); }, "fill_", "[2,1]");
  NoGrad guard;
  fill_(x, 7);
  CHECK(x.to_vector<double>() == Doubles{7, 7});
  CHECK(x.requires_grad());
}

TEST_CASE("in place: a source that requires a gradient would lose it", "[engine]") {
  Tensor x = leaf({1, 2}), c = zeros({2}, {f64});
  refused<AutogradError>([&] { copy_(c, x * 2.0); }, "copy_");
  refused<AutogradError>([&] { add_(c, x); }, "add_");
  CHECK(c.to_vector<double>() == Doubles{0, 0});
  NoGrad guard;
  copy_(c, x);
  CHECK(c.to_vector<double>() == Doubles{1, 2});
}

TEST_CASE("in place: editing what was saved for backward is an error that names the op", "[engine]") {
  using Edit = std::function<void(Tensor&)>;
  const std::vector<std::pair<std::string, Edit>> edits{
      {"fill_", [](Tensor& t) { fill_(t, 2); }},
      {"copy_", [](Tensor& t) { copy_(t, t * 2.0); }},
      {"add_", [](Tensor& t) { add_(t, t); }},
      {"scale_", [](Tensor& t) { scale_(t, 3); }},
      {"fill_ on a view",
       [](Tensor& t) {
         Tensor v = slice(t.detach(), 0, 1, 2);
         fill_(v, 2);
       }},
      {"add_ on a view",
       [](Tensor& t) {
         Tensor v = flip(t.detach(), {0});
         add_(v, v);
       }},
      {"scale_ on a view",
       [](Tensor& t) {
         Tensor v = reshape(t.detach(), {-1});
         scale_(v, 2);
       }},
      {"copy_ on a view",
       [](Tensor& t) {
         Tensor v = t.detach();
         copy_(v, zeros({1}, {f64}));
       }},
      {"by hand",
       [](Tensor& t) {
         t.mutable_data<double>()[0] = 5;
         t.bump_version();
       }},
  };
  for (const auto& [name, edit] : edits) {
    INFO(name);
    Tensor x = leaf({1, 2}), w = Tensor::from<double>({3, 4});
    {
      Tensor y = sum(x * w);  // a saved constant
      edit(w);
      refused<AutogradError>([&] { backward(y); }, "mul", "edited in place");
    }
    {
      Tensor y = sum(exp(x));  // a saved leaf
      NoGrad guard;
      edit(x);
      GradMode on(true);
      refused<AutogradError>([&] { backward(y); }, "exp", "edited in place");
    }
    {
      Tensor s = softmax(x, 0), y = sum(s * w);  // softmax saves its output
      NoGrad guard;
      edit(s);
      GradMode on(true);
      CHECK_THROWS_AS(backward(y), AutogradError);
      refused<AutogradError>([&] { grad(s, x, {.grad_outputs = {w}}); }, "softmax", "edited in place");
    }
  }
}

TEST_CASE("in place: editing what nothing saved is fine", "[engine]") {
  Tensor x = leaf({1, 2}), c = Tensor::from<double>({3, 4});
  Tensor y = sum(x + c);  // add saves nothing
  fill_(c, 9);
  backward(y);
  CHECK(x.grad().to_vector<double>() == Doubles{1, 1});
  Tensor h = x * 2.0;
  {
    NoGrad guard;
    scale_(h, 10);  // before anything saw it
  }
  CHECK((sum(h).item() == 60));
}

TEST_CASE("in place: writing through an overlapping layout is refused", "[engine]") {
  for (const Shape& shape : {Shape{3}, {2}, {2, 3}, {1, 2, 1}, {4, 1, 2}}) {
    Tensor wide = expand(zeros({1}, {f64}), shape);
    refused<Error>([&] { copy_(wide, ones(shape, {f64})); }, "copy_");
    refused<Error>([&] { fill_(wide, 1); }, "fill_");
    refused<Error>([&] { add_(wide, ones(shape, {f64})); }, "add_");
    refused<Error>([&] { scale_(wide, 2); }, "scale_");
    CHECK(sum(wide).item() == 0);
  }
  Tensor one = expand(zeros({1}, {f64}), {1, 1}), none = expand(zeros({1}, {f64}), {0, 2});  // nothing is shared
  fill_(one, 2), fill_(none, 2);
  CHECK(one.item() == 2);
}

TEST_CASE("exceptions in a user's vjp leave mode, leaves and graph usable", "[engine]") {
  struct Mine {};
  Tensor x = leaf({1, 2});
  bool fail_now = true;
  Tensor y = custom_op(
      "fragile", {x}, [](const Tensors& in) { return in[0] * 3.0; },
      [&](const Tensor& g, const Tensors&, const Tensor&) -> Tensors {
        if (fail_now) throw Mine{};
        return {g * 3.0};
      });
  for (bool create_graph : {false, true}) {
    Tensor total = sum(y);
    GradMode mode(!create_graph);  // restored to what it was, not to a constant
    CHECK_THROWS_AS(backward(total, {}, {.create_graph = create_graph}), Mine);
    CHECK(grad_enabled() == !create_graph);
  }
  CHECK_FALSE(x.grad().defined());
  fail_now = false;
  backward(sum(y));
  CHECK(x.grad().to_vector<double>() == Doubles{3, 3});
}

TEST_CASE("NoGrad and GradMode are restored by exceptions, nested and per thread", "[engine]") {
  try {
    NoGrad guard;
    CHECK_FALSE(grad_enabled());
    {
      GradMode on(true);
      CHECK(grad_enabled());
    }
    CHECK_FALSE(grad_enabled());
    throw 1;
  } catch (int) {}
  CHECK(grad_enabled());
}
