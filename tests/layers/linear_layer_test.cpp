// The LinearAttention layer: initial values, errors, long streams. linear_layers_reference.cpp says what it computes.
#include "layers/linear_attention_reference.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/forgetting_attention.h>
#include <sluice/layers/train/models.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;
using D = LinearDirection;
using K = FeatureMapKind;

TEST_CASE("LinearAttention: defaults, counts and initial values", "[linear]") {
  Rng rng(1);
  const LinearAttention l({.dim = 64}, rng);
  CHECK(l.options.head_dim == 8);
  CHECK(l.options.value_dim == 8);
  CHECK(l.options.feature_map.kind == K::elu1);
  CHECK(count(l) == 4 * 64 * 64);
  CHECK_FALSE(l.log_decay().defined());
  CHECK(count(LinearAttention({.dim = 6, .heads = 2, .head_dim = 5, .value_dim = 7, .qkv_bias = true, .out_bias = true},
                              rng)) == 6 * (10 + 10 + 14) + 34 + 14 * 6 + 6);
  const LinearAttention favor({.dim = 64, .heads = 4, .feature_map = {.kind = K::favor}}, rng);
  CHECK(*favor.options.feature_map.input_scale == Approx(0.5));  // 16^{−1/4}
  CHECK(*favor.feature_map.options.input_scale == Approx(0.5));
  for (LinearDecay decay : {LinearDecay::fixed, LinearDecay::learned}) {
    const LinearAttention d({.dim = 8, .heads = 4, .direction = D::causal, .decay = decay, .dtype = f64}, rng);
    const std::vector<double> g = exp(d.log_decay()).to_vector<double>();
    CHECK(d.log_decay().shape() == Shape{1, 4, 1});
    for (std::size_t h = 0; h < 4; ++h)
      CHECK(g[h] == Approx(1 - std::pow(2.0, -5.0 - static_cast<double>(h))).epsilon(1e-12));
    CHECK(count(d) == 4 * 64 + (decay == LinearDecay::learned ? 4 : 0));
    CHECK(state_dict(d).size() == 5);
  }
  // Learned decays next to 1 keep their distance from it.
  const LinearAttention near(
      {.dim = 2, .heads = 1, .direction = D::causal, .decay = LinearDecay::learned, .gamma = {1 - 1e-12}, .dtype = f64},
      rng);
  CHECK(near.log_decay().item() == Approx(-1e-12).epsilon(1e-3));
}

TEST_CASE("LinearAttention: learned decays of more heads than f64 has 1 - 2^(-5-h) below 1", "[linear]") {
  Rng rng(1);
  const LinearAttention l({.dim = 60, .heads = 60, .direction = D::causal, .decay = LinearDecay::learned, .dtype = f64},
                          rng);
  const std::vector<double> g = l.log_decay().to_vector<double>();
  for (std::size_t h = 0; h < 60; ++h)
    CHECK(g[h] == Approx(std::log1p(-std::max(std::exp2(-5 - static_cast<double>(h)), 0x1p-53))).epsilon(1e-12));
}

TEST_CASE("decays of layers in bf16 are not rounded, and files of rounded ones load", "[linear][bf16]") {
  const auto check = [](const auto& made, const std::vector<std::string>& names) {
    Rng one(1), same(1);
    const auto half = made(bf16, one), full = made(f32, same);
    auto converted = clone(full);
    to(converted, bf16);
    std::map<std::string, Tensor> state, want, old;
    for (const NamedTensor& p : state_dict(half)) state[p.name] = p.tensor, old[p.name] = to(p.tensor.detach(), bf16);
    for (const NamedTensor& p : state_dict(full)) want[p.name] = p.tensor;
    for (const NamedTensor& p : state_dict(converted)) CHECK(p.tensor.dtype() == state.at(p.name).dtype());
    for (const std::string& name : names) {
      INFO(name);
      REQUIRE(state.at(name).dtype() == f32);
      CHECK(max_abs_diff(state.at(name), want.at(name)) == 0);
    }
    const Tensor x = normal({1, 9, 8}, 0, 1, one, {bf16});
    CHECK(half(x).dtype() == bf16);
    load_state(half, old);
    for (const std::string& name : names) CHECK(max_abs_diff(state.at(name), to(old.at(name), f32)) == 0);
  };
  for (const LinearDecay decay : {LinearDecay::fixed, LinearDecay::learned}) {
    const auto made = [&](DType dtype, Rng& rng) {
      return LinearAttention({.dim = 8, .heads = 2, .direction = D::causal, .decay = decay, .dtype = dtype}, rng);
    };
    check(made, {decay == LinearDecay::fixed ? "log_gamma" : "gamma_logit"});
  }
  check([](DType dtype, Rng& rng) { return Retention({.dim = 8, .heads = 2, .dtype = dtype}, rng); }, {"log_gamma"});
  for (const ForgetGate gate : {ForgetGate::input, ForgetGate::fixed}) {
    const auto made = [&](DType dtype, Rng& rng) {
      return ForgettingAttention(
          {.heads = {.dim = 8, .heads = 2, .dtype = dtype}, .gate = gate, .decay_first = 300, .decay_last = 10000},
          rng);
    };
    check(made, {"forget.bias"});
  }
}

TEST_CASE("convolutions of single channels are drawn for sums of `width` terms", "[linear][init]") {
  Rng rng(1);
  for (const auto& [kind, want] :
       {std::pair(InitKind::lecun, 0.5), {InitKind::xavier, 0.5}, {InitKind::he, std::sqrt(0.5)}}) {
    const Tensor w = ShortConvolution({.dim = 4000, .width = 4, .init = {kind}}, rng).weight;
    CHECK(std::sqrt(mean(square(w)).item()) == Approx(want).epsilon(0.02));
  }
}

TEST_CASE("a convolution within documents rounds its sum once", "[linear][bf16]") {
  Rng rng(1);
  ShortConvolution conv({.dim = 32, .bias = true, .dtype = bf16}, rng), wide = clone(conv);
  to(wide, f32);
  const Tensor x = normal({1, 64, 32}, 0, 1, rng, {bf16}), segments = unsqueeze(floor_divide(arange(64), 7), 0);
  const Tensor want = wide(to(x, f32), {.segments = segments}), got = conv(x, {.segments = segments});
  CHECK(max(abs(to(got, f32) - want) / abs(want)).item() < 0x1p-8);
}

TEST_CASE("LinearAttention: what is refused, and by which words", "[linear]") {
  Rng rng(1);
  auto make_it = [&](const LinearAttentionOptions& o) { return LinearAttention(o, rng); };
  CHECK_THROWS_WITH(make_it({.dim = 7, .heads = 2}), Contains("heads=2") && Contains("dim=7"));
  CHECK_THROWS_WITH(make_it({.dim = 8, .heads = 2, .feature_map = {.dim = 3}}),
                    Contains("3") && Contains("head_dim=4"));
  CHECK_THROWS_WITH(make_it({.dim = 8, .heads = 2, .feature_map = {.kind = K::t2r, .heads = 3}}), Contains("heads=3"));
  CHECK_THROWS_WITH(make_it({.dim = 8, .heads = 2, .feature_map = {.kind = K::favor}, .tie_feature_map = false}),
                    Contains("favor") && Contains("tie"));
  CHECK_THROWS_WITH(make_it({.dim = 8, .heads = 2, .decay = LinearDecay::fixed}), Contains("full"));
  CHECK_THROWS_WITH(make_it({.dim = 8, .heads = 2, .direction = D::causal, .gamma = {0.5, 0.5}}),
                    Contains("decay is none"));
  for (LinearDecay decay : {LinearDecay::fixed, LinearDecay::learned}) {
    CHECK_THROWS_WITH(make_it({.dim = 8, .heads = 2, .direction = D::causal, .decay = decay, .gamma = {0.5}}),
                      Contains("heads=2") && Contains("1"));
    for (double bad : {0.0, -0.5, 1.5, std::nan("")})
      CHECK_THROWS_WITH(make_it({.dim = 8, .heads = 2, .direction = D::causal, .decay = decay, .gamma = {0.5, bad}}),
                        Contains("(0, 1]"));
  }
  CHECK_THROWS_WITH(
      make_it({.dim = 8, .heads = 1, .direction = D::causal, .decay = LinearDecay::learned, .gamma = {1}}),
      Contains("below 1"));
  CHECK_THROWS_WITH(make_it({.dim = 6, .heads = 2, .use_rope = LinearRope::features}), Contains("at most features=3"));
  CHECK_THROWS_WITH(make_it({.dim = 8, .heads = 2, .use_rope = LinearRope::features, .rope = {.rot_dim = 6}}),
                    Contains("at most features=4"));
  CHECK_THROWS_WITH(make_it({.dim = 8, .heads = 2, .use_rope = LinearRope::features, .rope = {.frequencies = {1}}}),
                    Contains("1 RoPE frequencies do not fit 2 pairs"));
}

TEST_CASE("linear streaming: 3000 tokens in f32", "[linear][streaming]") {
  Rng rng(6);
  const Tensor x = normal({1, 3000, 8}, 0, 1, rng);
  auto check = [&](const auto& layer) {
    const Tensor want = layer(x);
    Stream stream;
    const Tensor first = step(layer, narrow(x, 1, 0, 997), stream), last = step(layer, narrow(x, 1, 997, 2003), stream);
    CHECK(max_abs_diff(cat({first, last}, 1), want) < 1e-4 * max_abs(want));
    CHECK(stream.length() == 3000);
    Stream other;
    step(layer, zeros({2, 3, 8}), other);
    CHECK_THROWS_WITH(step(layer, zeros({2, 3, 7}), other), Contains("[2,3,7]"));
    CHECK_THROWS_WITH(step(layer, zeros({1, 3, 8}), other), Contains("batch 2") && Contains("[1,3,8]"));
  };
  check(LinearAttention({.dim = 8, .heads = 2, .direction = D::causal}, rng));
  check(Retention({.dim = 8, .heads = 2}, rng));
  check(Gla({.dim = 8, .heads = 2}, rng));
  Stream stream;
  CHECK_THROWS_WITH(step(LinearAttention({.dim = 8}, rng), x, stream), Contains("causal"));
}
