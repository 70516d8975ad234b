// Bias tables by distance against the matrices they stand for; rows of each are in support/cases_bias.cpp.
#include "support/approx.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/ops/attention/attention.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr std::pair<int64_t, int64_t> kSizes[] = {{1, 1}, {5, 5}, {2, 7}, {7, 2}, {1, 6}, {6, 1}};

Tensor sample(uint64_t seed, const Shape& shape) {
  Rand rand(seed);
  return random_tensor(shape, f64, rand);
}

}  // namespace

TEST_CASE("relative bias: Toeplitz tables are those of toeplitz(), cut from one for n_max",
          "[relative_bias][identity]") {
  const Tensor w = sample(2, {17});  // n_max = 9
  for (auto [m, n] : kSizes) {
    const Tensor got = select(relative_matrix(relative_toeplitz(w, m, n), m, n), 0, 0);
    if (n >= m) check_identity("Toeplitz: b depends on j - i only", got, toeplitz(w, m, n, n - m), 0);
    CHECK(relative_toeplitz(w, m, n).shares_storage(w));
  }
  const Tensor heads = sample(3, {2, 17}), table = relative_toeplitz(heads, 4, 6);
  for (int64_t h : {0, 1})
    CHECK(same_bits(select(table, 0, h), select(relative_toeplitz(select(heads, 0, h), 4, 6), 0, 0)));
}

TEST_CASE("relative bias: T5's table gives each pair the weight of its bucket", "[relative_bias][identity]") {
  for (bool causal : {false, true})
    for (auto [m, n] : {std::pair<int64_t, int64_t>{200, 200}, {3, 150}, {40, 41}}) {
      const T5BucketOptions o{.causal = causal};
      const Tensor weight = sample(4, {32, 2});
      const Tensor matrix = permute(embedding(weight, t5_buckets(m, n, o, n - m)), {2, 0, 1});
      check_identity("T5: matrix of buckets = bucket of offset", relative_matrix(relative_t5(weight, m, n, o), m, n),
                     matrix, 0);
    }
}

TEST_CASE("relative bias: ALiBi", "[relative_bias]") {
  auto slopes = [](int64_t heads) { return alibi_slopes(heads, {f64}).to_vector<double>(); };
  CHECK(slopes(8) == std::vector<double>{0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625});
  const auto sixteen = slopes(16), twelve = slopes(12);
  for (std::size_t h = 0; h < 16; ++h)
    CHECK(sixteen[h] == Approx(std::pow(2.0, -0.5 * static_cast<double>(h + 1))).epsilon(1e-15));
  for (std::size_t h = 0; h < 8; ++h) CHECK(twelve[h] == slopes(8)[h]);
  for (std::size_t h = 0; h < 4; ++h) CHECK(twelve[8 + h] == Approx(sixteen[2 * h]).epsilon(1e-15));
  CHECK(alibi_slopes(4).dtype() == f32);
  CHECK_THROWS_AS(alibi_slopes(0), ValueError);
  const Tensor b = relative_matrix(relative_alibi(alibi_slopes(2, {f64}), 2, 3), 2, 3);
  const double s = 0.0625;
  CHECK(max_abs_diff(select(b, 0, 0), tensor_of({-s, 0, -s, -2 * s, -s, 0}, {2, 3}, f64)) == 0);
}

TEST_CASE("relative bias: what does not fit, and by which words", "[relative_bias]") {
  CHECK_THROWS_WITH(relative_toeplitz(zeros({9}), 6, 2),
                    Contains("relative_toeplitz") && Contains("[9]") && Contains("5") && Contains("m=6"));
  CHECK_THROWS_WITH(relative_toeplitz(zeros({9}), 2, 6), Contains("n=6"));
  CHECK_THROWS_WITH(relative_toeplitz(zeros({8}), 2, 2), Contains("[8]"));
  CHECK_THROWS_AS(relative_toeplitz(zeros({1, 1, 3}), 1, 1), ShapeError);
  CHECK_THROWS_WITH(relative_t5(zeros({31, 2}), 2, 2), Contains("relative_t5") && Contains("[31,2]") && Contains("32"));
  CHECK_THROWS_AS(relative_t5(zeros({32}), 2, 2), ShapeError);
  CHECK_THROWS_WITH(relative_alibi(zeros({2, 2}), 2, 2), Contains("relative_alibi") && Contains("[2,2]"));
  CHECK_THROWS_AS(relative_rope(zeros({4}), zeros({4}, {f64}), 2, 2), DTypeError);
  CHECK_THROWS_WITH(relative_rope(zeros({4}), zeros({6}), 2, 2),
                    Contains("relative_rope") && Contains("[4]") && Contains("[6]"));
  CHECK_THROWS_WITH(relative_matrix(zeros({1, 4}), 2, 4),
                    Contains("relative_matrix") && Contains("[1,4]") && Contains("5"));
  CHECK_THROWS_AS(relative_matrix(zeros({4}), 2, 3), ShapeError);
  CHECK_THROWS_AS(relative_matrix(zeros({1, 2}), -1, 4), ShapeError);
  const Tensor q = zeros({1, 2, 3, 4}), k = zeros({1, 2, 5, 4});
  AttentionOptions o;
  o.relative_bias = zeros({1, 6});
  CHECK_THROWS_WITH(attention(q, k, k, o),
                    Contains("attention:") && Contains("relative_bias") && Contains("[1,6]") && Contains("7"));
  o.relative_bias = zeros({3, 7});
  CHECK_THROWS_AS(attention(q, k, k, o), ShapeError);
  o.relative_bias = zeros({1, 7}, {f64});
  CHECK_THROWS_AS(attention(q, k, k, o), DTypeError);
  for (int64_t n : {0, 1, 3})
    for (int64_t m : {0, 1, 3}) {
      CHECK(relative_alibi(zeros({2}), m, n).shape() == Shape{2, std::max<int64_t>(0, n + m - 1)});
      CHECK(relative_matrix(relative_alibi(zeros({2}), m, n), m, n).shape() == Shape{2, m, n});
      CHECK(relative_t5(zeros({32, 2}), m, n).shape() == Shape{2, std::max<int64_t>(0, n + m - 1)});
      CHECK(relative_rope(zeros({4}), zeros({4}), m, n).shape() == Shape{1, std::max<int64_t>(0, n + m - 1)});
    }
}
