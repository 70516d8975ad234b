// Streaming: the tokens of a sequence in pieces give the rows of the full causal pass.
#include "layers/multi_head_attention_samples.h"
#include "layers/streamed.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/core/node.h>
#include <sluice/ops/shape/create.h>

using namespace sluice;
using namespace sluice::testing;

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

TEST_CASE("multi_head_attention: cross attention streams, its first step brings the context",
          "[attention][streaming]") {
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
    const Tensor full = a(x, {.context = context, .context_mask = mask});
    Stream read;  // a step without tokens reads the context, too
    CHECK(step(a, narrow(x, 1, 0, 0), read, {.context = context, .context_mask = mask}).shape() == Shape{2, 0, 6});
    CHECK(read.numel() == 2 * 2 * 7 * (4 + 4) + (padded ? 2 * 7 : 0));
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {4, 1}, {9}})
      CHECK(max_abs_diff(streamed(a, x, sizes, read), full) < 1e-12);
    Stream stream;
    const Tensor first = step(a, narrow(x, 1, 0, 2), stream, {.context = context, .context_mask = mask});
    CHECK(max_abs_diff(cat({first, streamed(a, narrow(x, 1, 2, 7), {3}, stream)}, 1), full) < 1e-12);
    CHECK(stream.numel() == read.numel());
    CHECK_THROWS_WITH(step(a, narrow(x, 0, 0, 1), stream), Contains("batch 2") && Contains("[1,9,6]"));
    stream = {};
    CHECK_THROWS_WITH(step(a, x, stream), Contains("needs a context"));
    CHECK_THROWS_WITH(step(a, x, stream, {.context = random_tensor({2, 7, 4}, f64, rand)}),
                      Contains("[2,7,4]") && Contains("5"));
    CHECK_THROWS_WITH(step(a, x, stream, {.context = context, .context_mask = prefix_mask(6, 6, 6)}),
                      Contains("[2,6]") && Contains("[2,7,5]"));
    CHECK((stream.length() == 0 && stream.numel() == 0));
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
  CHECK_THROWS_AS(stream_of(both_ways, x), ValueError);
  CHECK_THROWS_WITH(stream_of(both_ways, x), Contains("causal"));
  o.heads.causal = true;
  const MultiHeadAttention a = random_attention(o, rand);
  Stream stream;
  CHECK_THROWS_WITH(step(a, x, stream, {.context = x}), Contains("nothing in the model has read context"));
  step(a, x, stream);
  CHECK_THROWS_WITH(step(a, narrow(x, 0, 0, 1), stream), Contains("batch 2") && Contains("[1,3,6]"));
  CHECK_THROWS_WITH(step(a, random_tensor({2, 3, 5}, f64, rand), stream), Contains("[2,3,5]"));
  o.window = 2;
  CHECK_THROWS_WITH(step(random_attention(o, rand), x, stream), Contains("window 0") && Contains("2"));
  o.global = {0}, o.separate_global_projections = true;
  CHECK_THROWS_WITH(stream_of(random_attention(o, rand), x), Contains("separate global projections"));
  CHECK(stream.length() == 3);
  CHECK(max_abs_diff(step(a, x, stream), narrow(a(cat({x, x}, 1)), 1, 3, 3)) < 1e-12);
}
