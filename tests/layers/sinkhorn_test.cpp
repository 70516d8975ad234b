// Sinkhorn weights, attention with them, and sorted blocks, against loops in the plain domain.
#include "layers/layer_loops.h"
#include "layers/sparse_reference.h"
#include "support/identities.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/sinkhorn.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>
#include <numeric>

using namespace sluice;
using namespace sluice::testing;

namespace {

Tensor tensor_from(const Matrix& m) {
  std::vector<double> v;
  for (const auto& row : m) v.insert(v.end(), row.begin(), row.end());
  return Tensor::from(v, {static_cast<int64_t>(m.size()), static_cast<int64_t>(m[0].size())});
}

/// Iterations in the plain domain; hidden entries are 0 from the start.
Matrix plain_sinkhorn(Matrix m, double lambda, int64_t iterations, bool literal, bool rows_last,
                      const Matrix& allowed = {}) {
  auto exponentiate = [&] {
    for (std::size_t i = 0; i < m.size(); ++i)
      for (std::size_t j = 0; j < m.size(); ++j)
        m[i][j] = allowed.empty() || allowed[i][j] != 0 ? std::exp(lambda * m[i][j]) : 0;
  };
  if (!literal) exponentiate();
  for (int64_t t = 0; t < iterations; ++t) {
    if (literal) exponentiate();
    if (rows_last) divide_columns(m), divide_rows(m);
    else divide_rows(m), divide_columns(m);
  }
  return m;
}

Tensor random_scores(Rand& rand, int64_t n, double width = 1) {
  return random_tensor({n, n}, f64, rand, -width, width);
}

constexpr const char* kPlain = "Sinkhorn: log domain = plain";

}  // namespace

TEST_CASE("sinkhorn: the log domain equals the plain one", "[sinkhorn]") {
  Rand rand(1);
  for (int64_t n : {1, 2, 7})
    for (int64_t iterations : {0, 1, 5, 20})
      for (bool literal : {false, true})
        for (bool rows_last : {false, true})
          for (double lambda : {0.5, 3.0}) {
            const Tensor a = random_scores(rand, n);
            const SinkhornOptions o{.lambda = lambda,
                                    .iterations = iterations,
                                    .variant = literal ? SinkhornVariant::literal : SinkhornVariant::correct,
                                    .last = rows_last ? SinkhornLast::rows : SinkhornLast::columns};
            INFO("n=" << n << " T=" << iterations << " literal " << literal << " rows last " << rows_last);
            check_identity(kPlain, sinkhorn(a, o),
                           tensor_from(plain_sinkhorn(matrix_of(a), lambda, iterations, literal, rows_last)), 1e-12);
            // With forbidden pairs, among them a whole row and column.
            Tensor allowed = random_scores(rand, n) > -0.6;
            if (n == 7)
              allowed =
                  logical_and(allowed, logical_not(logical_or(reshape(arange(7), {7, 1}) == 2.0, arange(7) == 4.0)));
            SinkhornOptions masked = o;
            masked.allowed = allowed;
            if (iterations == 0 && literal) continue;  // A itself
            check_identity(kPlain, sinkhorn(a, masked),
                           tensor_from(plain_sinkhorn(matrix_of(a), lambda, iterations, literal, rows_last,
                                                      matrix_of(to(allowed, f64)))),
                           1e-12);
          }
  // Where the plain domain overflows: λA = ±4000.
  const Tensor p = sinkhorn(random_scores(rand, 6) * 4000.0, {.iterations = 50});
  CHECK(max_abs_diff(sum(p, {-1}), ones({6}, {f64})) < 1e-12);
  CHECK(all(isfinite(p)).item() == 1);
  // Batches are matrices of their own; f32.
  const Tensor batch = random_tensor({2, 3, 5, 5}, f64, rand);
  CHECK(max_abs_diff(select(select(sinkhorn(batch), 0, 1), 0, 2), sinkhorn(select(select(batch, 0, 1), 0, 2))) < 1e-15);
  CHECK(max_abs_diff(to(sinkhorn(to(batch, f32)), f64), sinkhorn(batch)) < 1e-6);
  CHECK(sinkhorn(zeros({3, 0, 0})).shape() == Shape{3, 0, 0});
}

TEST_CASE("sinkhorn: doubly stochastic, and what it is invariant to", "[sinkhorn]") {
  Rand rand(2);
  const int64_t n = 8;
  const Tensor a = random_scores(rand, n), one = ones({n}, {f64});
  for (int64_t t : {1, 5, 20}) {
    check_identity("Sinkhorn: rows sum to 1", sum(sinkhorn(a, {.lambda = 2, .iterations = t}), {-1}), one, 1e-14);
    CHECK(max_abs_diff(sum(sinkhorn(a, {.lambda = 2, .iterations = t, .last = SinkhornLast::columns}), {0}), one) <
          1e-14);
  }
  double last = kInf;
  for (int64_t t : {1, 3, 10, 30}) {  // the columns converge linearly
    const double e = max_abs_diff(sum(sinkhorn(a, {.lambda = 2, .iterations = t}), {0}), one);
    CHECK(e < last);
    last = e;
  }
  check_identity("Sinkhorn: columns sum to 1 in the limit",
                 max_abs_diff(sum(sinkhorn(a, {.lambda = 2, .iterations = 200}), {0}), one), 1e-13);

  // A constant added to a column is gone after the first column step, at any number of iterations; so is one added
  // to a row only if that step comes first — or in the limit.
  const Tensor column = random_tensor({1, n}, f64, rand, -3, 3), row = random_tensor({n, 1}, f64, rand, -3, 3);
  for (int64_t t : {1, 5, 100}) {
    check_identity("Sinkhorn: invariant to column shifts", sinkhorn(a + column, {.iterations = t}),
                   sinkhorn(a, {.iterations = t}), 1e-13);
    const SinkhornOptions columns_last{.iterations = t, .last = SinkhornLast::columns};
    check_identity("Sinkhorn: invariant to row shifts", sinkhorn(a + row, columns_last), sinkhorn(a, columns_last),
                   1e-13);
  }
  check_identity("Sinkhorn: invariant to row shifts", sinkhorn(a + row, {.iterations = 300}),
                 sinkhorn(a, {.iterations = 300}), 1e-12);
  check_identity("Sinkhorn: invariant to column shifts", sinkhorn(a + column + row, {.iterations = 300}),
                 sinkhorn(a, {.iterations = 300}), 1e-12);

  // A matrix whose e^{λA} has unit column sums passes the column step unchanged: one row step is left.
  const Tensor normal = log_softmax(a, 0) * 0.5;
  check_identity("Sinkhorn: one row step is softmax", sinkhorn(normal, {.lambda = 2, .iterations = 1}),
                 softmax(normal * 2.0), 1e-14);
  const Tensor both = softmax(a * 2.0);
  CHECK(max_abs_diff(sinkhorn(a, {.lambda = 2, .iterations = 1, .last = SinkhornLast::columns}),
                     both / sum(both, {0}, keep)) < 1e-14);
}

TEST_CASE("sinkhorn: lambda is an inverse temperature", "[sinkhorn]") {
  Rand rand(3);
  for (int64_t n : {5, 6})
    for (bool clear_lead : {false, true}) {
      Tensor a = random_scores(rand, n);
      const Tensor uniform_weights = full({n, n}, 1.0 / static_cast<double>(n), {f64});
      check_identity("Sinkhorn: lambda -> 0 is uniform", sinkhorn(a, {.lambda = 1e-12}), uniform_weights, 1e-11);
      CHECK(max_abs_diff(sinkhorn(a, {.lambda = 1}), uniform_weights) > 0.01);
      if (clear_lead) {  // of a cyclic shift, hidden behind what is added to rows and columns
        const Tensor cyclic = eye(n, -1, {f64});
        a = a * 0.1 + cat({narrow(cyclic, 0, 2, n - 2), narrow(cyclic, 0, 0, 2)}, 0);
        const Tensor rows = random_tensor({n, 1}, f64, rand, -0.2, 0.2),
                     columns = random_tensor({1, n}, f64, rand, -5, 5);
        a = a + rows + columns;
      }
      // The best assignment, by trying all.
      const Matrix m = matrix_of(a);
      std::vector<std::size_t> order(static_cast<std::size_t>(n)), best;
      std::iota(order.begin(), order.end(), std::size_t{0});
      double most = -kInf, next = -kInf;
      do {
        double total = 0;
        for (std::size_t i = 0; i < order.size(); ++i) total += m[i][order[i]];
        if (total > most) next = most, most = total, best = order;
        else next = std::max(next, total);
      } while (std::next_permutation(order.begin(), order.end()));
      Matrix want(static_cast<std::size_t>(n), std::vector<double>(static_cast<std::size_t>(n), 0));
      for (std::size_t i = 0; i < best.size(); ++i) want[i][best[i]] = 1;
      // Nearer to a permutation the iteration gets slower: with a narrow lead what is left falls like 1/t.
      const Tensor p = sinkhorn(a, {.lambda = 120 / (most - next), .iterations = 4000});
      if (clear_lead) check_identity("Sinkhorn: lambda -> inf is the optimal permutation", p, tensor_from(want), 1e-9);
      else CHECK(max_abs_diff(p, tensor_from(want)) < 5e-3);
    }
}

TEST_CASE("sinkhorn: the literal formula forgets A", "[sinkhorn]") {
  Rand rand(4);
  // n = 6 is uniform for λ <= 4, and a permutation at λ = 6; n = 8 uniform at 4, a permutation at 7.2.
  auto literal = [](const Tensor& a, double lambda) {
    return sinkhorn(a, {.lambda = lambda, .iterations = 300, .variant = SinkhornVariant::literal});
  };
  for (int64_t n : {6, 8})
    for (double lambda : {0.5, 1.0, 2.0, 4.0})
      check_identity("Sinkhorn: literal forgets A at small lambda", literal(random_scores(rand, n), lambda),
                     full({n, n}, 1.0 / static_cast<double>(n), {f64}), 1e-9);
  const Tensor six = literal(random_scores(rand, 6) * 3.0, 6), eight = literal(random_scores(rand, 8) * 3.0, 7.2);
  CHECK(max_abs_diff(max(six, {-1}), full({6}, 0.987, {f64})) < 1e-3);
  CHECK(max_abs_diff(max(eight, {-1}), full({8}, 0.995, {f64})) < 1e-3);
}

TEST_CASE("sinkhorn: causal is degenerate, and refused", "[sinkhorn]") {
  Rand rand(5);
  const int64_t n = 8;
  const Tensor a = random_scores(rand, n), identity = eye(n, -1, {f64});
  double last = kInf;
  for (int64_t t : {1, 5, 20, 100, 1000}) {
    const double e = max_abs_diff(sinkhorn(a, {.iterations = t, .allowed = causal_mask(n, n)}), identity);
    CHECK(e < last);
    last = e;
  }
  CHECK(last > 1e-4);  // slowly: like 1/t
  check_identity("Sinkhorn: causal tends to the identity matrix", last, 0.01);
  const Tensor q = zeros({1, 1, 4, 2});
  CHECK_THROWS_AS(sinkhorn_attention(q, q, q, {.causal = true}), ValueError);
  CHECK_THROWS_WITH(sinkhorn_attention(q, q, q, {.causal = true}), Contains("causal") && Contains("identity"));
  CHECK_THROWS_WITH(sinkhorn_block_attention(q, q, q, {.causal = true}),
                    Contains("sinkhorn_block_attention") && Contains("identity"));
}

TEST_CASE("sinkhorn: Gumbel noise", "[sinkhorn]") {
  Rand rand(7);
  const Tensor a = random_scores(rand, 5);
  const SinkhornOptions noisy{.gumbel = 1};
  CHECK(same_bits(sinkhorn(a, noisy), sinkhorn(a)));  // none without a generator
  Rng one(1), same(1), other(2);
  const Tensor p = sinkhorn(a, noisy, &one);
  CHECK(same_bits(p, sinkhorn(a, noisy, &same)));
  CHECK(max_abs_diff(p, sinkhorn(a, noisy, &other)) > 0.01);
  CHECK(max_abs_diff(p, sinkhorn(a)) > 0.01);
  CHECK(max_abs_diff(sum(p, {-1}), ones({5}, {f64})) < 1e-14);
  // log S⁰ of zero scores is the noise itself: mean γ = 0.5772, variance π²/6; 40000 values.
  for (DType dtype : {f32, f64}) {
    Rng rng(3);
    const Tensor g = to(log(sinkhorn(zeros({200, 200}, {dtype}), {.iterations = 0, .gumbel = 2}, &rng)), f64);
    CHECK(std::abs(mean(g).item() / 2 - 0.57722) < 0.03);
    CHECK(std::abs(var(g).item() / 4 - 1.64493) < 0.1);
  }
}

TEST_CASE("sinkhorn: Gumbel noise is finite where uniform() is next to 1", "[sinkhorn]") {
  // One f32 in 2^24 is the largest below 1: it is sought in the stream, and then drawn again.
  constexpr int64_t kDrawn = 1 << 20;
  constexpr double kLargest = 1 - 0x1p-24;
  Rng rng(1);
  Tensor u;
  do u = uniform({kDrawn}, 0, 1, rng);
  while (max(u).item() < kLargest && rng.offset() < (uint64_t{1} << 27));
  REQUIRE(max(u).item() == kLargest);
  const auto at = argmax(u, 0).item<int64_t>();
  rng.set_state(rng.seed(), rng.offset() - static_cast<uint64_t>((kDrawn - at + 3) / 4));  // four f32 of a block
  Rng again = rng;
  REQUIRE(max(uniform({4}, 0, 1, again)).item() == kLargest);
  CHECK(all(isfinite(sinkhorn(zeros({2, 2}), {.iterations = 0, .gumbel = 1}, &rng))).item());
}

TEST_CASE("sinkhorn attention: shared KV heads, ranks, errors", "[sinkhorn]") {
  Rand rand(8);
  const int64_t n = 6;
  const Qkv x = random_qkv(rand, 2, 4, 2, n, n);
  const auto repeated = [](const Tensor& t) { return repeat_interleave(t, 2, 1); };
  for (int64_t top_k : {int64_t{0}, int64_t{2}, n}) {
    const SinkhornAttentionOptions o{.sinkhorn = {.lambda = 1.5, .iterations = 6}, .top_k = top_k};
    CHECK(max_abs_diff(sinkhorn_attention(x.q, x.k, x.v, o), sinkhorn_attention(x.q, repeated(x.k), repeated(x.v), o)) <
          1e-14);
    SinkhornAttentionOptions padded = o;
    padded.keys = Tensor::from(std::vector<bool>{1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 0}, {2, n});
    check_ignores_padding(x, padded.keys, [&](const Qkv& y) { return sinkhorn_attention(y.q, y.k, y.v, padded); });
  }
  // Rank 2, and no tokens.
  const auto first = [](const Tensor& y) { return select(select(y, 0, 0), 0, 0); };
  CHECK(max_abs_diff(sinkhorn_attention(first(x.q), first(x.k), first(x.v)), first(sinkhorn_attention(x.q, x.k, x.v))) <
        1e-14);
  CHECK(sinkhorn_attention(zeros({1, 2, 0, 3}), zeros({1, 2, 0, 3}), zeros({1, 2, 0, 4})).shape() == Shape{1, 2, 0, 4});
  CHECK_THROWS_WITH(sinkhorn_attention(x.q, narrow(x.k, 2, 0, 4), narrow(x.v, 2, 0, 4)), Contains("as many queries"));
  CHECK_THROWS_AS(sinkhorn_attention(x.q, x.k, x.v, {.top_k = -1}), ValueError);
  CHECK_THROWS_WITH(sinkhorn(zeros({2, 3, 4})), Contains("[2,3,4]") && Contains("n, n"));
  CHECK_THROWS_AS(sinkhorn(zeros({3, 3}), {.iterations = -1}), ValueError);
  CHECK_THROWS_WITH(sinkhorn(zeros({3, 3}), {.lambda = INFINITY}), Contains("lambda=inf"));
  CHECK_THROWS_WITH(sinkhorn(zeros({3, 3}), {.gumbel = INFINITY}), Contains("gumbel=inf"));
  CHECK_THROWS_AS(sinkhorn(zeros({3, 3}, {i64})), DTypeError);
  CHECK_THROWS_WITH(sinkhorn(zeros({3, 3}), {.allowed = ones({2, 3}, {boolean})}), Contains("[2,3]"));
  CHECK_THROWS_WITH(sinkhorn(zeros({3, 3}), {.allowed = ones({3, 3})}),
                    "sinkhorn: allowed=[3,3] of f32 does not fit scores=[3,3]; need bool");
}

TEST_CASE("sinkhorn attention: padding is not among the best keys where all scores are negative", "[sinkhorn]") {
  const Tensor q = full({1, 1, 3, 2}, 1, {f64}), k = -q, v = Tensor::from<double>({1, 2, 3, 4, 5, 6}, {1, 1, 3, 2});
  SinkhornAttentionOptions o{.sinkhorn = {.iterations = 0, .variant = SinkhornVariant::literal}, .top_k = 1};
  o.keys = Tensor::from(std::vector<bool>{1, 1, 0}, {1, 3});
  const auto real = [](const Tensor& x) { return narrow(x, 2, 0, 2); };
  const Tensor got = real(sinkhorn_attention(q, k, v, o));
  o.keys = Tensor();
  CHECK(max_abs_diff(got, sinkhorn_attention(real(q), real(k), real(v), o)) == 0);
}
