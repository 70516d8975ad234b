// What a checkpoint captures, leaves that are frozen for a while, and backward() for chosen leaves.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/core/node.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;
using Inputs = std::vector<Tensor>;

TEST_CASE("checkpoint: an edit of what the function captured is an error", "[checkpoint]") {
  for (const bool trained : {true, false}) {
    Tensor w({1, 2}), x = Tensor({3, 4}).requires_grad_();
    if (trained) w.requires_grad_();
    const Tensor y = checkpoint([w](const Inputs& in) { return in[0] * w * 2.0; }, {x});
    {
      NoGrad guard;
      fill_(w, 10);
    }
    CHECK_THROWS_WITH(backward(sum(y)), Contains("checkpoint") && Contains("edited in place"));
  }
  // What the function makes and edits itself is its own.
  Tensor x = Tensor({3, 4}).requires_grad_();
  const Tensor y = checkpoint(
      [](const Inputs& in) {
        Tensor own = zeros({2});
        fill_(own, 2);
        return in[0] * own;
      },
      {x});
  backward(sum(y));
  CHECK(same_bits(x.grad(), Tensor({2, 2})));
}

TEST_CASE("checkpoint: a capture by reference that is another tensor in the second run", "[checkpoint]") {
  Tensor x = Tensor({0.5f, 1}).requires_grad_(), h = x;
  for (int i = 0; i < 2; ++i) h = checkpoint([&](const Inputs& in) { return sin(in[0]) + h; }, {h});
  CHECK_THROWS_WITH(backward(sum(h)), Contains("checkpoint") && Contains("capture tensors by value"));
  Tensor w = Tensor({2, 3}).requires_grad_(), c = w;
  const Tensor y = checkpoint([&](const Inputs& in) { return in[0] * c; }, {x});
  c = w * 2.0;
  CHECK_THROWS_AS(backward(sum(y)), AutogradError);
  c = Tensor({7, 7}).requires_grad_();  // another leaf
  CHECK_THROWS_WITH(backward(sum(y)), Contains("did not read a leaf") && Contains("capture tensors by value"));
  c = w;
  backward(sum(y));
  CHECK(same_bits(x.grad(), w.detach()));
}

TEST_CASE("checkpoint: another generator in the second run is an error", "[checkpoint]") {
  const Tensor x = ones({64}).requires_grad_();
  Rng rng(1);
  const Tensor y = checkpoint([&](const Inputs& in) { return dropout(in[0], 0.5, rng); }, {x});
  rng = Rng(2);
  CHECK_THROWS_WITH(backward(sum(y)), Contains("checkpoint: the second run drew other random numbers"));
}

TEST_CASE("checkpoint: what it captured is freed with the graph", "[checkpoint]") {
  const Tensor x = ones({2}).requires_grad_();
  const auto held = std::make_shared<int>(1);
  const Tensor y = checkpoint([held](const Inputs& in) { return in[0] * 2.0; }, {x});
  CHECK(held.use_count() == 2);
  backward(sum(y), {.retain_graph = true});
  CHECK(held.use_count() == 2);
  backward(sum(y));
  CHECK(held.use_count() == 1);
  CHECK_THROWS_WITH(backward(sum(y)), Contains("already freed"));
}

TEST_CASE("checkpoint: what a function may do with its captures", "[checkpoint]") {
  Tensor x = Tensor({0.5f, 1}).requires_grad_();
  // A work buffer of several segments, which each writes before it reads it.
  Tensor work({0, 0}), h = x;
  for (int i = 0; i < 3; ++i)
    h = checkpoint([&work, i](const Inputs& in) { return fill_(work, i + 2.0), tanh(in[0] * work); }, {h});
  const Tensor got = grad(sum(h), x);
  CHECK(same_bits(got, grad(sum(tanh(tanh(tanh(x * 2.0) * 3.0) * 4.0)), x)));
  // What it made and gave away is edited later.
  Inputs log;
  Tensor y = checkpoint(
      [&](const Inputs& in) {
        const Tensor a = in[0] * 2.0;
        log.push_back(a.detach());
        return a * a;
      },
      {x});
  scale_(log[0], 5);
  CHECK(same_bits(grad(sum(y), x), Tensor({4, 8})));
  // A captured tensor that was frozen in the first run.
  Tensor w({3, 3});
  y = checkpoint([w](const Inputs& in) { return in[0] * w; }, {x});
  w.requires_grad_();
  CHECK(same_bits(grad(sum(y), x), Tensor({3, 3})));
  // An edit is noticed in a nested one, too.
  Tensor c({2, 2});
  const auto inner = [c](const Inputs& in) { return in[0] * in[0] * c; };
  y = checkpoint([inner](const Inputs& in) { return checkpoint(inner, {in[0] + 0.0}); }, {x});
  fill_(c, 7);
  CHECK_THROWS_WITH(backward(sum(y)), Contains("edited in place"));
}

TEST_CASE("checkpoint: an undefined input stays undefined", "[checkpoint]") {
  Tensor x = Tensor({3, 4}).requires_grad_();
  const auto twice = [](const Inputs& in) { return in[1].defined() ? in[1] : in[0] * 2.0; };
  backward(sum(checkpoint(twice, {x, Tensor()})));
  CHECK(same_bits(x.grad(), Tensor({2, 2})));
}

TEST_CASE("leaf: a graph finds it again after freezing and thawing", "[autograd]") {
  Tensor w = Tensor({3, 4}).requires_grad_();
  int hooks = 0;
  w.register_hook([&](const Tensor& g) { return ++hooks, g; });
  const Tensor loss = sum(square(w));
  backward(loss, {}, {.retain_graph = true});
  w.requires_grad_(false);
  CHECK_FALSE(w.grad().defined());
  w.requires_grad_();
  CHECK_FALSE(w.grad().defined());  // freezing clears it
  CHECK(same_bits(grad(loss, w, {.retain_graph = true}), Tensor({6, 8})));
  backward(loss);
  CHECK(same_bits(w.grad(), Tensor({6, 8})));
  CHECK(hooks == 3);
}

TEST_CASE("leaf: one that is frozen takes no gradients of older graphs", "[autograd]") {
  Tensor w = Tensor({3, 4}).requires_grad_(), v = Tensor({1, 1}).requires_grad_();
  const Tensor loss = sum(w * v);
  w.requires_grad_(false);
  backward(loss);
  CHECK(same_bits(v.grad(), Tensor({3, 4})));
  w.requires_grad_();
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("backward: gradients of chosen leaves only", "[autograd]") {
  Tensor a = Tensor({1, 2}).requires_grad_(), b = Tensor({3, 4}).requires_grad_(), c = Tensor({5}).requires_grad_();
  const Tensor h = a * b;
  backward(sum(h), {}, {.retain_graph = true, .inputs = {b, c}});
  CHECK_FALSE(a.grad().defined());
  CHECK_FALSE(c.grad().defined());
  CHECK(same_bits(b.grad(), Tensor({1, 2})));
  backward(sum(h), {}, {.retain_graph = true, .inputs = {b}});
  CHECK(same_bits(b.grad(), Tensor({2, 4})));
  CHECK_THROWS_WITH(backward(sum(h), {}, {.inputs = {h}}), Contains("not a leaf"));
  backward(sum(h), {}, {.inputs = {c}});  // nothing leads there
  CHECK_FALSE(c.grad().defined());
}

TEST_CASE("record: a result that is the input leaves the input's history alone", "[autograd]") {
  Tensor w = Tensor({1, 2}).requires_grad_();
  const Tensor y = record("same", contiguous(w), {w}, {}, [](const Tensor& g) { return Tensors{g}; });
  CHECK(w.is_leaf());
  backward(sum(y * 3.0));
  CHECK(same_bits(w.grad(), Tensor({3, 3})));
}

TEST_CASE("create_graph: a gradient of 0 is 0", "[autograd]") {
  Tensor x = Tensor({1.5f, -2}).requires_grad_();
  using Unary = Tensor (*)(const Tensor&);
  for (const Unary f : {Unary(sign), Unary(floor), Unary(ceil), Unary(round), Unary(trunc)})
    CHECK(same_bits(grad(sum(f(x)), x, {.create_graph = true}).detach(), zeros({2})));
}

TEST_CASE("huber_loss: curvature 1 at an error of 0", "[loss]") {
  const auto loss = [](const Tensor& x) { return huber_loss(x, zeros({5}, {f64}), 1, Reduction::sum); };
  const Tensor x = to(Tensor({-0.3f, 0, 0.3f, 1, 3}), f64);
  CHECK(same_bits(hvp(loss, x, ones({5}, {f64})), to(Tensor({1, 1, 1, 1, 0}), f64)));
}

TEST_CASE("create_graph: a leaf owns its gradient alone", "[autograd]") {
  Tensor a = Tensor({1, 2, 3}).requires_grad_(), b = Tensor({4, 5, 6}).requires_grad_(),
         c = Tensor({7, 8, 9}).requires_grad_();
  backward(sum(square(a + b)) + sum(c), {.create_graph = true});
  {
    NoGrad guard;
    for (const Tensor& x : {a, c}) {
      Tensor g = x.grad();
      scale_(g, 0.5);
    }
  }
  CHECK(a.grad().to_vector() == std::vector<float>{5, 7, 9});
  CHECK(b.grad().to_vector() == std::vector<float>{10, 14, 18});
  CHECK(c.grad().to_vector() == std::vector<float>{0.5f, 0.5f, 0.5f});
  CHECK(grad(sum(b.grad()), a).to_vector() == std::vector<float>{2, 2, 2});  // with its history
  for (Tensor* x : {&a, &b, &c}) x->zero_grad();
}

TEST_CASE("grad: gradients of one output that is given twice are added with or without history", "[autograd]") {
  const Tensor x = Tensor({1, 2, 3}).requires_grad_(), v = ones({3}).requires_grad_();
  const Tensor y = square(x), z = x + 1.0;
  Tensor g;
  {
    NoGrad guard;
    g = grad({y, y}, {x}, {.create_graph = true, .grad_outputs = {v, v}})[0];
  }
  CHECK(grad(sum(g), v).to_vector() == std::vector<float>{4, 8, 12});
  CHECK_FALSE(grad({z, z}, {x}, {.grad_outputs = {v, v}})[0].requires_grad());
}

TEST_CASE("backward: memory of another owner does not become a gradient", "[autograd]") {
  float store[] = {5};
  const Tensor x = Tensor({1}).requires_grad_();
  for (int i = 0; i < 2; ++i)
    backward(custom_op(
        "stored", {x}, [](const Tensors& in) { return in[0] * 1.0; },
        [&](const Tensor&, const Tensors&, const Tensor&) -> Tensors { return {Tensor::from_blob(store, {1})}; }));
  CHECK(x.grad().item() == 10);
  CHECK(store[0] == 5);
}

TEST_CASE("leaf: one that was the second result of an op is the first output of its node", "[autograd]") {
  const Tensor x = Tensor({1, 2}).requires_grad_();
  const auto both = [](const Tensors& in) { return Tensors{in[0] * 2.0, to(in[0], i64)}; };
  const auto vjp = [](const Tensors& g, const Tensors&, const Tensors&) -> Tensors { return {g[0] * 2.0}; };
  Tensor y = custom_op("both", {x}, CustomForwardMany(both), CustomVjpMany(vjp))[1];
  detail::replace_memory(y, to(y, f32), {});
  y.requires_grad_();
  CHECK(edge_of(y).index == 0);
  backward(sum(y * 3.0));
  CHECK(y.grad().to_vector() == std::vector<float>{3, 3});
}
