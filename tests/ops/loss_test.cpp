// Losses: probabilities as targets, and operands of bf16 beside f32.
#include <sluice/ops/rows/loss.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <functional>

using namespace sluice;

TEST_CASE("cross_entropy: a class of probability 0 counts nothing, even with a logit of −∞", "[loss]") {
  Tensor x = Tensor::from<double>({-INFINITY, 0, 0}), q = Tensor::from<double>({0, 0.25, 0.75});
  x.requires_grad_(), q.requires_grad_();
  const Tensor y = cross_entropy(x, q);
  backward(y);
  CHECK(y.item() == Approx(std::log(2)));
  CHECK(testing::max_abs(x.grad() - Tensor::from<double>({0, 0.25, -0.25})) < 1e-15);
  CHECK(testing::max_abs(q.grad() - Tensor::from<double>({0, std::log(2), std::log(2)})) < 1e-15);
  x.zero_grad();
  const Tensor beyond = cross_entropy(x, q, {.label_smoothing = 0.3});
  backward(beyond);
  CHECK(beyond.item() == INFINITY);
  CHECK(testing::max_abs(x.grad() - Tensor::from<double>({-0.1, 0.225, -0.125})) < 1e-15);
}

TEST_CASE("cross_entropy: probabilities that do not fit are refused", "[loss]") {
  const Tensor x = zeros({2, 3}), q = full({2, 3}, 1.0 / 3);
  CHECK(cross_entropy(x, q).item() == Approx(std::log(3)));
  CHECK_THROWS_WITH(
      cross_entropy(x, ones({2})),
      "cross_entropy: classes must be i64 or i32 — got f32[2] beside logits=[2,3]; write to(targets, i64)");
  for (const Tensor& other : {ones({3, 2}), ones({2, 3, 1})})
    CHECK_THROWS_WITH(cross_entropy(x, other), Contains("cross_entropy: logits=[2,3] and probabilities f32[") &&
                                                   Contains("] do not fit; need [..., C] of both"));
  CHECK_THROWS_WITH(cross_entropy(x, to(q, f64)),
                    "cross_entropy: dtypes differ — got logits=f32[2,3], targets=f64[2,3]");
  CHECK_THROWS_AS(cross_entropy(x, to(q, meta)), DeviceError);
  CHECK_THROWS_AS(cross_entropy(zeros({2, 0}), zeros({2, 0})), ShapeError);
  CHECK_THROWS_WITH(cross_entropy(x, q, {.ignore_index = 0}),
                    "cross_entropy: ignore_index 0 is for classes, but targets [2,3] are probabilities");
  CHECK_THROWS_AS(cross_entropy(x, q, {.label_smoothing = 1.5}), ValueError);
  CHECK_THROWS_WITH(cross_entropy(x, q, {.weight = ones({2})}),
                    "cross_entropy: weight=[2] does not fit logits=[2,3]; need [C]");
  CHECK_THROWS_AS(nll_loss(x, q), DTypeError);
}

TEST_CASE("cross_entropy: of many rows, each has the loss that it has alone", "[loss]") {
  Rng rng(3);
  for (DType t : {f32, f64, bf16})
    for (int64_t classes : {1, 2, 10, 17, 127, 129, 300})
      for (int64_t rows : {1, 127, 128, 129, 257}) {
        INFO(rows << "x" << classes << " " << name_of(t));
        Tensor x = to(normal({rows, classes}, 0, 3, rng), t), targets = randint(0, classes, {rows}, rng);
        targets = where(arange(rows) == static_cast<double>(rows / 3), -100, targets);
        Tensor none = narrow(x, 0, rows - 1, 1);  // a row of −∞ has no loss to speak of
        fill_(none, -INFINITY);
        const CrossEntropyOptions o{.reduction = Reduction::none},
            smooth{.label_smoothing = 0.1, .reduction = Reduction::none};
        const Tensor all = cross_entropy(x, targets, o), smoothed = cross_entropy(x, targets, smooth);
        const Tensor log_p = log_softmax(to(x, f64));
        const std::vector<double> got = to(all, f64).to_vector<double>();
        for (int64_t r = 0; r < rows; ++r) {
          const Tensor row = narrow(x, 0, r, 1), target = narrow(targets, 0, r, 1);
          CHECK(testing::same_bits(narrow(all, 0, r, 1), cross_entropy(row, target, o)));
          CHECK(testing::same_bits(narrow(smoothed, 0, r, 1), cross_entropy(row, target, smooth)));
          const int64_t of = target.item<int64_t>();
          const double want = of < 0 ? 0 : -select(select(log_p, 0, r), 0, of).item();
          CHECK((got[static_cast<std::size_t>(r)] == want ||
                 std::abs(got[static_cast<std::size_t>(r)] - want) <= (t == bf16 ? 0x1p-8 : 1e-6) * (1 + want)));
        }
      }
}

TEST_CASE("losses: bf16 goes with f32, on either side", "[loss][bf16]") {
  Rng rng(2);
  const Tensor wide = uniform({4, 3}, 0.2, 0.9, rng), narrow = uniform({4, 3}, 0.2, 0.9, rng, {bf16});
  using Loss = std::function<Tensor(const Tensor&, const Tensor&)>;
  for (const Reduction r : {Reduction::mean, Reduction::sum, Reduction::none}) {
    const Loss losses[] = {[r](auto& x, auto& y) { return mse_loss(x, y, r); },
                           [r](auto& x, auto& y) { return l1_loss(x, y, r); },
                           [r](auto& x, auto& y) { return huber_loss(x, y, 0.3, r); },
                           [r](auto& x, auto& y) { return kl_div(x, y, r); },
                           [r](auto& x, auto& y) { return bce_with_logits(x, y, r); },
                           [r](auto& x, auto& y) { return bce_with_logits(x, y, r, full({3}, 0.7)); }};
    for (std::size_t i = 0; i < std::size(losses); ++i)
      for (const bool first_is_wide : {true, false}) {
        INFO("loss " << i << (first_is_wide ? ", f32 and bf16" : ", bf16 and f32"));
        Tensor x = first_is_wide ? wide : narrow, y = first_is_wide ? narrow : wide;
        Tensor wx = to(x, f32).detach(), wy = to(y, f32).detach();
        x = x.detach().requires_grad_(), y = y.detach().requires_grad_();
        wx.requires_grad_(), wy.requires_grad_();
        const Tensor loss = losses[i](x, y), want = losses[i](wx, wy);
        CHECK(testing::same_bits(loss, want));
        backward(sum(loss)), backward(sum(want));
        CHECK(testing::same_bits(x.grad(), to(wx.grad(), x.dtype())));
        CHECK(testing::same_bits(y.grad(), to(wy.grad(), y.dtype())));
      }
    CHECK(mse_loss(narrow, narrow, r).dtype() == bf16);
    CHECK(kl_div(narrow, narrow > 0, r).dtype() == bf16);
    CHECK_THROWS_AS(mse_loss(narrow, to(wide, f64), r), DTypeError);
    // Weights and probabilities: the loss has the dtype of the logits.
    const Tensor targets = Tensor::from<int64_t>({0, 2, 1, 1}), weight = Tensor({0.3f, 1.7f, 0.9f});
    for (const auto& loss : {cross_entropy, nll_loss}) {
      CHECK(testing::same_bits(loss(narrow, targets, {.reduction = r, .weight = weight}),
                               to(loss(to(narrow, f32), targets, {.reduction = r, .weight = weight}), bf16)));
      CHECK(testing::same_bits(loss(wide, targets, {.reduction = r, .weight = to(weight, bf16)}),
                               loss(wide, targets, {.reduction = r, .weight = to(to(weight, bf16), f32)})));
    }
    CHECK(testing::same_bits(cross_entropy(narrow, wide, {.reduction = r}),
                             to(cross_entropy(to(narrow, f32), wide, {.reduction = r}), bf16)));
    CHECK(testing::same_bits(cross_entropy(wide, narrow, {.reduction = r}),
                             cross_entropy(wide, to(narrow, f32), {.reduction = r})));
  }
}
