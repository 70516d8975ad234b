// What a call of the softmax attention layer brings besides its tokens (masks, documents, padding, a context, random
// numbers), and what its outputs must not depend on.
#include "layers/multi_head_attention_samples.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("multi_head_attention: what a call brings equals loops", "[attention]") {
  for (bool causal : {false, true})
    for (int bits = 1; bits < 32; ++bits) {
      MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 4}};
      o.heads.causal = causal, o.window = bits % 3 == 0 ? 4 : 0;
      if (bits % 4 == 1 && !(bits & 8)) o.global = {0, 3}, o.separate_global_projections = true;
      Rand rand(static_cast<uint64_t>(bits));
      const MultiHeadAttention a = random_attention(o, rand);
      const Tensor x = random_tensor({2, 7, 6}, f64, rand);
      Pass in;
      if (bits & 1) in.key_mask = prefix_mask(7, 7, 4);
      if (bits & 2) in.segments = documents({0, 0, 0, 1, 1, 1, 5}, {3, 3, 3, 3, 3, 1, 1});
      if (bits & 4) in.mask = random_bools({2, bits & 1 ? 4 : 1, 7, 7}, rand);
      if (bits & 8) in.blocks = random_bools({3, 3}, rand), in.block = 3;
      if (bits & 16) in.bias = random_tensor({2, 1, 7, 7}, f64, rand);
      const BatchResult want = mha_reference(a, x, in);
      INFO("inputs " << bits << " causal " << causal);
      CHECK(max_abs_diff(real_rows(a(x, in), in.key_mask), real_rows(want.out, in.key_mask)) < 1e-12);
      CHECK(max_abs_diff(a.map(x, in), want.map) < 1e-13);
    }
}

TEST_CASE("multi_head_attention: cross attention equals loops", "[attention]") {
  for (int bits = 0; bits < 64; ++bits) {
    MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 4, .value_dim = 3,
                                          .context_dim = 5}};
    o.norm = bits & 1 ? NormKind::rms : NormKind::none;
    o.qk_norm = bits & 1, o.heads.residual = bits & 2;
    if (bits & 4) o.sink = AttentionSink::learned;
    if (bits & 8)
      for (GatePosition p : {GatePosition::g2, GatePosition::g3, GatePosition::g4, GatePosition::g1})
        o.gates.push_back({.position = p});
    Rand rand(static_cast<uint64_t>(bits));
    const MultiHeadAttention a = random_attention(o, rand);
    const Tensor x = random_tensor({2, 4, 6}, f64, rand);
    Pass in{.context = random_tensor({2, 7, 5}, f64, rand)};
    if (bits & 16) in.context_mask = prefix_mask(7, 3, 0);  // the second context is empty
    if (bits & 32) {
      in.segments = documents({0, 0, 1, 2}, {2, 0, 0, 1});
      in.context_segments = documents({0, 0, 1, 1, 0, 1, 3}, {0, 0, 0, 1, 1, 1, 2});
    }
    const BatchResult want = mha_reference(a, x, in);
    CHECK(max_abs_diff(a(x, in), want.out) < 1e-12);
    CHECK(max_abs_diff(a.map(x, in), want.map) < 1e-13);
  }
}

TEST_CASE("multi_head_attention: separate global projections begin as the shared ones", "[attention]") {
  for (const AttentionLayerSample& s : global_samples(true)) {
    Rng rng(1), again(1);
    MultiHeadAttentionOptions o = s.options;
    o.heads.dtype = f64;
    MultiHeadAttention separate(o, rng);
    o.separate_global_projections = false;
    const MultiHeadAttention shared(o, again);
    Rand rand(14);
    const Tensor x = random_tensor({2, 9, 6}, f64, rand), y = separate(x);
    INFO(s.name);
    CHECK(max_abs_diff(y, shared(x)) < 1e-13);
    separate.global_k.weight = separate.global_k.weight * 2.0;  // only rows 1 and 5 change
    const Tensor changed = separate(x);
    for (int64_t i = 0; i < 9; ++i) {
      const bool same = same_bits(select(changed, 1, i), select(y, 1, i));
      CHECK(same == (i != 1 && i != 5));
    }
    CHECK_FALSE(separate.global_q.weight.shares_storage(separate.heads.q.weight));
  }
}

TEST_CASE("multi_head_attention: positions of the pass are global, as those of the options", "[attention]") {
  for (bool separate : {false, true})
    for (bool causal : {false, true}) {
      MultiHeadAttentionOptions o{.heads = {.dim = 8, .heads = 2, .causal = causal, .use_rope = true}, .window = 2};
      o.global = {7, 1, 4}, o.separate_global_projections = separate, o.position_bias = PositionBias::t5;
      Rand rand(16);
      const MultiHeadAttention all = random_attention(o, rand);
      MultiHeadAttention some = all, none = all;
      some.options.global = {4}, none.options.global.clear();
      const Tensor x = random_tensor({2, 9, 8}, f64, rand), y = all(x);
      CHECK(same_bits(some(x, {.positions = {7, 4, 1, 7}}), y));
      CHECK(same_bits(none(x, {.positions = {1, 4, 7}}), y));
      CHECK(same_bits(none.map(x, {.positions = {4, 7, 1}}), all.map(x)));
      CHECK(max_abs_diff(none(x), y) > 1e-3);
    }
}

TEST_CASE("multi_head_attention: documents are as alone, with positions counted on", "[attention]") {
  Rand rand(17);
  MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 2, .causal = true}, .position_bias = PositionBias::alibi};
  const MultiHeadAttention a = random_attention(o, rand);  // ALiBi sees distances only
  const Tensor x = random_tensor({1, 9, 6}, f64, rand);
  const Tensor at = Tensor::from(std::vector<int64_t>{4, 4, 4, 4, 2, 2, 2, 2, 2}, {1, 9});
  const Tensor y = a(x, {.segments = at});
  CHECK(max_abs_diff(narrow(y, 1, 0, 4), a(narrow(x, 1, 0, 4))) < 1e-13);
  CHECK(max_abs_diff(narrow(y, 1, 4, 5), a(narrow(x, 1, 4, 5))) < 1e-13);
}
