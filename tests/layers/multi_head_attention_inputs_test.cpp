// What a call of the softmax attention layer brings besides its tokens (masks, documents, padding, a context, random
// numbers), and what its outputs must not depend on.
#include "layers/multi_head_attention_samples.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("multi_head_attention: separate global projections begin as the shared ones", "[attention]") {
  for (int kind = 0; kind < 4; ++kind) {
    Rng rng(1), again(1);
    MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 4}};
    o.heads.causal = true, o.heads.dtype = f64;
    o.window = kind == 3 ? 0 : 2, o.global = {5, 1, 11}, o.separate_global_projections = true;
    if (kind == 1) o.heads.use_rope = o.qk_norm = true, o.heads.rope.xpos = 9, o.softcap = 0.5;
    if (kind == 2) o.position_bias = PositionBias::toeplitz, o.max_length = 20, o.gates = {AttentionGateOptions{}};
    if (kind == 3) o.position_bias = PositionBias::t5;
    MultiHeadAttention separate(o, rng);
    o.separate_global_projections = false;
    const MultiHeadAttention shared(o, again);
    Rand rand(14);
    const Tensor x = random_tensor({2, 9, 6}, f64, rand), y = separate(x);
    INFO("kind " << kind);
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
