// What the examples share.
#include "support/byte_lm.h"
#include "support/catch.h"
#include "support/classify.h"
#include "support/corpus.h"
#include "support/insight.h"

using namespace sluice;
using namespace sluice::examples;

namespace {

struct OneMap {
  Linear map;
  Tensor operator()(const Tensor& x, const Pass& = {}) const { return map(x); }
  SLUICE_PARTS(map);
};

}  // namespace

TEST_CASE("examples: what a model is validated on holds a window of any length") {
  const std::string text(500'000, 'a');
  constexpr int64_t n = 45'000;
  const std::string_view valid = split_text(text, n + 1).valid;
  CHECK(valid.size() == 50'000);
  CHECK(baseline_part(valid, 257).size() == 40'000);  // as ever
  CHECK(baseline_part("abc", 2) == "abc");
  const auto uniform = [](const Tensor& bytes) { return zeros({bytes.dim(0), bytes.dim(1), 256}); };
  CHECK(bits_per_byte(uniform, baseline_part(valid, n + 1), n) == Approx(8));
}

TEST_CASE("examples: a classifier needs a batch to train on and a row to validate") {
  const auto rows = [](int64_t n) { return Labelled{ones({n, 2}), zeros({n}, {i64})}; };
  const auto train = [&](int64_t n, int64_t valid) {
    Rng rng(1);
    return fit(OneMap{Linear({.in = 2, .out = 3}, rng)}, rows(n), rows(valid), {.batch = 4});
  };
  CHECK_THROWS_WITH(train(3, 2),
                    "fit: need rows of one batch to train on and one to validate — got 3 and 2 rows, batch 4");
  CHECK_THROWS_AS(train(8, 0), ValueError);
}

TEST_CASE("examples: a model without feed-forward parts is looked into, too") {
  Rng rng(1);
  std::vector<Mixer> mixers;
  mixers.emplace_back(MultiHeadAttention({.heads = {.dim = 8, .heads = 2, .causal = true}}, rng));
  const MixerLm model(8, std::move(mixers), 0, 0.02, rng);
  const Insight in = look_inside(model, zeros({1, 4}, {i64}));
  CHECK(in.first_by_layer.size() == 1);
  CHECK(in.largest > 0);
}
