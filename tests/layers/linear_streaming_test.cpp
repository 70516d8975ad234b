// Streaming LinearAttention, Retention and Gla (SPEC §9): a sequence in pieces gives the rows of the full pass, with a
// state of fixed size.
#include "layers/linear_attention_reference.h"

#include <sluice/ops/create.h>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;
using D = LinearDirection;
using K = FeatureMapKind;

namespace {

constexpr int64_t kDim = 4;

template <class Layer, class Options>
Layer make(Options o, Rand& rand) {
  o.dtype = f64, o.chunk = 5;
  Rng rng(1);
  return randomised_linear(Layer(o, rng), rand);
}

std::vector<LinearAttention> linear_layers(Rand& rand) {
  std::vector<LinearAttention> all;
  const LinearAttentionOptions base{.dim = kDim, .heads = 2, .direction = D::causal};
  auto add = [&](auto change) {
    LinearAttentionOptions o = base;
    change(o);
    all.push_back(make<LinearAttention>(o, rand));
  };
  for (K kind : {K::elu1, K::exp, K::mlp, K::favor, K::hedgehog})
    for (LinearDecay decay : {LinearDecay::none, LinearDecay::fixed, LinearDecay::learned})
      for (LinearRope rope : {LinearRope::none, LinearRope::inputs, LinearRope::features})
        add([&](auto& o) { o.feature_map.kind = kind, o.decay = decay, o.use_rope = rope, o.rope.offset = 2; });
  for (K kind : {K::identity, K::poly_kernel, K::fourier})
    for (LinearDecay decay : {LinearDecay::none, LinearDecay::fixed})
      add([&](auto& o) {
        o.feature_map.kind = kind, o.normalize = LinearNormalize::none, o.decay = decay, o.output_norm = NormKind::rms;
      });
  return all;
}

/// For every layer in use here: f(layer, numbers a sequence in its state).
template <class F>
void each_streaming_layer(F f) {
  Rand rand(1);
  for (const LinearAttention& l : linear_layers(rand)) {
    const LinearAttentionOptions& o = l.options;
    const int64_t m = l.feature_map.out_dim(), dv = o.value_dim;
    f(l, o.heads * (m * dv + (o.normalize == LinearNormalize::sum ? m : 0)));
  }
  for (bool rope : {false, true})
    for (bool gate : {false, true}) {
      RetentionOptions o{.dim = kDim, .heads = 2, .gamma = {0.9, 0.5}};
      o.use_rope = rope, o.gate = gate;
      const Retention r = make<Retention>(o, rand);
      f(r, o.heads * r.key_dim() * r.value_dim());
    }
  for (GlaGate gate : {GlaGate::per_channel, GlaGate::per_head}) {
    GlaOptions o{.dim = kDim, .heads = 2, .expand_k = 1, .gate = gate, .gate_temperature = 2};
    const Gla g = make<Gla>(o, rand);
    f(g, o.heads * g.key_dim() * g.value_dim());
  }
}

}  // namespace

TEST_CASE("linear streaming: any pieces give the full pass", "[linear][streaming]") {
  Rand rand(2);
  const Tensor x = random_tensor({2, 17, kDim}, f64, rand);  // n > chunk
  int layers = 0;
  each_streaming_layer([&](const auto& layer, int64_t) {
    const Tensor want = layer(x);
    INFO("layer " << layers++ << ": " << layer.type);
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {2}, {7}, {6, 1, 1, 1, 8}, {17}})
      CHECK(max_abs_diff(streamed_linear(layer, x, sizes), want) < 1e-10 * std::max(1.0, max_abs(want)));
  });
  CHECK(layers == 57);
}

TEST_CASE("linear streaming: the state has a fixed size", "[linear][streaming]") {
  Rand rand(3);
  const Tensor x = random_tensor({3, 9, kDim}, f64, rand);
  each_streaming_layer([&](const auto& layer, int64_t size) {
    auto [y, state] = layer.step(narrow(x, 1, 0, 1), {});
    CHECK(state.numel() == 3 * size);
    CHECK(state.length == 1);
    state = layer.step(narrow(x, 1, 1, 8), state).second;
    CHECK(state.numel() == 3 * size);
    CHECK(state.length == 9);
    CHECK_FALSE(state.sums.requires_grad());
    CHECK_FALSE(y.requires_grad());
  });
  // SPEC §15: h(m·dv + m), whatever the length.
  Rng rng(1);
  const LinearAttention l({.dim = 64, .heads = 4, .direction = D::causal}, rng);
  CHECK(l.step(zeros({1, 100, 64}), {}).second.numel() == 4 * (16 * 16 + 16));
}

TEST_CASE("linear streaming: a copied state can be continued twice", "[linear][streaming]") {
  Rand rand(4);
  const Tensor x = random_tensor({1, 8, kDim}, f64, rand), other = random_tensor({1, 3, kDim}, f64, rand);
  each_streaming_layer([&](const auto& layer, int64_t) {
    auto state = layer.step(narrow(x, 1, 0, 5), {}).second;
    const auto copy = state;
    layer.step(other, copy);
    layer.step(narrow(other, 1, 0, 1), copy);
    const Tensor want = narrow(layer(x), 1, 5, 3);
    CHECK(max_abs_diff(layer.step(narrow(x, 1, 5, 3), state).first, want) < 1e-10 * std::max(1.0, max_abs(want)));
  });
}

TEST_CASE("linear streaming: no tokens, no sequences", "[linear][streaming]") {
  Rand rand(5);
  const Tensor x = random_tensor({2, 3, kDim}, f64, rand);
  each_streaming_layer([&](const auto& layer, int64_t) {
    CHECK(layer.step(narrow(x, 1, 0, 0), {}).first.shape() == Shape{2, 0, kDim});
    CHECK(layer.step(narrow(x, 0, 0, 0), {}).first.shape() == Shape{0, 3, kDim});
    auto empty = layer.step(narrow(x, 1, 0, 0), {}).second;
    CHECK(max_abs_diff(layer.step(x, empty).first, layer(x)) < 1e-10 * std::max(1.0, max_abs(layer(x))));
    auto state = layer.step(x, {}).second;
    auto same = layer.step(narrow(x, 1, 0, 0), state).second;
    CHECK(same.length == 3);
    CHECK(max_abs_diff(same.sums, state.sums) == 0);
  });
}

TEST_CASE("linear streaming: 3000 tokens in f32", "[linear][streaming]") {
  Rng rng(6);
  const Tensor x = normal({1, 3000, 8}, 0, 1, rng);
  const LinearAttention l({.dim = 8, .heads = 2, .direction = D::causal}, rng);
  const Retention r({.dim = 8, .heads = 2}, rng);
  const Gla g({.dim = 8, .heads = 2}, rng);
  auto check = [&](const auto& layer) {
    const Tensor want = layer(x);
    CHECK(max_abs_diff(streamed_linear(layer, x, {997, 1, 1, 1}), want) < 1e-4 * max_abs(want));
  };
  check(l), check(r), check(g);
}

TEST_CASE("linear streaming: what is refused, and by which words", "[linear][streaming]") {
  Rand rand(7);
  Rng rng(1);
  const Tensor x = random_tensor({2, 3, kDim}, f64, rand);
  for (D direction : {D::full, D::bidirectional, D::two_direction_mean}) {
    const LinearAttention l({.dim = kDim, .heads = 2, .direction = direction, .dtype = f64}, rng);
    CHECK_THROWS_AS(l.step(x, {}), ValueError);
    CHECK_THROWS_WITH(l.step(x, {}), Contains("causal"));
  }
  each_streaming_layer([&](const auto& layer, int64_t) {
    const auto state = layer.step(x, {}).second;
    CHECK_THROWS_AS(layer.step(narrow(x, 0, 0, 1), state), ShapeError);
    CHECK_THROWS_WITH(layer.step(narrow(x, 0, 0, 1), state), Contains("state") && Contains("[2,"));
    CHECK_THROWS_WITH(layer.step(narrow(x, 2, 0, 3), state), Contains("[2,3,3]"));
    CHECK(state.length == 3);
  });
}
