// The GAU layer: initial values, counts and errors. units_reference.cpp says what it computes.
#include "layers/gau_reference.h"
#include "layers/streamed.h"
#include "support/catch.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

GauOptions small(GauKind kind, GauLength length, bool causal, GauBias bias, int64_t heads, int64_t top_k) {
  GauOptions o{.dim = 4, .expansion = 4, .key_dim = 4, .heads = heads};
  o.kind = kind, o.length = length, o.causal = causal, o.bias = bias, o.top_k = top_k;
  o.constant_length = 3, o.max_length = 7;
  return o;
}

}  // namespace

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
  CHECK(spread(paper.gamma) == Approx(0.02).epsilon(0.1));  // 1024 values: 4.5 σ
  CHECK(spread(paper.toeplitz_bias) == Approx(0.02).epsilon(0.1));
  CHECK(spread(paper.in.weight) == Approx(0.02).epsilon(0.02));
  CHECK(spread(paper.out.weight) == Approx(0.02).epsilon(0.04));
  CHECK(paper.toeplitz_bias.numel() == 1023);
}

TEST_CASE("gau: what is refused, and by which words", "[gau]") {
  Rng rng(1);
  auto ones_of = [](const Shape& shape) { return ones(shape); };
  CHECK_THROWS_WITH(Gau({.dim = 4, .expansion = 8, .key_dim = 4, .heads = 3}, rng),
                    Contains("heads=3") && Contains("key_dim=4"));
  CHECK_THROWS_WITH(Gau({.dim = 4, .expansion = 6, .key_dim = 4, .heads = 4}, rng),
                    Contains("heads=4") && Contains("expansion=6"));
  CHECK_THROWS_WITH(Gau({.dim = 4, .key_dim = 4, .bias = GauBias::t5, .t5 = {.buckets = 6}}, rng),
                    "gau: T5 needs buckets divisible by 4, at most 2^20, and max_distance > 1 — got 6, 128");
  const auto t5 = [&](bool causal, int64_t most) {
    return Gau({.dim = 4, .key_dim = 4, .causal = causal, .bias = GauBias::t5, .t5 = {.max_distance = most}}, rng);
  };
  CHECK_NOTHROW(t5(true, 17));
  CHECK_NOTHROW(t5(false, 9));
  CHECK_THROWS_WITH(t5(true, 16), Contains("max_distance > 16 — got 32, 16"));
  CHECK_THROWS_WITH(t5(false, 8), Contains("max_distance > 8 — got 32, 8"));
  CHECK_NOTHROW(Gau({.dim = 4, .key_dim = 4, .t5 = {.buckets = 6}}, rng));
  const Gau table({.dim = 4, .key_dim = 4, .bias = GauBias::toeplitz, .max_length = 5}, rng);
  CHECK_NOTHROW(table(ones_of({1, 5, 4})));
  CHECK_THROWS_WITH(table(ones_of({1, 6, 4})), Contains("6") && Contains("n_max=5"));
}

TEST_CASE("gau: what cannot be streamed, and by which words", "[gau][streaming]") {
  Rand rand(6);
  const Tensor x = random_tensor({2, 3, 4}, f64, rand);
  const auto streamed = [&](GauLength length, bool causal) {
    stream_of(random_gau(small(GauKind::su, length, causal, GauBias::none, 1, 0), rand), x);
  };
  for (GauLength length : {GauLength::n, GauLength::visible})
    CHECK_THROWS_WITH(streamed(length, false),
                      "gau: only a causal layer can be streamed; else earlier outputs would change");
  CHECK_THROWS_WITH(streamed(GauLength::n, true),
                    "gau: only length visible or constant can be streamed; with L = n "
                    "every earlier output would change");
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
