// The GAU layer against loops: every combination of kind, length, causality, bias, heads, padding and
// top-k; then placements, activations, windows, documents, initial values, counts and errors.
#include "layers/gau_reference.h"
#include "layers/streamed.h"
#include "support/catch.h"

#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;

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

}  // namespace

TEST_CASE("gau: every combination equals loops", "[gau]") {
  double worst = 0;
  each_layer([&](const GauOptions& o, bool padded) {
    Rand rand(7);
    const Gau g = random_gau(o, rand);
    const Tensor x = random_tensor({2, 6, 4}, f64, rand), mask = padded ? prefix_mask(6, o.heads == 2 ? 0 : 4, 6) : Tensor();
    const Tensor y = g(x, {.key_mask = mask});
    const double e = max_abs_diff(real_rows(y, mask), real_rows(gau_reference(g, x, mask), mask));
    if (!(e < 1e-10)) FAIL_CHECK(describe(o, padded) << ": off by " << e);
    worst = std::max(worst, e);
  });
  CHECK(worst < 1e-10);
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

TEST_CASE("gau: QK-norm, xPos, given frequencies, without residual, shortest length and eps equal loops", "[gau]") {
  for (NormKind kind : {NormKind::layer, NormKind::rms, NormKind::rms_plain, NormKind::scale})
    for (int bits = 0; bits < 16; ++bits) {
      GauOptions o{.dim = 5, .expansion = 6, .key_dim = 8, .heads = bits & 1 ? 2 : 1};
      o.kind = GauKind::softmax_plus, o.min_length = bits & 2 ? 1 : 3, o.causal = bits & 4;
      o.qk_norm = true, o.qk_norm_kind = kind, o.qk_norm_eps = 0.05, o.norm_eps = 0.2, o.residual = false;
      o.placement = bits & 8 ? GauPlacement::post : GauPlacement::pre;
      if (bits & 1) o.rope.xpos = 6, o.bias = GauBias::rope;
      else o.rope.frequencies = {1.5, 0.4, 0, -0.1}, o.rope.factor = 0.8;
      Rand rand(static_cast<uint64_t>(bits));
      const Gau g = random_gau(o, rand);
      const Tensor x = random_tensor({2, 7, 5}, f64, rand), mask = prefix_mask(7, 4, 7);
      INFO(name_of(kind) << " bits " << bits);
      const Tensor y = g(x, {.key_mask = mask});
      CHECK(max_abs_diff(real_rows(y, mask), real_rows(gau_reference(g, x, mask), mask)) < 1e-10);
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

TEST_CASE("gau: what is refused, and by which words", "[gau]") {
  Rng rng(1);
  const Gau g({.dim = 4, .expansion = 8, .key_dim = 4}, rng);
  auto ones_of = [](const Shape& shape) { return ones(shape); };
  CHECK_THROWS_AS(g(ones_of({3, 4})), ShapeError);
  CHECK_THROWS_WITH(g(ones_of({3, 4})), Contains("[3,4]") && Contains("gau"));
  CHECK_THROWS_WITH(g(ones_of({2, 3, 5})), Contains("[2,3,5]") && Contains("4"));
  const Tensor mask = ones_of({2, 4}) > 0.0;
  CHECK_THROWS_WITH(g(ones_of({2, 3, 4}), {.key_mask = mask}), Contains("[2,4]") && Contains("[2,3,4]"));
  CHECK_THROWS_WITH(g(ones_of({2, 3, 4}), {.key_mask = ones_of({3}) > 0.0}), Contains("[3]") && Contains("[2,3,4]"));
  CHECK_THROWS_WITH(g(ones_of({2, 3, 4}), {.key_mask = ones_of({2, 3})}), Contains("f32") && Contains("bool"));
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

TEST_CASE("gau: a window is that of the loops", "[gau]") {
  for (GauKind kind : kGauKinds)
    for (GauLength length : {GauLength::visible, GauLength::constant})
      for (GauBias bias : {GauBias::none, GauBias::toeplitz})
        for (int64_t window : {1, 4, 16}) {
          GauOptions o = small(kind, length, true, bias, 2, 0);
          o.window = window, o.max_length = 17;
          Rand rand(6);
          const Gau g = random_gau(o, rand);
          const Tensor x = random_tensor({2, 17, 4}, f64, rand);
          INFO(describe(o, false) << " window " << window);
          CHECK(max_abs_diff(g(x), gau_reference(g, x, {})) < 1e-12);
        }
}

TEST_CASE("gau: documents see nothing of each other", "[gau]") {
  for (bool causal : {false, true})
    for (GauKind kind : kGauKinds) {
      GauOptions o{.dim = 5, .expansion = 6, .key_dim = 4, .kind = kind, .causal = causal, .length = GauLength::visible};
      o.use_rope = false;  // positions run through all documents
      Rand rand(7);
      const Gau g = random_gau(o, rand);
      const Tensor x = random_tensor({1, 9, 5}, f64, rand);
      const Tensor documents = Tensor::from(std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1, 1}, {1, 9});
      const Tensor y = g(x, {.segments = documents});
      CHECK(max_abs_diff(narrow(y, 1, 0, 4), g(narrow(x, 1, 0, 4))) < 1e-13);
      CHECK(max_abs_diff(narrow(y, 1, 4, 5), g(narrow(x, 1, 4, 5))) < 1e-13);
    }
}

TEST_CASE("gau: what cannot be streamed, and by which words", "[gau][streaming]") {
  Rand rand(6);
  const Tensor x = random_tensor({2, 3, 4}, f64, rand);
  for (bool causal : {false, true})
    CHECK_THROWS_WITH(stream_of(random_gau(small(GauKind::su, GauLength::n, causal, GauBias::none, 1, 0), rand), x),
                      Contains("causal") && Contains("visible"));
  GauOptions o = small(GauKind::su, GauLength::visible, true, GauBias::toeplitz, 1, 0);
  o.max_length = 4;
  const Gau table = random_gau(o, rand);
  Stream stream = stream_of(table, x);
  CHECK_THROWS_WITH(step(table, narrow(x, 0, 0, 1), stream), Contains("batch 2") && Contains("[1,3,4]"));
  CHECK_THROWS_WITH(step(table, narrow(x, 1, 0, 2), stream), Contains("n_max=4"));
  // The refused steps changed nothing that matters: the stream goes on.
  CHECK(stream.length() == 3);
  CHECK_NOTHROW(step(table, narrow(x, 1, 0, 1), stream));
}
