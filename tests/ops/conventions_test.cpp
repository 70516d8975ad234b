// Conventions at edges where a user of another library would look twice: NaN, class weights of 0, overflow of sums,
// results that share no memory with operands, numbers that a dtype has not.
#include <sluice/ops/elementwise/elementwise.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/index/sampling.h>
#include <sluice/ops/index/sort.h>
#include <sluice/ops/matmul/einsum.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/causal_conv.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

using namespace sluice;

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST_CASE("conventions: NaN of the truth reaches kl_div", "[ops]") {
  Tensor q = full({3}, -1, {f64}), p = Tensor::from<double>({NAN, 0.5, 0});
  q.requires_grad_(), p.requires_grad_();
  const Tensor y = kl_div(q, p, Reduction::none);
  backward(sum(y));
  CHECK(std::isnan(y[0].item()));
  CHECK(y[1].item() == Approx(0.5 * (std::log(0.5) + 1)));
  CHECK(y[2].item() == 0);
  CHECK(std::isnan(q.grad()[0].item()));
  CHECK(q.grad()[2].item() == 0);
  CHECK(std::isnan(kl_div(full({1}, -1), full({1}, -0.5)).item()));
}

TEST_CASE("conventions: the mean of a kl_div of rows without columns is 0", "[ops]") {
  CHECK(kl_div(zeros({3, 0}), zeros({3, 0})).item() == 0);
  CHECK(kl_div(full({2, 2, 3}, -1), full({2, 2, 3}, 1)).item() == 3);
  CHECK(kl_div(Tensor(-1), Tensor(1)).item() == 1);
}

TEST_CASE("conventions: a mean of nothing is NaN, and the gradient of its gradient 0", "[ops]") {
  const std::pair<const char*, Tensor (*)(const Tensor&)> means[] = {
      {"mean", [](const Tensor& x) { return mean(x); }},
      {"mse_loss", [](const Tensor& x) { return mse_loss(x, zeros_like(x)); }},
      {"kl_div", [](const Tensor& x) { return kl_div(x, ones_like(x)); }}};
  for (const auto& [name, f] : means) {
    INFO(name);
    const Tensor x = zeros({0, 3}, {f64}).requires_grad_(), g = ones({}, {f64}).requires_grad_();
    const Tensor y = f(x);
    CHECK(std::isnan(y.item()));
    const auto first = grad({y}, {x}, {.create_graph = true, .grad_outputs = {g}});
    CHECK(first[0].shape() == x.shape());
    CHECK(grad(first, {g}, {.grad_outputs = {zeros_like(x)}})[0].item() == 0);
  }
}

TEST_CASE("conventions: a causal convolution of bf16 is rounded once, after any activation", "[ops][bf16]") {
  Rng rng(1);
  const Tensor x = normal({2, 9, 8}, 0, 1, rng, {bf16}), w = normal({3, 8}, 0, 1, rng, {bf16});
  for (Act act : {Act::identity, Act::silu, Act::gelu, Act::tanh}) {
    const Tensor exact = causal_conv1d(to(x, f32), to(w, f32), {}, {}, act);
    CHECK(testing::same_bits(causal_conv1d(x, w, {}, {}, act), to(exact, bf16)));
  }
}

TEST_CASE("conventions: rows before the first of a causal convolution are zeros, times NaN, too", "[ops]") {
  for (DType dtype : {f32, bf16})
    for (int64_t n : {2, 3, 9}) {
      const Tensor x = ones({1, n, 1}, {dtype}), w = ones({4, 1}, {dtype});
      Tensor oldest = w[0];
      fill_(oldest, std::numeric_limits<double>::quiet_NaN());
      const Tensor y = causal_conv1d(x, w), z = causal_conv1d(x, w, {}, zeros({1, 3, 1}, {dtype}));
      CHECK(all(isnan(y)).item() == 1);
      CHECK(all(isnan(z)).item() == 1);
    }
}

TEST_CASE("conventions: a weight of lerp is not rounded to bf16", "[ops][bf16]") {
  const Tensor a = full({1}, 1000, {bf16}), b = zeros({1}, {bf16});
  CHECK(lerp(a, b, 0.999).item() == to(full({1}, 1000 * 0.001, {f32}), bf16).item());
  CHECK(lerp(a, b, 0.999).dtype() == bf16);
  CHECK(lerp(a, b, 0.5).item() == 500);
  CHECK_THROWS_WITH(lerp(ones({1}, {i64}), ones({1}, {i64}), 0.5),
                    "lerp: needs f32, f64 or bf16 — got i64 of shape [1]");
}

TEST_CASE("conventions: a mean of integers does not overflow", "[ops]") {
  CHECK(mean(Tensor::from<int64_t>({INT64_MAX, INT64_MAX})).item() == Approx(0x1p63));
  CHECK(mean(Tensor::from<int64_t>({1, 2, 4}), {0}).item() == Approx(7.0 / 3));
}

TEST_CASE("conventions: a class of weight 0 counts nothing, even with a logit of −∞", "[ops]") {
  const Tensor weight = Tensor::from<double>({0, 1, 1}), target = Tensor::from<int64_t>({1});
  Tensor x = Tensor::from<double>({-kInf, 0, 0}, {1, 3});
  x.requires_grad_();
  const Tensor y = cross_entropy(x, target, {.label_smoothing = 0.1, .weight = weight});
  backward(y);
  CHECK(std::isfinite(y.item()));
  for (const double g : x.grad().to_vector<double>()) CHECK(std::isfinite(g));
  const Tensor rows = Tensor::from<double>({-kInf, 0, 0, 0, 0, 0}, {2, 3});
  CHECK(cross_entropy(rows, Tensor::from<int64_t>({0, 1}), {.weight = weight}).item() == Approx(std::log(3)));
}

TEST_CASE("conventions: the operand that is NaN has the gradient of maximum and minimum", "[ops]") {
  for (const auto f : {+[](const Tensor&a, const Tensor&b) { return maximum(a, b); },
                       +[](const Tensor&a, const Tensor&b) { return minimum(a, b); }})
    for (const bool second_order : {false, true}) {
      Tensor a = Tensor::from<double>({NAN, 1, NAN}), b = Tensor::from<double>({1, NAN, NAN});
      a.requires_grad_(), b.requires_grad_();
      const auto g = grad({sum(f(a, b))}, {a, b}, {.create_graph = second_order});
      CHECK(g[0].to_vector<double>() == std::vector<double>{1, 0, 1});
      CHECK(g[1].to_vector<double>() == std::vector<double>{0, 1, 0});
    }
}

TEST_CASE("conventions: results of scalars share no memory with them", "[ops]") {
  Tensor n = Tensor::from<int64_t>({7}, {}), x = full({}, 7);
  const Tensor most = max(n), least = min(n), sorted = sort(x).values;
  Tensor w = ones({2}).requires_grad_();
  Tensor e = einsum("i->i", {w});
  fill_(n, 0), fill_(x, 0);
  CHECK(most.item<int64_t>() == 7);
  CHECK(least.item<int64_t>() == 7);
  CHECK(sorted.item() == 7);
  e.register_hook([](const Tensor& g) { return g * 2.0; });
  backward(sum(e) + sum(w));
  CHECK(w.grad()[0].item() == 3);  // the hook is that of the result alone
}

TEST_CASE("conventions: numbers that an integer dtype has not are refused", "[ops]") {
  const Tensor i = arange(2);
  CHECK_THROWS_AS(pad(i, 0, 1, 0, -0.5), DTypeError);
  CHECK_THROWS_WITH(pad(i, 0, 1, 0, NAN), Contains("pad") && Contains("i64"));
  CHECK_THROWS_AS(pad(i, 0, 1, 0, 0x1p53), DTypeError);
  Tensor z = zeros({1}, {i64});
  CHECK_THROWS_WITH(fill_(z, 0x1p53), Contains("fill_"));
  CHECK_THROWS_WITH(i - 0.5, Contains("sub") && Contains(" 0.5"));
}

TEST_CASE("conventions: arange of a fraction has its own numbers", "[ops]") {
  CHECK(arange(2.5).to_vector<double>() == std::vector<double>{0, 1, 2});
  CHECK(arange(2.5).dtype() == f32);
  CHECK(arange(3).dtype() == i64);
  CHECK(arange(std::size_t{3}).dtype() == i64);
  enum { kThree = 3 };
  CHECK(arange(kThree).dtype() == i64);
  CHECK(arange(3, {f64}).dtype() == f64);
}

TEST_CASE("conventions: what needs one dim more says so", "[ops]") {
  const Tensor x = zeros({1, 1, 1, 1, 1, 1, 1, 2});
  CHECK_THROWS_WITH(repeat_interleave(x, 2, -1), Contains("repeat_interleave") && Contains("at most 8"));
  CHECK_THROWS_WITH(repeat(x, 2, -1), Contains("repeat") && Contains("at most 8"));
  CHECK_THROWS_WITH(var(ones({3}), {}, false, NAN), Contains("var: correction"));
}

TEST_CASE("copy_: a number is not rounded to f32 before", "[create]") {
  Tensor x = zeros({2}, {f64}), i = zeros({2}, {i64});
  copy_(x, 0.1), copy_(i, 16777217);
  CHECK(x.to_vector<double>() == std::vector<double>{0.1, 0.1});
  CHECK(i.to_vector<int64_t>() == std::vector<int64_t>{16777217, 16777217});
}

TEST_CASE("conventions: derivatives of activations far from 0 are their limits, of every order", "[ops][formulas]") {
  struct Row {
    const char* name;
    std::function<Tensor(const Tensor&)> f;
    double left, right;  // slopes
  };
  const auto of = [](Act act) { return [act](const Tensor& x) { return activate(act, x); }; };
  const Row rows[] = {
      {"erf", [](const Tensor& x) { return erf(x); }, 0, 0},
      {"normal_cdf", [](const Tensor& x) { return normal_cdf(x); }, 0, 0},
      {"relu", of(Act::relu), 0, 1},
      {"leaky_relu", of(Act::leaky_relu), 0.01, 1},
      {"elu", of(Act::elu), 0, 1},
      {"elu1", of(Act::elu1), 0, 1},
      {"silu", of(Act::silu), 0, 1},
      {"gelu", of(Act::gelu), 0, 1},
      {"gelu_tanh", of(Act::gelu_tanh), 0, 1},
      {"tanh", of(Act::tanh), 0, 0},
      {"sigmoid", of(Act::sigmoid), 0, 0},
      {"ns_sigmoid", of(Act::ns_sigmoid), 0, 0},
      {"softplus", of(Act::softplus), 0, 1},
      {"laplace", of(Act::laplace), 0, 0},
  };
  for (const Row& row : rows)
    for (DType t : {f32, f64})
      for (double size : {1e5, 1e10, 1e19, 3e19, 3e38, 1e154, 1e155, 1e300}) {
        if (t == f32 && size > 3e38) continue;
        INFO(str(row.name, " ", t, " ", size));
        const Tensor x = to(Tensor::from<double>({-size, size}), t).requires_grad_();
        Tensor y = row.f(x);
        for (int order = 1; order <= 4 && y.requires_grad(); ++order) {
          y = grad(sum(y), x, {.create_graph = true, .allow_unused = true});
          if (!y.defined()) break;  // an exact 0
          const std::vector<double> slopes = to(y, f64).to_vector<double>();
          CHECK(slopes[0] == Approx(order == 1 ? row.left : 0));
          CHECK(slopes[1] == Approx(order == 1 ? row.right : 0));
        }
      }
}
