// The block of MC-TFM++: an identity, sizes, errors. units_reference.cpp says what it computes.
#include "layers/flash_reference.h"
#include "layers/streamed.h"
#include "support/catch.h"

#include <sluice/layers/gau/flash_model.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

McTfmOptions small_block(bool causal, GauKind kind = GauKind::softmax) {
  McTfmOptions o{.dim = 6, .heads = 3, .hidden = 5, .chunk = 3, .causal = causal, .kind = kind};
  o.rope.pairing = RopePairing::interleaved, o.dtype = f64;
  return o;
}
McTfm random_block(const McTfmOptions& o, Rand& rand) {
  Rng rng(1);
  return randomised(McTfm(o, rng), rand);
}

}  // namespace

TEST_CASE("mc_tfm: one chunk without the linear term is a Transformer block", "[flash]") {
  McTfmOptions o = small_block(true);
  o.chunk = 20, o.linear = false;
  Rand rand(8);
  const McTfm f = random_block(o, rand);
  const Tensor x = random_tensor({2, 7, 6}, f64, rand);
  std::vector<Tensor> part = split(f.qkv(f.attention_norm(x)), {6, 6, 6}, -1);
  for (Tensor& t : part) t = transpose(unflatten(t, -1, {3, 2}), 1, 2);
  const Tensor mha = gau_attention(rope(part[0], o.rope), rope(part[1], o.rope), part[2],
                                   {.kind = GauKind::softmax, .mask = {.causal = true}});
  const Tensor y = x + f.out(flatten(transpose(mha, 1, 2), 2, 3));
  CHECK(max_abs_diff(f(x), y + f.glu(f.glu_norm(y))) < 1e-13);
}

TEST_CASE("mc_tfm: dropout is on both branches, and on nothing within them", "[flash]") {
  McTfmOptions o = small_block(true);
  o.dropout = 0.5;
  Rand rand(9);
  McTfm f = random_block(o, rand);
  for (Tensor* t : {&f.out.weight, &f.out.bias}) *t = zeros_like(*t);  // the first branch is 0
  const Tensor x = random_tensor({2, 7, 6}, f64, rand);
  Rng rng(4);
  const std::vector<double> got = (f(x, {.rng = &rng}) - x).to_vector<double>(),
                            whole = f.glu(f.glu_norm(x)).to_vector<double>();
  int dropped = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == 0) ++dropped;
    else CHECK(std::abs(got[i] - 2 * whole[i]) < 1e-13);
  }
  CHECK((dropped > 20 && dropped < 64));  // of 84
}

TEST_CASE("mc_tfm: a stream that brings a generator drops weights of attention", "[flash][streaming]") {
  McTfmOptions o = small_block(true);
  o.attention_dropout = 0.5;
  Rand rand(10);
  const McTfm f = random_block(o, rand);
  const Tensor x = random_tensor({2, 7, 6}, f64, rand);
  Stream plain, noisy;
  Rng rng(4);
  CHECK(max_abs_diff(step(f, x, noisy, {.rng = &rng}), step(f, x, plain)) > 1e-3);
}

TEST_CASE("mc_tfm: counts and errors", "[flash]") {
  Rng rng(1);
  const McTfm f({.dim = 16, .heads = 4, .hidden = 24}, rng);
  CHECK(count(f) == 4 * 16 * 16 + 4 * 16 + 4 * 16 + 3 * 16 * 24 + 2 * 24 + 16 + 4 * 16);
  CHECK_THROWS_WITH(stream_of(f, ones({2, 3, 16})), Contains("causal"));
  CHECK_THROWS_WITH(McTfm({.dim = 16, .heads = 3}, rng), Contains("heads=3") && Contains("dim=16"));
  CHECK_THROWS_WITH(McTfm({.dim = 16, .heads = 4, .quadratic = false, .linear = false}, rng),
                    Contains("mc_tfm: one of the terms"));
}
