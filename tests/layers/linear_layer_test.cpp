// The LinearAttention layer against loops: options, padding, initial values, errors; long streams.
#include "layers/linear_attention_reference.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/create.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;
using D = LinearDirection;
using K = FeatureMapKind;

namespace {

Matrix layer_reference(const LinearAttention& l, Matrix x, const std::vector<bool>& real) {
  const LinearAttentionOptions& o = l.options;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!real[i]) x[i].assign(x[i].size(), 0.0);
  Matrix qs = linear_reference(l.heads.q, x), ks = linear_reference(l.heads.k, x), vs = linear_reference(l.heads.v, x);
  convolved_reference(l.conv, qs, ks, vs, real);
  Matrix all;
  const auto heads = static_cast<std::size_t>(o.heads);
  for (std::size_t h = 0; h < heads; ++h) {
    const auto kv_heads = static_cast<std::size_t>(o.kv_heads), kv = h / (heads / kv_heads);
    Matrix q = head_columns(qs, h, heads), k = head_columns(ks, kv, kv_heads);
    LinearAttentionForm f{.direction = o.direction, .normalize = o.normalize, .eps = o.eps, .scale = o.scale};
    if (o.use_rope == LinearRope::inputs) q = rope_reference(q, o.rope), k = rope_reference(k, o.rope.of_keys());
    if (o.use_rope == LinearRope::features) f.rope = o.rope;
    LinearHead head{features_reference(l.feature_map, q, h),
                    features_reference(l.key_feature_map ? *l.key_feature_map : l.feature_map, k, h),
                    head_columns(vs, kv, kv_heads), {}, real};
    double gamma = 1;
    if (o.decay == LinearDecay::fixed) gamma = o.gamma[h];
    if (o.decay == LinearDecay::learned) gamma = 1 / (1 + std::exp(-l.gamma_logit.to_vector<double>()[h]));
    if (o.decay != LinearDecay::none) head.log_decay = Matrix(x.size(), {std::log(gamma)});
    all = beside(all, norm_reference(l.norm, pairs_reference(head, f)));
  }
  if (o.output_gate) all = swish_gated_reference(l.output_gate, all, x);
  return linear_reference(l.heads.out, all);
}
Tensor layer_reference(const LinearAttention& l, const Tensor& x, const Tensor& key_mask) {
  return each_sequence(
      x, key_mask, [&](const Matrix& m, const std::vector<bool>& real) { return layer_reference(l, m, real); });
}

/// Every option that changes the formula. Positive features unless there is no normaliser.
std::vector<LinearAttentionOptions> samples() {
  const LinearAttentionOptions base{.dim = 4, .heads = 2, .chunk = 3, .dtype = f64};
  std::vector<LinearAttentionOptions> all;
  auto add = [&](auto change) {
    LinearAttentionOptions o = base;
    change(o);
    all.push_back(o);
  };
  for (D direction : {D::full, D::causal, D::bidirectional, D::two_direction_mean})
    add([&](auto& o) { o.direction = direction; });
  for (D direction : {D::causal, D::bidirectional, D::two_direction_mean})
    for (LinearDecay decay : {LinearDecay::fixed, LinearDecay::learned})
      add([&](auto& o) { o.direction = direction, o.decay = decay, o.gamma = {0.9, 0.6}; });
  for (K kind : {K::exp, K::mlp, K::favor, K::hedgehog})
    for (D direction : {D::full, D::causal}) add([&](auto& o) { o.feature_map.kind = kind, o.direction = direction; });
  for (K kind : {K::identity, K::poly_elem, K::poly_kernel, K::fourier, K::t2r})
    add([&](auto& o) {
      o.feature_map.kind = kind, o.direction = D::causal, o.normalize = LinearNormalize::none, o.scale = 0.5;
    });
  for (LinearRope rope : {LinearRope::inputs, LinearRope::features})
    for (D direction : {D::full, D::causal})
      add([&](auto& o) { o.use_rope = rope, o.direction = direction, o.rope.offset = 1; });
  add([](auto& o) {
    o.use_rope = LinearRope::features, o.direction = D::causal, o.normalize = LinearNormalize::none;
    o.output_norm = NormKind::rms;
  });
  add([](auto& o) {
    o.heads = 3, o.head_dim = 2, o.value_dim = 5, o.qkv_bias = o.out_bias = true, o.output_norm = NormKind::layer;
  });
  add([](auto& o) { o.direction = D::causal, o.kv_heads = 1, o.value_dim = 3, o.short_conv = 3, o.qkv_bias = true; });
  add([](auto& o) { o.heads = 4, o.kv_heads = 2, o.short_conv = 1, o.output_gate = true, o.output_norm = NormKind::rms, o.norm_eps = 0.1; });
  add([](auto& o) {
    o.direction = D::bidirectional, o.kv_heads = 1, o.short_conv = 4, o.output_gate = true, o.use_rope = LinearRope::inputs;
    o.rope.xpos = 5, o.decay = LinearDecay::fixed, o.gamma = {0.9, 0.6};
  });
  add([](auto& o) { o.use_rope = LinearRope::features, o.direction = D::causal, o.rope.xpos = 5; });
  add([](auto& o) { o.feature_map.kind = K::mlp, o.tie_feature_map = false, o.feature_map.heads = 2; });
  add([](auto& o) { o.feature_map = {.kind = K::t2r, .features = 3, .offset = 0.1}, o.tie_feature_map = false; });
  return all;
}

LinearAttention make(const LinearAttentionOptions& o, Rand& rand) {
  Rng rng(1);
  return randomised(LinearAttention(o, rng), rand);
}

std::string describe(const LinearAttentionOptions& o) {
  return str(name_of(o.feature_map.kind), " direction ", static_cast<int>(o.direction), " normalize ",
             o.normalize == LinearNormalize::sum, " decay ", static_cast<int>(o.decay), " rope ",
             static_cast<int>(o.use_rope));
}

}  // namespace

TEST_CASE("LinearAttention: every option against loops", "[linear]") {
  for (const LinearAttentionOptions& o : samples()) {
    Rand rand(1);
    const LinearAttention l = make(o, rand);
    const Tensor x = random_tensor({2, 8, 4}, f64, rand), y = l(x), want = layer_reference(l, x, {});
    INFO(describe(o));
    CHECK(max_abs_diff(y, want) < 1e-11);
    const Tensor mask = prefix_mask(8, 8, 4);
    CHECK(max_abs_diff(real_rows(l(x, {.key_mask = mask}), mask), real_rows(layer_reference(l, x, mask), mask)) <
          1e-11);
    const Tensor one = random_tensor({2, 1, 4}, f64, rand);
    CHECK(max_abs_diff(l(one), layer_reference(l, one, {})) < 1e-11);
  }
}

TEST_CASE("LinearAttention: defaults, counts and initial values", "[linear]") {
  Rng rng(1);
  const LinearAttention l({.dim = 64}, rng);
  CHECK(l.options.head_dim == 8);
  CHECK(l.options.value_dim == 8);
  CHECK(l.options.feature_map.kind == K::elu1);
  CHECK(count(l) == 4 * 64 * 64);
  CHECK_FALSE(l.log_decay().defined());
  CHECK(count(LinearAttention({.dim = 6, .heads = 2, .head_dim = 5, .value_dim = 7, .qkv_bias = true,
                               .out_bias = true}, rng)) ==
        6 * (10 + 10 + 14) + 34 + 14 * 6 + 6);
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
  const LinearAttention near({.dim = 2, .heads = 1, .direction = D::causal, .decay = LinearDecay::learned,
                              .gamma = {1 - 1e-12}, .dtype = f64}, rng);
  CHECK(near.log_decay().item() == Approx(-1e-12).epsilon(1e-3));
}

TEST_CASE("LinearAttention: what is refused, and by which words", "[linear]") {
  Rng rng(1);
  auto make_it = [&](const LinearAttentionOptions& o) { return LinearAttention(o, rng); };
  CHECK_THROWS_AS(make_it({.dim = 0}), ValueError);
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
  const LinearAttention l({.dim = 4, .heads = 2}, rng);
  CHECK_THROWS_AS(l(ones({3, 4})), ShapeError);
  CHECK_THROWS_WITH(l(ones({2, 3, 5})), Contains("[2,3,5]") && Contains("4"));
  CHECK_THROWS_WITH(l(ones({2, 3, 4}), {.key_mask = ones({2, 4}) > 0.0}), Contains("[2,4]") && Contains("[2,3,4]"));
  CHECK_THROWS_WITH(l(ones({2, 3, 4}), {.key_mask = ones({2, 3})}), Contains("f32") && Contains("bool"));
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
