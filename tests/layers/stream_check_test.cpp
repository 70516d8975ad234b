// streamcheck() passes what streams, and names the tokens of what does not.
#include "support/catch.h"

#include <sluice/layers/gau/gau.h>
#include <sluice/layers/nn/stream_check.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <limits>

using namespace sluice;

namespace {

/// x plus what `mix` makes of the tokens of a call.
template <class F> struct Mixer {
  F mix;
  static void visit(auto&, auto&&) {}
  Tensor operator()(const Tensor& x, const Pass& = {}) const { return x + mix(x); }
};
template <class F> Mixer(F) -> Mixer<F>;

Tensor tokens_of(int64_t n) {
  Rng rng(2);
  return normal({2, n, 8}, 0, 1, rng, {f64});
}

}  // namespace

TEST_CASE("streamcheck: a layer that asks its Call, one token included", "[streams]") {
  Rng rng(1);
  const Gau gau({.dim = 8, .key_dim = 4, .causal = true, .dtype = f64}, rng);
  for (const int64_t n : {1, 2, 7}) {
    const StreamcheckResult result = streamcheck(gau, tokens_of(n).requires_grad_(), 1e-12);
    INFO(result.message);
    CHECK(result);
    CHECK(result.max_error < 1e-12);
  }
}

TEST_CASE("streamcheck: sums over tokens of one's own are found, whole steps and single tokens", "[streams]") {
  const StreamcheckResult sums = streamcheck(Mixer{[](const Tensor& x) { return cumsum(x, 1); }}, tokens_of(6), 1e-9);
  CHECK(!sums);
  CHECK(sums.max_error > 0.01);
  CHECK_THAT(sums.message, StartsWith("tokens 1 to 1 as a step of the stream differ by "));
  // Right token by token: only a step of several tokens adds what it must not.
  const auto ahead = [](const Tensor& x) { return x.dim(1) == 2 ? sum(x, {1}, keep) : 0 * x; };
  const StreamcheckResult steps = streamcheck(Mixer{ahead}, tokens_of(6), 1e-9);
  CHECK(!steps);
  CHECK_THAT(steps.message, StartsWith("tokens 1 to 2 as a step"));
  const auto nan_at_one = [](const Tensor& x) {
    return x.dim(1) > 1 ? 0 * x : x * std::numeric_limits<double>::quiet_NaN();
  };
  const StreamcheckResult nan = streamcheck(Mixer{nan_at_one}, tokens_of(6));
  CHECK(!nan);
  CHECK(std::isnan(nan.max_error));
}

TEST_CASE("streamcheck: what is no model of tokens", "[streams]") {
  const auto first = [](const Tensor& x, const Pass& = {}) { return narrow(x, 1, 0, 1); };
  CHECK_THROWS_WITH(streamcheck(first, narrow(tokens_of(3), 1, 0, 0)), StartsWith("slice: ") || StartsWith("narrow: "));
  const auto total = [](const Tensor& x, const Pass& = {}) { return sum(x); };
  CHECK_THROWS_WITH(streamcheck(total, tokens_of(3)), StartsWith("streamcheck: the model must return rows of tokens"));
  const auto twice = [](const Tensor& x, const Pass& = {}) { return repeat(x, 2, 2); };
  CHECK(streamcheck(twice, tokens_of(3)));
  const auto wide = [](const Tensor& x, const Pass& = {}) { return x.dim(1) > 1 ? x : repeat(x, 2, 2); };
  CHECK_THROWS_WITH(streamcheck(wide, tokens_of(3)), StartsWith("streamcheck: a step of 1 tokens returned "));
}
