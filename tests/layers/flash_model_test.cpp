// The FLASH model: positions, stacks, what it is made of.
#include "layers/flash_reference.h"
#include "layers/streamed.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/layers/gau/flash_model.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

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

}  // namespace

TEST_CASE("scaled_sinusoidal: values, scale and positions", "[flash]") {
  const ScaledSinusoidal s({.dim = 6, .dtype = f64});
  CHECK(s.scale.shape() == Shape{1});
  CHECK(s.scale.item() == Approx(1 / std::sqrt(6.0)).epsilon(1e-15));
  CHECK(ScaledSinusoidal({.dim = 6, .initial_scale = 1}).scale.item() == 1);
  const auto none = [](int64_t n) { return zeros({1, n, 6}, {f64}); };  // positions added to nothing
  Stream stream = stream_of(s, none(100));
  const std::vector<double> got = step(s, none(5), stream).to_vector<double>();
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t c = 0; c < 3; ++c) {
      const double angle = (100.0 + static_cast<double>(i)) / std::pow(10000.0, 2 * static_cast<double>(c) / 6);
      CHECK(got[static_cast<std::size_t>(i * 6 + c)] == Approx(std::sin(angle) / std::sqrt(6.0)).epsilon(1e-12));
      CHECK(got[static_cast<std::size_t>(i * 6 + c + 3)] == Approx(std::cos(angle) / std::sqrt(6.0)).epsilon(1e-12));
    }
  CHECK(max_abs_diff(streamed(s, none(9), {4, 5}), s(none(9))) == 0);
  CHECK(s(none(0)).shape() == Shape{1, 0, 6});
  CHECK(max_abs_diff(s(ones({2, 4, 6}, {f64})), s(none(4)) + ones({2, 4, 6}, {f64})) < 1e-15);
  const Tensor g = grad(sum(s(none(4))), s.scale);
  CHECK(g.item() == Approx(sum(s(none(4))).item() / s.scale.item()).epsilon(1e-12));
  CHECK_THROWS_WITH(ScaledSinusoidal({.dim = 5}), Contains("even") && Contains("5"));
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
  FlashBlock three({.layers = 3, .layer = o.layer}, rng);
  Stream two = stream_of(b, x);
  CHECK_THROWS_WITH(step(three, x, two), Contains("another model"));
}

TEST_CASE("flash_model: what it is made of", "[flash]") {
  Rand rand(2);
  FlashModelOptions bare = small_model(true, 0);
  bare.positions = false, bare.outputs = 0;
  Rng rng(1);
  const FlashModel m(bare, rng);
  CHECK_FALSE(m.embedding);
  CHECK_FALSE(m.positions);
  CHECK_FALSE(m.head);
  const Tensor x = random_tensor({2, 8, 6}, f64, rand);
  CHECK(same_bits(m(x), m.norm(m.body(x))));
  bare.layer.norm_eps = 0.1;
  CHECK(FlashModel(bare, rng).norm.options.kind == NormKind::scale);
  bare.final_norm = NormKind::layer;
  const FlashModel other = randomised(FlashModel(bare, rng), rand);
  CHECK(other.norm.bias.shape() == Shape{6});
  CHECK(other.body.layers[0].norm.options.eps == 0.1);
  CHECK(same_bits(other(x), layer_norm(other.body(x), other.norm.weight, other.norm.bias, 0.1)));
}

TEST_CASE("flash_model: what is refused, and by which words", "[flash]") {
  Rand rand(7);
  Rng rng(1);
  const FlashModel m(small_model(true), rng);
  const Tensor x = random_tokens({2, 5}, 11, rand);
  CHECK_THROWS_WITH(m(ones({2, 5, 6}, {f64})), Contains("tokens") && Contains("[2,5,6]"));
  const FlashModel vectors(small_model(true, 0), rng);
  CHECK_THROWS_WITH(vectors(x), Contains("[2,5]") && Contains("6"));
}
