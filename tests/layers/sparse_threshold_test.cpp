// Sparse attention by thresholds of a second score, against loops.
#include "layers/sparse_reference.h"
#include "support/identities.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/sparse_attention.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("sparse: thresholds against loops", "[sparse]") {
  Rand rand(7);
  for (bool causal : {false, true})
    for (auto [m, n] : {std::pair<int64_t, int64_t>{7, 7}, {3, 7}, {7, 4}, {1, 1}})
      for (const Shape& shape : {Shape{2, 2, m, n}, Shape{2, 1, m, n}, Shape{m, n}, Shape{1, n}}) {
        const Qkv x = random_qkv(rand, 2, 2, 1, m, n);
        const Tensor f = random_tensor(shape, f64, rand, -2, 2);
        const Array score = array_of(f);
        const int64_t shift = n - m;
        const double tau = 0.4, temperature = 0.3;
        for (int self = -1; self < 2; ++self) {
          ThresholdOptions o{.tau = tau, .temperature = temperature};
          if (self >= 0) o.include_self = self == 1;
          o.attention.mask.causal = causal;
          auto position = [&](const Dims& i) { return i[2] + shift; };
          auto allowed = [&](const Dims& i) { return !causal || i[3] <= position(i); };
          INFO("causal " << causal << ", " << m << "×" << n << ", f " << str(shape) << ", self " << self);
          const Tensor hard = naive_weighted(x, [&](const Dims& i) -> double {
            return allowed(i) && (score.stretched(i) > tau || (self != 0 && i[3] == position(i)));
          });
          const Tensor soft = naive_weighted(x, [&](const Dims& i) {
            if (!allowed(i)) return 0.0;
            return self == 1 && i[3] == position(i) ? 1 : 1 / (1 + std::exp((tau - score.stretched(i)) / temperature));
          });
          CHECK(max_abs_diff(threshold_attention(x.q, x.k, x.v, f, o), hard) < 1e-13);
          o.mode = ThresholdMode::soft;
          CHECK(max_abs_diff(threshold_attention(x.q, x.k, x.v, f, o), soft) < 1e-13);
          o.mode = ThresholdMode::straight_through;
          CHECK(max_abs_diff(threshold_attention(x.q, x.k, x.v, f, o), hard) < 1e-13);
        }
      }
}

TEST_CASE("sparse: threshold identities", "[sparse]") {
  Rand rand(8);
  const Qkv x = random_qkv(rand, 2, 2, 2, 9, 9);
  const Tensor f = random_tensor({2, 1, 9, 9}, f64, rand, -2, 2);
  for (ThresholdMode mode : {ThresholdMode::hard, ThresholdMode::soft, ThresholdMode::straight_through})
    check_identity("sparse: threshold -inf is dense",
                   threshold_attention(x.q, x.k, x.v, f, {.mode = mode, .tau = -kInf}), attention(x.q, x.k, x.v),
                   1e-14);
  // No score is within 0.003 of τ, so that σ((f − τ)/T) is 0 or 1 to double precision for T = 5e-5.
  const double tau = 0.25;
  REQUIRE(min(abs(f - tau)).item() > 0.003);
  const Tensor hard = threshold_attention(x.q, x.k, x.v, f, {.tau = tau});
  auto soft = [&](double t) {
    return threshold_attention(x.q, x.k, x.v, f,
                               {.mode = ThresholdMode::soft, .tau = tau, .temperature = t, .include_self = true});
  };
  CHECK(max_abs_diff(soft(1), hard) > 0.1);
  check_identity("sparse: soft threshold T -> 0 is hard", soft(5e-5), hard, 1e-14);
}

TEST_CASE("sparse: threshold gradients", "[sparse]") {
  Rand rand(9);
  const Qkv t = random_qkv(rand, 1, 2, 1, 3, 4, 2, 2);
  const Tensor f = random_tensor({1, 3, 4}, f64, rand, -2, 2), bias = random_tensor({3, 4}, f64, rand);
  for (bool self : {false, true})
    for (bool causal : {false, true}) {
      ThresholdOptions o{.mode = ThresholdMode::soft, .tau = 0.2, .temperature = 0.5, .include_self = self};
      o.attention.mask.causal = causal;
      check_gradients(
          [&](const std::vector<Tensor>& in) {
            ThresholdOptions with_bias = o;
            with_bias.attention.bias = in[4];
            return threshold_attention(in[0], in[1], in[2], in[3], with_bias);
          },
          {t.q, t.k, t.v, f, bias});
      o.mode = ThresholdMode::hard;
      check_gradients([&](const std::vector<Tensor>& in) { return threshold_attention(in[0], in[1], in[2], f, o); },
                      {t.q, t.k, t.v});
    }
  // Straight-through: the value of hard, bit for bit; the gradients of soft, of every order; hard has none in f.
  auto leaves = [&] {
    std::vector<Tensor> in{clone(t.q), clone(t.k), clone(t.v), clone(f)};
    for (Tensor& x : in) x.requires_grad_();
    return in;
  };
  auto run = [&](ThresholdMode mode, const std::vector<Tensor>& in, Rng* rng) {
    ThresholdOptions o{.mode = mode, .tau = 0.2, .temperature = 0.5, .include_self = true};
    if (rng) o.attention.dropout = 0.3;
    return threshold_attention(in[0], in[1], in[2], in[3], o, rng);
  };
  const Tensor cotangent = random_tensor({1, 2, 3, 2}, f64, rand);
  for (bool dropout : {false, true}) {
    std::vector<Tensor> values, first[3], second[3];
    uint64_t used[3];
    for (ThresholdMode mode : {ThresholdMode::hard, ThresholdMode::soft, ThresholdMode::straight_through}) {
      const auto i = static_cast<std::size_t>(mode);
      Rng rng(3);
      const std::vector<Tensor> in = leaves();
      const Tensor y = run(mode, in, dropout ? &rng : nullptr);
      used[i] = rng.offset();
      values.push_back(y.detach());
      first[i] = grad({y}, in, {.create_graph = true, .allow_unused = true, .grad_outputs = {cotangent}});
      Tensor norm = zeros({}, {f64});
      for (const Tensor& g : first[i])
        if (g.defined()) norm = norm + sum(square(g));
      second[i] = grad({norm}, in, {.allow_unused = true});
    }
    CHECK(same_bits(values[2], values[0]));
    CHECK(max_abs_diff(values[1], values[0]) > 1e-3);
    CHECK(used[2] == used[0]);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(max_abs_diff(first[2][i], first[1][i]) < 1e-14);
      CHECK(max_abs_diff(second[2][i], second[1][i]) < 1e-13);
    }
    CHECK((!first[0][3].defined() || max_abs(first[0][3]) == 0));
    CHECK(max_abs(first[1][3]) > 1e-3);
  }
}

TEST_CASE("sparse: errors of thresholds", "[sparse]") {
  Rand rand(11);
  const Qkv x = random_qkv(rand, 1, 2, 2, 3, 4);
  const Tensor f = zeros({3, 4}, {f64});
  CHECK_THROWS_WITH(threshold_attention(x.q, x.k, x.v, zeros({3, 5}, {f64})),
                    Contains("[3,5]") && Contains("[1,2,3,4]"));
  CHECK_THROWS_WITH(threshold_attention(x.q, x.k, x.v, zeros({1, 1, 1, 3, 4}, {f64})),
                    "threshold_attention: f=[1,1,1,3,4] does not broadcast to the scores [1,2,3,4]");
  CHECK_THROWS_AS(threshold_attention(x.q, x.k, x.v, to(f, f32)), DTypeError);
  CHECK_THROWS_WITH(threshold_attention(x.q, x.k, x.v, f, {.temperature = 0}), Contains("temperature=0"));
  ThresholdOptions relu2;
  relu2.attention.weighting = Weighting::relu2;
  CHECK_THROWS_WITH(threshold_attention(x.q, x.k, x.v, f, relu2), Contains("softmax"));
}
