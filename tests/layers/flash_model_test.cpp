// The FLASH model: positions, stacks, streaming, masks, gradients, training.
#include "layers/flash_reference.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/layers/gau/flash_model.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/loss.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;

namespace {

template <class M>
M randomised(M m, Rand& rand, double spread = 0.7) {
  for (NamedTensor& p : parameters(m)) {
    double* at = p.tensor.mutable_data<double>();
    for (int64_t i = 0; i < p.tensor.numel(); ++i) at[i] = rand.uniform(-spread, spread);
  }
  return m;
}

FlashModelOptions small_model(bool causal, int64_t vocabulary = 11) {
  FlashModelOptions o{.layers = 2, .layer = {.dim = 6, .expansion = 5, .key_dim = 4, .chunk = 3, .causal = causal}};
  o.layer.dtype = f64, o.layer.token_shift = true, o.layer.bias = GauBias::t5;
  o.vocabulary = vocabulary, o.outputs = 7;
  return o;
}

Tensor random_tokens(const Shape& shape, int64_t vocabulary, Rand& rand) {
  std::vector<int64_t> t;
  for (int64_t i = 0; i < shape.numel(); ++i) t.push_back(rand.below(vocabulary));
  return Tensor::from(t, shape);
}

template <class M>
Tensor streamed(const M& m, const Tensor& x, const std::vector<int64_t>& sizes) {
  typename M::State state;
  std::vector<Tensor> outputs;
  int64_t at = 0;
  for (std::size_t i = 0; at < x.dim(1); ++i) {
    const int64_t size = std::min(sizes[std::min(i, sizes.size() - 1)], x.dim(1) - at);
    auto [y, next] = m.step(narrow(x, 1, at, size), std::move(state));
    outputs.push_back(y), state = std::move(next), at += size;
  }
  return cat(outputs, 1);
}

}  // namespace

TEST_CASE("scaled_sinusoidal: values, scale and positions", "[flash]") {
  const ScaledSinusoidal s({.dim = 6, .dtype = f64});
  CHECK(s.scale.shape() == Shape{1});
  CHECK(s.scale.item() == Approx(1 / std::sqrt(6.0)).epsilon(1e-15));
  CHECK(ScaledSinusoidal({.dim = 6, .initial_scale = 1}).scale.item() == 1);
  const std::vector<double> got = s(5, 100).to_vector<double>();
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t c = 0; c < 3; ++c) {
      const double angle = (100.0 + static_cast<double>(i)) / std::pow(10000.0, 2 * static_cast<double>(c) / 6);
      CHECK(got[static_cast<std::size_t>(i * 6 + c)] == Approx(std::sin(angle) / std::sqrt(6.0)).epsilon(1e-12));
      CHECK(got[static_cast<std::size_t>(i * 6 + c + 3)] == Approx(std::cos(angle) / std::sqrt(6.0)).epsilon(1e-12));
    }
  CHECK(max_abs_diff(narrow(s(9), 0, 4, 5), s(5, 4)) == 0);
  CHECK(s(0).shape() == Shape{0, 6});
  const Tensor g = grad(sum(s(4)), s.scale);
  CHECK(g.item() == Approx(sum(s(4)).item() / s.scale.item()).epsilon(1e-12));
  CHECK_THROWS_WITH(ScaledSinusoidal({.dim = 5}), Contains("even") && Contains("5"));
  CHECK_THROWS_AS(ScaledSinusoidal({.dim = 0}), ValueError);
}

TEST_CASE("flash_block: layers one after the other", "[flash]") {
  FlashBlockOptions o{.layer = {.dim = 4, .key_dim = 4, .chunk = 2, .causal = true}};
  o.layer.dtype = f64;
  Rng rng(1);
  const FlashBlock b(o, rng);
  REQUIRE(b.layers.size() == 2);
  CHECK(max_abs_diff(b.layers[0].in.weight, b.layers[1].in.weight) > 0);
  CHECK(count(b) == 2 * count(b.layers[0]));
  Rand rand(1);
  const Tensor x = random_tensor({2, 5, 4}, f64, rand);
  CHECK(same_bits(b(x), b.layers[1](b.layers[0](x))));
  CHECK(max_abs_diff(streamed(b, x, {3, 1}), b(x)) < 1e-12);
  FlashBlock three({.layers = 3, .layer = o.layer}, rng);
  CHECK_THROWS_WITH(three.step(x, b.step(x, {}).second), Contains("2 layers") && Contains("3"));
  CHECK_THROWS_AS(FlashBlock({.layers = 0, .layer = o.layer}, rng), ValueError);
}

TEST_CASE("flash_model: what it is made of", "[flash]") {
  Rand rand(2);
  for (bool causal : {false, true})
    for (int which = 0; which < 4; ++which) {
      Rng rng(1);
      const FlashModel m = randomised(FlashModel(small_model(causal), rng), rand);
      const Tensor tokens = random_tokens({2, 8}, 11, rand);
      const Masks mask = masks(which, 8);
      Tensor y = (*m.embedding)(tokens) + (*m.positions)(8);
      for (const Flash& layer : m.body.layers) y = flash_reference(layer, y, mask.keys, mask.segments);
      const Tensor want = (*m.head)(m.norm(y)), got = m(tokens, mask.keys, nullptr, mask.segments);
      REQUIRE(got.shape() == Shape{2, 8, 7});
      CHECK(max_abs_diff(real_rows(got, mask.keys), real_rows(want, mask.keys)) < 1e-11);
    }
  FlashModelOptions bare = small_model(true, 0);
  bare.positions = false, bare.outputs = 0;
  Rng rng(1);
  const FlashModel m(bare, rng);
  CHECK_FALSE(m.embedding);
  CHECK_FALSE(m.positions);
  CHECK_FALSE(m.head);
  const Tensor x = random_tensor({2, 8, 6}, f64, rand);
  CHECK(same_bits(m(x), m.norm(m.body(x))));
}

TEST_CASE("flash_model: streaming equals the full pass; no later token leaks", "[flash][streaming]") {
  Rand rand(3);
  Rng rng(1);
  const FlashModel m = randomised(FlashModel(small_model(true), rng), rand);
  const Tensor x = random_tokens({2, 11}, 11, rand), full = m(x);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {5, 1}, {2, 6, 1}, {11}})
    CHECK(max_abs_diff(streamed(m, x, sizes), full) < 1e-11);
  CHECK(m.step(narrow(x, 1, 0, 4), {}).second.length == 4);
  const Tensor changed = m(cat({narrow(x, 1, 0, 7), random_tokens({2, 4}, 11, rand)}, 1));
  CHECK(same_bits(narrow(changed, 1, 0, 7), narrow(full, 1, 0, 7)));
  CHECK_FALSE(same_bits(changed, full));
  const FlashModel both(small_model(false), rng);
  CHECK_THROWS_WITH(both.step(x, {}), Contains("causal"));
}

TEST_CASE("flash_model: padded ≡ unpadded, with NaN in the padding", "[flash]") {
  Rand rand(4);
  for (bool causal : {false, true}) {
    Rng rng(1);
    const FlashModel m = randomised(FlashModel(small_model(causal, 0), rng), rand);
    const Tensor x = random_tensor({2, 8, 6}, f64, rand), mask = prefix_mask(8, 5, 8);
    const Tensor junk = masked_fill(x, unsqueeze(logical_not(mask), -1), NAN);
    const Tensor y = m(junk, mask);
    CHECK(max_abs_diff(narrow(narrow(y, 0, 0, 1), 1, 0, 5), m(narrow(narrow(x, 0, 0, 1), 1, 0, 5))) < 1e-12);
    CHECK(max_abs_diff(narrow(y, 0, 1, 1), m(narrow(x, 0, 1, 1))) < 1e-12);
    std::vector<Tensor> wanted;
    for (const NamedTensor& p : parameters(m)) wanted.push_back(p.tensor);
    for (const Tensor& g : grad({sum(square(narrow(y, 1, 0, 5)))}, wanted)) CHECK(std::isfinite(max_abs(g)));
  }
}

TEST_CASE("flash_model: gradients", "[flash]") {
  Rand rand(5);
  FlashModelOptions o = small_model(true, 4);
  o.layer.kind = GauKind::softmax, o.outputs = 2, o.layer.dim = 4, o.layer.key_dim = 2, o.layer.expansion = 3;
  Rng rng(1);
  const FlashModel m = randomised(FlashModel(o, rng), rand);
  const Tensor x = random_tokens({1, 5}, 4, rand);
  const TensorFunction f = [&](const std::vector<Tensor>& v) {
    FlashModel copy = m;
    copy.positions->scale = v[0], copy.embedding->weight = v[1], copy.head->weight = v[2];
    copy.norm.weight = v[3], copy.body.layers[0].gamma = v[4], copy.body.layers[1].t5_bias = v[5];
    return copy(x);
  };
  const std::vector<Tensor> inputs{m.positions->scale,      m.embedding->weight,          m.head->weight,
                                   m.norm.weight,           m.body.layers[0].gamma, m.body.layers[1].t5_bias};
  const GradcheckResult first = gradcheck(f, inputs), second = gradgradcheck(f, inputs, {.tolerance = 1e-5});
  INFO(first.message << " / " << second.message);
  CHECK(first.ok);
  CHECK(second.ok);
}

TEST_CASE("flash_model: overfits one batch, is saved and loaded", "[flash]") {
  FlashModelOptions o{.layers = 2, .layer = {.dim = 16, .key_dim = 8, .chunk = 4, .causal = true}};
  o.vocabulary = o.outputs = 10;
  Rng rng(3);
  FlashModel m(o, rng);
  Rand rand(6);
  const Tensor x = random_tokens({2, 12}, 10, rand), target = random_tokens({2, 12}, 10, rand);
  auto loss_of = [&](const FlashModel& model) {
    return cross_entropy(reshape(model(x), {24, 10}), reshape(target, {24}));
  };
  Adam optimiser(parameters(m), {.lr = 1e-2});
  const double before = loss_of(m).item();
  for (int i = 0; i < 120; ++i) {
    backward(loss_of(m));
    optimiser.step();
    zero_grad(m);
  }
  CHECK(before > 1.5);
  CHECK(loss_of(m).item() < 0.05);
  const TempFolder folder;
  save(m, folder / "flash.safetensors");
  FlashModel fresh(o, rng);
  load(fresh, folder / "flash.safetensors");
  CHECK(same_bits(fresh(x), m(x)));
}

TEST_CASE("flash_model: dropout, edges and errors", "[flash]") {
  Rand rand(7);
  FlashModelOptions o = small_model(true);
  o.dropout = 0.5;
  Rng rng(1);
  const FlashModel m(o, rng);
  const Tensor x = random_tokens({2, 5}, 11, rand);
  Rng a(1), b(1);
  CHECK(same_bits(m(x, {}, &a), m(x, {}, &b)));
  CHECK_FALSE(same_bits(m(x, {}, &a), m(x)));
  CHECK(m(narrow(x, 1, 0, 0)).shape() == Shape{2, 0, 7});
  CHECK(m(narrow(x, 0, 0, 0)).shape() == Shape{0, 5, 7});
  CHECK_THROWS_WITH(m(ones({2, 5, 6}, {f64})), Contains("tokens") && Contains("[2,5,6]"));
  const FlashModel vectors(small_model(true, 0), rng);
  CHECK_THROWS_WITH(vectors(x), Contains("[2,5]") && Contains("6"));
  CHECK_THROWS_AS(FlashModel({.layers = 0, .layer = {.dim = 4}}, rng), ValueError);
  CHECK_THROWS_WITH(FlashModel({.layers = 1, .layer = {.dim = 4}, .vocabulary = -1}, rng), Contains("vocabulary=-1"));
}
