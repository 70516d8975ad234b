// The GAU layer against loops (SPEC §3): every combination of kind, length, causality, bias, heads, padding and
// top-k, forward and gradients; then placements, activations, initial values, dropout, counts and errors.
#include "layers/gau_reference.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;

namespace {

GauOptions small(GauKind kind, GauLength length, bool causal, GauBias bias, int64_t heads, int64_t top_k) {
  GauOptions o{.dim = 4, .expansion = 4, .key_dim = 4, .heads = heads};
  o.kind = kind, o.length = length, o.causal = causal, o.bias = bias, o.top_k = top_k;
  o.constant_length = 3, o.max_length = 7;
  return o;
}

std::string describe(const GauOptions& o, bool padded) {
  return str(name_of(o.kind), " length ", static_cast<int>(*o.length), " causal ", o.causal, " bias ",
             static_cast<int>(o.bias), " heads ", o.heads, " top_k ", o.top_k, " padded ", padded);
}

void each_layer(const std::function<void(const GauOptions&, bool padded)>& f) {
  for (GauKind kind : kGauKinds)
    for (GauLength length : kGauLengths)
      for (GauBias bias : kGauBiases)
        for (int bits = 0; bits < 16; ++bits)
          f(small(kind, length, bits & 1, bias, bits & 2 ? 2 : 1, bits & 4 ? 3 : 0), bits & 8);
}

/// The parameters of a layer moved along fixed random directions: p + D·t. A gradient in t sees every
/// parameter at the price of two.
struct Directions {
  const Gau& gau;
  Tensor x, mask;
  std::vector<Tensor> d;  // [2, …] for x and each parameter

  Directions(const Gau& g, const Tensor& input, const Tensor& key_mask, Rand& rand) : gau(g), x(input), mask(key_mask) {
    d.push_back(random_tensor({2, x.numel()}, f64, rand));
    for (const NamedTensor& p : parameters(gau)) d.push_back(random_tensor({2, p.tensor.numel()}, f64, rand));
  }
  Tensor operator()(const std::vector<Tensor>& t) const {
    auto moved = [&](const Tensor& p, std::size_t i) {
      return p.detach() + reshape(matmul(reshape(t[0], {1, 2}), d[i]), p.shape());
    };
    Gau copy = gau;
    std::size_t i = 1;
    for (Tensor* p : {&copy.norm.weight, &copy.norm.bias, &copy.in.weight, &copy.in.bias, &copy.out.weight,
                      &copy.out.bias, &copy.gamma, &copy.beta, &copy.toeplitz_bias, &copy.rope_bias, &copy.t5_bias})
      if (p->defined()) *p = moved(*p, i), ++i;
    return copy(moved(x, 0), mask);
  }
};

}  // namespace

TEST_CASE("gau: every combination equals loops", "[gau]") {
  double worst = 0;
  each_layer([&](const GauOptions& o, bool padded) {
    Rand rand(7);
    const Gau g = random_gau(o, rand);
    const Tensor x = random_tensor({2, 6, 4}, f64, rand), mask = padded ? prefix_mask(6, 4, 6) : Tensor();
    const double e = max_abs_diff(real_rows(g(x, mask), mask), real_rows(gau_reference(g, x, mask), mask));
    if (!(e < 1e-10)) FAIL_CHECK(describe(o, padded) << ": off by " << e);
    worst = std::max(worst, e);
  });
  CHECK(worst < 1e-10);
}

TEST_CASE("gau: gradients and their gradients, every combination", "[gau]") {
  int combination = 0;
  each_layer([&](const GauOptions& o, bool padded) {
    // The score of a kink or a tie has no derivative: the first sample that keeps away from them. A row of
    // rownorm is 1/x² in its only score x.
    const double wanted = o.kind == GauKind::rownorm ? 2e-2 : 1e-3;
    for (uint64_t seed = 1;; ++seed) {
      Rand rand(seed * 1000 + static_cast<uint64_t>(combination));
      const Gau g = random_gau(o, rand);
      const Tensor x = random_tensor({2, 4, 4}, f64, rand), mask = padded ? prefix_mask(4, 3, 4) : Tensor();
      Margin margin;
      gau_reference(g, x, mask, &margin);
      if (margin.value < wanted && seed < 200) continue;
      REQUIRE(margin.value >= wanted);
      const Directions f(g, x, mask, rand);
      const std::vector<Tensor> t{zeros({2}, {f64}).requires_grad_()};
      const GradcheckResult first = gradcheck(f, t);
      if (!first) FAIL_CHECK(describe(o, padded) << ": " << first.message);
      if (combination % 3 == 0) {  // all values of each option, and all pairs of them, occur among these
        const GradcheckResult second = gradgradcheck(f, t, {.tolerance = 1e-5});
        if (!second) FAIL_CHECK(describe(o, padded) << ", twice: " << second.message);
      }
      break;
    }
    ++combination;
  });
  CHECK(combination == 1536);
}

TEST_CASE("gau: the gradient of every element of every parameter", "[gau]") {
  for (GauKind kind : kGauKinds)
    for (GauBias bias : kGauBiases) {
      GauOptions o = small(kind, GauLength::visible, bias != GauBias::t5, bias, bias == GauBias::rope ? 2 : 1, 0);
      o.placement = bias == GauBias::toeplitz ? GauPlacement::post : GauPlacement::pre;
      Rand rand(static_cast<uint64_t>(kind) * 4 + static_cast<uint64_t>(bias) + 100);
      const Gau g = random_gau(o, rand);
      std::vector<Tensor> inputs{random_tensor({1, 4, 4}, f64, rand).requires_grad_()};
      for (const NamedTensor& p : parameters(g)) inputs.push_back(p.tensor);
      const TensorFunction f = [&](const std::vector<Tensor>& v) {
        Gau copy = g;
        auto at = v.begin() + 1;
        for (Tensor* p : {&copy.norm.weight, &copy.norm.bias, &copy.in.weight, &copy.in.bias, &copy.out.weight,
                          &copy.out.bias, &copy.gamma, &copy.beta, &copy.toeplitz_bias, &copy.rope_bias, &copy.t5_bias})
          if (p->defined()) *p = *at++;
        return copy(v[0]);
      };
      const GradcheckResult r = gradcheck(f, inputs);
      INFO(describe(o, false) << ": " << r.message);
      CHECK(r.ok);
    }
}

TEST_CASE("gau: placements, norms, DeepNorm and activations equal loops", "[gau]") {
  for (NormKind norm :
       {NormKind::none, NormKind::layer, NormKind::rms, NormKind::rms_plain, NormKind::scale, NormKind::scale_l2})
    for (GauPlacement placement : {GauPlacement::pre, GauPlacement::post})
      for (double alpha : {1.0, 2.5})
        for (Act act :
             {Act::identity, Act::relu, Act::relu2, Act::silu, Act::gelu, Act::tanh, Act::sigmoid, Act::softplus}) {
          GauOptions o{.dim = 5, .expansion = 6, .key_dim = 4, .activation = act};
          o.norm = norm, o.placement = placement, o.residual_scale = alpha;
          o.linear_bias = act != Act::silu;
          Rand rand(3);
          const Gau g = random_gau(o, rand);
          const Tensor x = random_tensor({2, 5, 5}, f64, rand);
          INFO(name_of(act) << " norm " << static_cast<int>(norm) << " placement " << static_cast<int>(placement));
          CHECK(max_abs_diff(g(x), gau_reference(g, x, {})) < 1e-10);
        }
}

TEST_CASE("gau: biases over 150 tokens, where T5's buckets widen", "[gau]") {
  for (GauBias bias : kGauBiases)
    for (bool causal : {false, true}) {
      GauOptions o{.dim = 3, .expansion = 2, .key_dim = 4};
      o.bias = bias, o.causal = causal, o.max_length = 160;
      Rand rand(13);
      const Gau g = random_gau(o, rand);
      const Tensor x = random_tensor({1, 150, 3}, f64, rand);
      CHECK(max_abs_diff(g(x), gau_reference(g, x, {})) < 1e-10);
    }
}

TEST_CASE("gau: GAU-α's options", "[gau]") {
  GauOptions o = gau_alpha_options(8, 24);
  CHECK(o.dropout == 0.1);
  CHECK(o.attention_dropout == 0.1);
  o.key_dim = 6;
  Rand rand(5);
  const Gau g = random_gau(o, rand);
  CHECK(parameters(g).size() == 4);  // two weights, γ, β: no biases, and a norm without parameters
  CHECK(g.options.expansion == 16);
  const Tensor x = random_tensor({2, 5, 8}, f64, rand), y = g(x);
  CHECK(max_abs_diff(y, gau_reference(g, x, {})) < 1e-10);
  CHECK(max_abs_diff(mean(square(y), {-1}), ones({2, 5}, {f64})) < 1e-4);
}

TEST_CASE("gau: defaults and initial values", "[gau]") {
  Rng rng(1);
  const Gau plain({.dim = 32}, rng);
  CHECK(plain.options.expansion == 64);
  CHECK(plain.options.key_dim == 128);
  CHECK(plain.options.activation == Act::silu);
  CHECK(plain.options.kind == GauKind::su);
  CHECK(*plain.options.length == GauLength::n);
  CHECK(max_abs_diff(plain.gamma, ones({2, 128})) == 0);
  CHECK(max_abs(plain.beta) == 0);
  CHECK(max_abs(plain.in.bias) == 0);
  CHECK(*Gau({.dim = 4, .causal = true}, rng).options.length == GauLength::visible);

  GauOptions o{.dim = 64, .key_dim = 512};
  o.gamma_std = 0.02, o.init = Init::paper(), o.bias = GauBias::toeplitz;
  const Gau paper(o, rng);
  auto spread = [](const Tensor& t) { return std::sqrt(mean(square(t)).item()); };
  CHECK(spread(paper.gamma) == Approx(0.02).epsilon(0.1));  // 1024 values: 4.5 σ
  CHECK(spread(paper.toeplitz_bias) == Approx(0.02).epsilon(0.1));
  CHECK(spread(paper.in.weight) == Approx(0.02).epsilon(0.02));
  CHECK(spread(paper.out.weight) == Approx(0.02).epsilon(0.04));
  CHECK(paper.toeplitz_bias.numel() == 1023);
}

TEST_CASE("gau: dropout needs a generator, repeats with it, and keeps the mean", "[gau]") {
  for (bool attention : {true, false}) {
    GauOptions o{.dim = 4, .expansion = 8, .key_dim = 4};
    (attention ? o.attention_dropout : o.dropout) = 0.25;
    Rand rand(11);
    const Gau g = random_gau(o, rand);
    const Tensor x = random_tensor({2, 6, 4}, f64, rand), still = g(x);
    CHECK(same_bits(g(x), still));
    Rng a(5), b(5);
    CHECK(same_bits(g(x, {}, &a), g(x, {}, &b)));
    CHECK_FALSE(same_bits(g(x, {}, &a), still));
    // F is linear in A: the mean over masks is the result without dropout.
    const int draws = 4000;
    NoGrad guard;
    Tensor total = zeros(x.shape(), {f64}), squares = zeros(x.shape(), {f64});
    for (int i = 0; i < draws; ++i) {
      const Tensor difference = g(x, {}, &a) - still;
      total = total + difference, squares = squares + square(difference);
    }
    const std::vector<double> t = total.to_vector<double>(), s = squares.to_vector<double>();
    double worst = 0;  // in standard errors
    for (std::size_t i = 0; i < t.size(); ++i) worst = std::max(worst, std::abs(t[i]) / std::sqrt(s[i]));
    CHECK(worst < 4.5);
    CHECK(worst > 0.5);
  }
  // With dropout on the output alone, a share p of the elements keeps the residual.
  GauOptions o{.dim = 50, .expansion = 8, .key_dim = 4, .dropout = 0.25};
  Rand rand(12);
  const Gau g = random_gau(o, rand);
  const Tensor x = random_tensor({2, 40, 50}, f64, rand);
  Rng rng(6);
  const Tensor moved = g(x, {}, &rng) - x, kept = g(x) - x;
  int zero = 0;
  const std::vector<double> m = moved.to_vector<double>(), k = kept.to_vector<double>();
  for (std::size_t i = 0; i < m.size(); ++i) {
    if (m[i] == 0) ++zero;
    else CHECK(m[i] == Approx(k[i] / 0.75).epsilon(1e-6).margin(1e-12));
  }
  CHECK(std::abs(zero / 4000.0 - 0.25) < 0.035);
}

TEST_CASE("gau: number of parameters", "[gau]") {
  // SPEC §3: 3de + ds + 4s, and 2e + s + d biases.
  const int64_t d = 24, e = 40, s = 16;
  for (bool bias : {false, true}) {
    GauOptions o{.dim = d, .expansion = e, .key_dim = s, .linear_bias = bias};
    o.norm = NormKind::none;
    Rng rng(1);
    CHECK(count(Gau(o, rng)) == 3 * d * e + d * s + 4 * s + (bias ? 2 * e + s + d : 0));
  }
  Rng rng(1);
  GauOptions o{.dim = 768, .norm = NormKind::none};
  o.linear_bias = false;
  CHECK(count(Gau(o, rng)) == 3 * 768 * 1536 + 768 * 128 + 4 * 128);
}

TEST_CASE("gau: what is refused, and by which words", "[gau]") {
  Rng rng(1);
  const Gau g({.dim = 4, .expansion = 8, .key_dim = 4}, rng);
  auto ones_of = [](const Shape& shape) { return ones(shape); };
  CHECK_THROWS_AS(g(ones_of({3, 4})), ShapeError);
  CHECK_THROWS_WITH(g(ones_of({3, 4})), Contains("[3,4]") && Contains("gau"));
  CHECK_THROWS_WITH(g(ones_of({2, 3, 5})), Contains("[2,3,5]") && Contains("4"));
  const Tensor mask = ones_of({2, 4}) > 0.0;
  CHECK_THROWS_WITH(g(ones_of({2, 3, 4}), mask), Contains("[2,4]") && Contains("[2,3,4]"));
  CHECK_THROWS_WITH(g(ones_of({2, 3, 4}), ones_of({3}) > 0.0), Contains("[3]") && Contains("[2,3,4]"));
  CHECK_THROWS_WITH(g(ones_of({2, 3, 4}), ones_of({2, 3})), Contains("f32") && Contains("bool"));
  CHECK_THROWS_WITH(Gau({.dim = 4, .expansion = 8, .key_dim = 4, .heads = 3}, rng),
                    Contains("heads=3") && Contains("key_dim=4"));
  CHECK_THROWS_WITH(Gau({.dim = 4, .expansion = 6, .key_dim = 4, .heads = 4}, rng),
                    Contains("heads=4") && Contains("expansion=6"));
  CHECK_THROWS_AS(Gau({.dim = 0}, rng), ValueError);
  CHECK_THROWS_AS(Gau({.dim = 4, .key_dim = 0}, rng), ValueError);
  CHECK_THROWS_AS(Gau({.dim = 4, .heads = 0}, rng), ValueError);
  CHECK_THROWS_AS(Gau({.dim = 4, .bias = GauBias::toeplitz, .max_length = 0}, rng), ValueError);
  const Gau table({.dim = 4, .key_dim = 4, .bias = GauBias::toeplitz, .max_length = 5}, rng);
  CHECK_NOTHROW(table(ones_of({1, 5, 4})));
  CHECK_THROWS_WITH(table(ones_of({1, 6, 4})), Contains("6") && Contains("n_max=5"));
}

TEST_CASE("gau: no sequences, no tokens, one token", "[gau]") {
  for (GauKind kind : kGauKinds)
    for (GauBias bias : kGauBiases)
      for (bool causal : {false, true}) {
        GauOptions o = small(kind, GauLength::visible, causal, bias, 2, 3);
        Rand rand(9);
        const Gau g = random_gau(o, rand);
        INFO(describe(o, false));
        CHECK(g(zeros({0, 3, 4}, {f64})).shape() == Shape{0, 3, 4});
        CHECK(g(zeros({2, 0, 4}, {f64})).shape() == Shape{2, 0, 4});
        CHECK(g(zeros({2, 0, 4}, {f64}), zeros({2, 0}) > 0.0).shape() == Shape{2, 0, 4});
        const Tensor x = random_tensor({2, 1, 4}, f64, rand);
        CHECK(max_abs_diff(g(x), gau_reference(g, x, {})) < 1e-10);
        const Tensor nobody = prefix_mask(3, 0, 2), y = random_tensor({2, 3, 4}, f64, rand);
        CHECK(max_abs_diff(real_rows(g(y, nobody), nobody), real_rows(gau_reference(g, y, nobody), nobody)) < 1e-10);
      }
}
