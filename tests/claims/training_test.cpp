// What the claims that need training share: the Bigram-Backcopy task, the attention of small_lm.h, the runs of Trials.
#include "claims/bigram_backcopy.h"
#include "claims/small_lm.h"
#include "claims/training.h"
#include "support/recall.h"
#include "support/catch.h"

#include <filesystem>

using namespace sluice;
using namespace sluice::examples;

namespace {

const std::string kText = [] {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "a text of some words that comes again and again; ";
  return text;
}();
double largest_difference(const Tensor& a, const Tensor& b) { return max(abs(a - b)).item(); }

}  // namespace

TEST_CASE("claims: Bigram-Backcopy repeats after a trigger the token before it") {
  const BigramBackcopy task(kText, 12, 3);
  CHECK(task.vocabulary() == 13);
  Rng rng(1);
  const Batch batch = task.batch(20, 50, rng);
  const auto in = batch.inputs.to_vector<int64_t>(), target = batch.targets.to_vector<int64_t>();
  int64_t triggers = 0;
  std::vector<bool> seen(13);
  for (std::size_t b = 0; b < 20; ++b)
    for (std::size_t t = 0; t < 50; ++t) {
      const std::size_t i = 50 * b + t;
      if (t == 0) CHECK(in[i] == 0);
      else CHECK((in[i] >= 1 && in[i] <= 12));
      if (t < 49) CHECK(target[i] == in[i + 1]);
      seen[static_cast<std::size_t>(target[i])] = true;
      if (!task.is_trigger(in[i])) continue;
      ++triggers;
      CHECK(t >= 2);
      CHECK(target[i] == in[i - 1]);
      CHECK_FALSE(task.is_trigger(target[i]));
    }
  CHECK(triggers > 100);
  CHECK(std::count(seen.begin(), seen.end(), true) >= 4);
  CHECK_THROWS_AS(BigramBackcopy("abab", 12, 3), ValueError);
}

TEST_CASE("claims: one value expert is a headwise gate at G2") {
  const HeadsOptions heads{.dim = 8, .heads = 2, .causal = true, .use_rope = true};
  Rng rng(2), other(3);
  const SwitchValues one(heads, NormKind::rms, 1, 1, rng);
  MultiHeadAttention gated({.heads = heads,
                            .norm = NormKind::rms,
                            .gates = {{.position = GatePosition::g2, .granularity = GateGranularity::headwise}}},
                           other);
  gated.heads = one.heads, gated.gates[0].map = one.router;
  const Tensor x = normal({2, 6, 8}, 0, 1, rng);
  CHECK(largest_difference(one(x), gated(x)) < 1e-6);
  CHECK(largest_difference(one.map(x), gated.map(x)) < 1e-6);
}

TEST_CASE("claims: value experts that are not among the best do not count") {
  Rng rng(4);
  SwitchValues some({.dim = 8, .heads = 1, .causal = true}, NormKind::rms, 3, 2, rng);
  const Tensor x = ones({1, 4, 8});
  // Logits of the three experts: 8, 4 and 0.
  std::vector<double> w;
  for (int i = 0; i < 8; ++i) w.insert(w.end(), {1, 0.5, 0});
  some.router.weight = to(Tensor::from(w, {8, 3}), f32);
  const Tensor before = some(x);
  some.more[1].weight = zeros({8, 8});
  CHECK(largest_difference(some(x), before) == 0);
  some.more[0].weight = zeros({8, 8});
  CHECK(largest_difference(some(x), before) > 1e-3);
}

TEST_CASE("claims: relu² attention weighs as its formula says") {
  Rng rng(5);
  const HeadsOptions heads{.dim = 4, .heads = 1, .causal = true, .project_out = false};
  const Relu2Attention layer(heads, NormKind::rms, rng);
  const Tensor x = normal({1, 5, 4}, 0, 1, rng), y = layer(x);
  const auto [q, k, v] = layer.heads.project(layer.options, layer.norm(x));
  for (int64_t i = 0; i < 5; ++i) {
    const Tensor scores = relu(matmul(narrow(q, 2, i, 1), transpose(narrow(k, 2, 0, i + 1), 2, 3)) / 2.0);
    const Tensor row = matmul(square(scores) / double(i + 1), narrow(v, 2, 0, i + 1));
    CHECK(largest_difference(reshape(row, {4}), reshape(narrow(y, 1, i, 1), {4})) < 1e-5);
  }
  CHECK(largest_difference(sum(layer.map(x), {-1}), ones({1, 1, 5})) < 1e-5);
}

TEST_CASE("claims: what look_inside finds") {
  Rng rng(6);
  const HeadsOptions heads{.dim = 8, .heads = 2, .causal = true};
  const auto attention = [&](int64_t) {
    return MultiHeadAttention({.heads = heads, .norm = NormKind::rms, .gates = {AttentionGateOptions{}}}, rng);
  };
  SmallLm model({.vocabulary = 5, .dim = 8, .layers = 2, .hidden = 8}, attention, rng);
  const Tensor tokens = Tensor::from<int64_t>({0, 1, 2, 3, 4, 1}, {1, 6});
  const Findings f = look_inside(model, tokens);
  CHECK(f.gate == Approx(0.5).margin(0.05));
  CHECK(f.output == Approx(f.before / 2).epsilon(0.1));
  CHECK(f.first_token == Approx((1 / 2.0 + 1 / 3.0 + 1 / 4.0 + 1 / 5.0 + 1 / 6.0) / 5).margin(0.1));
  CHECK(f.spike < 3);
  {
    NoGrad guard;
    Tensor start = narrow(model.embed.weight, 0, 0, 1);
    fill_(start, 100);
  }
  CHECK(look_inside(model, tokens).spike > 20);
  CHECK(look_inside(model, tokens).largest > 90);

  SmallLm clipped({.vocabulary = 5, .dim = 8, .layers = 1, .hidden = 8, .clip = 1e-3}, attention, rng);
  clipped.read(tokens, [&](std::size_t, const Tensor& in, const Tensor& out) {
    CHECK(largest_difference(in, out) <= 2.001e-3);
    CHECK(largest_difference(in, out) > 1e-3);
  });
}

TEST_CASE("claims: recall asks for what was told") {
  Rng rng(7);
  const int64_t pairs = 5, filler = 6, n = 4 * pairs + filler;
  const RecallTask task = recall_task(pairs, 3, rng, filler);
  REQUIRE(task.tokens.shape() == Shape{3, n});
  REQUIRE(task.values.shape() == Shape{3, pairs});
  const auto tokens = task.tokens.to_vector<int64_t>(), values = task.values.to_vector<int64_t>();
  for (int64_t b = 0; b < 3; ++b) {
    const auto at = [&](int64_t i) { return tokens[static_cast<std::size_t>(b * n + i)]; };
    std::map<int64_t, int64_t> told;
    for (int64_t i = 0; i < 2 * pairs; i += 2) told[at(i)] = at(i + 1);
    REQUIRE(static_cast<int64_t>(told.size()) == pairs);
    for (int64_t i = 2 * pairs; i < 2 * pairs + filler; ++i) CHECK(at(i) == kRecallFiller);
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t key = at(2 * pairs + filler + 2 * i), value = at(2 * pairs + filler + 2 * i + 1);
      CHECK(key < kRecallKeys);
      CHECK(told.at(key) == value);
      CHECK(values[static_cast<std::size_t>(b * pairs + i)] == value - kRecallKeys);
    }
  }
  const auto layer = [&] { return DeltaNet({.dim = kRecallDim, .heads = 4, .short_conv = 0}, rng); };
  const RecallModel model({layer(), layer()}, rng, true);
  const Tensor logits = model(task.tokens), asked = answers(model, task);
  for (int64_t i = 0; i < pairs; ++i)
    CHECK(largest_difference(select(asked, 1, i), select(logits, 1, n - 2 * pairs + 2 * i)) == 0);
  CHECK(state_after(model, 30) == 2 * kRecallDim * kRecallDim / 4);
}

TEST_CASE("claims: trials keep their runs, pair their seeds and stop in time") {
  const std::string folder = "trials";
  std::filesystem::remove_all(folder);
  std::atomic<int> runs = 0;
  const auto run = [&](const std::string& arm, int64_t seed) -> Figures {
    ++runs;
    return {{"x", double(seed) + (arm == "b" ? 1 : 0)}};
  };
  {
    Trials t(folder, "test", "small");
    t.run({"a", "b"}, 10, 4, 100, run);
    CHECK((runs == 8 && t.seeds() == 4));
    CHECK(t.mean("a", "x").value == 11.5);
    CHECK(t.difference("b", "a", "x").value == 1);
    CHECK(t.difference("b", "a", "x").spread == 0);
  }
  {
    Trials t(folder, "test", "small");
    t.run({"a", "b", "c"}, 10, 4, 100, run);
    CHECK(runs == 12);
  }
  {
    Trials t(folder, "test", "large");  // other settings: the runs do not count
    t.run({"a"}, 10, 4, 0, run);        // no time: two seeds, so that there is a spread
    CHECK((runs == 14 && t.seeds() == 2));
    const auto fails = [](const std::string&, int64_t) -> Figures { throw std::runtime_error("broken arm"); };
    CHECK_THROWS_WITH(t.run({"d"}, 10, 2, 100, fails), Contains("broken arm"));
  }
}
