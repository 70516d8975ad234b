// The multi-head layers of sparse attention: composition, what is trained, errors.
#include "layers/sparse_reference.h"
#include "layers/streamed.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/heads/sparse_layers.h>
#include <sluice/layers/heads/sparse_masks.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <cmath>
#include <set>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kDim = 6;

TopKAttentionOptions topk_options(bool causal = false) {
  return {.heads = {.dim = kDim, .heads = 2, .causal = causal, .dtype = f64}, .k = 3};
}
ThresholdAttentionOptions threshold_options(PairScoreKind score, bool causal = false) {
  return {.heads = {.dim = kDim, .heads = 2, .causal = causal, .dtype = f64}, .mode = ThresholdMode::soft, .tau = 0.1,
          .temperature = 0.7, .score = score, .score_width = 3};
}

/// Head h of x·W + b.
Tensor head_of(const Linear& map, const Tensor& x, int64_t h, int64_t width) {
  const Tensor y = matmul(x, narrow(map.weight, 1, h * width, width));
  return map.bias.defined() ? y + narrow(map.bias, 0, h * width, width) : y;
}

}  // namespace

TEST_CASE("sparse layers: heads are attention functions of their own columns", "[sparse]") {
  Rand rand(1);
  Rng rng(2);
  const Tensor x = random_tensor({2, 7, kDim}, f64, rand);
  auto composed = [&](const Heads& p, const std::function<Tensor(Tensor q, Tensor k, Tensor v)>& f,
                      int64_t count = 2) {
    std::vector<Tensor> heads;
    const int64_t w = p.q.weight.dim(1) / count;
    for (int64_t h = 0; h < count; ++h)
      heads.push_back(f(head_of(p.q, x, h, w), head_of(p.k, x, h, w), head_of(p.v, x, h, w)));
    const Tensor y = matmul(cat(heads, 2), p.out.weight);
    return p.out.bias.defined() ? y + p.out.bias : y;
  };
  for (bool causal : {false, true}) {
    TopKAttentionOptions t = topk_options(causal);
    t.heads.qkv_bias = t.heads.out_bias = causal;
    const TopKAttention topk(t, rng);
    TopKOptions want{.k = 3};
    want.attention.mask.causal = causal;
    CHECK(max_abs_diff(topk(x), composed(topk.heads, [&](Tensor q, Tensor k, Tensor v) {
                         return topk_attention(q, k, v, want);
                       })) < 1e-14);

    for (PairScoreKind kind : {PairScoreKind::bilinear, PairScoreKind::mlp}) {
      const ThresholdAttention layer(threshold_options(kind, causal), rng);
      // f by loops.
      const Array a = array_of(matmul(x, layer.score.row.weight)), b = array_of(matmul(x, layer.score.col.weight));
      const Array distance = array_of(layer.score.distance), weight = array_of(layer.score.weight),
                  shift = array_of(layer.score.row.bias);
      Array f({2, 7, 7});
      each_index(f.shape, [&](const Dims& i) {
        for (int64_t c = 0; c < 3; ++c) {
          const double left = a({i[0], i[1], c}), right = b({i[0], i[2], c});
          if (kind == PairScoreKind::bilinear) {
            f(i) += left * right;
          } else {
            const double z = left + right + static_cast<double>(i[1] - i[2]) * distance({c}) + shift({c});
            f(i) += 0.5 * z * (1 + std::erf(z / std::sqrt(2.0))) * weight({c});
          }
        }
        f(i) -= 0.1;  // τ
      });
      const Tensor scores = tensor_of(f.v, {2, 7, 7}, f64);
      if (kind == PairScoreKind::mlp) CHECK(layer.score.bias.item() == 0);
      CHECK(max_abs_diff(layer.score(x) - layer.tau, scores) < 1e-13);
      ThresholdOptions o{.mode = ThresholdMode::soft, .temperature = 0.7};
      o.attention.mask.causal = causal;
      CHECK(max_abs_diff(layer(x), composed(layer.heads, [&](Tensor q, Tensor k, Tensor v) {
                           return squeeze(threshold_attention(unsqueeze(q, 1), unsqueeze(k, 1), unsqueeze(v, 1),
                                                              unsqueeze(scores, 1), o),
                                          1);
                         })) < 1e-13);
    }
  }
  const SinkhornAttention sink(
      {.heads = {.dim = kDim, .heads = 3, .dtype = f64}, .sinkhorn = {.lambda = 2, .iterations = 4}, .top_k = 3}, rng);
  CHECK(max_abs_diff(sink(x), composed(sink.heads, [&](Tensor q, Tensor k, Tensor v) {
    return sinkhorn_attention(q, k, v, {.sinkhorn = sink.options.sinkhorn, .top_k = 3});
  }, 3)) < 1e-13);
  const SinkhornBlockAttention blocks({.heads = {.dim = kDim, .heads = 2, .dtype = f64}, .block = 3}, rng);
  CHECK(max_abs_diff(blocks(x), composed(blocks.heads, [&](Tensor q, Tensor k, Tensor v) {
    return sinkhorn_block_attention(q, k, v, {.block = 3});
  })) < 1e-13);

  // Longformer: rows 4 and 1 by the second set of maps, over all keys of that set.
  GlobalLocalAttention layer({.heads = {.dim = kDim, .heads = 2, .dtype = f64}, .w = 1}, rng);
  const Tensor y = layer(x, {.positions = {4, 1}});
  const Tensor local = composed(layer.heads, [&](Tensor q, Tensor k, Tensor v) {
    return global_local_attention(q, k, v, {.mask = global_local_mask(1, {4, 1})});
  });
  Heads other = layer.heads;
  other.q = layer.global_q, other.k = layer.global_k, other.v = layer.global_v;
  const Tensor full_rows = composed(other, [&](Tensor q, Tensor k, Tensor v) { return attention(q, k, v); });
  for (int64_t i = 0; i < 7; ++i)
    CHECK(max_abs_diff(select(y, 1, i), select(i == 1 || i == 4 ? full_rows : local, 1, i)) < 1e-13);
  CHECK(max_abs_diff(select(full_rows, 1, 1), select(local, 1, 1)) > 1e-3);
  // With equal maps, and RoPE at the global positions, they are the same layer.
  layer.global_q = layer.heads.q, layer.global_k = layer.heads.k, layer.global_v = layer.heads.v;
  GlobalLocalAttention shared = layer;
  shared.MultiHeadAttention::options.separate_global_projections = false;
  for (bool rotate : {false, true}) {
    for (GlobalLocalAttention* l : {&layer, &shared}) {
      HeadsOptions& h = l->MultiHeadAttention::options.heads;
      h.use_rope = rotate, h.rope.offset = 3, h.rope.rot_dim = 2, h.rope.xpos = 8;
    }
    CHECK(max_abs_diff(layer(x, {.positions = {4, 1}}), shared(x, {.positions = {4, 1}})) < 1e-14);
  }
}

TEST_CASE("sparse layers: straight-through trains f and tau, hard does not reach them", "[sparse]") {
  Rand rand(3);
  Rng rng(4);
  const Tensor x = random_tensor({1, 4, 2}, f64, rand);
  for (ThresholdMode mode : {ThresholdMode::straight_through, ThresholdMode::hard}) {
    const ThresholdAttention layer({.heads = {.dim = 2, .dtype = f64}, .mode = mode, .score_width = 2}, rng);
    const auto g = grad({sum(square(layer(x)))}, {layer.score.row.weight, layer.score.col.weight, layer.tau},
                        {.allow_unused = true});
    for (const Tensor& t : g)
      CHECK((mode == ThresholdMode::hard ? !t.defined() || max_abs(t) == 0 : max_abs(t) > 1e-6));
  }
}

TEST_CASE("sparse layers: parameters, names and errors", "[sparse]") {
  Rng rng(9);
  auto names = [](const auto& layer) {
    std::set<std::string> s;
    for (const NamedTensor& p : parameters(layer)) s.insert(p.name);
    return s;
  };
  const TopKAttention topk({.heads = {.dim = 8, .heads = 2, .head_dim = 3, .qkv_bias = true, .out_bias = true}}, rng);
  CHECK(count(topk) == 4 * 8 * 6 + 3 * 6 + 8);
  CHECK(names(topk).count("q.weight") == 1);
  const ThresholdAttention low({.heads = {.dim = 8}, .score_width = 3}, rng),
      mlp({.heads = {.dim = 8}, .score = PairScoreKind::mlp, .score_width = 3}, rng);
  CHECK(count(low) == 4 * 64 + 2 * 8 * 3 + 1);
  CHECK(count(mlp) == 4 * 64 + (2 * 8 + 1 + 1 + 1) * 3 + 1 + 1);  // [x_i, x_j, i − j] and b → w, and c; τ
  CHECK(names(mlp) == std::set<std::string>{"q.weight", "k.weight", "v.weight", "out.weight",
                                            "score.row.weight", "score.row.bias", "score.col.weight", "score.distance",
                                            "score.weight", "score.bias", "tau"});
  CHECK(count(SinkhornAttention({.heads = {.dim = 8}}, rng)) == 4 * 64);
  CHECK(count(GlobalLocalAttention({.heads = {.dim = 8}, .w = 2}, rng)) == 7 * 64);
  CHECK(count(GlobalLocalAttention({.heads = {.dim = 8}, .w = 2, .separate_global = false}, rng)) == 4 * 64);

  CHECK_THROWS_WITH(TopKAttention({.heads = {.dim = 8, .heads = 3}}, rng),
                    Contains("topk_attention") && Contains("heads=3") && Contains("dim=8"));
  CHECK_THROWS_AS(TopKAttention({.heads = {.dim = 8}, .k = 0}, rng), ValueError);
  CHECK_THROWS_AS(TopKAttention({.heads = {.dim = 8}, .window = -1}, rng), ValueError);
  CHECK_THROWS_WITH(TopKAttention({.heads = {.dim = 8, .attention_dropout = 1}}, rng), Contains("attention_dropout=1"));
  CHECK_THROWS_WITH(ThresholdAttention({.heads = {.dim = 8}, .temperature = 0}, rng), Contains("temperature"));
  CHECK_THROWS_AS(ThresholdAttention({.heads = {.dim = 8}, .score_width = 0}, rng), ValueError);
  CHECK_THROWS_WITH(SinkhornAttention({.heads = {.dim = 8, .causal = true}}, rng), Contains("causal") &&
                    Contains("identity"));
  CHECK_THROWS_WITH(SinkhornBlockAttention({.heads = {.dim = 8, .causal = true}}, rng), Contains("identity"));
  CHECK_THROWS_AS(SinkhornBlockAttention({.heads = {.dim = 8}, .block = 0}, rng), ValueError);
  CHECK_THROWS_AS(GlobalLocalAttention({.heads = {.dim = 8}, .w = -1}, rng), ValueError);
  CHECK_THROWS_WITH(topk(zeros({2, 3, 7})), Contains("[2,3,7]") && Contains("[batch, n, 8]"));
  CHECK_THROWS_WITH(topk(zeros({2, 3, 8}), {.key_mask = ones({2, 4}, {boolean})}), Contains("key_mask=[2,4]"));
  CHECK_THROWS_AS(topk(zeros({2, 3, 8}), {.key_mask = ones({2, 3})}), DTypeError);
  CHECK_THROWS_WITH(stream_of(topk, zeros({2, 3, 8})), Contains("topk_attention") && Contains("causal"));
  CHECK_THROWS_WITH(stream_of(low, zeros({2, 3, 8})), Contains("threshold_attention") && Contains("causal"));
  CHECK_THROWS_WITH(low.score(zeros({2, 3, 7})), Contains("pair_score"));
  const GlobalLocalAttention local({.heads = {.dim = 8}, .w = 2}, rng);
  CHECK_THROWS_WITH(local(zeros({1, 3, 8}), {.positions = {3}}), Contains("global_local_attention: position 3"));
}
