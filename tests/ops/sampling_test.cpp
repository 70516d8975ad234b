// multinomial: how often what is drawn, what is refused.
#include <sluice/ops/index/sampling.h>

#include "support/catch.h"

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;

namespace {

/// How often each category occurs, as shares.
std::vector<double> shares(const Tensor& drawn, int64_t classes) {
  std::vector<double> count(static_cast<std::size_t>(classes));
  for (int64_t i : drawn.to_vector<int64_t>()) count.at(static_cast<std::size_t>(i)) += 1;
  for (double& c : count) c /= static_cast<double>(drawn.numel());
  return count;
}
/// Within five standard errors of a share of n draws.
bool near(double share, double p, double n) { return std::abs(share - p) <= 5 * std::sqrt(p * (1 - p) / n); }

}  // namespace

TEST_CASE("multinomial: shares are the weights' shares", "[sampling]") {
  const Tensor w({{1, 0, 3, 6}, {0, 5, 0, 5}});
  constexpr int64_t n = 40'000;
  Rng rng(1);
  const Tensor drawn = multinomial(w, n, rng, true);
  CHECK(drawn.shape() == Shape{2, n});
  CHECK(drawn.dtype() == i64);
  const std::vector<double> want[] = {{0.1, 0, 0.3, 0.6}, {0, 0.5, 0, 0.5}};
  for (int64_t row : {0, 1}) {
    const auto got = shares(drawn[row], 4);
    for (std::size_t k = 0; k < 4; ++k) CHECK(near(got[k], want[row][k], n));
  }
  // One draw for each of many rows is the same distribution.
  const auto rows = shares(multinomial(expand(w[0], {n, 4}), 1, rng), 4);
  for (std::size_t k = 0; k < 4; ++k) CHECK(near(rows[k], want[0][k], n));
}

TEST_CASE("multinomial: without replacement, the second is drawn from the rest", "[sampling]") {
  const Tensor w({1, 0, 3, 6});
  constexpr int64_t n = 40'000;
  Rng rng(2);
  const Tensor pairs = multinomial(expand(w, {n, 4}), 2, rng);
  CHECK(pairs.shape() == Shape{n, 2});
  double after_6 = 0, of_those_3 = 0;
  const auto v = pairs.to_vector<int64_t>();
  for (std::size_t i = 0; i < v.size(); i += 2) {
    if (v[i] == v[i + 1] || v[i + 1] == 1) FAIL_CHECK("drew " << v[i] << " and " << v[i + 1]);
    if (v[i] == 3) after_6 += 1, of_those_3 += v[i + 1] == 2;
  }
  CHECK(near(after_6 / n, 0.6, n));
  CHECK(near(of_those_3 / after_6, 0.75, after_6));
}

TEST_CASE("multinomial: many draws with replacement need memory for the weights and the draws, not for each pair",
          "[sampling]") {
  constexpr int64_t categories = 2048, n = 4096;
  Rng rng(5);
  std::vector<double> weights(categories);  // 0, 1, 2, 0, 1, 2, …
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(i % 3);
  const Tensor w = Tensor::from(weights);
  release_cached_memory();
  reset_peak_memory();
  const auto before = memory_stats().peak;
  const Tensor drawn = multinomial(w, n, rng, true);
  CHECK(memory_stats().peak - before < 100 * (categories + n));
  std::vector<double> of_weight(3);
  for (int64_t c : drawn.to_vector<int64_t>()) of_weight.at(static_cast<std::size_t>(c % 3)) += 1.0 / n;
  CHECK(of_weight[0] == 0);
  CHECK(near(of_weight[2], 2.0 / 3, n));
  CHECK(multinomial(ones(Shape::filled(kMaxRank, 1)), 3, rng, true).dim(-1) == 3);
}

TEST_CASE("multinomial: weights at the ends of f64", "[sampling]") {
  constexpr int64_t n = 10'000;
  Rng rng(3);
  for (double unit : {1e308, 1e-150, 3e-308}) {
    INFO(unit);
    const auto got = shares(multinomial(Tensor::from<double>({0, unit, 0, unit}), n, rng, true), 4);
    CHECK(got[0] + got[2] == 0);
    CHECK(near(got[3], 0.5, n));
  }
  // However far below the other, it stands before a weight of 0.
  const Tensor pairs = multinomial(expand(Tensor::from<double>({0, 1e308, 0, 3e-308}), {n, 4}), 2, rng);
  std::vector<int64_t> want;
  for (int64_t i = 0; i < n; ++i) want.push_back(1), want.push_back(3);
  CHECK(pairs.to_vector<int64_t>() == want);
}

TEST_CASE("multinomial: repeats from the generator's state, for any number of threads", "[sampling]") {
  const Tensor w = softmax(Tensor({{1, 2, 3}, {3, 2, 1}}));
  std::vector<std::vector<int64_t>> runs;
  for (int threads : {1, 4}) {
    set_num_threads(threads);
    Rng rng(7);
    runs.push_back(multinomial(w, 5000, rng, true).to_vector<int64_t>());
    const uint64_t once = rng.offset();
    runs.push_back(multinomial(w, 5000, rng, true).to_vector<int64_t>());
    CHECK(rng.offset() == 2 * once);
  }
  set_num_threads(0);
  CHECK(runs[0] == runs[2]);
  CHECK(runs[1] == runs[3]);
  CHECK(runs[0] != runs[1]);
}

TEST_CASE("multinomial: weights that cannot be drawn from are refused", "[sampling]") {
  Rng rng(1);
  CHECK_THROWS_WITH(multinomial(Tensor({1, -1}), 1, rng), Contains("multinomial: weights [2] must be finite and >= 0"));
  CHECK_THROWS_AS(multinomial(Tensor({1, NAN}), 1, rng), ValueError);
  CHECK_THROWS_AS(multinomial(Tensor({1, INFINITY}), 1, rng), ValueError);
  CHECK_THROWS_WITH(multinomial(Tensor({{1, 1}, {0, 0}}), 1, rng),
                    Contains("each row needs 1 or more positive weights — got one with 0 in weights [2,2]"));
  CHECK_THROWS_WITH(multinomial(Tensor({1, 0, 2}), 3, rng),
                    Contains("each row needs 3 or more positive weights — got one with 2 in weights [3]"));
  CHECK_THROWS_AS(multinomial(Tensor({1, 2}), -1, rng), ValueError);
  CHECK_THROWS_AS(multinomial(Tensor(1.f), 1, rng), ShapeError);
  CHECK_THROWS_AS(multinomial(arange(3), 1, rng), DTypeError);
  CHECK_THROWS_AS(multinomial(zeros({2, 0}), 1, rng), ValueError);
  CHECK_THROWS_WITH(multinomial(zeros({0, 3}), 4, rng), Contains("multinomial: 3 categories are too few for 4"));
  CHECK(multinomial(zeros({2, 3}), 0, rng).shape() == Shape{2, 0});
  CHECK(multinomial(zeros({0, 3}), 2, rng).shape() == Shape{0, 2});
  CHECK(multinomial(Tensor({0, 1e-30f}), 4, rng, true).to_vector<int64_t>() == std::vector<int64_t>(4, 1));
}
