// Dropout in every kind of GAU: weights are dropped after they are normalised, so the mean over masks is the
// attention without dropout.
#include "layers/gau_reference.h"
#include "support/catch.h"

#include <sluice/layers/gau/mixed_chunk.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kDraws = 20'000, kTokens = 4;
constexpr double kDropped = 0.5;

/// One sequence of each operand, as often as masks are drawn: [draws, 1, n, width].
Tensor repeated(int64_t width, Rand& rand, double low = -1) {
  return expand(random_tensor({1, 1, kTokens, width}, f64, rand, low, 1.5), {kDraws, 1, kTokens, width});
}

/// The largest distance of the mean over draws from `want`, in standard errors of that mean.
double standard_errors(const Tensor& draws, const Tensor& want) {
  const Tensor mean_of_draws = mean(draws, {0}, keep);
  const Tensor variance = mean(square(draws - mean_of_draws), {0}, keep) / static_cast<double>(kDraws - 1);
  // A weight that is 0 stays 0: no spread and no distance.
  return max_abs((mean_of_draws - narrow(want, 0, 0, 1)) / sqrt(variance + 1e-20));
}

}  // namespace

TEST_CASE("gau_attention: the mean over dropout masks is no dropout, in every kind", "[gau_attention]") {
  Rand rand(21);
  const Tensor q = repeated(3, rand), k = repeated(3, rand), v = repeated(2, rand, 0.5);
  for (GauKind kind : kGauKinds)
    for (bool causal : {false, true}) {
      INFO(name_of(kind) << " causal " << causal);
      GauAttentionOptions o{.kind = kind, .length = GauLength::visible, .dropout = kDropped};
      o.mask.causal = causal;
      Rng rng(5);
      // 16 numbers for each of 16 cases: 5 standard errors are passed by chance once in 7000 runs of all.
      CHECK(standard_errors(gau_attention(q, k, v, o, &rng), gau_attention(q, k, v, o)) < 5);
      MixedChunkOptions chunk{.chunk = kTokens, .causal = causal, .kind = kind, .linear = false, .dropout = kDropped};
      auto mixed = [&](Rng* r) { return mixed_chunk_attention(q, k, q, k, v, chunk, {}, {}, {}, r); };
      CHECK(standard_errors(mixed(&rng), mixed(nullptr)) < 5);
    }
}

TEST_CASE("gau_attention: what dropout keeps grows by 1/(1 - p), in every kind", "[gau_attention]") {
  Rand rand(22);
  const Tensor q = random_tensor({2, 9, 3}, f64, rand), k = random_tensor({2, 9, 3}, f64, rand);
  const Tensor identity = expand(eye(9, 9, {f64}), {2, 9, 9});  // the output is A itself
  for (GauKind kind : kGauKinds)
    for (int64_t top_k : {0, 5}) {
      GauAttentionOptions o{.kind = kind, .top_k = top_k, .dropout = 0.3};
      Rng rng(6);
      const std::vector<double> thin = gau_attention(q, k, identity, o, &rng).to_vector<double>();
      const std::vector<double> whole = gau_attention(q, k, identity, o).to_vector<double>();
      double worst = 0;
      int dropped = 0;
      for (std::size_t i = 0; i < thin.size(); ++i) {
        dropped += thin[i] == 0 && whole[i] != 0;
        if (thin[i] != 0) worst = std::max(worst, std::abs(thin[i] - whole[i] / 0.7));
      }
      INFO(name_of(kind) << " top_k " << top_k);
      CHECK(dropped > 0);
      CHECK(worst < 1e-14);
    }
}

TEST_CASE("gau_attention: the rules of an AttentionMask, as weights of hidden pairs", "[gau_attention]") {
  // Every rule at once, against a dense mask of the same pairs; and L counts what a row sees.
  Rand rand(23);
  const int64_t n = 12;
  const Tensor q = random_tensor({2, 2, n, 3}, f64, rand), k = random_tensor({2, 2, n, 3}, f64, rand),
               v = random_tensor({2, 2, n, 4}, f64, rand);
  const Tensor segments = Tensor::from(std::vector<int64_t>{0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2}, {1, n});
  const Tensor keys = random_tensor({2, 2, n}, f64, rand, -1, 3) > 0.0;  // a mask for each head
  AttentionMask mask{.causal = true, .window = 5, .keys = keys, .query_segments = segments, .key_segments = segments};
  const Tensor i = unsqueeze(arange(n), 1), j = unsqueeze(arange(n), 0);
  Tensor dense = logical_and(logical_and(j <= i, i - j < 5.0), transpose(segments, 0, 1) == segments);
  dense = logical_and(dense, unsqueeze(keys, 2));
  for (GauKind kind : kGauKinds)
    for (GauLength length : {GauLength::visible, GauLength::constant}) {
      INFO(name_of(kind));
      GauAttentionOptions a{.kind = kind, .length = length, .constant_length = 7, .mask = mask}, b = a;
      b.mask = {.dense = dense};
      CHECK(max_abs_diff(gau_attention(q, k, v, a), gau_attention(q, k, v, b)) < 1e-14);
      // One row by hand: query 7 of batch 0, head 1.
      std::vector<std::vector<double>> rows, values;
      for (int64_t key = 3; key <= 7; ++key) {
        if (key < 5 || select(select(select(keys, 0, 0), 0, 1), 0, key).item() == 0) continue;
        rows.push_back(select(select(select(k, 0, 0), 0, 1), 0, key).to_vector<double>());
        values.push_back(select(select(select(v, 0, 0), 0, 1), 0, key).to_vector<double>());
      }
      GauAttentionOptions plain{.kind = kind, .length = length, .constant_length = 7};
      const Matrix row{select(select(select(q, 0, 0), 0, 1), 0, 7).to_vector<double>()};
      const Matrix want = attention_reference(row, rows, values, plain, {}, std::vector<bool>(rows.size(), true));
      const Tensor got = select(select(select(gau_attention(q, k, v, a), 0, 0), 0, 1), 0, 7);
      for (std::size_t c = 0; c < 4; ++c)
        CHECK(std::abs(got.to_vector<double>()[c] - want[0][c]) < 1e-13);
    }
}
