// Shared key and value heads: what grouped-query attention is equal to, and how a multi-head layer
// becomes one.
#include "layers/multi_head_attention_samples.h"
#include "layers/streamed.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/layers/attention/attention_conversion.h>
#include <sluice/layers/report/cost.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/reduce.h>

#include <tuple>

using namespace sluice;
using namespace sluice::testing;

namespace {

MultiHeadAttentionOptions shared_heads(int64_t heads, int64_t kv_heads, bool causal) {
  MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = heads, .kv_heads = kv_heads, .head_dim = 4, .value_dim = 3}};
  o.heads.causal = causal, o.heads.use_rope = true;
  return o;
}

/// Head by head: single-head attention on slices of the weights, K and V from head kv_of(h).
Tensor head_by_head(const MultiHeadAttention& a, const Tensor& x, const std::function<int64_t(int64_t)>& kv_of) {
  AttentionOptions o;
  o.mask.causal = a.options.heads.causal;
  std::vector<Tensor> heads;
  for (int64_t h = 0; h < a.options.heads.heads; ++h) {
    const Tensor q = rope(matmul(x, narrow(a.heads.q.weight, 1, h * 4, 4)));
    const Tensor k = rope(matmul(x, narrow(a.heads.k.weight, 1, kv_of(h) * 4, 4)));
    heads.push_back(attention(q, k, matmul(x, narrow(a.heads.v.weight, 1, kv_of(h) * 3, 3)), o));
  }
  return matmul(cat(heads, -1), a.heads.out.weight);
}

Tensor repeated(const Tensor& weight, int64_t heads, int64_t times) {
  return flatten(repeat_interleave(unflatten(weight, -1, {heads, weight.dim(-1) / heads}), times, -2), -2, -1);
}

}  // namespace

TEST_CASE("gqa: g = h is multi-head, g = 1 multi-query attention", "[attention][identity]") {
  for (bool causal : {false, true}) {
    Rand rand(1);
    const Tensor x = random_tensor({2, 9, 6}, f64, rand);
    const MultiHeadAttention mha = random_attention(shared_heads(4, 4, causal), rand);
    check_identity("GQA: g = h is MHA", mha(x), head_by_head(mha, x, [](int64_t h) { return h; }), 1e-12);
    const MultiHeadAttention mqa = random_attention(shared_heads(4, 1, causal), rand);
    check_identity("GQA: g = 1 is MQA", mqa(x), head_by_head(mqa, x, [](int64_t) { return int64_t{0}; }), 1e-12);
    // Groups are contiguous; heads modulo g would be another model.
    const MultiHeadAttention gqa = random_attention(shared_heads(4, 2, causal), rand);
    CHECK(max_abs_diff(gqa(x), head_by_head(gqa, x, [](int64_t h) { return h / 2; })) < 1e-12);
    CHECK(max_abs_diff(gqa(x), head_by_head(gqa, x, [](int64_t h) { return h % 2; })) > 1e-2);
  }
}

TEST_CASE("gqa: = multi-head attention whose K and V weights repeat", "[attention][identity]") {
  for (int64_t heads : {4, 6})
    for (int64_t g : {1, 2, 3})
      for (bool causal : {false, true}) {
        if (heads % g != 0) continue;
        Rand rand(2);
        MultiHeadAttentionOptions o = shared_heads(heads, g, causal);
        o.heads.qkv_bias = o.qk_norm = true;
        const MultiHeadAttention gqa = random_attention(o, rand);
        MultiHeadAttention mha = gqa;
        mha.options.heads.kv_heads = heads;
        for (Linear* map : {&mha.heads.k, &mha.heads.v}) {
          map->weight = repeated(map->weight, g, heads / g);
          map->bias = repeated(map->bias, g, heads / g);
        }
        const Tensor x = random_tensor({2, 9, 6}, f64, rand);
        check_identity("GQA: = MHA with repeated K and V weights", gqa(x), mha(x), 1e-12);
      }
}

TEST_CASE("gqa: the cache holds 2·g·n·dk numbers", "[attention][identity]") {
  // GPT-3: 2·96·128 a token and layer; one group divides it by 96.
  for (int64_t g : {1, 2, 4})
    for (int64_t n : {1, 7, 33}) {
      MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = g, .head_dim = 5, .causal = true}};
      Rng rng(1);
      const Stream stream = stream_of(MultiHeadAttention(o, rng), zeros({1, n, 6}));
      const auto off = static_cast<double>(stream.numel() - 2 * g * n * 5);
      check_identity("GQA: cache size is 2 g n dk", std::abs(off), 0);
      CHECK(stream.bytes() == 4 * stream.numel());
    }
}

TEST_CASE("gqa: mean-pooling equal heads changes nothing", "[attention][identity]") {
  using Over = QkNormOver;
  for (int64_t groups : {1, 2, 4})
    for (const auto& [over, kind, causal] : {std::tuple{Over::shared, NormKind::rms, false},
                                             {Over::shared, NormKind::rms, true},
                                             {Over::per_head, NormKind::layer, false},
                                             {Over::per_head, NormKind::rms_plain, true},
                                             {Over::width, NormKind::layer, false},
                                             {Over::width, NormKind::scale_l2, true}}) {
      Rand rand(3);
      MultiHeadAttentionOptions o = shared_heads(4, groups, causal);
      o.heads.qkv_bias = o.qk_norm = true, o.qk_norm_over = over, o.qk_norm_kind = kind;
      o.gates = {{.position = GatePosition::g2, .bias = true},
                 {.position = GatePosition::g3, .head_bias = true},
                 {.position = GatePosition::g3, .granularity = GateGranularity::headwise},
                 {.position = GatePosition::g2, .input_independent = true},
                 {.position = GatePosition::g1}};
      if (causal) o.gates.clear(), o.window = 3, o.global = {1}, o.separate_global_projections = true;
      const MultiHeadAttention few = random_attention(o, rand);
      MultiHeadAttention many = few;  // with every KV head of `few` several times
      many.options.heads.kv_heads = 4;
      for (Linear* map : {&many.heads.k, &many.heads.v, &many.global_k, &many.global_v})
        for (Tensor* t : {&map->weight, &map->bias})
          if (t->defined()) *t = repeated(*t, groups, 4 / groups);
      if (over != Over::shared) {
        many.k_norm.options.dim = 16, many.k_norm.options.parts = over == Over::per_head ? 4 : 1;
        for (Tensor* t : {&many.k_norm.weight, &many.k_norm.bias})
          if (t->defined() && t->dim(0) > 1) *t = repeated(*t, groups, 4 / groups);
      }
      for (AttentionGate& gate : many.gates) {
        if (gate.options.position == GatePosition::g1) continue;
        gate.heads = 4;
        for (Tensor* t : {&gate.map.weight, &gate.map.bias, &gate.theta, &gate.head_bias})
          if (t->defined()) *t = repeated(*t, groups, 4 / groups);
      }
      const Tensor x = random_tensor({2, 9, 6}, f64, rand), y = many(x);
      const MultiHeadAttention pooled = pool_kv_heads(many, groups);
      CHECK(pooled.options.heads.kv_heads == groups);
      check_identity("GQA: mean-pooling identical heads is exact", pooled(x), y, 1e-12);
      check_identity("GQA: mean-pooling identical heads is exact", few(x), y, 1e-12);
    }
}

TEST_CASE("gqa: pooling takes the mean of each group, into tensors of its own", "[attention]") {
  Rand rand(4);
  MultiHeadAttentionOptions o{.heads = {.dim = 3, .heads = 4, .head_dim = 2}};
  o.position_bias = PositionBias::toeplitz, o.max_length = 4;
  const MultiHeadAttention layer = random_attention(o, rand), pooled = pool_kv_heads(layer, 2);
  const Matrix before = matrix_of(layer.heads.k.weight), after = matrix_of(pooled.heads.k.weight);
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t g = 0; g < 2; ++g)
      for (std::size_t c = 0; c < 2; ++c)
        CHECK(after[i][g * 2 + c] == Approx((before[i][g * 4 + c] + before[i][g * 4 + 2 + c]) / 2).margin(1e-15));
  CHECK(same_bits(pooled.heads.q.weight, layer.heads.q.weight));
  CHECK(same_bits(pooled.toeplitz_bias, layer.toeplitz_bias));
  const auto old = parameters(layer), fresh = parameters(pooled);
  REQUIRE(old.size() == fresh.size());
  for (std::size_t i = 0; i < old.size(); ++i) {
    CHECK(fresh[i].tensor.is_leaf());
    CHECK(fresh[i].tensor.is_contiguous());
    CHECK_FALSE(fresh[i].tensor.shares_storage(old[i].tensor));
  }
  o.heads.kv_heads = 2;
  CHECK(count(pooled) == cost(o, 1).parameters);
  CHECK(layer.options.heads.kv_heads == 4);
  CHECK(layer.heads.k.weight.dim(1) == 8);
  CHECK(max_abs_diff(pool_kv_heads(pooled, 1).heads.v.weight, pool_kv_heads(layer, 1).heads.v.weight) < 1e-15);
  CHECK_THROWS_AS(pool_kv_heads(layer, 3), ValueError);
  CHECK_THROWS_WITH(pool_kv_heads(layer, 3), Contains("groups=3") && Contains("kv_heads=4"));
  CHECK_THROWS_AS(pool_kv_heads(layer, 0), ValueError);
}
