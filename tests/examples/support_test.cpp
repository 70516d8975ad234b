// What the examples share.
#include "support/byte_lm.h"
#include "support/catch.h"
#include "support/corpus.h"
#include "support/insight.h"

using namespace sluice;
using namespace sluice::examples;

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

TEST_CASE("examples: a model without feed-forward parts is looked into, too") {
  Rng rng(1);
  std::vector<Mixer> mixers;
  mixers.emplace_back(MultiHeadAttention({.heads = {.dim = 8, .heads = 2, .causal = true}}, rng));
  const MixerLm model(8, std::move(mixers), 0, 0.02, rng);
  const Insight in = look_inside(model, zeros({1, 4}, {i64}));
  CHECK(in.first_by_layer.size() == 1);
  CHECK(in.largest > 0);
}
