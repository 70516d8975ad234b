// What layers cost: counts of cost() against closed formulas, layers that were made, states that were streamed, and
// products counted from the shapes of weights.
#include "layers/streamed.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/layers/table.h>
#include <sluice/ops/shape/create.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// 2·rows·in·out for every dense map of a layer: weights of rank 2 called "weight" read n rows each.
template <class L> int64_t projection_flops(const L& layer, int64_t n) {
  int64_t flops = 0;
  for (const NamedTensor& p : parameters(layer))
    if (p.tensor.rank() == 2 && p.name.ends_with("weight")) flops += 2 * n * p.tensor.numel();
  return flops;
}

/// parameters(), and the flops beside those of the dense maps, for a layer of these options.
template <class L, class O> int64_t beside_projections(const O& o, int64_t n) {
  Rng rng(1);
  const L layer(o, rng);
  const Cost c = cost(o, n);
  CHECK(c.parameters == count(layer));
  return c.flops - projection_flops(layer, n);
}

/// Numbers that a stream of one sequence keeps after n tokens.
template <class L> int64_t kept_after(const L& layer, int64_t dim, int64_t n) {
  return stream_of(layer, zeros({1, n, dim})).numel();
}

/// A model of tokens whose options do not say "vocabulary".
struct WordModel {
  struct Options {
    int64_t dim, words;
    static void describe(auto& o, auto& f) {
      f.required("dim", o.dim, at_least(1), "width");
      f.required("words", o.words, at_least(1), "tokens");
    }
  };
  static constexpr const char* type = "WordModel";
  Options options;
  Embedding embed;
  Linear head;

  WordModel(Options o, Rng& rng) : options(o), embed({o.words, o.dim}, rng), head({o.dim, o.words}, rng) {}
  Tensor operator()(const Tensor& tokens, const Pass& = {}) const { return head(embed(tokens)); }
  SLUICE_PARTS(embed, head);
};

}  // namespace

TEST_CASE("cost: a model that begins with an embedding reads tokens, whatever its options are called", "[cost]") {
  Rng rng(1);
  const Cost c = cost(WordModel({.dim = 8, .words = 20}, rng), 5);
  CHECK(c.flops == 2 * 5 * 8 * 20);
  CHECK(c.parameters == 20 * 8 + 8 * 20 + 20);
}

TEST_CASE("cost: MLP and GLU", "[cost]") {
  for (bool bias : {false, true})
    for (int64_t hidden : {0, 10}) {
      CHECK(beside_projections<Mlp>(MlpOptions{.dim = 6, .hidden = hidden, .bias = bias}, 7) == 0);
      CHECK(beside_projections<Glu>(GluOptions{.dim = 6, .hidden = hidden, .bias = bias}, 7) == 0);
    }
  const Cost glu = cost(GluOptions{.dim = 8, .hidden = 24}, 10);  // 6nde, 3de
  CHECK(glu.flops == 6 * 10 * 8 * 24);
  CHECK(glu.parameters == 3 * 8 * 24);
  CHECK((glu.attention_elements == 0 && glu.state == 0));
}

TEST_CASE("cost: GAU", "[cost]") {
  const int64_t n = 9;
  for (GauBias bias : {GauBias::none, GauBias::toeplitz, GauBias::rope, GauBias::t5})
    for (NormKind norm : {NormKind::none, NormKind::layer, NormKind::rms, NormKind::scale})
      for (bool linear_bias : {false, true}) {
        GauOptions o{.dim = 6, .expansion = linear_bias ? 8 : 0, .key_dim = 4, .heads = 2, .linear_bias = linear_bias};
        o.bias = bias, o.norm = norm, o.max_length = 20;
        const int64_t e = o.expansion ? o.expansion : 12;
        const int64_t bias_table = bias == GauBias::rope ? 2 * (2 * n - 1) * 2 : 0;
        CHECK(beside_projections<Gau>(o, n) == 2 * n * n * (4 + e) + bias_table);
        CHECK(cost(o, n).attention_elements == 2 * n * n);
        CHECK(cost(o, n).state == 0);
        o.causal = true;
        Rng rng(1);
        CHECK(cost(o, n).state == kept_after(Gau(o, rng), 6, n));
        CHECK(cost(o, n).state == n * (4 + e));
        o.length = GauLength::n;
        CHECK(cost(o, n).state == 0);  // cannot be streamed
      }
  // At e = 2d, s = 128.
  const int64_t d = 768, s = 128, long_n = 512;
  GauOptions o{.dim = d, .linear_bias = false, .causal = true};
  o.norm = NormKind::none;
  const Cost c = cost(o, long_n);
  CHECK(c.parameters == 6 * d * d + d * s + 4 * s);
  CHECK(c.flops == 12 * long_n * d * d + 2 * long_n * d * s + 2 * long_n * long_n * (s + 2 * d));
  CHECK(c.attention_elements == long_n * long_n);
  CHECK(cost(o, 1).state == 1664);  // a token; two GAUs replace one layer: 2.17 times the cache of MHA
  const Cost mha = cost(MultiHeadAttentionOptions{.heads = {.dim = d, .heads = 12, .causal = true}}, 1);
  CHECK(2.0 * 1664 / static_cast<double>(mha.state) == Approx(2.17).margin(0.005));

  for (int64_t context : {0, 5})
    for (NormKind norm : {NormKind::none, NormKind::layer}) {
      CrossGauOptions x{.dim = 6, .context_dim = context, .expansion = 8, .key_dim = 4, .norm = norm};
      Rng rng(1);
      const CrossGau layer(x, rng);
      const int64_t c_dim = context ? context : 6, m = 3;
      CHECK(cost(x, m, n).parameters == count(layer));
      CHECK(cost(x, m, n).flops == 2 * m * 6 * 12 + 2 * n * c_dim * 12 + 2 * m * 8 * 6 + 2 * m * n * 12);
      CHECK(cost(x, m, n).attention_elements == m * n);
    }
}

TEST_CASE("cost: the tutorial's GAU", "[cost]") {
  for (bool project : {false, true}) {
    const TutorialGauOptions o{.dim = 6, .expansion = 8, .project_out = project};
    Rng rng(1);
    CHECK(cost(o, 7).parameters == count(TutorialGau(o, rng)));
    CHECK(cost(o, 7).parameters == 5 * 6 * 8 / 2 + (project ? 4 * 6 : 0));  // 2.5de (+ de/2)
    CHECK(cost(o, 7).flops == 2 * 7 * cost(o, 7).parameters + 2 * 7 * 7 * 8);
  }
}

TEST_CASE("cost: FLASH", "[cost]") {
  for (bool causal : {false, true})
    for (GauBias bias : {GauBias::none, GauBias::toeplitz, GauBias::rope, GauBias::t5})
      for (bool shift : {false, true}) {
        FlashOptions o{.dim = 5, .expansion = 6, .key_dim = 4, .chunk = 4, .causal = causal};
        o.bias = bias, o.token_shift = shift, o.linear_bias = shift;
        // 11 tokens are chunks of 4, 4 and 3; in the linear term, if causal, the last one counts as whole.
        const int64_t bias_table = bias == GauBias::rope ? 2 * (2 * 4 - 1) * 4 : 0;
        const int64_t quadratic = 2 * (16 + 16 + 9) * (4 + 6), linear = 4 * (causal ? 12 : 11) * 4 * 6;
        CHECK(beside_projections<Flash>(o, 11) == quadratic + linear + bias_table);
        CHECK(cost(o, 11).attention_elements == 41);
        if (!causal) {
          CHECK(cost(o, 11).state == 0);
          continue;
        }
        Rng rng(1);
        const Flash layer(o, rng);
        for (int64_t n : {1, 4, 11}) {
          CHECK(cost(o, n).state == kept_after(layer, 5, n));
          CHECK(cost(o, n).state == 4 * 6 + 4 * (2 * 4 + 6) + (shift ? 3 : 0));  // se + C(2s + e), ⌈d/2⌉
        }
      }
  FlashOptions o{.dim = 768, .causal = true};
  CHECK(cost(o, 8192).state == 655360);  // at defaults, at any length
  CHECK(cost(o, 1).state == 655360);
}

TEST_CASE("cost: linear attention, GLA, retention", "[cost]") {
  const int64_t n = 10, d = 6;
  int kinds = 0;
  for (FeatureMapKind kind :
       {FeatureMapKind::identity, FeatureMapKind::exp, FeatureMapKind::elu1, FeatureMapKind::relu, FeatureMapKind::t2r,
        FeatureMapKind::poly_elem, FeatureMapKind::poly_kernel, FeatureMapKind::favor, FeatureMapKind::fourier,
        FeatureMapKind::mlp, FeatureMapKind::hedgehog})
    for (int bits = 0; bits < 16; ++bits) {
      LinearAttentionOptions o{.dim = d, .heads = 2, .value_dim = bits & 1 ? 5 : 0};
      o.feature_map.kind = kind, o.feature_map.features = bits & 2 ? 4 : 0, o.feature_map.heads = bits & 4 ? 2 : 0;
      const bool random = kind == FeatureMapKind::favor || kind == FeatureMapKind::fourier;
      o.tie_feature_map = random || bits & 8, o.qkv_bias = o.out_bias = bits & 1, o.chunk = 4;
      o.feature_map.bias = bits & 1, o.output_norm = bits & 2 ? NormKind::rms : NormKind::none;
      o.normalize = bits & 4 ? LinearNormalize::none : LinearNormalize::sum;
      o.direction = bits & 8 ? LinearDirection::causal : LinearDirection::full;
      if (bits & 8 && bits & 1) o.decay = LinearDecay::learned;
      Rng rng(1);
      const LinearAttention layer(o, rng);
      const Cost c = cost(o, n);
      CHECK(c.parameters == count(layer));
      const int64_t m = layer.feature_map.out_dim(), dv = bits & 1 ? 5 : 3, width = dv + (bits & 4 ? 0 : 1);
      int64_t flops = 2 * n * (2 * d * 6 + 2 * d * 2 * dv) + 4 * n * 2 * m * width;
      // The maps of queries and keys, one row of each head at a time.
      for (const Tensor& w : {layer.feature_map.weight, layer.feature_map.weight2, layer.feature_map.omega})
        if (w.defined()) flops += 2 * (2 * n * 2) * w.dim(-1) * w.dim(-2);
      CHECK(c.flops == flops);
      CHECK(c.attention_elements == 0);
      if (bits & 8) CHECK(c.state == kept_after(layer, d, n));
      else CHECK(c.state == 0);
      ++kinds;
    }
  CHECK(kinds == 11 * 16);
  // Directions: the scans of two, and nothing else; chunks do not count.
  LinearAttentionOptions both{.dim = d, .heads = 2};
  const int64_t full = cost(both, n).flops, sums = 4 * n * 2 * 3 * 4;
  for (int64_t chunk : {1, 4, 64}) {
    both.chunk = chunk;
    both.direction = LinearDirection::causal;
    CHECK(cost(both, n).flops == full);
    both.direction = LinearDirection::bidirectional;
    CHECK(cost(both, n).flops == full + sums);
    both.direction = LinearDirection::two_direction_mean;
    CHECK(cost(both, n).flops == full + sums);
  }
  // 8nd² + 4nh·m·dv and h(m·dv + m); the normaliser is one more column of values.
  const LinearAttentionOptions wide{.dim = 512, .heads = 8, .direction = LinearDirection::causal};
  CHECK(cost(wide, 100).state == 8 * (64 * 64 + 64));

  for (int bits = 0; bits < 8; ++bits) {
    GlaOptions g{.dim = 8, .heads = 2, .gate = bits & 1 ? GlaGate::per_head : GlaGate::per_channel, .gate_rank = 3};
    g.output_gate = bits & 2, g.chunk = 4, g.norm = bits & 4 ? NormKind::layer : NormKind::rms;
    CHECK(beside_projections<Gla>(g, n) == 4 * n * 2 * 2 * 4);
    Rng rng(1);
    CHECK(cost(g, n).state == kept_after(Gla(g, rng), 8, n));

    RetentionOptions r{.dim = 8, .heads = 2, .gate = bool(bits & 1)};
    r.group_norm = bits & 2 ? NormKind::layer : bits & 4 ? NormKind::rms : NormKind::rms_plain, r.chunk = 4;
    CHECK(beside_projections<Retention>(r, n) == 4 * n * 2 * 4 * 8);
    CHECK(cost(r, n).state == kept_after(Retention(r, rng), 8, n));
  }
}

TEST_CASE("cost: textbook gates", "[cost]") {
  const int64_t n = 7;
  for (int bits = 0; bits < 32; ++bits) {
    GatedAttentionOptions o{.heads = {.dim = 6, .heads = 2, .head_dim = bits & 1 ? 4 : 0, .causal = bool(bits & 2)}};
    o.output = bits & 4 ? OutputGate::from_query : bits & 8 ? OutputGate::none : OutputGate::from_input;
    o.gate_query = bits & 8, o.gate_value = bits & 16, o.heads.qkv_bias = o.heads.out_bias = bits & 1,
    o.heads.project_out = bits & 2;
    o.granularity = bits & 16 ? GateGranularity::headwise : GateGranularity::elementwise;
    const int64_t width = bits & 1 ? 8 : 6;
    CHECK(beside_projections<GatedAttention>(o, n) == 4 * n * n * width);
    CHECK(cost(o, n).attention_elements == 2 * n * n);
    Rng rng(1);
    CHECK(cost(o, n).state == (o.heads.causal ? kept_after(GatedAttention(o, rng), 6, n) : 0));

    FusedAttentionOptions f{.heads = {.dim = 6, .heads = 2, .head_dim = bits & 1 ? 4 : 0, .causal = bool(bits & 2)}};
    f.gate = bits & 4 ? FusedGate::per_token : bits & 8 ? FusedGate::per_head : FusedGate::per_channel;
    f.heads.qkv_bias = f.heads.out_bias = bits & 1, f.heads.project_out = bits & 16, f.chunk = 4;
    const int64_t d = width / 2, sums = 4 * n * 2 * d * (d + 1);
    CHECK(beside_projections<FusedAttention>(f, n) == 4 * n * n * width + sums);
    if (f.heads.causal) {
      CHECK(cost(f, n).state == n * 2 * 2 * d + 2 * d * (d + 1));
      CHECK(cost(f, n).state == kept_after(FusedAttention(f, rng), 6, n));
    } else {
      CHECK(cost(f, n).state == 0);
    }
  }
  for (CrossGate reading : {CrossGate::per_query, CrossGate::pooled, CrossGate::literal, CrossGate::flamingo})
    for (int bits = 0; bits < 8; ++bits) {
      GatedCrossAttentionOptions o{.heads = {.dim = 6, .heads = 2, .context_dim = bits & 1 ? 5 : 0},
                                   .reading = reading};
      o.heads.value_dim = bits & 2 ? 4 : 0, o.heads.qkv_bias = o.heads.out_bias = bits & 4,
      o.heads.project_out = bits & 4;
      const int64_t m = reading == CrossGate::literal ? n : 4;
      Rng rng(1);
      const GatedCrossAttention layer(o, rng);
      const Cost c = cost(o, m, n);
      CHECK(c.parameters == count(layer));
      int64_t flops = projection_flops(layer, m) + 2 * 2 * m * n * (3 + layer.options.heads.value_dim);
      for (const Linear* f : {&layer.heads.k, &layer.heads.v}) flops += 2 * (n - m) * f->weight.numel();
      if (reading == CrossGate::pooled)
        for (const Linear* f : {&layer.gate, &layer.value_gate})
          if (f->weight.defined()) flops += 2 * (1 - m) * f->weight.numel();
      CHECK(c.flops == flops);
      CHECK(c.attention_elements == 2 * m * n);
      Stream stream;
      if (reading == CrossGate::per_query || reading == CrossGate::flamingo)
        step(layer, zeros({1, m, 6}), stream, {.context = zeros({1, n, layer.options.heads.context_dim})});
      CHECK(c.state == stream.numel());
    }
  for (ResidualGate kind :
       {ResidualGate::scalar, ResidualGate::per_channel, ResidualGate::input, ResidualGate::input_token})
    CHECK(beside_projections<GatedResidual>(GatedResidualOptions{.dim = 6, .kind = kind}, n) == 0);
}

TEST_CASE("cost: a layer of bf16 some of whose parameters are f32", "[cost]") {
  GatedDeltaNetOptions o{.heads = {.dim = 4, .heads = 2, .dtype = bf16}};
  o.output_gate = DeltaGate::none;
  CHECK(cost(o, 5).parameters > 0);
}
