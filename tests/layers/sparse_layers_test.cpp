// The multi-head layers of sparse attention (SPEC §8): composition, gradients, padding, causality, errors.
#include "layers/sparse_reference.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/heads/sparse_layers.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <cmath>
#include <set>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t kDim = 6;

TopKAttentionOptions topk_options(bool causal = false) {
  return {.heads = {.dim = kDim, .heads = 2, .causal = causal, .dtype = f64}, .k = 3};
}
ThresholdAttentionOptions threshold_options(PairScoreKind score, bool causal = false) {
  return {.heads = {.dim = kDim, .heads = 2, .causal = causal, .dtype = f64}, .mode = ThresholdMode::soft, .tau = 0.1,
          .temperature = 0.7, .score = score, .score_width = 3};
}

/// Every layer as a call, with the layer's own random weights.
using Call = std::function<Tensor(const Tensor& x, const Tensor& key_mask, Rng* rng)>;
struct Sample {
  std::string name;
  Call call;
  bool causal = false;
};
template <class Layer, class Options>
Call call_of(Options o, uint64_t seed = 1) {
  Rng rng(seed);
  return [layer = Layer(o, rng)](const Tensor& x, const Tensor& mask, Rng* r) { return layer(x, mask, r); };
}
std::vector<Sample> samples(double dropout = 0, double gumbel = 0) {
  std::vector<Sample> all;
  for (bool causal : {false, true}) {
    TopKAttentionOptions t = topk_options(causal);
    t.heads.attention_dropout = dropout;
    all.push_back({"top-k", call_of<TopKAttention>(t), causal});
    t.ties = TopKTies::threshold, t.window = 3, t.heads.use_rope = true, t.heads.head_dim = 4,
        t.heads.qkv_bias = t.heads.out_bias = true;
    all.push_back({"top-k, window", call_of<TopKAttention>(t), causal});
    for (PairScoreKind score : {PairScoreKind::bilinear, PairScoreKind::mlp})
      for (ThresholdMode mode : {ThresholdMode::hard, ThresholdMode::soft, ThresholdMode::straight_through}) {
        ThresholdAttentionOptions o = threshold_options(score, causal);
        o.mode = mode, o.heads.attention_dropout = dropout;
        all.push_back({str("threshold ", static_cast<int>(mode)), call_of<ThresholdAttention>(o), causal});
      }
  }
  SinkhornLayerOptions s{.heads = {.dim = kDim, .heads = 2, .attention_dropout = dropout, .dtype = f64},
                         .sinkhorn = {.iterations = 5, .gumbel = gumbel}};
  all.push_back({"Sinkhorn", call_of<SinkhornAttention>(s)});
  s.top_k = 2, s.heads.use_rope = true, s.heads.head_dim = 4;
  all.push_back({"Sinkhorn, top-k", call_of<SinkhornAttention>(s)});
  SinkhornBlockLayerOptions b{.heads = {.dim = kDim, .heads = 2, .attention_dropout = dropout, .dtype = f64},
                              .block = 3};
  b.sinkhorn.gumbel = gumbel;
  all.push_back({"Sinkhorn blocks", call_of<SinkhornBlockAttention>(b)});
  for (bool separate : {false, true}) {
    Rng rng(1);
    GlobalLocalLayerOptions g{.heads = {.dim = kDim, .heads = 2, .attention_dropout = dropout, .dtype = f64}, .w = 1,
                              .separate_global = separate};
    g.heads.head_dim = 4, g.heads.use_rope = separate, g.heads.rope.offset = 5;
    all.push_back({"global-local", [layer = GlobalLocalAttention(g, rng)](const Tensor& x, const Tensor& mask, Rng* r) {
      return layer(x, x.dim(1) > 1 ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{}, mask, r);
    }});
  }
  return all;
}

/// Both orders of gradients, for x and every parameter.
template <class Layer, class F>
void check_layer_gradients(const Layer& layer, const Tensor& x, F call) {
  std::vector<Tensor> inputs{x};
  for (const NamedTensor& p : parameters(layer)) inputs.push_back(p.tensor.detach());
  check_gradients([&](const std::vector<Tensor>& in) {
    Layer copy = layer;
    std::size_t i = 1;
    for (auto& slot : detail::members(copy).slots) *slot.tensor = in[i++];
    return call(copy, in[0]);
  }, inputs);
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
  const Tensor y = layer(x, {4, 1});
  const Tensor local = composed(layer.heads, [&](Tensor q, Tensor k, Tensor v) {
    return global_local_attention(q, k, v, {.w = 1, .global = {4, 1}});
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
  shared.options.separate_global = false;
  for (bool rotate : {false, true}) {
    for (GlobalLocalAttention* l : {&layer, &shared}) {
      HeadsOptions& h = l->options.heads;
      h.use_rope = rotate, h.rope.offset = 3, h.rope.rot_dim = 2;
    }
    CHECK(max_abs_diff(layer(x, {4, 1}), shared(x, {4, 1})) < 1e-14);
  }
}

TEST_CASE("sparse layers: gradients of both orders for inputs and parameters", "[sparse]") {
  Rand rand(3);
  Rng rng(4);
  const Tensor x = random_tensor({1, 4, 2}, f64, rand);
  auto plain = [](const auto& layer, const Tensor& in) { return layer(in); };
  check_layer_gradients(TopKAttention({.heads = {.dim = 2, .heads = 2, .causal = true, .dtype = f64}, .k = 2}, rng), x,
                        plain);
  for (PairScoreKind kind : {PairScoreKind::bilinear, PairScoreKind::mlp})
    check_layer_gradients(ThresholdAttention({.heads = {.dim = 2, .heads = 1, .dtype = f64},
                                              .mode = ThresholdMode::soft, .tau = 0.1, .score = kind, .score_width = 2},
                                             rng),
                          x, plain);
  check_layer_gradients(
      SinkhornAttention({.heads = {.dim = 2, .qkv_bias = true, .out_bias = true, .dtype = f64},
                         .sinkhorn = {.iterations = 3}}, rng), x, plain);
  check_layer_gradients(SinkhornBlockAttention(
                            {.heads = {.dim = 2, .use_rope = true, .dtype = f64}, .block = 2,
                             .sinkhorn = {.iterations = 2}}, rng),
                        x, plain);
  check_layer_gradients(GlobalLocalAttention({.heads = {.dim = 2, .dtype = f64}, .w = 1}, rng), x,
                        [](const GlobalLocalAttention& layer, const Tensor& in) { return layer(in, {2}); });
  // The default, straight-through, trains f_Θ and τ; hard does not reach them.
  for (ThresholdMode mode : {ThresholdMode::straight_through, ThresholdMode::hard}) {
    const ThresholdAttention layer({.heads = {.dim = 2, .dtype = f64}, .mode = mode, .score_width = 2}, rng);
    const auto g = grad({sum(square(layer(x)))}, {layer.score.row.weight, layer.score.col.weight, layer.tau},
                        {.allow_unused = true});
    for (const Tensor& t : g)
      CHECK((mode == ThresholdMode::hard ? !t.defined() || max_abs(t) == 0 : max_abs(t) > 1e-6));
  }
}

TEST_CASE("sparse layers: padded sequences equal shorter ones", "[sparse]") {
  Rand rand(5);
  const Tensor x = random_tensor({3, 8, kDim}, f64, rand);
  for (const Sample& s : samples())
    for (int64_t real : {1, 5, 6, 8}) {
      INFO(s.name << (s.causal ? ", causal" : "") << ", " << real << " real tokens");
      std::vector<bool> flags(24, true);
      for (int64_t i = real; i < 8; ++i) flags[static_cast<std::size_t>(8 + i)] = false;
      const Tensor mask = Tensor::from(flags, {3, 8});
      Tensor spoilt = masked_fill(x, unsqueeze(logical_not(mask), -1), NAN).requires_grad_();
      const Tensor y = s.call(spoilt, mask, nullptr),
                   alone = s.call(narrow(narrow(x, 0, 1, 1), 1, 0, real), {}, nullptr);
      if (s.name == "global-local" && real == 1) continue;  // its globals differ
      CHECK(max_abs_diff(narrow(narrow(y, 0, 1, 1), 1, 0, real), alone) < 1e-13);
      CHECK(max_abs_diff(narrow(y, 0, 0, 1), s.call(narrow(x, 0, 0, 1), {}, nullptr)) < 1e-13);
      CHECK(all(isfinite(y)).item() == 1);
      CHECK(std::isfinite(max_abs(grad(sum(narrow(narrow(y, 0, 1, 1), 1, 0, real)), spoilt))));
    }
}

TEST_CASE("sparse layers: causal layers do not see later tokens", "[sparse]") {
  Rand rand(6);
  const Tensor x = random_tensor({2, 9, kDim}, f64, rand);
  for (const Sample& s : samples()) {
    if (!s.causal) continue;
    const Tensor y = s.call(x, {}, nullptr);
    for (int64_t t : {0, 4, 8}) {
      INFO(s.name << ", token " << t);
      const Tensor changed = cat({narrow(x, 1, 0, t), narrow(x, 1, t, 1) + 1.0, narrow(x, 1, t + 1, 8 - t)}, 1);
      const Tensor z = s.call(changed, {}, nullptr);
      CHECK(same_bits(contiguous(narrow(z, 1, 0, t)).detach(), contiguous(narrow(y, 1, 0, t)).detach()));
      CHECK(max_abs_diff(narrow(z, 1, t, 1), narrow(y, 1, t, 1)) > 1e-3);
    }
  }
}

TEST_CASE("sparse layers: randomness, sizes and precision", "[sparse]") {
  Rand rand(7);
  const Tensor x = random_tensor({2, 7, kDim}, f64, rand);
  const std::vector<Sample> random = samples(0.4, 1), plain = samples();
  for (std::size_t i = 0; i < plain.size(); ++i) {
    INFO(plain[i].name);
    Rng one(1), same(1);
    const Tensor y = random[i].call(x, {}, &one);
    CHECK(same_bits(y.detach(), random[i].call(x, {}, &same).detach()));
    CHECK(max_abs_diff(y, plain[i].call(x, {}, nullptr)) > 1e-3);
    CHECK(same_bits(random[i].call(x, {}, nullptr).detach(), plain[i].call(x, {}, nullptr).detach()));
    Rng unused(1);
    CHECK(same_bits(plain[i].call(x, {}, &unused).detach(), plain[i].call(x, {}, nullptr).detach()));
    for (const Shape& shape : {Shape{2, 0, kDim}, Shape{0, 5, kDim}, Shape{1, 1, kDim}}) {
      CHECK(plain[i].call(zeros(shape, {f64}), {}, nullptr).shape() == shape);
    }
  }
  Rng rng(8);
  TopKAttention topk({.heads = {.dim = kDim, .heads = 2}, .k = 4}, rng);
  SinkhornBlockAttention blocks({.heads = {.dim = kDim, .heads = 2}, .block = 4}, rng);
  const Tensor a = topk(to(x, f32)), b = blocks(to(x, f32));
  CHECK(a.dtype() == f32);
  to(topk, f64), to(blocks, f64);
  CHECK(max_abs_diff(to(a, f64), topk(x)) < 1e-5);
  CHECK(max_abs_diff(to(b, f64), blocks(x)) < 1e-5);
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
  CHECK_THROWS_WITH(topk(zeros({2, 3, 8}), ones({2, 4}, {boolean})), Contains("key_mask=[2,4]"));
  CHECK_THROWS_AS(topk(zeros({2, 3, 8}), ones({2, 3})), DTypeError);
  CHECK_THROWS_WITH(low.score(zeros({2, 3, 7})), Contains("pair_score"));
  CHECK_THROWS_AS(GlobalLocalAttention({.heads = {.dim = 8}, .w = 2}, rng)(zeros({1, 3, 8}), {3}), ValueError);
}
