// Lightning attention: decays, counts, errors. linear_layers_reference.cpp says what it computes.
#include "layers/linear_attention_reference.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/layers/linear_attention/lightning_attention.h>
#include <sluice/layers/models/decoder.h>
#include <sluice/ops/basic.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("lightning_gammas: ALiBi's slopes, smaller in later layers", "[lightning]") {
  const std::vector<double> first = lightning_gammas(8, 0, 3), last = lightning_gammas(8, 2, 3);
  REQUIRE(first.size() == 8);
  for (std::size_t h = 0; h < 8; ++h) {
    const double slope = std::ldexp(1.0, -static_cast<int>(h) - 1);  // 2^{-8·(h + 1)/8}
    CHECK(std::abs(-std::log(first[h]) - slope * (1 + 1e-5)) < 1e-14);
    CHECK(std::abs(-std::log(last[h]) - slope * (1 - 2 / (2 + 1e-5) + 1e-5)) < 1e-14);
  }
  CHECK(lightning_gammas(8) == first);
  CHECK(lightning_gammas(0).empty());
  for (const auto& [heads, layer, layers] : {std::tuple(-1, 0, 1), {8, -1, 1}, {8, 1, 1}, {8, 0, 0}})
    CHECK_THROWS_WITH(lightning_gammas(heads, layer, layers), Contains("lightning_gammas") && Contains(str(heads)));
}

TEST_CASE("LightningAttention: defaults, counts, errors", "[lightning]") {
  Rng rng(1);
  const LightningAttention a({.dim = 64}, rng);
  CHECK(a.options.head_dim == 8);
  CHECK(count(a) == 5 * 64 * 64 + 64);
  CHECK(a.norm.weight.shape() == Shape{64});
  CHECK(LightningAttention({.dim = 8, .heads = 2, .dtype = bf16}, rng).log_gamma.dtype() == f32);
  CHECK_THROWS_WITH(LightningAttention({.dim = 8, .heads = 3}, rng), Contains("lightning_attention"));
  CHECK_THROWS_WITH(LightningAttention({.dim = 8, .heads = 2, .gamma = {0.5}}, rng), Contains("heads=2"));
  CHECK_THROWS_WITH(a(ones({2, 3, 8})), Contains("lightning_attention") && Contains("[2,3,8]"));
  CHECK(a(ones({2, 0, 64})).shape() == Shape{2, 0, 64});
}

TEST_CASE("Decoder: a branch may be added to its norm's output instead of its input", "[decoder]") {
  Rng rng(2);
  DecoderBlockOptions block{.mixer = LightningAttentionOptions{.dim = 8, .heads = 2, .dtype = f64},
                            .feed = MlpOptions{.dim = 8, .hidden = 12, .dtype = f64}};
  block.mixer_norms.carried = 1.5, block.feed_norms.carried = 0.5, block.mixer_factor = 0.7, block.feed_factor = 3;
  const DecoderBlock b(block, {.vocabulary = 5, .dim = 8, .blocks = {}, .residual_scale = 2, .dtype = f64}, rng);
  const Tensor x = normal({2, 5, 8}, 0, 3, rng, {f64});
  const Tensor u = b.mixer_norm(x), h = u * 1.5 + std::get<LightningAttention>(b.mixer)(u) * 1.4;
  const Tensor w = b.feed_norm(h);
  CHECK(max_abs_diff(b(x), w * 0.5 + std::get<Mlp>(b.feed)(w) * 6.0) < 1e-14);
}

TEST_CASE("Decoder: the feed may stand beside the mixer, with its own norm or the mixer's", "[decoder]") {
  Rng rng(2);
  DecoderBlockOptions block{.mixer = LightningAttentionOptions{.dim = 8, .heads = 2, .dtype = f64},
                            .feed = MlpOptions{.dim = 8, .hidden = 12, .dtype = f64},
                            .feed_factor = 3,
                            .parallel = true};
  for (const bool own : {true, false}) {
    block.feed_norms.before = own;
    DecoderBlock b(block, {.vocabulary = 5, .dim = 8, .blocks = {}, .residual_scale = 2, .dtype = f64}, rng);
    if (own) b.feed_norm.weight = normal({8}, 1, 1, rng, {f64});
    const Tensor x = normal({2, 5, 8}, 0, 3, rng, {f64}), u = b.mixer_norm(x), w = own ? b.feed_norm(x) : u;
    const Tensor y = x + std::get<LightningAttention>(b.mixer)(u) * 2.0 + std::get<Mlp>(b.feed)(w) * 6.0;
    CHECK(max_abs_diff(b(x), y) < 1e-13);
  }
}
