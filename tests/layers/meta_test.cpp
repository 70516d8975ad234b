// Whole layers on the meta device: shapes, gradients and work of sequences that no memory could hold.
#include "support/catch.h"

#include <sluice/layers/nn/meta_init.h>
#include <sluice/sluice.h>

using namespace sluice;

namespace {

/// Forward and backward of a layer at batch 1 and n tokens; checks every shape and that nothing was stored.
template <class Layer> Work check_layer(Layer layer, int64_t n, int64_t dim) {
  to(layer, meta);
  reset_peak_memory();
  const int64_t before = memory_stats().peak;
  Tensor x = zeros({1, n, dim}, {f32, meta}).requires_grad_();
  detail::WorkCounter counter;
  const Tensor y = layer(x);
  const Work forward = counter.work();
  CHECK(y.shape() == x.shape());
  CHECK(y.device() == meta);
  backward(sum(y));
  REQUIRE(x.grad().defined());
  CHECK(x.grad().shape() == x.shape());
  for (const NamedTensor& p : parameters(layer)) {
    INFO(p.name);
    REQUIRE(p.tensor.grad().defined());
    CHECK(p.tensor.grad().device() == meta);
  }
  CHECK(counter.work().flops > 2 * forward.flops);  // a backward pass costs more than its forward pass
  CHECK(memory_stats().peak - before < 1 << 20);
  return forward;
}

struct Pair {
  std::vector<Linear> parts;
  SLUICE_PARTS(parts);
};

}  // namespace

TEST_CASE("meta: layers on a million tokens", "[layers][meta]") {
  constexpr int64_t n = int64_t{1} << 20;
  Rng rng(1);
  const int64_t d = 64;
  SECTION("Gau") {
    const Work w = check_layer(Gau({.dim = d, .key_dim = 16, .causal = true}, rng), n, d);
    CHECK(w.attention_elements == n * n);
    CHECK(w.flops == 2 * n * (3 * d * 2 * d + d * 16) + 2 * n * n * (16 + 2 * d));
  }
  SECTION("Flash") { check_layer(Flash({.dim = d, .key_dim = 16, .chunk = 256, .causal = true}, rng), n, d); }
  SECTION("MultiHeadAttention") {
    const Work w = check_layer(
        MultiHeadAttention({.heads = {.dim = d, .heads = 4, .kv_heads = 2, .causal = true}, .window = 512}, rng), n, d);
    CHECK(w.attention_elements == 4 * n * 512);
  }
  SECTION("LinearAttention") { check_layer(LinearAttention({.dim = d, .heads = 4}, rng), n, d); }
  SECTION("Gla") { check_layer(Gla({.dim = d, .heads = 4}, rng), n, d); }
}

TEST_CASE("to(module, device) keeps shared tensors shared and drops values on meta", "[layers][meta]") {
  Rng rng(1);
  Linear layer({3, 4}, rng);
  Linear copy = layer;
  std::vector<Linear> both{layer, copy};
  Pair pair{both};
  to(pair, meta);
  CHECK(pair.parts[0].weight.ref() == pair.parts[1].weight.ref());
  CHECK(pair.parts[0].weight.device() == meta);
  CHECK(pair.parts[0].weight.requires_grad());
  CHECK(layer.weight.device() == cpu);
  CHECK(count(pair) == 16);
  CHECK_THROWS_AS(to(pair, cpu), DeviceError);
}

TEST_CASE("meta: a layer whose file lies about its sizes is made without memory", "[meta]") {
  reset_peak_memory();
  const int64_t before = memory_stats().peak;
  {
    MetaInit shapes_only;
    Rng rng(1);
    const Rwkv7 wide({.dim = 1 << 21, .head_dim = 64}, rng);
    CHECK(wide.mix.device() == meta);
    const Moe many({.dim = 64, .hidden = 64, .experts = 1 << 24, .top_k = 1, .router_bias = true, .expert_bias = true},
                   rng);
    CHECK(many.up.weight.shape() == Shape{1 << 24, 64, 64});
    LinearAttentionOptions o{.dim = 64, .heads = 1};
    o.feature_map.kind = FeatureMapKind::favor, o.feature_map.features = 1 << 30;
    CHECK(LinearAttention(o, rng).feature_map.omega.device() == meta);
    o.feature_map = {}, o.feature_map.kind = FeatureMapKind::hedgehog, o.dim = 1 << 20;
    CHECK(LinearAttention(o, rng).feature_map.weight.device() == meta);
    CHECK(Gau({.dim = 2, .key_dim = 1 << 20}, rng).beta.device() == meta);
    CHECK(Gau({.dim = 2, .key_dim = 1 << 20, .gamma_std = 0}, rng).gamma.device() == meta);
    CHECK(Flash({.dim = 2, .key_dim = 1 << 20, .gamma_std = 0}, rng).beta.device() == meta);
    CHECK(McTfm({.dim = 1 << 20}, rng).gamma.device() == meta);
    CHECK(HyperConnection({.dim = 2, .streams = 1 << 11}, rng).base.device() == meta);
    CHECK(MultiHeadAttention({.heads = {.dim = 1 << 20, .heads = 1 << 20, .causal = true},
                              .forget = {.gate = ForgetGate::learned, .decay_first = 1, .decay_last = 9}},
                             rng)
              .forget.bias.device() == meta);
  }
  CHECK(init_vector(2, 1).device() == cpu);  // from here on there is memory again
  CHECK(memory_stats().peak - before < 1 << 20);
}
