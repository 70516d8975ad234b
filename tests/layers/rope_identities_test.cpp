// Positions: RoPE, Toeplitz tables, T5 buckets; and norms.
#include "layers/gau_reference.h"
#include "support/catch.h"
#include "support/identities.h"
#include "support/worse.h"

#include <sluice/autograd/gradcheck.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/rope.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr RopePairing kPairings[] = {RopePairing::half, RopePairing::interleaved};

Tensor sample(uint64_t seed, const Shape& shape) {
  Rand rand(seed);
  return random_tensor(shape, f64, rand);
}
Tensor tensor_of(const Matrix& m) {
  std::vector<double> flat;
  for (const auto& row : m) flat.insert(flat.end(), row.begin(), row.end());
  return Tensor::from(flat, {static_cast<int64_t>(m.size()), static_cast<int64_t>(m[0].size())});
}

}  // namespace

TEST_CASE("rope: equals loops for every pairing, width, base and offset", "[rope]") {
  for (RopePairing pairing : kPairings)
    for (int64_t rot_dim : {0, 2, 6})
      for (double base : {10000.0, 1e6, 7.0})
        for (int64_t offset : {0, 5, 100000}) {
          const RopeOptions o{.base = base, .pairing = pairing, .rot_dim = rot_dim, .offset = offset};
          const Tensor x = sample(1, {9, 8});
          CHECK(max_abs_diff(rope(x, o), tensor_of(rope_reference(matrix_of(x), o))) < 1e-10);
        }
}

TEST_CASE("rope: keeps the norm of each pair and each row", "[rope][identity]") {
  for (RopePairing pairing : kPairings) {
    const Tensor x = sample(2, {2, 3, 50, 8}), y = rope(x, {.base = 10000, .pairing = pairing});
    check_identity("RoPE: norm preserved", sum(square(x), {-1}), sum(square(y), {-1}), 1e-13);
    auto pairs = [&](const Tensor& t) {
      const Tensor p =
          pairing == RopePairing::half ? unflatten(t, -1, {2, 4}) : transpose(unflatten(t, -1, {4, 2}), -1, -2);
      return sum(square(p), {-2});
    };
    check_identity("RoPE: norm preserved", pairs(x), pairs(y), 1e-14);
    CHECK(same_bits(narrow(y, 2, 0, 1), narrow(x, 2, 0, 1)));  // position 0
  }
}

TEST_CASE("rope: ⟨R_i q, R_j k⟩ depends on j − i alone", "[rope][identity]") {
  for (RopePairing pairing : kPairings)
    for (int64_t rot_dim : {0, 4}) {
      const RopeOptions o{.pairing = pairing, .rot_dim = rot_dim};
      const Tensor q = expand(sample(3, {1, 8}), {30, 8}), k = expand(sample(4, {1, 8}), {30, 8});
      const Matrix dot = matrix_of(matmul(rope(q, o), transpose(rope(k, o), 0, 1)));
      double worst = 0, spread = 0;
      for (std::size_t i = 0; i + 1 < 30; ++i)
        for (std::size_t j = 0; j + 1 < 30; ++j) {
          worst = worse(worst, std::abs(dot[i][j] - dot[i + 1][j + 1]));
          spread = std::max(spread, std::abs(dot[i][j] - dot[i][j + 1]));
        }
      check_identity("RoPE: scores depend on j - i only", worst, 1e-13);
      CHECK(spread > 0.05);
      RopeOptions later = o;
      later.offset = 1000;  // a common shift of all positions
      check_identity("RoPE: scores depend on j - i only", matmul(rope(q, later), transpose(rope(k, later), 0, 1)),
                     tensor_of(dot), 1e-11);
    }
}

TEST_CASE("rope: the two layouts are one up to a permutation of channels", "[rope][identity]") {
  const Tensor order = Tensor::from<int64_t>({0, 2, 4, 6, 1, 3, 5, 7});  // half[c] = interleaved[order[c]]
  const Tensor x = sample(5, {3, 20, 8});
  const Tensor interleaved = rope(x, {.base = 10000, .pairing = RopePairing::interleaved});
  // Not bit for bit: which product of a·cos − b·sin is fused with the difference is the compiler's choice in each loop.
  check_identity("RoPE: layouts are a permutation of channels", rope(index_select(x, -1, order)),
                 index_select(interleaved, -1, order), 1e-15);
  // Hence the same scores, once the weights are permuted.
  const Tensor y = sample(6, {3, 20, 8});
  const Tensor scores =
      matmul(interleaved, transpose(rope(y, {.base = 10000, .pairing = RopePairing::interleaved}), 1, 2));
  const Tensor halves = matmul(rope(index_select(x, -1, order)), transpose(rope(index_select(y, -1, order)), 1, 2));
  check_identity("RoPE: layouts are a permutation of channels", scores, halves, 1e-13);
}

TEST_CASE("rope: rot_dim turns the first channels and passes the others", "[rope][identity]") {
  for (RopePairing pairing : kPairings) {
    const Tensor x = sample(7, {2, 12, 8}), y = rope(x, {.base = 10000, .pairing = pairing, .rot_dim = 4});
    CHECK(same_bits(narrow(y, -1, 4, 4), narrow(x, -1, 4, 4)));
    CHECK(same_bits(narrow(y, -1, 0, 4), rope(contiguous(narrow(x, -1, 0, 4)), {.base = 10000, .pairing = pairing})));
    CHECK(same_bits(rope(x, {.base = 10000, .pairing = pairing, .rot_dim = 8}),
                    rope(x, {.base = 10000, .pairing = pairing})));
  }
}

TEST_CASE("rope: offsets and explicit positions continue the same rotation", "[rope][identity]") {
  for (RopePairing pairing : kPairings) {
    const RopeOptions o{.pairing = pairing};
    const Tensor x = sample(8, {2, 12, 8}), y = rope(x, o);
    RopeOptions later = o;
    later.offset = 5;
    CHECK(same_bits(rope(narrow(x, 1, 5, 7), later), narrow(y, 1, 5, 7)));
    CHECK(same_bits(rope_at(x, arange(12), o), y));
    CHECK(same_bits(rope_at(narrow(x, 1, 5, 7), arange(7), later), narrow(y, 1, 5, 7)));
    const Tensor picked = Tensor::from<int64_t>({11, 0, 3});
    CHECK(same_bits(rope_at(index_select(x, 1, picked), picked, o), index_select(y, 1, picked)));
    // Turning by p and by −p is the identity.
    CHECK(max_abs_diff(rope_at(y, -arange(12), o), x) < 1e-14);
    CHECK(gradcheck([&](const std::vector<Tensor>& v) { return rope(v[0], later); },
                    {sample(9, {2, 3, 8}).requires_grad_()}));
    CHECK(gradgradcheck([&](const std::vector<Tensor>& v) { return rope(v[0] * v[0], later); },
                        {sample(9, {2, 3, 8}).requires_grad_()}));
  }
}

TEST_CASE("rope: scaled frequencies", "[rope]") {
  // inv_freq and attention factor of transformers' LlamaConfig with rope_type yarn, factor 4, 2048 positions, 16
  // channels.
  const RopeOptions yarn = yarn_rope({}, 16, 4, 2048);
  const double want[] = {1,       0.31622776601683794,  0.1,     0.02569350598886808,
                         0.00625, 0.001383496476323666, 0.00025, 7.905694150420948e-05};
  REQUIRE(yarn.frequencies.size() == 8);
  for (std::size_t c = 0; c < 8; ++c) CHECK(yarn.frequencies[c] == Approx(want[c]).epsilon(1e-14));
  CHECK(yarn.factor == Approx(1.138629436111989).epsilon(1e-15));
  // A length that even the slowest pair turns through, length/2π > base: the ramp ends at channel dim − 1 = 7, as
  // there.
  const RopeOptions fast = yarn_rope({.base = 10}, 8, 4, 2048, /*beta_fast=*/200);
  const std::vector<double> plain = rope_frequencies(8, 10);
  for (std::size_t c = 0; c < 4; ++c) {
    const double divided = static_cast<double>(c) / 7;
    CHECK(fast.frequencies[c] == Approx(plain[c] * (divided / 4 + 1 - divided)).epsilon(1e-14));
  }
  CHECK(yarn_rope({.base = 500}, 8, 1, 64).frequencies == rope_frequencies(8, 500));
  CHECK(yarn_rope({.pairing = RopePairing::interleaved, .offset = 3}, 8, 2, 64).offset == 3);
  for (double scale : {0.5, HUGE_VAL, std::nan("")}) CHECK_THROWS_AS(yarn_rope({}, 8, scale, 64), ValueError);
  CHECK_THROWS_AS(yarn_rope({}, 7, 2, 64), ValueError);
  CHECK_THROWS_AS(yarn_rope({}, 8, 2, 0), ValueError);
  CHECK_THROWS_AS(yarn_rope({}, 8, 2, 64, 1, 2), ValueError);

  const Tensor x = sample(3, {2, 9, 8});
  RopeOptions linear;  // positions divided by 4
  for (double f : rope_frequencies(8)) linear.frequencies.push_back(f / 4);
  CHECK(max_abs_diff(narrow(rope(x, linear), 1, 8, 1), rope_at(narrow(x, 1, 8, 1), Tensor::from<int64_t>({2}))) <
        1e-15);
  RopeOptions given;
  given.frequencies = rope_frequencies(8);
  CHECK(same_bits(rope(x, given), rope(x)));
}

TEST_CASE("rope: with xPos scores depend on distances alone, and decay", "[rope][identity]") {
  for (RopePairing pairing : kPairings) {
    RopeOptions o{.pairing = pairing, .xpos = 5};
    const Tensor a = expand(sample(4, {1, 8}), {12, 8}), b = expand(sample(5, {1, 8}), {12, 8});
    const Tensor near = matmul(rope(a, o), transpose(rope(b, o.of_keys()), 0, 1));
    o.offset = 31;
    CHECK(max_abs_diff(matmul(rope(a, o), transpose(rope(b, o.of_keys()), 0, 1)), near) < 1e-12);
    const Tensor ones_of = ones({60, 8}, {f64});
    o.offset = 0;
    const Tensor s = abs(narrow(matmul(rope(ones_of, o), transpose(rope(ones_of, o.of_keys()), 0, 1)), 0, 59, 1));
    CHECK(max(narrow(s, 1, 0, 10)).item() < 0.1 * s.to_vector<double>()[59]);
    CHECK(gradgradcheck([&](const std::vector<Tensor>& v) { return rope(v[0] * v[0], o); },
                        {sample(9, {2, 3, 8}).requires_grad_()}));
  }
}

TEST_CASE("rope: refusals and empty inputs", "[rope]") {
  CHECK_THROWS_WITH(rope(zeros({4, 6}), RopeOptions{.frequencies = {1, 2}}),
                    Contains("2 frequencies") && Contains("[4,6]"));
  CHECK_THROWS_AS(rope(zeros({4, 6}), RopeOptions{.frequencies = {1, 2, NAN}}), ValueError);
  CHECK_THROWS_AS(rope(zeros({4, 6}), RopeOptions{.factor = 0}), ValueError);
  CHECK_THROWS_AS(rope(zeros({4, 6}), RopeOptions{.xpos = INFINITY}), ValueError);
  CHECK_THROWS_WITH(rope(zeros({4, 5})), Contains("5") && Contains("even"));
  CHECK_THROWS_WITH(rope(zeros({4, 6}), RopeOptions{.rot_dim = 8}), Contains("8") && Contains("[4,6]"));
  CHECK_THROWS_AS(rope(zeros({4, 6}), RopeOptions{.rot_dim = -2}), ShapeError);
  CHECK_THROWS_AS(rope(zeros({6})), ShapeError);
  CHECK_THROWS_AS(rope(zeros({4, 6}, {i64})), DTypeError);
  CHECK_THROWS_WITH(rope_at(zeros({4, 6}), arange(5)), Contains("[5]") && Contains("[4,6]"));
  CHECK_THROWS_AS(rope_at(zeros({4, 6}), zeros({4})), DTypeError);
  CHECK(rope(zeros({0, 6})).shape() == Shape{0, 6});
  CHECK(rope(zeros({3, 0, 6})).shape() == Shape{3, 0, 6});
}

TEST_CASE("toeplitz: one table built for n_max serves every length", "[rope][identity]") {
  const int64_t n_max = 9;
  const Tensor w = sample(10, {2 * n_max - 1}), full = toeplitz(w, n_max, n_max);
  const std::vector<double> table = w.to_vector<double>();
  for (int64_t n = 0; n <= n_max; ++n)
    for (int64_t m = 0; m <= n_max; ++m)
      for (int64_t row = 0; row + n <= n_max; ++row) {
        const Tensor part = toeplitz(w, n, m, row);
        CHECK(same_bits(part, narrow(narrow(full, 0, row, n), 1, 0, m)));
        if (n > 0 && m > 0) CHECK(part.shares_storage(w));
      }
  check_identity("Toeplitz: b depends on j - i only", narrow(narrow(full, 0, 0, n_max - 1), 1, 0, n_max - 1),
                 narrow(narrow(full, 0, 1, n_max - 1), 1, 1, n_max - 1), 0);
  const Matrix b = matrix_of(full);
  bool right = true;
  for (int64_t i = 0; i < n_max; ++i)
    for (int64_t j = 0; j < n_max; ++j)
      right &= b[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] ==
               table[static_cast<std::size_t>(n_max - 1 + j - i)];
  CHECK(right);
  CHECK(gradcheck([](const std::vector<Tensor>& v) { return square(toeplitz(v[0], 4, 3, 2)); },
                  {sample(11, {13}).requires_grad_()}));
  CHECK_THROWS_WITH(toeplitz(w, 10, 3), Contains("10") && Contains("n_max=9"));
  CHECK_THROWS_WITH(toeplitz(w, 3, 10), Contains("10") && Contains("n_max=9"));
  CHECK_THROWS_WITH(toeplitz(w, 3, 3, 7), Contains("7") && Contains("n_max=9"));
  CHECK_THROWS_WITH(toeplitz(zeros({6}), 2, 2), Contains("[6]"));
  CHECK_THROWS_AS(toeplitz(zeros({5, 5}), 2, 2), ShapeError);
}

TEST_CASE("t5_buckets: equal the usual formula for |offset| < 300, and keep their limits", "[rope][identity]") {
  for (bool causal : {false, true}) {
    const T5BucketOptions o{.causal = causal};
    for (int rel = -299; rel < 300; ++rel)
      if (t5_bucket(rel, o) != t5_reference(rel, causal)) FAIL_CHECK("offset " << rel << " causal " << causal);
    CHECK(t5_bucket(-1000000, o) == (causal ? 31 : 15));
    CHECK(t5_bucket(1000000, o) == (causal ? 0 : 31));
    CHECK(t5_bucket(-128, o) == (causal ? 31 : 15));
    CHECK(t5_bucket(0, o) == 0);
    for (int64_t row : {0, 40}) {
      const std::vector<int64_t> b = t5_buckets(30, 50, o, row).to_vector<int64_t>();
      bool right = true;
      for (int64_t i = 0; i < 30; ++i)
        for (int64_t j = 0; j < 50; ++j) right &= b[static_cast<std::size_t>(i * 50 + j)] == t5_bucket(j - i - row, o);
      check_identity("T5: matrix of buckets = bucket of offset", right ? 0 : INFINITY, 0);
    }
    for (int rel = -99; rel < 100; ++rel)
      if (t5_bucket(rel, {.causal = causal, .buckets = 8, .max_distance = 20}) != t5_reference(rel, causal, 8, 20))
        FAIL_CHECK("8 buckets, offset " << rel << " causal " << causal);
  }
  CHECK(t5_buckets(0, 3).shape() == Shape{0, 3});
  CHECK(t5_buckets(3, 0).shape() == Shape{3, 0});
  CHECK_THROWS_AS(t5_buckets(3, 3, {.buckets = 6}), ValueError);
  CHECK_THROWS_AS(t5_buckets(3, 3, {.max_distance = 8}), ValueError);
}

TEST_CASE("norm: ScaleNorm with g = 1 ≡ RMSNorm without weight, and its two forms", "[norm][identity]") {
  const Tensor x = sample(12, {4, 7}) * 3;
  const Tensor one = ones({1}, {f64});
  check_identity("ScaleNorm(g = 1) = RMSNorm without affine", scale_norm(x, one), rms_norm(x), 1e-15);
  CHECK(max_abs_diff(scale_norm(x, one, 1e-12), scale_norm(x, one, 1e-12, ScaleNormForm::l2_max)) < 1e-10);
  CHECK(max_abs_diff(scale_norm(x, one * 2.5), rms_norm(x) * 2.5) < 1e-14);
  const Tensor tiny = x * 1e-9;  // below eps the l2 form divides by eps
  CHECK(max_abs_diff(scale_norm(tiny, one, 1e-5, ScaleNormForm::l2_max), tiny / 1e-5) < 1e-15);
  Norm norm({.dim = 7, .kind = NormKind::scale, .dtype = f64});
  check_identity("ScaleNorm(g = 1) = RMSNorm without affine", norm(x),
                 Norm({.dim = 7, .kind = NormKind::rms_plain, .dtype = f64})(x), 1e-15);
  CHECK(max_abs_diff(Norm({.dim = 7, .kind = NormKind::none})(x), x) == 0);
}
