// cost() for every row of the table: what meta counts is what a computing run counts; the sparse layers and FLASH
// models by closed formulas; sizes that cannot be.
#include "support/catch.h"
#include "support/table_samples.h"

#include <sluice/ops/shape/view.h>

#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kTokens = 12, kContext = 7;

/// The same call with values, on cpu.
template <class O> void check_counts(const O& options, int64_t context = 0) {
  Rng rng(1);
  const typename O::Layer layer(options, rng);
  INFO(layer.type);
  const Cost c = cost(options, kTokens, context);
  CHECK(c == cost(layer, kTokens, context));
  CHECK(c.parameters == count(layer));
  const detail::CostSizes sizes = detail::cost_sizes(layer);
  const auto shapes = detail::cost_inputs(detail::members(layer), kTokens, context, sizes);
  detail::CostInputs in{.positions = shapes.positions};
  in.x = sizes.width > 0 ? normal(shapes.x.shape(), 0, 1, rng) : zeros(shapes.x.shape(), {i64});
  if (shapes.context.defined()) in.context = normal(shapes.context.shape(), 0, 1, rng);
  NoGrad guard;
  for (int i = 0; i < 2; ++i) detail::run(layer, in);  // as cost() does
  detail::Meter meter;
  detail::run(layer, in);
  const Cost real = meter.cost();
  CHECK(c.flops == real.flops);
  CHECK(c.attention_elements == real.attention_elements);
  CHECK(c.bytes == real.bytes);
  CHECK(c.bytes > 0);
  CHECK(c.state == detail::streamed(layer, in));
}

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

}  // namespace

TEST_CASE("cost: counted on meta as with values, for every sample of the table", "[cost]") {
  each_sample([](LayerSample& s) {
    const int64_t least = s.has("reading", "literal") ? kTokens : kContext;  // literal: as many as x
    LayerInputs in = s.inputs(1, kTokens, 1);
    if (s.cross()) in.context = narrow(in.context, 1, 0, least);
    if (s.row.name != "global_local_attention") in.positions.clear();  // cost() counts those of this layer alone
    const int64_t context = s.cross() ? least : std::ssize(in.positions);
    LayerDraft draft = s.row.draft();
    detail::from_json(s.row.name, s.options, draft.options);
    const Cost c = draft.cost(kTokens, context);
    CHECK(c == s.layer->cost(kTokens, context));
    const std::vector<NamedTensor> state = s.layer->state();
    int64_t trained = 0;
    for (const NamedTensor& t : state) trained += t.tensor.requires_grad() ? t.tensor.numel() : 0;
    CHECK(c.parameters == trained);
    if (state.empty() && is_float(in.x.dtype())) in.x = to(in.x, f32);  // as cost() does
    NoGrad guard;
    for (int i = 0; i < 2; ++i) call(*s.layer, in);  // as cost() does
    detail::Meter meter;
    call(*s.layer, in);
    const Cost real = meter.cost();
    CHECK(c.flops == real.flops);
    CHECK(c.attention_elements == real.attention_elements);
    if (s.has("router_bias", true)) return;  // may leave an expert without tokens, whose weights are not read
    CHECK(c.bytes <= real.bytes);
    if (drawn_layers() == 0) CHECK(c.bytes == real.bytes);  // on cpu some strides, of heads of width 1, cost a copy
  });
}

TEST_CASE("cost: counted on meta as on cpu, with options crossed", "[cost]") {
  const HeadsOptions heads{.dim = 8, .heads = 2}, grouped{.dim = 8, .heads = 4, .kv_heads = 2};
  HeadsOptions causal = grouped, cross = heads;
  causal.causal = causal.use_rope = true, cross.context_dim = 6;
  for (bool streams : {false, true}) {
    for (GauBias bias : {GauBias::none, GauBias::toeplitz, GauBias::rope, GauBias::t5})
      for (GauKind kind : {GauKind::su, GauKind::laplace, GauKind::rownorm, GauKind::softmax_plus})
        check_counts(GauOptions{.dim = 8, .key_dim = 4, .kind = kind, .causal = streams, .window = 5, .bias = bias});
    check_counts(GauOptions{.dim = 8, .key_dim = 4, .causal = streams, .top_k = 3});
    check_counts(FlashOptions{.dim = 8, .key_dim = 4, .chunk = 5, .causal = streams, .token_shift = true});
  }
  for (LinearDirection d : {LinearDirection::full, LinearDirection::causal, LinearDirection::bidirectional,
                            LinearDirection::two_direction_mean})
    for (LinearRope rope : {LinearRope::none, LinearRope::inputs, LinearRope::features}) {
      LinearAttentionOptions o{.dim = 8, .heads = 2, .direction = d};
      o.use_rope = rope, o.decay = d == LinearDirection::full ? LinearDecay::none : LinearDecay::learned;
      check_counts(o);
    }
  LinearAttentionOptions favor{.dim = 8, .heads = 2};
  favor.feature_map.kind = FeatureMapKind::favor, favor.tie_feature_map = true;
  check_counts(favor);
  for (const HeadsOptions& h : {grouped, causal}) {
    MultiHeadAttentionOptions o{.heads = h, .window = 4, .global = {0, 3}, .gates = {AttentionGateOptions{}}};
    check_counts(o);
    o.separate_global_projections = true, o.position_bias = PositionBias::t5, o.sink = AttentionSink::learned;
    check_counts(o);
    check_counts(hierarchical_options({.heads = h}, {3, 0}));
    check_counts(GatedAttentionOptions{.heads = h, .gate_query = true, .gate_key = true, .gate_value = true});
    check_counts(TopKAttentionOptions{.heads = h, .k = 3});
    for (ThresholdMode mode : {ThresholdMode::hard, ThresholdMode::soft, ThresholdMode::straight_through})
      for (PairScoreKind score : {PairScoreKind::bilinear, PairScoreKind::mlp})
        check_counts(ThresholdAttentionOptions{.heads = h, .mode = mode, .score = score});
  }
  check_counts(MultiHeadAttentionOptions{.heads = cross}, kContext);
  for (CrossGate reading : {CrossGate::per_query, CrossGate::pooled, CrossGate::flamingo})
    check_counts(GatedCrossAttentionOptions{.heads = cross, .reading = reading}, kContext);
  check_counts(GatedCrossAttentionOptions{.heads = cross, .reading = CrossGate::literal}, kTokens);
  for (int64_t top_k : {0, 3}) check_counts(SinkhornLayerOptions{.heads = heads, .top_k = top_k});
  for (int64_t block : {4, 5}) check_counts(SinkhornBlockLayerOptions{.heads = heads, .block = block});
  for (bool separate : {false, true})
    for (int64_t global : {0, 2})
      check_counts(GlobalLocalLayerOptions{.heads = grouped, .w = 2, .separate_global = separate}, global);
}

TEST_CASE("cost: sparse layers", "[cost]") {
  const int64_t n = 24, d = 16, h = 4;
  HeadsOptions heads{.dim = d, .heads = h};
  const int64_t dense = 8 * n * d * d, map = 4 * n * n * d;
  for (bool causal : {false, true}) {
    heads.causal = causal;
    // Scores once to choose, 2n²d, and the attention of a mask.
    const Cost top = cost(TopKAttentionOptions{.heads = heads, .k = 5}, n);
    CHECK(top.flops == dense + map + 2 * n * n * d);
    CHECK(top.attention_elements == h * n * n);
    CHECK(top.state == (causal ? 2 * n * d : 0));
    // f_Θ of width w: two maps, and n² pairs.
    for (PairScoreKind score : {PairScoreKind::bilinear, PairScoreKind::mlp}) {
      const int64_t w = 3;
      const Cost threshold = cost(ThresholdAttentionOptions{.heads = heads, .score = score, .score_width = w}, n);
      CHECK(threshold.flops == dense + map + 4 * n * d * w + 2 * n * n * w);
      CHECK(threshold.attention_elements == h * n * n);
      CHECK(threshold.state == (causal ? n * (2 * d + w) : 0));
    }
  }
  heads.causal = false;
  const Cost sinkhorn = cost(SinkhornLayerOptions{.heads = heads}, n);
  CHECK(sinkhorn == Cost{4 * d * d, dense + map, h * n * n, sinkhorn.bytes, 0});
  // G blocks of B tokens: an own and a sorted block for each query; P of means, and P·K and P·V.
  const int64_t b = 6, g = n / b;
  const Cost block = cost(SinkhornBlockLayerOptions{.heads = heads, .block = b}, n);
  CHECK(block.flops == dense + 4 * n * 2 * b * d + 2 * g * g * d + 2 * 2 * g * n * d);
  CHECK(block.attention_elements == h * (n * 2 * b + g * g));
  CHECK(block.state == 0);
  for (bool separate : {false, true}) {
    const int64_t w = 2, globals = 3, pairs = (n - globals) * (2 * w + 1 + globals) + globals * n;
    const GlobalLocalLayerOptions o{.heads = heads, .w = w, .separate_global = separate};
    const Cost c = cost(o, n, globals), again{.flops = 2 * d * d * (globals + 2 * n) + 4 * globals * n * d,
                                              .attention_elements = h * globals * n};
    CHECK(c.flops == dense + 4 * pairs * d + (separate ? again.flops : 0));
    CHECK(c.attention_elements == h * pairs + (separate ? again.attention_elements : 0));
    CHECK(cost(o, n).flops == dense + 4 * n * (2 * w + 1) * d);
  }
}

TEST_CASE("cost: models of FLASH layers", "[cost]") {
  const int64_t n = 32;
  const FlashOptions layer{.dim = 8, .key_dim = 4, .chunk = 8, .causal = true};
  const Cost one = cost(layer, n);
  CHECK(cost(FlashBlockOptions{.layers = 3, .layer = layer}, n) == 3 * one);
  FlashModelOptions model{.layers = 3, .layer = layer, .vocabulary = 11, .outputs = 11};
  CHECK(cost(model, n).flops == 3 * one.flops + 2 * n * 8 * 11);
  CHECK(cost(model, n).state == 3 * one.state);
  CHECK(cost(model, n).attention_elements == 3 * one.attention_elements);
  const int64_t d = 8, h = 2, dk = 4, e = 10, c = 8;
  const Cost tfm = cost(McTfmOptions{.dim = d, .heads = h, .hidden = e, .chunk = c, .causal = true}, n);
  CHECK(tfm.flops == 8 * n * d * d + 6 * n * d * e + h * (4 * n * c * dk + 4 * n * dk * dk));
  CHECK(tfm.attention_elements == h * n * c);
  CHECK(tfm.state == h * (dk * dk + 3 * c * dk));
}

TEST_CASE("cost: your own run, and a million tokens of a layer that no memory holds", "[cost]") {
  Rng rng(1);
  const Glu glu({.dim = 8, .hidden = 12}, rng);
  const Cost step = cost_of(glu, [](const Glu& m) { m(zeros({4, 10, 8}, {f32, meta})); });
  CHECK(step.flops == 4 * cost(glu, 10).flops);
  CHECK(step.parameters == count(glu));
  CHECK(glu.out.weight.device() == cpu);
  const int64_t n = int64_t{1} << 20, d = int64_t{1} << 14;
  const Cost c = cost(MultiHeadAttentionOptions{.heads = {.dim = d, .heads = 128, .causal = true}}, n);
  CHECK(c.flops == 8 * n * d * d + 4 * n * n * d);
  CHECK(c.state == 2 * n * d);
}

TEST_CASE("cost: sizes that cannot be are errors", "[cost]") {
  const MultiHeadAttentionOptions mha{.heads = {.dim = 8, .heads = 2}};
  for (int64_t n : {int64_t{0}, int64_t{-1}, -kHuge - 1}) {
    CHECK_THROWS_AS(cost(mha, n), ValueError);
    CHECK_THROWS_AS(cost(FlashOptions{.dim = 8}, n), ValueError);
    CHECK_THROWS_AS(cost(AttentionGateOptions{}, 8, 2, 4, n), ValueError);
    CHECK_THROWS_AS(cost(MultiHeadAttentionOptions{.heads = {.dim = 8, .context_dim = 6}}, 4, n), ValueError);
  }
  CHECK_THROWS_AS(cost(mha, kHuge), ShapeError);
  CHECK_THROWS_AS(cost(mha, int64_t{1} << 40), ShapeError);  // its map has 2^81 entries
  CHECK_THROWS_AS(cost(mha, 4, 3), ValueError);              // reads no context
  CHECK_THROWS_AS(cost(GlobalLocalLayerOptions{.heads = {.dim = 8}}, 4, 5), ValueError);
  CHECK_THROWS_AS(cost(AttentionGateOptions{}, kHuge, 2, 4, 3), ValueError);
  CHECK_THROWS_AS(cost(AttentionGateOptions{}, 8, 0, 4, 3), ValueError);
  for (int64_t bad : {int64_t{0}, int64_t{-3}}) {
    CHECK_THROWS_AS(cost(MlpOptions{.dim = bad}, 4), ValueError);
    CHECK_THROWS_AS(cost(GauOptions{.dim = bad}, 4), ValueError);
    CHECK_THROWS_AS(cost(GauOptions{.dim = 8, .heads = bad}, 4), ValueError);
    CHECK_THROWS_AS(cost(FlashOptions{.dim = 8, .chunk = bad}, 4), ValueError);
    CHECK_THROWS_AS(cost(LinearAttentionOptions{.dim = 8, .heads = bad}, 4), ValueError);
    CHECK_THROWS_AS(cost(GlaOptions{.dim = 8, .heads = bad}, 4), ValueError);
    CHECK_THROWS_AS(cost(MultiHeadAttentionOptions{.heads = {.dim = 8, .heads = bad}}, 4), ValueError);
    CHECK_THROWS_AS(cost(SinkhornBlockLayerOptions{.heads = {.dim = 8}, .block = bad}, 4), ValueError);
    CHECK_THROWS_AS(cost(TopKAttentionOptions{.heads = {.dim = 8}, .k = bad}, 4), ValueError);
  }
  CHECK_THROWS_AS(cost(AttentionStackOptions{}, 4), ValueError);
  const Cost one = cost(MlpOptions{.dim = 8}, 4);
  CHECK_THROWS_AS(kHuge / 2 * one, ValueError);
  CHECK_THROWS_AS(-1 * one, ValueError);
  CHECK_THROWS_AS((kHuge / one.flops * one) + (kHuge / one.flops * one), ValueError);
  CHECK_THROWS_AS(cost(MlpOptions{.dim = kHuge / 2}, 4), ValueError);
}
