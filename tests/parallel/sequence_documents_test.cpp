// What a decay of −∞ drops is dropped wherever the sequence is cut, and in the parts of a scan.
#include "parallel/ranks.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/layers/linear_attention/gla.h>
#include <sluice/layers/linear_attention/mamba2.h>
#include <sluice/layers/linear_attention/retention.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/layers/train/data_parallel.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/parallel/sequence.h>

#include <cmath>
#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Rows [from, …) along dim 1.
Tensor after(const Tensor& x, int64_t from) { return narrow(x, 1, from, x.dim(1) - from); }

/// The second of two documents is the same beside a first one that holds `broken`, whole, cut and streamed.
template <class L> void keeps_documents_apart(const L& layer, double broken) {
  Rng rng(3);
  const int64_t n = 11, second = 5;
  Tensor x = normal({2, n, 8}, 0, 1, rng, {f64});
  Tensor first = narrow(x, 1, 0, 2);
  fill_(first, broken);
  std::vector<int64_t> numbers(2 * n);
  for (int64_t i = 0; i < 2 * n; ++i) numbers[static_cast<std::size_t>(i)] = i % n >= second;
  const Tensor segments = Tensor::from(numbers, {2, n}), want = layer(after(x, second));
  CHECK(max_abs_diff(after(layer(x, {.segments = segments}), second), want) < 1e-12);
  CHECK_NOTHROW(on_ranks([&](const Communicator& all) {
    const SequenceScope scope(all);
    const Tensor y = layer(rows_of(x, all, 1), {.segments = rows_of(segments, all, 1)});
    const Tensor whole = all_gather(y, 1, all);
    expect(max_abs_diff(after(whole, second), want) < 1e-12, "the second document of a cut sequence");
  }));
}

}  // namespace

TEST_CASE("documents: NaN and ∞ of an earlier one stay there, on every rank", "[parallel]") {
  const double broken = GENERATE(NAN, kInf);
  Rng rng(1);
  keeps_documents_apart(Gla(GlaOptions{.dim = 8, .heads = 2, .dtype = f64}, rng), broken);
  keeps_documents_apart(Retention(RetentionOptions{.dim = 8, .heads = 2, .dtype = f64}, rng), broken);
  keeps_documents_apart(Mamba2(Mamba2Options{.dim = 8, .head_dim = 4, .state = 4, .dtype = f64}, rng), broken);
}

TEST_CASE("documents: linear_scan_state and linear_scan_carry drop what a decay of −∞ drops", "[scan]") {
  Rng rng(2);
  for (const bool by_channel : {false, true}) {
    Tensor k = normal({1, 2, 6, 3}, 0, 1, rng, {f64}), v = normal({1, 2, 6, 4}, 0, 1, rng, {f64});
    Tensor g = by_channel ? full({1, 2, 6, 3}, -0.1, {f64}) : full({1, 2, 6}, -0.1, {f64});
    Tensor broken_k = narrow(k, 2, 1, 1), broken_v = narrow(v, 2, 0, 2), cut = narrow(g, 2, 3, 1);
    Tensor broken_g = narrow(g, 2, 0, 1);
    fill_(broken_k, kInf), fill_(broken_v, NAN), fill_(cut, -kInf), fill_(broken_g, NAN);
    const auto late = [](const Tensor& x) { return narrow(x, 2, 3, 3); };
    const Tensor initial = full({1, 2, 3, 4}, NAN, {f64});
    const Tensor state = linear_scan_state(k, v, g, initial);
    CHECK(max_abs_diff(state, linear_scan_state(late(k), late(v), late(g))) < 1e-14);
    const Tensor carried = linear_scan_carry(k, initial, g);
    CHECK(max_abs_diff(late(carried), zeros({1, 2, 3, 4}, {f64})) == 0);
    CHECK(std::isnan(carried[0][0][0][0].item()));
  }
}
