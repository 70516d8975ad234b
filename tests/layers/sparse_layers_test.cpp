// The multi-head layers of sparse attention: what is trained, errors; sparse_layers_reference.cpp says what they
// compute.
#include "layers/sparse_reference.h"
#include "layers/streamed.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/sparse_layers.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <set>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kDim = 6;

}  // namespace

TEST_CASE("sparse layers: global rows with equal maps are those without maps of their own", "[sparse]") {
  Rand rand(1);
  Rng rng(2);
  const Tensor x = random_tensor({2, 7, kDim}, f64, rand);
  GlobalLocalAttention layer({.heads = {.dim = kDim, .heads = 2, .dtype = f64}, .w = 1}, rng);
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

TEST_CASE("sparse layers: distances of bf16 rows are those of their positions", "[sparse]") {
  Rng rng(5);
  PairScore score({.dim = 1, .kind = PairScoreKind::mlp, .width = 1, .activation = Act::identity, .dtype = bf16}, rng);
  score.distance = score.weight = ones({1}, {bf16});
  const int64_t n = 700;  // bf16 has no 257
  const Tensor none = zeros({1, n, 1}, {bf16}), distance = unsqueeze(arange(n), 1) - arange(n);
  CHECK(max_abs_diff(squeeze(score.between(none, none), 0), to(distance, bf16)) == 0);
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
  CHECK(names(mlp) == std::set<std::string>{"q.weight", "k.weight", "v.weight", "out.weight", "score.row.weight",
                                            "score.row.bias", "score.col.weight", "score.distance", "score.weight",
                                            "score.bias", "tau"});
  const HeadsOptions blank{.dim = 8, .init = {InitKind::zeros}};
  CHECK(max(abs(ThresholdAttention({.heads = blank}, rng).score.row.weight)).item() == 0);
  CHECK(count(SinkhornAttention({.heads = {.dim = 8}}, rng)) == 4 * 64);
  CHECK(count(GlobalLocalAttention({.heads = {.dim = 8}, .w = 2}, rng)) == 7 * 64);
  CHECK(count(GlobalLocalAttention({.heads = {.dim = 8}, .w = 2, .separate_global = false}, rng)) == 4 * 64);

  CHECK_THROWS_WITH(TopKAttention({.heads = {.dim = 8, .heads = 3}}, rng),
                    Contains("topk_attention") && Contains("heads=3") && Contains("dim=8"));
  CHECK_THROWS_WITH(TopKAttention({.heads = {.dim = 8, .attention_dropout = 1}}, rng), Contains("attention_dropout=1"));
  CHECK_THROWS_WITH(SinkhornAttention({.heads = {.dim = 8, .causal = true}}, rng),
                    Contains("causal") && Contains("identity"));
  CHECK_THROWS_WITH(SinkhornBlockAttention({.heads = {.dim = 8, .causal = true}}, rng), Contains("identity"));
  const SinkhornOptions unshared{.iterations = 0, .variant = SinkhornVariant::literal};  // not when it is called
  CHECK_THROWS_WITH(SinkhornBlockAttention({.heads = {.dim = 8}, .sinkhorn = unshared}, rng),
                    Contains("sinkhorn_block_attention: the literal variant needs iterations"));
  CHECK_THROWS_WITH(stream_of(topk, zeros({2, 3, 8})), Contains("topk_attention") && Contains("causal"));
  CHECK_THROWS_WITH(stream_of(low, zeros({2, 3, 8})), Contains("threshold_attention") && Contains("causal"));
  const GlobalLocalAttention local({.heads = {.dim = 8}, .w = 2}, rng);
  CHECK_THROWS_WITH(local(zeros({1, 3, 8}), {.positions = {3}}), Contains("global_local_attention: position 3"));
}
