// The mixture of experts: the choice, the losses that balance it, what does not fit.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/nn/moe.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("moe: the choice sees the bias, the weights do not", "[moe][layers]") {
  Rng rng(1);
  Moe moe({.dim = 6, .experts = 4, .top_k = 2, .router = MoeRouter::sigmoid, .router_bias = true, .dtype = f64}, rng);
  const Tensor x = normal({9, 6}, 0, 1, rng, {f64});
  const Moe::Routing before = moe.route(x);
  moe.router_bias = Tensor::from(std::vector<double>{0, 0, 0, 100}, {4});
  const Moe::Routing after = moe.route(x);
  CHECK(same_bits(before.scores, after.scores));
  CHECK(min(to(select(after.chosen, 1, 0) == 3, f64)).item() == 1);  // expert 3 comes first
  CHECK(max_abs_diff(sum(after.weights, {-1}), ones({9}, {f64})) <= 1e-14);
}

TEST_CASE("moe: experts that follow from the numbers of tokens", "[moe][layers]") {
  Rng rng(3);
  const MoeOptions o{
      .dim = 6, .experts = 4, .top_k = 2, .router = MoeRouter::sqrt_softplus, .scale = 1.5, .dtype = f64};
  MoeOptions by_number = o;
  by_number.token_table = 5;
  Moe moe(by_number, rng), free = moe;
  free.options = o, free.token_experts = Tensor();
  const Tensor x = normal({2, 3, 6}, 0, 1, rng, {f64}),
               tokens = Tensor::from(std::vector<int64_t>{0, 4, 2, 2, 1, 0}, {2, 3});
  CHECK(moe.token_experts.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1});
  const Tensor rows = reshape(x, {6, 6});
  const Moe::Routing r = moe.route(rows, flatten(tokens)), other = free.route(rows);
  CHECK(r.chosen.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 0, 1});
  CHECK(same_bits(r.scores, other.scores));
  CHECK(max_abs_diff(sum(r.weights, {-1}), full({6}, 1.5, {f64})) <= 1e-14);
  // A table that names what the router would choose changes nothing.
  Moe same = moe;
  same.options.token_table = 6, same.token_experts = other.chosen;
  CHECK(max_abs_diff(same.by_tokens(x, reshape(arange(0, 6, 1, {i64}), {2, 3})), free(x)) <= 1e-14);
  CHECK(max_abs_diff(moe.by_tokens(x, tokens), free(x)) > 1e-3);
  CHECK_THROWS_WITH(moe(x), Contains("moe: token_table=5 but no numbers"));
  CHECK_THROWS_WITH(free.by_tokens(x, tokens), Contains("moe: token_table=0 and numbers"));
  CHECK_THROWS_WITH(moe.by_tokens(x, narrow(tokens, 0, 0, 1)), Contains("moe: tokens=[1,3]"));
  moe.token_experts = full({5, 2}, 4, {i64});
  CHECK_THROWS_AS(moe.by_tokens(x, tokens), Error);
}

TEST_CASE("moe: only experts of the best groups are chosen", "[moe][layers]") {
  Rng rng(6);
  MoeOptions o{
      .dim = 6, .experts = 6, .top_k = 2, .router = MoeRouter::sigmoid, .router_bias = true, .groups = 3, .dtype = f64};
  const std::vector<double> bias{-20, -11, -20, -14, -13, -16};  // further apart than scores of at most 1 can turn
  const Tensor x = normal({9, 6}, 0, 1, rng, {f64});
  const auto chosen = [&] {
    Moe moe(o, rng);
    moe.router_bias = Tensor::from(bias, {6});
    return select(moe.route(x).chosen, 0, 4).to_vector<int64_t>();
  };
  CHECK(chosen() == std::vector<int64_t>{1, 0});  // {0, 1} has the best expert
  o.group_best = 2;
  CHECK(chosen() == std::vector<int64_t>{4, 5});  // {4, 5} has the largest sum
  o.top_groups = 2;
  CHECK(chosen() == std::vector<int64_t>{1, 4});
  o.top_groups = 3;
  CHECK(chosen() == std::vector<int64_t>{1, 4});
  o.top_k = 3;
  CHECK(chosen() == std::vector<int64_t>{1, 4, 3});
}

TEST_CASE("moe: scores of 0 have weights and gradients of 0", "[moe][layers]") {
  Rng rng(7);
  Moe moe({.dim = 4, .experts = 3, .router = MoeRouter::sigmoid, .logit_bias = true}, rng);
  moe.router.bias = Tensor::from(std::vector<float>{-300, -300, -300}, {3}).requires_grad_();
  const Tensor y = moe(normal({5, 4}, 0, 1, rng));
  CHECK(max_abs(y) == 0);
  backward(sum(y));
  CHECK(max_abs(moe.router.bias.grad()) == 0);
  CHECK(max_abs(moe.router.weight.grad()) == 0);
  moe.options.router = MoeRouter::sqrt_softplus;  // √0 has no slope
  moe.router.weight.zero_grad();
  backward(sum(moe(normal({5, 4}, 0, 1, rng))));
  CHECK(max_abs(moe.router.weight.grad()) == 0);
}

TEST_CASE("moe: the clamped activation", "[moe][layers]") {
  Rng rng(8);
  Moe moe(
      {.dim = 1, .experts = 1, .top_k = 1, .expert_bias = true, .activation = MoeActivation::swiglu_oai, .dtype = f64},
      rng);
  for (ExpertMaps* map : {&moe.gate, &moe.up, &moe.down}) map->weight = ones({1, 1, 1}, {f64});
  moe.up.bias = Tensor::from(std::vector<double>{2}, {1, 1});
  const auto at = [&](double x) { return moe(Tensor::from(std::vector<double>{x}, {1, 1})).item(); };
  const auto gated = [](double g) { return g / (1 + std::exp(-1.702 * g)); };
  CHECK(at(0.5) == Approx(3.5 * gated(0.5)));
  CHECK(at(6) == Approx(8 * gated(6)));       // u = 8 is 7
  CHECK(at(20) == Approx(8 * gated(7)));      // g = 20 is 7
  CHECK(at(-20) == Approx(-6 * gated(-20)));  // u = −18 is −7, g stays
}

TEST_CASE("moe: every token alone gives what all of them give", "[moe][layers]") {
  Rng rng(2);
  for (int64_t k : {1, 3}) {
    const Moe moe({.dim = 8, .hidden = 5, .experts = 7, .top_k = k, .shared_hidden = 4, .dtype = f64}, rng);
    const Tensor x = normal({3, 40, 8}, 0, 1, rng, {f64}), y = moe(x);
    REQUIRE(y.shape() == x.shape());
    for (int64_t t : {0, 17, 39}) CHECK(max_abs_diff(moe(narrow(x, 1, t, 1)), narrow(y, 1, t, 1)) <= 1e-13);
  }
}

TEST_CASE("moe: experts that no token chose have a gradient of 0", "[moe][layers]") {
  Rng rng(3);
  Moe moe({.dim = 4, .experts = 6, .top_k = 1, .router = MoeRouter::sigmoid, .router_bias = true}, rng);
  moe.router_bias = Tensor::from(std::vector<float>{0, 0, 50, 0, 0, 0}, {6});
  backward(sum(moe(normal({5, 4}, 0, 1, rng))));
  const Tensor g = moe.up.weight.grad();
  REQUIRE(g.shape() == Shape{6, 4, 4});
  for (int64_t e = 0; e < 6; ++e) CHECK((max_abs(select(g, 0, e)) > 0) == (e == 2));
}

TEST_CASE("moe_balance_loss: by hand, and its gradient reaches the router", "[moe][layers]") {
  Moe::Routing r{.scores = Tensor::from(std::vector<double>{0.5, 0.3, 0.2, 0.1, 0.6, 0.3}, {2, 3}),
                 .chosen = Tensor::from(std::vector<int64_t>{0, 1, 1, 2}, {2, 2}),
                 .weights = {}};
  // hits 1, 2, 1 of two tokens; mean scores .3, .45, .25
  CHECK(moe_balance_loss(r).item() == Approx(3 * (0.5 * 0.3 + 1 * 0.45 + 0.5 * 0.25)));
  r.scores = r.scores * 0.5;  // the other loss takes shares of the scores
  CHECK(moe_balance_loss(r, MoeBalance::deepseek).item() == Approx(3 * (0.25 * 0.3 + 0.5 * 0.45 + 0.25 * 0.25)));
  const Moe::Routing many{.scores = ones({600, 2}, {bf16}), .chosen = zeros({600, 1}, {i64}), .weights = {}};
  CHECK(moe_balance_loss(many).item() == Approx(2).epsilon(0.01));  // all 600 count, beyond the 256 of bf16
  CHECK_THROWS_WITH(moe_balance_loss({ones({1, 2}), ones({1, 1}, {i64}) * 2, {}}),
                    Contains("index 2 is outside [0, 2)"));

  Rng rng(4);
  const Moe moe({.dim = 4, .experts = 3, .dtype = f64}, rng);
  backward(moe_balance_loss(moe.route(normal({10, 4}, 0, 1, rng, {f64}))));
  CHECK(max_abs(moe.router.weight.grad()) > 0);
}

TEST_CASE("moe: what does not fit, and by which words", "[moe][layers]") {
  Rng rng(5);
  CHECK_THROWS_WITH(Moe({.dim = 4, .experts = 2, .top_k = 3}, rng), "moe: top_k=3 is more than experts=2");
  CHECK_THROWS_WITH(Moe({.dim = 4, .groups = 3}, rng), "moe: groups=3 must divide experts=8");
  CHECK_THROWS_WITH(Moe({.dim = 4, .groups = 2, .top_groups = 3}, rng), "moe: top_groups=3 is more than groups=2");
  CHECK_THROWS_WITH(Moe({.dim = 4, .groups = 4, .group_best = 3}, rng),
                    "moe: group_best=3 is more than the 2 experts of a group");
  CHECK_THROWS_WITH(Moe({.dim = 4, .top_k = 5, .groups = 4, .top_groups = 2}, rng),
                    "moe: top_k=5 is more than the 4 experts of top_groups=2 groups");
  const Moe moe({.dim = 4}, rng);
  CHECK_THROWS_WITH(moe.route(ones({2, 3, 4})), Contains("moe: route got x=") && Contains("need [tokens, 4]"));
  CHECK_THROWS_WITH(moe_balance_loss({zeros({3, 8}), zeros({2, 1}, {i64}), zeros({2, 1})}),
                    Contains("moe_balance_loss: got scores=[3,8], chosen=[2,1]"));
  CHECK_THROWS_WITH(moe(zeros({2, 5})), Contains("moe: got x=[2,5]") && Contains("[..., 4]"));
  CHECK(moe(zeros({0, 4})).shape() == Shape{0, 4});
  CHECK(moe(zeros({4})).shape() == Shape{4});
}
