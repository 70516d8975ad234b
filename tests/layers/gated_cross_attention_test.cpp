// Gated cross attention: initial values, sizes, errors. heads_reference.cpp says what it computes.
#include "layers/gau_reference.h"
#include "support/catch.h"

#include <sluice/layers/attention/gated_cross_attention.h>
#include <sluice/ops/shape/create.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr CrossGate kReadings[] = {CrossGate::per_query, CrossGate::pooled, CrossGate::literal, CrossGate::flamingo};

}  // namespace

TEST_CASE("gated cross attention: initial values, sizes", "[gates]") {
  Rng rng(1);
  const GatedCrossAttention flamingo({.heads = {.dim = 4}, .reading = CrossGate::flamingo}, rng);
  CHECK(max_abs(flamingo(ones({2, 3, 4}), {.context = ones({2, 5, 4})})) == 0);  // x + y starts as x
  CHECK(count(flamingo) == 4 * 16 + 1);
  CHECK(count(GatedCrossAttention({.heads = {.dim = 4}}, rng)) == 5 * 16 + 4);
  CHECK(count(GatedCrossAttention({.heads = {.dim = 4, .heads = 2, .head_dim = 5, .value_dim = 6, .context_dim = 3}},
                                  rng)) == 4 * 10 + 3 * 10 + 3 * 12 + 12 * 4 + (10 * 10 + 10) + (10 * 12 + 12));
  CHECK(GatedCrossAttention({.heads = {.dim = 4}, .gate_bias = 2}, rng).gate.bias.to_vector() ==
        std::vector<float>(4, 2.f));
  for (CrossGate reading : kReadings) {
    const GatedCrossAttention g({.heads = {.dim = 4}, .reading = reading}, rng);
    if (reading == CrossGate::literal) continue;
    CHECK(max_abs(g(ones({2, 3, 4}), {.context = ones({2, 0, 4})})) == 0);  // nothing to see
  }
}

TEST_CASE("gated cross attention: what is refused, and by which words", "[gates]") {
  Rng rng(1);
  CHECK_THROWS_WITH(GatedCrossAttention({.heads = {.dim = 5, .heads = 2}}, rng),
                    Contains("heads=2") && Contains("dim=5"));
  const Tensor x = ones({2, 3, 4});
  const GatedCrossAttention literal({.heads = {.dim = 4}, .reading = CrossGate::literal}, rng);
  CHECK_THROWS_WITH(literal(x, {.context = ones({2, 6, 4})}), Contains("literal") && Contains("3") && Contains("6"));
}
