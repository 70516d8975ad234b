// Bias tables by distance against the matrices they stand for, alone and inside attention().
#include "support/approx.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/gather.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;

namespace {

constexpr std::pair<int64_t, int64_t> kSizes[] = {{1, 1}, {5, 5}, {2, 7}, {7, 2}, {1, 6}, {6, 1}};

Tensor sample(uint64_t seed, const Shape& shape) {
  Rand rand(seed);
  return random_tensor(shape, f64, rand);
}

}  // namespace

TEST_CASE("relative bias: a table's matrix holds entry n − 1 + p_j − p_i", "[relative_bias]") {
  for (auto [m, n] : kSizes)
    for (int64_t heads : {1, 3}) {
      const Tensor table = sample(1, {heads, n + m - 1}), b = relative_matrix(table, m, n);
      CHECK(b.shape() == Shape{heads, m, n});
      CHECK(b.shares_storage(table));
      const auto t = table.to_vector<double>(), got = b.to_vector<double>();
      bool right = true;
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            const int64_t position = i + n - m;
            right &= got[static_cast<std::size_t>((h * m + i) * n + j)] ==
                     t[static_cast<std::size_t>(h * (n + m - 1) + n - 1 + j - position)];
          }
      CHECK(right);
    }
}

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

TEST_CASE("relative bias: rope's table is the product of rotated vectors", "[relative_bias][identity]") {
  for (RopePairing pairing : {RopePairing::half, RopePairing::interleaved})
    for (int64_t rot_dim : {0, 4})
      for (auto [m, n] : kSizes) {
        const RopeOptions o{.pairing = pairing, .rot_dim = rot_dim, .offset = 3};
        const Tensor a = sample(5, {6}), b = sample(6, {6});
        const Tensor rows = rope_at(expand(unsqueeze(a, 0), {m, 6}), arange(m) + static_cast<double>(n - m), o);
        const Tensor cols = rope(expand(unsqueeze(b, 0), {n, 6}), o);
        CHECK(max_abs_diff(select(relative_matrix(relative_rope(a, b, m, n, o), m, n), 0, 0),
                           matmul(rows, transpose(cols, 0, 1))) < 1e-13);
      }
}

TEST_CASE("relative bias: attention with a table is attention with its matrix, gradients too",
          "[relative_bias][attention]") {
  for (Weighting weighting : {Weighting::softmax, Weighting::relu2, Weighting::laplace})
    for (auto [m, n] : {std::pair<int64_t, int64_t>{1, 1}, {5, 5}, {3, 20}, {20, 3}, {70, 66}})
      for (int64_t table_heads : {1, 2}) {
        const Tensor q = sample(7, {2, 2, m, 3}).requires_grad_(), k = sample(8, {2, 1, n, 3}).requires_grad_(),
                     v = sample(9, {2, 1, n, 2}).requires_grad_(),
                     table = sample(10, {table_heads, n + m - 1}).requires_grad_();
        AttentionOptions by_table{.weighting = weighting}, by_matrix = by_table;
        by_table.mask.causal = by_matrix.mask.causal = m == 70;
        by_table.relative_bias = table, by_matrix.bias = relative_matrix(table, m, n);
        const Tensor y = attention(q, k, v, by_table), z = attention(q, k, v, by_matrix), g = sample(11, y.shape());
        CHECK(max_abs_diff(y, z) < 1e-13);
        const auto a = grad({y}, {q, k, v, table}, {.grad_outputs = {g}}),
                   b = grad({z}, {q, k, v, table}, {.grad_outputs = {g}});
        for (std::size_t i = 0; i < a.size(); ++i) CHECK(max_abs_diff(a[i], b[i]) < 1e-12 * (1 + max_abs(b[i])));
      }
}

TEST_CASE("relative bias: gradients reach the parameters through attention", "[relative_bias][attention]") {
  const Tensor q = sample(12, {1, 2, 3, 2}), k = sample(13, {1, 2, 4, 2}), v = sample(14, {1, 2, 4, 2});
  auto check = [&](const std::function<Tensor(const std::vector<Tensor>&)>& table, std::vector<Tensor> parameters) {
    for (Tensor& p : parameters) p.requires_grad_();
    const TensorFunction f = [&](const std::vector<Tensor>& x) {
      AttentionOptions o;
      o.mask.causal = true, o.relative_bias = table(x);
      return attention(q, k, v, o);
    };
    const GradcheckResult first = gradcheck(f, parameters), second = gradgradcheck(f, parameters);
    INFO(first.message << " " << second.message);
    CHECK(first.ok);
    CHECK(second.ok);
  };
  using Xs = const std::vector<Tensor>&;
  check([](Xs x) { return relative_toeplitz(x[0], 3, 4); }, {sample(15, {9})});
  check([](Xs x) { return relative_toeplitz(x[0], 3, 4); }, {sample(15, {2, 7})});
  check([](Xs x) { return relative_t5(x[0], 3, 4, {.causal = true, .buckets = 4, .max_distance = 4}); },
        {sample(16, {4, 2})});
  check([](Xs x) { return relative_alibi(x[0], 3, 4); }, {sample(17, {2})});
  check([](Xs x) { return relative_rope(x[0], x[1], 3, 4); }, {sample(18, {4}), sample(19, {4})});
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
  CHECK_THROWS_WITH(relative_rope(zeros({4}), zeros({6}), 2, 2),
                    Contains("relative_rope") && Contains("[4]") && Contains("[6]"));
  CHECK_THROWS_WITH(relative_matrix(zeros({1, 4}), 2, 4),
                    Contains("relative_matrix") && Contains("[1,4]") && Contains("5"));
  CHECK_THROWS_AS(relative_matrix(zeros({4}), 2, 3), ShapeError);
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
      CHECK(relative_t5(zeros({32, 2}), m, n).shape() == Shape{2, std::max<int64_t>(0, n + m - 1)});
      CHECK(relative_rope(zeros({4}), zeros({4}), m, n).shape() == Shape{1, std::max<int64_t>(0, n + m - 1)});
    }
}
