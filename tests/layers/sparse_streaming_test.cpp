// Streaming of the causal sparse layers (SPEC §8): tokens in pieces give the rows of the full pass.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/layers/heads/sparse_layers.h>
#include <sluice/ops/create.h>
#include <sluice/ops/view.h>

#include <algorithm>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;

namespace {

template <class Layer>
Tensor streamed(const Layer& layer, const Tensor& x, const std::vector<int64_t>& sizes) {
  typename Layer::State state;
  std::vector<Tensor> outputs;
  for (int64_t at = 0, i = 0; at < x.dim(1); ++i) {
    const int64_t size = std::min(sizes[static_cast<std::size_t>(i) % sizes.size()], x.dim(1) - at);
    auto [y, next] = layer.step(narrow(x, 1, at, size), std::move(state));
    outputs.push_back(y), state = std::move(next);
    at += size;
  }
  return cat(outputs, 1);
}

const std::vector<int64_t> kPieces[] = {{1}, {3}, {9, 1, 1, 4}, {20}};

}  // namespace

TEST_CASE("sparse layers: streaming equals the full pass", "[sparse][streaming]") {
  Rand rand(1);
  Rng rng(2);
  const Tensor x = random_tensor({2, 20, 6}, f64, rand);
  for (TopKTies ties : {TopKTies::index, TopKTies::threshold})
    for (int64_t window : {0, 5})
      for (bool rotate : {false, true}) {
        TopKAttentionOptions o{.heads = {.dim = 6, .heads = 2, .head_dim = 4, .causal = true, .dtype = f64}, .k = 3,
                               .ties = ties, .window = window};
        o.heads.use_rope = rotate;
        const TopKAttention layer(o, rng);
        for (const auto& sizes : kPieces) CHECK(max_abs_diff(streamed(layer, x, sizes), layer(x)) < 1e-12);
      }
  for (PairScoreKind score : {PairScoreKind::bilinear, PairScoreKind::mlp})
    for (ThresholdMode mode : {ThresholdMode::hard, ThresholdMode::soft, ThresholdMode::straight_through})
      for (bool rotate : {false, true}) {
        ThresholdAttentionOptions o{.heads = {.dim = 6, .heads = 3, .causal = true, .dtype = f64}, .mode = mode,
                                    .score = score, .score_width = 5};
        o.heads.use_rope = rotate, o.heads.attention_dropout = 0.5;
        const ThresholdAttention layer(o, rng);
        for (const auto& sizes : kPieces) CHECK(max_abs_diff(streamed(layer, x, sizes), layer(x)) < 1e-12);
      }
}

TEST_CASE("sparse layers: states — size, history, copies", "[sparse][streaming]") {
  Rand rand(3);
  Rng rng(4);
  const Tensor x = random_tensor({2, 9, 6}, f64, rand), other = random_tensor({2, 9, 6}, f64, rand);
  const TopKAttention topk({.heads = {.dim = 6, .heads = 2, .causal = true, .dtype = f64}}, rng);
  const ThresholdAttention threshold({.heads = {.dim = 6, .heads = 2, .causal = true, .dtype = f64}, .score_width = 5},
                                     rng);
  CHECK(topk.step(x, {}).second.numel() == 2 * 9 * 2 * 6);  // SPEC §15: 2d a token
  const auto state = threshold.step(x, {}).second;
  CHECK(state.numel() == 2 * 9 * (2 * 6 + 5));
  CHECK_FALSE(state.rings[2].requires_grad());
  CHECK_FALSE(topk.step(x, {}).first.requires_grad());

  auto twice = [&](const auto& layer) {
    typename std::decay_t<decltype(layer)>::State stream;
    for (int64_t i = 0; i < 5; ++i)
      stream = layer.step(narrow(x, 1, i, 1), std::move(stream)).second;  // with room to spare
    const auto copy = stream;
    auto [y, next] = layer.step(narrow(x, 1, 5, 1), stream);
    layer.step(narrow(other, 1, 5, 1), copy);
    const Tensor z = layer.step(narrow(x, 1, 6, 1), next).first;
    CHECK(max_abs_diff(cat({y, z}, 1), narrow(layer(x), 1, 5, 2)) < 1e-12);
  };
  twice(topk), twice(threshold);

  const TopKAttention whole({.heads = {.dim = 6, .dtype = f64}}, rng);
  CHECK_THROWS_AS(whole.step(x, {}), ValueError);
  CHECK_THROWS_WITH(whole.step(x, {}), Contains("topk_attention") && Contains("causal"));
  CHECK_THROWS_WITH(ThresholdAttention({.heads = {.dim = 6}}, rng).step(x, {}),
                    Contains("threshold_attention") && Contains("causal"));
  CHECK_THROWS_WITH(topk.step(random_tensor({1, 1, 6}, f64, rand), topk.step(x, {}).second), Contains("[1,"));
  CHECK_THROWS_WITH(topk.step(zeros({1, 1, 5}, {f64}), {}), Contains("[1,1,5]"));
}
