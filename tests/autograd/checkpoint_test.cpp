// checkpoint(): the same values and gradients, bit for bit, for less memory.
#include <sluice/autograd/function.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using sluice::testing::same_bits;
using Inputs = std::vector<Tensor>;
using Segment = std::function<Tensor(const Inputs&)>;

namespace {

Tensor leaf(const Shape& shape, uint64_t seed, DType dtype = f64) {
  Rng rng(seed);
  return normal(shape, 0, 1, rng, {dtype}).requires_grad_();
}
Tensor plain(const Segment& f, const Inputs& xs) { return f(xs); }

/// d<f, random>/d wanted, recorded or not.
Inputs gradients(const Tensor& y, const Inputs& wanted, bool create_graph = false) {
  Rng rng(99);
  return grad({y}, wanted, {.create_graph = create_graph, .grad_outputs = {normal(y.shape(), 0, 1, rng, {y.dtype()})}});
}

/// f's gradients through checkpoint are those without it, first and second order.
void same_gradients(const std::function<Tensor(const std::function<Tensor(const Segment&, const Inputs&)>&)>& model,
                    const Inputs& wanted, double tolerance = 0) {
  for (bool create_graph : {false, true}) {
    INFO("create_graph " << create_graph);
    Tensor a = model(plain), b = model(checkpoint);
    CHECK(same_bits(a, b));
    Inputs ga = gradients(a, wanted, create_graph), gb = gradients(b, wanted, create_graph);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      INFO("gradient " << i);
      CHECK(testing::max_abs_diff(ga[i], gb[i]) <= tolerance);
    }
    if (!create_graph) continue;
    auto total = [](const Inputs& g) {
      Tensor s = sum(g[0] * g[0]);
      for (std::size_t i = 1; i < g.size(); ++i) s = s + sum(g[i] * g[i]);
      return s;
    };
    Inputs ha = grad({total(ga)}, wanted), hb = grad({total(gb)}, wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      INFO("second order " << i);
      CHECK(testing::max_abs_diff(ha[i], hb[i]) <= 1e-10);
    }
  }
}

}  // namespace

TEST_CASE("checkpoint: values and gradients equal those without it, bit for bit", "[checkpoint]") {
  Tensor x = leaf({3, 4}, 1), w = leaf({4, 4}, 2);
  same_gradients(
      [&](auto run) {
        return run([](const Inputs& in) { return tanh(matmul(tanh(in[0]), in[1])); }, {x, w});
      },
      {x, w});
}

TEST_CASE("checkpoint: gradients reach captured parameters", "[checkpoint]") {
  Tensor x = leaf({3, 4}, 1), w = leaf({4, 4}, 2), b = leaf({4}, 3);
  same_gradients([&](auto run) { return run([&](const Inputs& in) { return tanh(matmul(in[0], w) + b); }, {x}) * 2.0; },
                 {x, w, b});
  // Also with no input that requires a gradient, and into .grad().
  backward(sum(checkpoint([&](const Inputs& in) { return in[0] * b; }, {ones({4}, {f64})})));
  CHECK(b.grad().to_vector<double>() == std::vector<double>(4, 1.0));
}

TEST_CASE("checkpoint: gradients reach captured intermediate results", "[checkpoint]") {
  Tensor x = leaf({5}, 1), w = leaf({5}, 2);
  same_gradients(
      [&](auto run) {
        Tensor h = exp(w);  // made outside the segment, used inside and after it
        return run([h](const Inputs& in) { return tanh(in[0] * h); }, {x}) + h * h;
      },
      {x, w}, 1e-14);
}

TEST_CASE("checkpoint: a captured tensor and what it was made of are counted once each", "[checkpoint]") {
  Tensor x = leaf({5}, 1), w = leaf({5}, 2);
  same_gradients(
      [&](auto run) {
        Tensor h = exp(w);
        return run([h, w](const Inputs& in) { return in[0] * h * w; }, {x});
      },
      {x, w}, 1e-14);
}

TEST_CASE("checkpoint: inputs that depend on each other are counted once each", "[checkpoint]") {
  Tensor x = leaf({5}, 1);
  auto f = [](const Inputs& in) { return sin(in[0]) * in[1]; };
  same_gradients([&](auto run) { return run(f, {exp(x), x}); }, {x}, 1e-14);
  same_gradients([&](auto run) { return run(f, {x, x}); }, {x}, 1e-14);
  same_gradients(
      [&](auto run) {
        Tensor h = exp(x);
        return run(f, {h, h});
      },
      {x}, 1e-14);
  // An input that is captured as well.
  same_gradients([&](auto run) { return run([&](const Inputs& in) { return in[0] * x * x; }, {x}); }, {x}, 1e-14);
}

TEST_CASE("checkpoint: pieces of one split are separate inputs", "[checkpoint]") {
  Tensor x = leaf({6}, 1);
  same_gradients(
      [&](auto run) {
        auto p = split(exp(x), {2, 2, 2});
        return run([p](const Inputs& in) { return in[0] * in[1] * p[2]; }, {p[0], p[1]});
      },
      {x}, 1e-14);
}

TEST_CASE("checkpoint: dropout inside draws the same mask again", "[checkpoint]") {
  Tensor x = leaf({40, 30}, 1, f32), w = leaf({30, 30}, 2, f32);
  auto run = [&](bool with, bool create_graph) {
    Rng rng(7);
    rng.reserve(3);
    auto segment = [&](const Inputs& in) { return dropout(tanh(matmul(in[0], w)), 0.4, rng); };
    Tensor h = with ? checkpoint(segment, {x}) : segment({x});
    Tensor y = dropout(h, 0.2, rng);  // moves the generator on before the backward pass
    Inputs result = gradients(y, {x, w}, create_graph);
    result.push_back(y);
    result.push_back(Tensor::from<int64_t>({static_cast<int64_t>(rng.offset())}));
    return result;
  };
  for (bool create_graph : {false, true}) {
    auto a = run(false, create_graph), b = run(true, create_graph);
    for (std::size_t i = 0; i < a.size(); ++i) {
      INFO("result " << i);
      CHECK(testing::max_abs_diff(a[i], b[i]) <= (create_graph && i < 2 ? 1e-5 : 0));
    }
  }
}

TEST_CASE("checkpoint: a copy of a generator, or one made from where it stands, draws the same again", "[checkpoint]") {
  const Tensor x = ones({64}).requires_grad_();
  Rng rng(7);
  rng.reserve(5);
  const auto copied = [&](const Inputs& in) {
    Rng own = rng;
    return dropout(in[0], 0.5, own);
  };
  const auto made = [&](const Inputs& in) {
    Rng own(rng.seed() + rng.offset());
    return dropout(in[0], 0.5, own);
  };
  for (const std::function<Tensor(const Inputs&)>& segment : {std::function<Tensor(const Inputs&)>(copied), {made}}) {
    const Tensor y = checkpoint(segment, {x});
    rng.reserve(100);
    CHECK(testing::max_abs_diff(grad(sum(y), x), y.detach()) == 0);  // x is 1, y the mask
  }
}

TEST_CASE("checkpoint: may be nested", "[checkpoint]") {
  Tensor x = leaf({4}, 1), w = leaf({4}, 2);
  Rng rng;
  same_gradients(
      [&](auto run) {
        rng.set_state(5, 0);
        return run(
            [&, run](const Inputs& in) {
              auto first = [&](const Inputs& i) { return dropout(sin(i[0] * w), 0.3, rng); };
              Tensor h = dropout(run(first, {in[0]}), 0.3, rng);
              return run([h](const Inputs& i) { return exp(i[0] * h); }, {in[0]});
            },
            {x});
      },
      {x, w}, 1e-14);
}

TEST_CASE("checkpoint: passes gradgradcheck", "[checkpoint]") {
  auto f = [](const Inputs& in) {
    return checkpoint([](const Inputs& i) { return sin(i[0] * i[1]) * i[1]; }, {tanh(in[0]), in[1]});
  };
  Inputs xs{leaf({3}, 1), leaf({2, 3}, 2)};
  auto first = gradcheck(f, xs), second = gradgradcheck(f, xs);
  INFO(first.message << " | " << second.message);
  CHECK(first.ok);
  CHECK(second.ok);
}

TEST_CASE("checkpoint: a result that f captured still gets its gradient", "[checkpoint]") {
  Tensor x = leaf({2}, 1), w = leaf({2}, 2);
  Tensor y = checkpoint([&](const Inputs&) { return w; }, {x});
  CHECK(w.is_leaf());
  backward(sum(y * 3.0));
  REQUIRE(w.grad().defined());
  CHECK(w.grad().to_vector<double>() == std::vector<double>{3, 3});
}

TEST_CASE("checkpoint: under NoGrad and with constants it is just the call", "[checkpoint]") {
  Tensor x = leaf({2}, 1);
  auto f = [](const Inputs& in) { return in[0] * 2.0; };
  {
    NoGrad guard;
    CHECK_FALSE(checkpoint(f, {x}).requires_grad());
  }
  CHECK_FALSE(checkpoint(f, {x.detach()}).requires_grad());
}

TEST_CASE("checkpoint: an input edited after the forward pass is an error", "[checkpoint]") {
  Tensor x = leaf({2}, 1);
  Tensor y = checkpoint([](const Inputs& in) { return sin(in[0]); }, {x});
  {
    NoGrad guard;
    fill_(x, 2);
  }
  CHECK_THROWS_WITH(backward(sum(y)), Contains("checkpoint") && Contains("edited in place"));
}

TEST_CASE("checkpoint: a second run of another shape is an error; a throwing f leaves the engine usable",
          "[checkpoint]") {
  Tensor x = leaf({4}, 1);
  int runs = 0;
  Tensor y = checkpoint([&](const Inputs& in) { return narrow(sin(in[0]), 0, 0, ++runs == 1 ? 2 : 3); }, {x});
  CHECK_THROWS_WITH(backward(sum(y)), Contains("checkpoint") && Contains("[3]") && Contains("[2]"));
  Tensor z = checkpoint(
      [&](const Inputs& in) {
        if (++runs > 3) throw ValueError("second run");
        return sin(in[0]);
      },
      {x});
  CHECK_THROWS_AS(backward(sum(z)), ValueError);
  CHECK(grad_enabled());
  CHECK_FALSE(x.grad().defined());
  backward(sum(x * 2.0));
  CHECK(x.grad().to_vector<double>() == std::vector<double>(4, 2.0));
}

TEST_CASE("checkpoint: a second run of another dtype, without history or without a result is an error",
          "[checkpoint]") {
  const Tensor x = leaf({4}, 1);
  const auto second = [&](const std::function<Tensor(const Tensor&)>& f) {
    const Tensor y =
        checkpoint([&f, runs = 0](const Inputs& in) mutable { return runs++ ? f(in[0]) : sum(in[0]); }, {x});
    backward(y);
  };
  CHECK_THROWS_WITH(second([](const Tensor& in) { return to(sum(in), f32); }), Contains("f32[]") && Contains("f64[]"));
  CHECK_THROWS_WITH(second([](const Tensor& in) { return sum(in.detach()); }), Contains("gave a constant"));
  CHECK_THROWS_WITH(second([](const Tensor&) { return Tensor(); }), Contains("second run returned"));
  Tensor w = leaf({4}, 2);
  const Tensor y = checkpoint([&](const Inputs& in) { return sum(in[0].detach() * w); }, {x});
  w.requires_grad_(false);
  backward(y);  // a leaf that was frozen in the meantime wants no gradient
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("checkpoint: keeps the input of a segment instead of what lies inside", "[checkpoint]") {
  Tensor x = leaf({64, 1024}, 1, f32);  // 256 KB
  const int64_t block = 64 * 1024 * 4;
  auto segment = [](const Inputs& in) {
    Tensor h = in[0];
    for (int i = 0; i < 10; ++i) h = tanh(h);
    return h;
  };
  auto peak = [&](auto run) {
    const int64_t start = memory_stats().live;
    reset_peak_memory();
    {
      Tensor h = x;
      for (int i = 0; i < 8; ++i) h = run(segment, Inputs{h});
      backward(sum(h));
      x.zero_grad();
    }
    CHECK(memory_stats().live == start);
    return (memory_stats().peak - start) / block;
  };
  CHECK(peak(plain) >= 80);
  CHECK(peak(checkpoint) <= 8 + 10 + 8);
}

TEST_CASE("checkpoint: hooks run once, of what f captures, of its inputs and of what it makes", "[checkpoint]") {
  Tensor x = leaf({5}, 1), w = leaf({5}, 2);
  const auto twice = [](const Tensor& g) { return g * 2.0; };
  w.register_hook(twice);
  same_gradients(
      [&](auto run) {
        Tensor h = exp(w);
        h.register_hook(twice);
        return run(
            [&, h](const Inputs& in) {
              Tensor input = in[0], y = input * h * w;
              input.register_hook(twice), y.register_hook(twice);
              return y;
            },
            {x * 1.0});
      },
      {x, w}, 1e-14);
  backward(sum(checkpoint([&](const Inputs& in) { return in[0] * w; }, {ones({5}, {f64})})));
  CHECK(w.grad().to_vector<double>() == std::vector<double>(5, 2.0));
}

TEST_CASE("checkpoint: products have the precision of the forward pass again", "[checkpoint][precision]") {
  Tensor x = leaf({8, 8}, 1, f32), w = leaf({8, 8}, 2, f32);
  const auto gradient = [&](auto run) {
    Tensor y;
    {
      PrecisionScope scope(Precision::bf16);
      y = run([&](const Inputs& in) { return square(matmul(in[0], w)); }, Inputs{x});
    }
    return gradients(y, {x})[0];
  };
  CHECK(same_bits(gradient(plain), gradient(checkpoint)));
}

TEST_CASE("checkpoint: a function that holds its generator draws the same again", "[checkpoint]") {
  Tensor x = ones({64}, {f64}).requires_grad_();
  const Tensor y =
      checkpoint([rng = Rng(3)](const std::vector<Tensor>& in) mutable { return dropout(in[0], 0.5, rng); }, {x});
  backward(sum(y));
  CHECK(same_bits(x.grad(), y.detach()));
}
