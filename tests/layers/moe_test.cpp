// The mixture of experts: the choice, the losses that balance it, what does not fit.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/nn/moe.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

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

  Rng rng(4);
  const Moe moe({.dim = 4, .experts = 3, .dtype = f64}, rng);
  backward(moe_balance_loss(moe.route(normal({10, 4}, 0, 1, rng, {f64}))));
  CHECK(max_abs(moe.router.weight.grad()) > 0);
}

TEST_CASE("moe: what does not fit, and by which words", "[moe][layers]") {
  Rng rng(5);
  CHECK_THROWS_WITH(Moe({.dim = 4, .experts = 2, .top_k = 3}, rng), "moe: top_k=3 is more than experts=2");
  const Moe moe({.dim = 4}, rng);
  CHECK_THROWS_WITH(moe(zeros({2, 5})), Contains("moe: got x=[2,5]") && Contains("[..., 4]"));
  CHECK(moe(zeros({0, 4})).shape() == Shape{0, 4});
  CHECK(moe(zeros({4})).shape() == Shape{4});
}
