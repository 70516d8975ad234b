// F-Attn, M-Act, gate statistics, entropy and ranks on matrices whose values are known.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/layers/attention/attention_gate.h>
#include <sluice/layers/report/metrics.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("metrics: the first token's share", "[metrics]") {
  const Tensor map = tensor_of({1, 0, 0, .25, .75, 0, .5, .25, .25}, {1, 1, 3, 3}, f64);
  CHECK(first_token_share(map) == Approx(0.375).epsilon(1e-15));
  CHECK(first_token_share(map, true) == Approx((1 + .25 + .5) / 3).epsilon(1e-15));
  const Tensor decode = tensor_of({.25, .75, .5, .5}, {2, 1, 1, 2}, f64);  // one row for two keys: nothing to leave out
  CHECK(first_token_share(decode) == Approx(0.375).epsilon(1e-15));
  CHECK(first_token_share(std::vector<Tensor>{map, decode * 0.0}) == Approx(0.1875).epsilon(1e-15));
  // Uniform causal attention of n tokens: H_n/n with row 0, (H_n − 1)/(n − 1) without.
  const Tensor q = zeros({2, 3, 9, 4});
  AttentionOptions causal;
  causal.mask.causal = true;
  double harmonic = 0;
  for (int i = 1; i <= 9; ++i) harmonic += 1.0 / i;
  CHECK(first_token_share(attention_map(q, q, causal), true) == Approx(harmonic / 9).epsilon(1e-6));
  CHECK(first_token_share(attention_map(q, q, causal)) == Approx((harmonic - 1) / 8).epsilon(1e-6));
  // A sink: heads and sequences count alike.
  Tensor mixed = cat({map, tensor_of({1, 0, 0, 1, 0, 0, 1, 0, 0}, {1, 1, 3, 3}, f64)}, 1);
  CHECK(first_token_share(mixed) == Approx((0.375 + 1) / 2).epsilon(1e-15));
  CHECK_THROWS_WITH(first_token_share(ones({1, 1, 1, 1})), Contains("[1,1,1,1]") && Contains("row 0"));
  CHECK(first_token_share(ones({1, 1, 1, 1}), true) == 1);
  CHECK_THROWS_AS(first_token_share(ones({3})), ShapeError);
  CHECK_THROWS_AS(first_token_share(std::vector<Tensor>{}), ValueError);
}

TEST_CASE("metrics: the largest activation", "[metrics]") {
  CHECK(max_activation({Tensor({1, -5, 2}), Tensor({3, 0, 1})}) == 4);
  CHECK(max_activation({zeros({2, 0})}) == 0);
  CHECK(std::isnan(max_activation({Tensor({1, NAN, 7})})));
  CHECK_THROWS_AS(max_activation({}), ValueError);
}

TEST_CASE("metrics: gate statistics", "[metrics]") {
  const Tensor first = tensor_of({0.9, 0.5, 0.005, 0.0005}, {4}, f64), second = tensor_of({0.2, -0.7}, {1, 2}, f64);
  const GateStatistics g = gate_statistics({first, second});
  CHECK(g.count == 6);
  CHECK(g.mean == Approx((0.9 + 0.5 + 0.005 + 0.0005 + 0.2 - 0.7) / 6).epsilon(1e-14));
  CHECK(g.min == -0.7);
  CHECK(g.max == 0.9);
  CHECK(g.below_half == Approx(3 / 6.0));
  CHECK(g.below_1e2 == Approx(2 / 6.0));
  CHECK(g.below_1e3 == Approx(1 / 6.0));
  CHECK(std::isnan(gate_statistics(zeros({0})).mean));
  CHECK(std::isnan(gate_statistics(zeros({0})).min));
  const GateStatistics broken = gate_statistics(Tensor({0.5f, NAN, 0.25f}));
  CHECK((std::isnan(broken.min) && std::isnan(broken.max)));
  // A new gate of the paper is about ½ everywhere.
  Rng rng(1);
  const AttentionGate gate({}, 32, 2, 8, rng);
  Rand rand(1);
  const GateStatistics start = gate_statistics(gate.scores(random_tensor({4, 16, 32}, f32, rand)));
  CHECK(start.mean == Approx(0.5).margin(0.01));
  CHECK(start.below_half == Approx(0.5).margin(0.1));
  CHECK(start.below_1e2 == 0);
}

TEST_CASE("metrics: entropy of attention", "[metrics]") {
  CHECK(attention_entropy(full({2, 3, 8}, 0.125, {f64})) == Approx(std::log(8)).epsilon(1e-14));
  CHECK(attention_entropy(eye(5)) == 0);
  const double h = -0.25 * std::log(0.25) - 0.75 * std::log(0.75);
  CHECK(attention_entropy(tensor_of({.25, .75, 0, 0, 1, 0}, {3, 2}, f64)) == Approx(h / 2).epsilon(1e-14));
  CHECK(std::isnan(attention_entropy(zeros({2, 3}))));
  CHECK_THROWS_AS(attention_entropy(ones({3})), ShapeError);
}

TEST_CASE("metrics: singular values and ranks", "[metrics]") {
  // U·diag(σ)·Vᵀ for orthogonal U and V: two Householder reflections.
  auto reflection = [](const std::vector<double>& v) {
    const auto n = static_cast<int64_t>(v.size());
    double square = 0;
    for (double c : v) square += c * c;
    Tensor column = Tensor::from(v, {n, 1});
    return eye(n, n, {f64}) - matmul(column, transpose(column, 0, 1)) * (2 / square);
  };
  const std::vector<double> sigma{4, 2, 1, 1e-9};
  Tensor d = zeros({5, 4}, {f64});
  for (int64_t i = 0; i < 4; ++i) d.mutable_data<double>()[i * 5] = sigma[static_cast<std::size_t>(i)];
  const Tensor m = matmul(matmul(reflection({1, 2, -1, 3, .5}), d), reflection({2, -1, 1, 1}));
  for (const Tensor& a : {m, transpose(m, 0, 1)}) {
    const std::vector<double> s = singular_values(a);
    REQUIRE(s.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) CHECK(s[i] == Approx(sigma[i]).margin(1e-14).epsilon(1e-13));
    double entropy = 0, total = 7 + 1e-9;
    for (double v : sigma) entropy -= v / total * std::log(v / total);
    CHECK(effective_rank(a) == Approx(std::exp(entropy)).epsilon(1e-12));
    CHECK(matrix_rank(a) == 4);
    CHECK(matrix_rank(a, 1e-6) == 3);
    CHECK(matrix_rank(a, 0.3) == 2);
    CHECK(matrix_rank(to(a, f32)) == 3);
  }
  CHECK(effective_rank(eye(6)) == Approx(6).epsilon(1e-12));
  CHECK(effective_rank(ones({4, 7})) == Approx(1).epsilon(1e-6));
  CHECK(effective_rank(zeros({4, 7})) == 0);
  CHECK(matrix_rank(zeros({4, 7})) == 0);
  CHECK_THROWS_AS(matrix_rank(ones({2, 2}), std::nan("")), ValueError);
  CHECK(singular_values(zeros({0, 3})).empty());
  CHECK(matrix_rank(zeros({0, 3})) == 0);
  // A product through r channels has rank r, whatever its size.
  Rand rand(2);
  const Tensor low = matmul(random_tensor({40, 3}, f64, rand), random_tensor({3, 50}, f64, rand));
  CHECK(matrix_rank(low) == 3);
  CHECK(effective_rank(low) <= 3);
  CHECK_THROWS_AS(singular_values(ones({2, 3, 4})), ShapeError);
  CHECK_THROWS_WITH(effective_rank(full({2, 2}, NAN)), Contains("NaN"));
}
