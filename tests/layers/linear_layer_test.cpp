// The LinearAttention layer against loops (SPEC §9): options, gradients, padding, causality, initial values, errors.
#include "layers/linear_attention_reference.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/create.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;
using D = LinearDirection;
using K = FeatureMapKind;

namespace {

Matrix layer_reference(const LinearAttention& l, Matrix x, const std::vector<bool>& real) {
  const LinearAttentionOptions& o = l.options;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!real[i]) x[i].assign(x[i].size(), 0.0);
  const Matrix qs = linear_reference(l.heads.q, x), ks = linear_reference(l.heads.k, x),
      vs = linear_reference(l.heads.v, x);
  Matrix all;
  const auto heads = static_cast<std::size_t>(o.heads);
  for (std::size_t h = 0; h < heads; ++h) {
    Matrix q = head_columns(qs, h, heads), k = head_columns(ks, h, heads);
    LinearAttentionForm f{.direction = o.direction, .normalize = o.normalize, .eps = o.eps, .scale = o.scale};
    if (o.use_rope == LinearRope::inputs) q = rope_reference(q, o.rope), k = rope_reference(k, o.rope);
    if (o.use_rope == LinearRope::features) f.rope = o.rope;
    LinearHead head{features_reference(l.feature_map, q, h),
                    features_reference(l.key_feature_map ? *l.key_feature_map : l.feature_map, k, h),
                    head_columns(vs, h, heads), {}, real};
    double gamma = 1;
    if (o.decay == LinearDecay::fixed) gamma = o.gamma[h];
    if (o.decay == LinearDecay::learned) gamma = 1 / (1 + std::exp(-l.gamma_logit.to_vector<double>()[h]));
    if (o.decay != LinearDecay::none) head.log_decay = Matrix(x.size(), {std::log(gamma)});
    all = beside(all, norm_reference(l.norm, pairs_reference(head, f)));
  }
  return linear_reference(l.heads.out, all);
}
Tensor layer_reference(const LinearAttention& l, const Tensor& x, const Tensor& key_mask) {
  return each_linear_sequence(
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
  add([](auto& o) { o.feature_map.kind = K::mlp, o.tie_feature_map = false, o.feature_map.heads = 2; });
  add([](auto& o) { o.feature_map = {.kind = K::t2r, .features = 3, .offset = 0.1}, o.tie_feature_map = false; });
  return all;
}

LinearAttention make(const LinearAttentionOptions& o, Rand& rand) {
  Rng rng(1);
  return randomised_linear(LinearAttention(o, rng), rand);
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
    LinearAttention single = l;
    to(single, f32);
    CHECK(max_abs_diff(to(single(to(x, f32)), f64), want) < 2e-5 * std::max(1.0, max_abs(want)));
    const Tensor one = random_tensor({2, 1, 4}, f64, rand);
    CHECK(max_abs_diff(l(one), layer_reference(l, one, {})) < 1e-11);
    CHECK(l(zeros({2, 0, 4}, {f64})).shape() == Shape{2, 0, 4});
    CHECK(l(zeros({0, 3, 4}, {f64})).shape() == Shape{0, 3, 4});
  }
}

TEST_CASE("LinearAttention: gradients of both orders", "[linear]") {
  for (LinearAttentionOptions o : samples()) {
    o.dim = 2, o.head_dim = o.use_rope == LinearRope::none ? 1 : 2;
    Rand rand(2);
    const LinearAttention l = make(o, rand);
    INFO(describe(o));
    check_linear_gradients<LinearAttention>(l, random_tensor({1, 3, 2}, f64, rand),
                                            [](const LinearAttention& m, const Tensor& x) { return m(x); });
  }
}

TEST_CASE("LinearAttention: a padded batch is its rows alone, whatever the padding holds", "[linear]") {
  const Tensor mask = prefix_mask(7, 7, 4);
  for (const LinearAttentionOptions& o : samples()) {
    Rand rand(3);
    const LinearAttention l = make(o, rand);
    const Tensor x = random_tensor({2, 7, 4}, f64, rand), alone = l(narrow(narrow(x, 0, 1, 1), 1, 0, 4));
    INFO(describe(o));
    for (double junk : {3.0, std::nan(""), HUGE_VAL}) {
      Tensor dirty = masked_fill(x, unsqueeze(!mask, -1), junk).requires_grad_();
      const Tensor y = l(dirty, mask);
      CHECK(max_abs_diff(narrow(narrow(y, 0, 1, 1), 1, 0, 4), alone) < 1e-12);
      CHECK(max_abs_diff(narrow(y, 0, 0, 1), l(narrow(x, 0, 0, 1))) < 1e-12);
      CHECK(max_abs_diff(real_rows(y, mask), real_rows(layer_reference(l, x, mask), mask)) < 1e-11);
      for (const Tensor& g : grad({sum(real_rows(y, mask))}, {dirty, l.heads.q.weight, l.heads.k.weight,
                                                              l.heads.v.weight}))
        CHECK(all(isfinite(g)).item() == 1);
    }
  }
}

TEST_CASE("LinearAttention: earlier outputs do not see later tokens, to the bit", "[linear]") {
  for (const LinearAttentionOptions& o : samples()) {
    if (o.direction != D::causal) continue;
    Rand rand(4);
    const LinearAttention l = make(o, rand);
    const Tensor x = random_tensor({1, 11, 4}, f64, rand), y = l(x);
    INFO(describe(o));
    for (int64_t t : {1, 4, 10}) {
      const Tensor later = cat({narrow(x, 1, 0, t), random_tensor({1, 11 - t, 4}, f64, rand)}, 1), z = l(later);
      CHECK(same_bits(contiguous(narrow(z, 1, 0, t)), contiguous(narrow(y, 1, 0, t))));
      CHECK_FALSE(same_bits(z, y));
    }
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

TEST_CASE("LinearAttention: dropout needs a generator and repeats with it", "[linear]") {
  Rng rng(1);
  const LinearAttention l({.dim = 8, .heads = 2, .dropout = 0.5, .dtype = f64}, rng);
  Rand rand(5);
  const Tensor x = random_tensor({2, 20, 8}, f64, rand), still = l(x);
  CHECK(same_bits(l(x), still));
  Rng a(5), b(5);
  const Tensor y = l(x, {}, &a);
  CHECK(same_bits(y, l(x, {}, &b)));
  int dropped = 0;
  const std::vector<double> got = y.to_vector<double>(), base = still.to_vector<double>();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == 0) ++dropped;
    else CHECK(got[i] == Approx(2 * base[i]));
  }
  CHECK(std::abs(dropped / 320.0 - 0.5) < 0.15);
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
  CHECK_THROWS_WITH(make_it({.dim = 6, .heads = 2, .use_rope = LinearRope::features}), Contains("3 features"));
  const LinearAttention l({.dim = 4, .heads = 2}, rng);
  CHECK_THROWS_AS(l(ones({3, 4})), ShapeError);
  CHECK_THROWS_WITH(l(ones({2, 3, 5})), Contains("[2,3,5]") && Contains("4"));
  CHECK_THROWS_WITH(l(ones({2, 3, 4}), ones({2, 4}) > 0.0), Contains("[2,4]") && Contains("[2,3,4]"));
  CHECK_THROWS_WITH(l(ones({2, 3, 4}), ones({2, 3})), Contains("f32") && Contains("bool"));
}
