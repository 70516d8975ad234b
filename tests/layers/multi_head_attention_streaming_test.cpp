// Streaming: the tokens of a sequence in pieces give the rows of the full causal pass.
#include "layers/multi_head_attention_samples.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/core/node.h>
#include <sluice/ops/create.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

using State = MultiHeadAttention::State;

/// The outputs of x fed in pieces of the given sizes, repeated until it ends.
Tensor streamed(const MultiHeadAttention& a, const Tensor& x, const std::vector<int64_t>& sizes, State state = {}) {
  std::vector<Tensor> outputs;
  for (int64_t i = 0, at = 0; at < x.dim(1); ++i) {
    const int64_t size = std::min(sizes[static_cast<std::size_t>(i) % sizes.size()], x.dim(1) - at);
    auto [y, next] = a.step(narrow(x, 1, at, size), std::move(state));
    outputs.push_back(y), state = std::move(next);
    at += size;
  }
  return cat(outputs, 1);
}

}  // namespace

TEST_CASE("multi_head_attention: streaming equals the full pass for every option and chunk", "[attention][streaming]") {
  for (const AttentionLayerSample& s : attention_samples(true)) {
    Rand rand(1);
    const MultiHeadAttention a = random_attention(s.options, rand);
    const Tensor x = random_tensor({2, 23, 6}, f64, rand), full = a(x);
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{1}, {2}, {7}, {5, 1, 1, 9}, {11, 1}, {1, 1, 1, 1, 1, 1, 8, 1}, {23}}) {
      INFO(s.name << ", pieces of " << sizes[0] << " …");
      CHECK(max_abs_diff(streamed(a, x, sizes), full) < 1e-12);
    }
  }
}

TEST_CASE("multi_head_attention: a ring buffer is a causal sliding window", "[attention][streaming]") {
  for (int64_t window : {1, 2, 3, 5, 8, 30})
    for (PositionBias bias : {PositionBias::none, PositionBias::alibi})
      for (int64_t dilation : {1, 2}) {
        MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 4}};
        o.heads.causal = o.heads.use_rope = true, o.window = window, o.dilation = dilation, o.position_bias = bias;
        Rand rand(2);
        const MultiHeadAttention a = random_attention(o, rand);
        const Tensor x = random_tensor({2, 29, 6}, f64, rand), full = a(x);
        for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {4, 1, 1}, {9, 1}, {17, 3}})
          check_identity("sliding decode with a ring buffer = causal sliding", streamed(a, x, sizes), full, 1e-12);
      }
}

TEST_CASE("multi_head_attention: cross attention streams from a cached context", "[attention][streaming]") {
  for (bool padded : {false, true}) {
    MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 4, .context_dim = 5}};
    o.norm = NormKind::rms, o.qk_norm = o.heads.residual = true;
    for (GatePosition p : {GatePosition::g1, GatePosition::g2, GatePosition::g3, GatePosition::g4})
      o.gates.push_back({.position = p});
    Rand rand(4);
    const MultiHeadAttention a = random_attention(o, rand);
    const Tensor x = random_tensor({2, 9, 6}, f64, rand), mask = padded ? prefix_mask(7, 4, 7) : Tensor();
    Tensor context = random_tensor({2, 7, 5}, f64, rand);
    if (padded) context = masked_fill(context, unsqueeze(logical_not(mask), -1), NAN);
    const Tensor full = a(x, {.context = context, .key_mask = mask});
    const State state = a.start(context, mask);
    CHECK(state.cache.numel() == 2 * 2 * 7 * (4 + 4));
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {4, 1}, {9}})
      CHECK(max_abs_diff(streamed(a, x, sizes, state), full) < 1e-12);
    CHECK(state.cache.length == 7);
    CHECK_THROWS_WITH(a.step(x, {}), Contains("start(context)"));
    CHECK_THROWS_WITH(a.step(narrow(x, 0, 0, 1), state), Contains("batch 2") && Contains("[1,9,6]"));
    CHECK_THROWS_WITH(a.start(random_tensor({2, 7, 4}, f64, rand)), Contains("[2,7,4]") && Contains("5"));
    CHECK_THROWS_WITH(a.start(context, prefix_mask(6, 6, 6)), Contains("[2,6]") && Contains("[2,7,5]"));
  }
}

TEST_CASE("multi_head_attention: a window streams past the length of its Toeplitz table", "[attention][streaming]") {
  MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 2, .head_dim = 4, .causal = true}, .window = 3};
  o.position_bias = PositionBias::toeplitz, o.max_length = 4;
  Rand rand(5);
  MultiHeadAttention a = random_attention(o, rand);
  const Tensor x = random_tensor({1, 20, 6}, f64, rand), rows = streamed(a, x, {1});
  MultiHeadAttention wide = a;
  wide.options.max_length = 20;
  wide.toeplitz_bias = pad(a.toeplitz_bias, 1, 16, 16);
  CHECK(max_abs_diff(rows, wide(x)) < 1e-12);
}

TEST_CASE("multi_head_attention: what cannot be streamed", "[attention][streaming]") {
  Rand rand(8);
  MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 2, .head_dim = 4}};
  const Tensor x = random_tensor({2, 3, 6}, f64, rand);
  const MultiHeadAttention both_ways = random_attention(o, rand);
  CHECK_THROWS_AS(both_ways.step(x, {}), ValueError);
  CHECK_THROWS_WITH(both_ways.step(x, {}), Contains("causal"));
  CHECK_THROWS_WITH(both_ways.start(x), Contains("context_dim"));
  o.heads.causal = true;
  const MultiHeadAttention a = random_attention(o, rand);
  const State two = a.step(x, {}).second;
  CHECK_THROWS_WITH(a.step(narrow(x, 0, 0, 1), two), Contains("batch 2") && Contains("[1,3,6]"));
  CHECK_THROWS_WITH(a.step(random_tensor({2, 3, 5}, f64, rand), two), Contains("[2,3,5]"));
  o.window = 2;
  CHECK_THROWS_WITH(random_attention(o, rand).step(x, two), Contains("window 0") && Contains("2"));
  o.global = {0}, o.separate_global_projections = true;
  CHECK_THROWS_WITH(random_attention(o, rand).step(x, {}), Contains("separate_global_projections"));
}
