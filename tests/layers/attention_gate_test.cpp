// The gate of Qwen's gated attention: its scores, initial values, errors. heads_reference.cpp says what it computes.
#include "layers/gau_reference.h"
#include "support/catch.h"

#include <sluice/layers/attention/attention_gate.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/reduce.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr GatePosition kPositions[] = {GatePosition::g1, GatePosition::g2, GatePosition::g3, GatePosition::g4,
                                       GatePosition::g5};
constexpr int64_t kHeads = 2, kHeadDim = 3, kDim = 4;

struct Case {
  AttentionGateOptions o;
  std::string name;
};

/// Every combination that the constructor accepts.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (GatePosition position : kPositions)
    for (Act act : {Act::sigmoid, Act::silu, Act::ns_sigmoid, Act::identity, Act::tanh, Act::softplus})
      for (int bits = 0; bits < 8; ++bits)
        for (GateSharing sharing : {GateSharing::none, GateSharing::scores, GateSharing::logits})
          for (bool bias : {false, true}) {
            AttentionGateOptions o{.position = position, .activation = act, .sharing = sharing};
            o.granularity = bits & 1 ? GateGranularity::headwise : GateGranularity::elementwise;
            o.mode = bits & 2 ? GateMode::add : GateMode::multiply;
            o.input_independent = bits & 4, o.bias = bias;
            if (position == GatePosition::g5 && sharing != GateSharing::none) continue;
            if (bias && o.input_independent) continue;
            all.push_back({o, str("g", static_cast<int>(position) + 1, ' ', name_of(act), " bits ", bits, " sharing ",
                                  static_cast<int>(sharing), " bias ", bias)});
          }
  return all;
}

AttentionGate make(const AttentionGateOptions& o, Rand& rand) {
  Rng rng(1);
  const bool dense = o.position == GatePosition::g5;
  const int64_t parts = dense && o.granularity == GateGranularity::elementwise ? 1 : kHeads;
  return randomised(AttentionGate(o, kDim, parts, dense ? kDim / parts : kHeadDim, rng, f64), rand, 1.5);
}
Shape gated_shape(const AttentionGateOptions& o, int64_t batch, int64_t n) {
  return o.position == GatePosition::g5 ? Shape{batch, n, kDim} : Shape{batch, kHeads, n, kHeadDim};
}

}  // namespace

TEST_CASE("attention gate: it applies the scores that it publishes", "[gates]") {
  int count = 0;
  for (const Case& c : cases()) {
    Rand rand(static_cast<uint64_t>(++count));
    const AttentionGate g = make(c.o, rand);
    const Tensor x = random_tensor({2, 3, kDim}, f64, rand), y = random_tensor(gated_shape(c.o, 2, 3), f64, rand);
    Tensor s = g.scores(x);
    if (s.rank() == 3 && s.dim(2) < kDim) s = repeat_interleave(s, g.head_dim, 2);
    const Tensor again = c.o.mode == GateMode::add ? y + s : y * s;
    if (!(max_abs_diff(g(y, x), again) < 1e-12)) FAIL_CHECK(c.name << ": scores() disagree");
  }
  CHECK(count == 6 * (4 * 36 + 12));
}

TEST_CASE("attention gate: scores, their shapes and their start", "[gates]") {
  Rng rng(3);
  const Tensor x = ones({2, 5, 64});
  const AttentionGate elementwise({}, 64, 4, 8, rng);
  CHECK(elementwise.scores(x).shape() == Shape{2, 4, 5, 8});
  CHECK(mean(elementwise.scores(x)).item() == Approx(0.5).margin(0.1));  // N(0, 0.02²) and no bias: about ½
  CHECK(std::sqrt(mean(square(elementwise.map.weight)).item()) == Approx(0.02).epsilon(0.1));
  CHECK(count(elementwise) == 64 * 32);
  const AttentionGate headwise({.granularity = GateGranularity::headwise}, 64, 4, 8, rng);
  CHECK(headwise.scores(x).shape() == Shape{2, 4, 5, 1});
  CHECK(count(headwise) == 64 * 4);
  const AttentionGate shared({.sharing = GateSharing::scores}, 64, 4, 8, rng);
  CHECK(shared.scores(x).shape() == Shape{2, 1, 5, 8});
  CHECK(count(shared) == 64 * 32);  // W keeps its size
  const AttentionGate fixed({.input_independent = true}, 64, 4, 8, rng);
  CHECK(fixed.scores(x).shape() == Shape{1, 4, 1, 8});
  CHECK(max_abs_diff(fixed.scores(x), full({1, 4, 1, 8}, 0.5)) == 0);
  CHECK(count(fixed) == 32);
  const AttentionGate dense({.position = GatePosition::g5}, 64, 1, 64, rng);
  CHECK(dense.scores(x).shape() == Shape{2, 5, 64});
  CHECK(count(dense) == 64 * 64);
  const AttentionGate open({.bias = true, .bias_init = 3}, 64, 4, 8, rng);
  CHECK(max_abs_diff(open.map.bias, full({32}, 3)) == 0);
  CHECK(min(open.scores(x)).item() > 0.9);
  AttentionGate by_head({.head_bias = true, .bias_init = 3}, 64, 4, 8, rng);
  CHECK(max_abs_diff(by_head.head_bias, full({4}, 3)) == 0);
  CHECK(min(by_head.scores(x)).item() > 0.9);
  by_head.head_bias = Tensor::from(std::vector<float>{0, 0, 50, 0}, {4});
  CHECK(min(select(by_head.scores(x), 1, 2)).item() == 1);
  CHECK(max(select(by_head.scores(x), 1, 1)).item() < 0.9);
}

TEST_CASE("attention gate: what is refused, and by which words", "[gates]") {
  Rng rng(1);
  auto make_one = [&](AttentionGateOptions o, int64_t heads = 2) { return AttentionGate(o, 4, heads, 3, rng); };
  CHECK_THROWS_AS(make_one({}, 0), ValueError);
  CHECK_THROWS_WITH(make_one({}, 0), Contains("heads=0"));
  CHECK_THROWS_WITH(make_one({.bias_init = std::nan("")}), Contains("attention_gate: bias_init"));
  CHECK_THROWS_WITH(make_one({.position = GatePosition::g5}), Contains("g5") && Contains("heads=2"));
  CHECK_NOTHROW(make_one({.position = GatePosition::g5, .granularity = GateGranularity::headwise}));
  CHECK_THROWS_WITH(make_one({.position = GatePosition::g5, .sharing = GateSharing::logits}, 1), Contains("g5"));
  CHECK_THROWS_WITH(make_one({.after_qk_norm = true}), Contains("after_qk_norm"));
  CHECK_THROWS_WITH(make_one({.input_independent = true, .bias = true}), Contains("theta"));
  CHECK_THROWS_WITH(make_one({.input_independent = true, .head_bias = true}), Contains("theta"));
  CHECK_THROWS_WITH(make_one({.granularity = GateGranularity::headwise, .head_bias = true}), Contains("head_bias"));
  CHECK_THROWS_WITH(make_one({.position = GatePosition::g5, .head_bias = true}, 1), Contains("head_bias"));
  CHECK_NOTHROW(make_one({.position = GatePosition::g3, .after_qk_norm = true}));
  const AttentionGate g = make_one({});
  CHECK_THROWS_AS(g(ones({2, 2, 5, 3}), ones({2, 5, 5})), ShapeError);
  CHECK_THROWS_WITH(g(ones({2, 2, 5, 3}), ones({2, 5, 5})), Contains("[2,5,5]") && Contains("4"));
  CHECK_THROWS_WITH(g(ones({2, 3, 5, 3}), ones({2, 5, 4})), Contains("[2,3,5,3]") && Contains("[batch, 2, n, 3]"));
  CHECK_THROWS_WITH(g(ones({2, 2, 6, 3}), ones({2, 5, 4})), Contains("[2,2,6,3]") && Contains("[2,5,4]"));
  CHECK_THROWS_WITH(g(ones({5, 4}), ones({2, 5, 4})), Contains("[5,4]"));
}
