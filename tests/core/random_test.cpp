#include <sluice/core/number/random.h>

#include <sluice/core/kernel/parallel.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/worse.h"

#include <sluice/ops/shape/create.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

using namespace sluice;

namespace {

constexpr int64_t kSamples = 1'000'000;

/// Mean, variance and neighbour correlation, each within five standard deviations of its estimator.
/// `mu4` is the fourth central moment.
void check_moments(const Tensor& x, double mean, double variance, double mu4) {
  const auto v = x.to_vector<double>();
  const double n = static_cast<double>(v.size());
  double m = 0, s = 0, lag = 0;
  for (double a : v) m += a / n;
  for (double a : v) s += (a - m) * (a - m) / n;
  for (std::size_t i = 1; i < v.size(); ++i) lag += (v[i] - m) * (v[i - 1] - m) / n;
  CHECK(std::abs(m - mean) < 5 * std::sqrt(variance / n));
  CHECK(std::abs(s - variance) < 5 * std::sqrt((mu4 - variance * variance) / n));
  CHECK(std::abs(lag / variance) < 5 / std::sqrt(n));
}

/// Kolmogorov-Smirnov: sqrt(n) times the largest distance exceeds 2.2 with probability 1.3e-4.
template <class Cdf> void check_distribution(const Tensor& x, Cdf cdf) {
  auto v = x.to_vector<double>();
  std::sort(v.begin(), v.end());
  const double n = static_cast<double>(v.size());
  double distance = 0;
  for (std::size_t i = 0; i < v.size(); ++i)
    distance = testing::worse(distance, std::abs(cdf(v[i]) - (static_cast<double>(i) + 0.5) / n));
  CHECK(distance * std::sqrt(n) < 2.2);
}

template <class Predicate> void check_all(const Tensor& x, Predicate holds) {
  const auto v = x.to_vector<double>();
  CHECK(std::all_of(v.begin(), v.end(), holds));
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

struct RestoreThreads {
  ~RestoreThreads() { set_num_threads(0); }
};

}  // namespace

TEST_CASE("philox: the published test vectors", "[random]") {
  using Words = std::array<uint32_t, 4>;
  const uint32_t f = 0xffffffff;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({f, f, f, f}, {f, f}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a fill is the stream of philox words", "[random]") {
  const uint64_t seed = 0x123456789abcdef0, offset = 0xfffffffe;  // crosses a word of the counter
  Rng rng;
  rng.set_state(seed, offset);
  const auto x = uniform({1001}, 0, 1, rng).to_vector();
  CHECK(rng.offset() == offset + 251);
  for (uint64_t i : {0, 7, 8, 255, 256, 1000}) {
    const uint64_t block = offset + i / 4;
    const auto words =
        philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, {0x9abcdef0, 0x12345678});
    CHECK(x[i] == static_cast<float>(words[i % 4] >> 8) * 0x1p-24f);
  }
}

TEST_CASE("distributions have their moments and shape", "[random]") {
  const DType type = GENERATE(f32, f64);
  const TensorOptions options{.dtype = type};
  Rng rng(7);
  SECTION("uniform") {
    Tensor x = uniform({kSamples}, -1, 3, rng, options);
    check_moments(x, 1, 16.0 / 12, 256.0 / 80);
    check_distribution(x, [](double v) { return (v + 1) / 4; });
    check_all(x, [](double v) { return v >= -1 && v < 3; });
  }
  SECTION("normal") {
    Tensor x = normal({kSamples}, 2, 3, rng, options);
    check_moments(x, 2, 9, 3 * 81);
    check_distribution(x, [](double v) { return normal_cdf((v - 2) / 3); });
  }
  SECTION("truncated normal") {
    // With d = phi(2)/(2 Phi(2) - 1): variance 1 - 4 d, fourth moment 3 - 28 d.
    const double mass = 2 * normal_cdf(2) - 1, d = std::exp(-2) / std::sqrt(2 * std::numbers::pi) / mass;
    Tensor x = truncated_normal({kSamples}, 1, 0.5, rng, options);
    check_moments(x, 1, (1 - 4 * d) / 4, (3 - 28 * d) / 16);
    check_distribution(x, [&](double v) { return (normal_cdf((v - 1) / 0.5) - normal_cdf(-2)) / mass; });
    check_all(x, [](double v) { return v >= 0 && v <= 2; });
  }
}

TEST_CASE("each value is made of its own words of its own block", "[random]") {
  constexpr int64_t n = 4 * 64 * 64 + 4 * 64 + 1;  // past a task, and one value into a batch of blocks
  const auto word = [](uint64_t block, int64_t i) {
    return philox4x32({uint32_t(block), uint32_t(block >> 32), 0, 0}, {17, 0})[static_cast<std::size_t>(i)];
  };
  Rng rng(17);
  rng.reserve(5);
  uint64_t start = 5;
  auto narrow = [&](int64_t i) { return word(start + static_cast<uint64_t>(i / 4), i % 4); };
  auto wide = [&](int64_t i) {
    const uint64_t block = start + static_cast<uint64_t>(i / 2);
    return uint64_t{word(block, i % 2 * 2 + 1)} << 32 | word(block, i % 2 * 2);
  };
  auto check = [&](const Tensor& x, int64_t blocks, auto value) {
    const auto v = x.to_vector<double>();
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) wrong += v[static_cast<std::size_t>(i)] != static_cast<double>(value(i));
    CHECK(wrong == 0);
    CHECK(rng.offset() == start + static_cast<uint64_t>(blocks));
    start = rng.offset();
  };
  for (double p : {0.3, 0.5, 0.9})
    check(bernoulli({n}, p, rng), (n + 3) / 4, [&](int64_t i) { return narrow(i) < std::llround(std::ldexp(p, 32)); });
  check(uniform({n}, 0, 1, rng), (n + 3) / 4, [&](int64_t i) { return std::ldexp(narrow(i) >> 8, -24); });
  check(uniform({n}, 0, 1, rng, {f64}), (n + 1) / 2, [&](int64_t i) { return std::ldexp(double(wide(i) >> 11), -53); });
  check(randint(-7, 3, {n}, rng), (n + 1) / 2,
        [&](int64_t i) { return static_cast<int64_t>(static_cast<unsigned __int128>(wide(i)) * 10 >> 64) - 7; });
  std::vector<int64_t> order(n);  // Fisher-Yates from the end
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = 0; i < n; ++i) {
    const auto left = static_cast<unsigned __int128>(n - i);
    std::swap(order[static_cast<std::size_t>(n - i - 1)], order[static_cast<std::size_t>(wide(i) * left >> 64)]);
  }
  check(permutation(n, rng), (n + 1) / 2, [&](int64_t i) { return order[static_cast<std::size_t>(i)]; });
}

TEST_CASE("uniform never returns hi", "[random]") {
  Rng rng(1);
  for (float v : uniform({4096}, 1e8, 1e8 + 16, rng).to_vector()) REQUIRE((v >= 1e8f && v < 1e8f + 16));
  for (float v : uniform({64}, 2, 2, rng).to_vector()) REQUIRE(v == 2);
}

TEST_CASE("bernoulli, randint, sample_discrete", "[random]") {
  Rng rng(3);
  check_moments(bernoulli({kSamples}, 0.3, rng), 0.3, 0.21, 0.21 * (1 - 3 * 0.21));
  for (bool v : bernoulli({1000}, 1, rng).to_vector<bool>()) REQUIRE(v);
  for (bool v : bernoulli({1000}, 0, rng).to_vector<bool>()) REQUIRE(!v);

  check_moments(randint(-3, 4, {kSamples}, rng), 0, 4, 28);  // -3 … 3
  const auto wide = randint(INT64_MIN, INT64_MAX, {1000}, rng).to_vector<int64_t>();
  CHECK(std::count_if(wide.begin(), wide.end(), [](int64_t v) { return v < 0; }) > 400);
  CHECK(std::count_if(wide.begin(), wide.end(), [](int64_t v) { return v > 0; }) > 400);

  const float weights[] = {1, 0, 3, 0};
  int counts[4] = {};
  for (int i = 0; i < 40'000; ++i) ++counts[sample_discrete(weights, 4, rng)];
  CHECK((counts[1] == 0 && counts[3] == 0));
  CHECK(std::abs(counts[0] - 10'000) < 5 * std::sqrt(40'000 * 0.25 * 0.75));
}

TEST_CASE("permutation", "[random]") {
  Rng rng(5);
  for (int64_t n : {0, 1, 2, 127, 128, 129, 1000}) {
    auto p = permutation(n, rng).to_vector<int64_t>();
    std::sort(p.begin(), p.end());
    for (int64_t i = 0; i < n; ++i) REQUIRE(p[i] == i);
  }
  int counts[6] = {};  // all orders of three are equally likely
  for (int i = 0; i < 6000; ++i) {
    const auto p = permutation(3, rng).to_vector<int64_t>();
    ++counts[2 * p[0] + (p[1] > p[2])];
  }
  for (int c : counts) CHECK(std::abs(c - 1000) < 5 * std::sqrt(1000 * 5.0 / 6));
}

TEST_CASE("values do not depend on the number of threads or on how many are drawn", "[random]") {
  RestoreThreads restore;
  const DType type = GENERATE(f32, f64);
  auto draw = [&](int64_t n) {
    Rng rng(11);
    std::vector<double> all;
    for (const Tensor& x :
         {normal({n}, 0, 1, rng, {.dtype = type}), bernoulli({n}, 0.5, rng), randint(0, 1'000'000, {n}, rng)}) {
      const auto v = x.to_vector<double>();
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  };
  set_num_threads(1);
  const auto one = draw(100'003);
  for (int threads : {2, 3, 8}) {
    set_num_threads(threads);
    CHECK(draw(100'003) == one);
  }
  const auto few = draw(37);
  CHECK(std::equal(few.begin(), few.begin() + 37, one.begin()));
}

TEST_CASE("Rng state, copy and move", "[random]") {
  Rng a(9);
  const auto first = uniform({10}, 0, 1, a).to_vector();
  const auto second = uniform({10}, 0, 1, a).to_vector();
  CHECK(first != second);
  Rng b;
  b.set_state(9, a.offset() - 3);
  CHECK(uniform({10}, 0, 1, b).to_vector() == second);
  Rng copy = a;
  CHECK(uniform({10}, 0, 1, copy).to_vector() == uniform({10}, 0, 1, a).to_vector());
  copy.reserve(100);
  CHECK(copy.offset() == a.offset() + 100);
  Rng moved = std::move(copy);
  CHECK(moved.offset() == a.offset() + 100);
  CHECK(copy.seed() == 0);  // usable, as if new
  CHECK(copy.reserve(2) == 0);
}

TEST_CASE("random: bf16 draws are f32 draws, rounded", "[random]") {
  Rng rng(5), twin(5);
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 1001}}) {
    CHECK(testing::same_bits(uniform(shape, -1, 2, rng, {.dtype = bf16}), to(uniform(shape, -1, 2, twin), bf16)));
    CHECK(testing::same_bits(normal(shape, 1, 2, rng, {.dtype = bf16}), to(normal(shape, 1, 2, twin), bf16)));
    CHECK(testing::same_bits(truncated_normal(shape, 0, 1, rng, {.dtype = bf16}),
                             to(truncated_normal(shape, 0, 1, twin), bf16)));
    CHECK(rng.offset() == twin.offset());
  }
}

TEST_CASE("random: arguments outside the domain are named", "[random]") {
  Rng rng;
  const float bad[] = {1, -1}, zero[] = {0, 0};
  CHECK_THROWS_AS(uniform({2}, 1, 0, rng), ValueError);
  CHECK_THROWS_WITH(uniform({2}, 1, 0, rng), Contains("uniform") && Contains("lo=1") && Contains("hi=0"));
  CHECK_THROWS_AS(uniform({2}, -3e38, 3e38, rng), ValueError);  // the span overflows f32
  CHECK_THROWS_AS(uniform({2}, NAN, 1, rng), ValueError);
  CHECK_THROWS_WITH(normal({2}, 0, -1, rng), Contains("normal") && Contains("std=-1"));
  CHECK_THROWS_WITH(truncated_normal({2}, 0, -1, rng), Contains("truncated_normal") && Contains("std=-1"));
  for (const DType dtype : {f32, bf16}) {  // beyond f32
    CHECK_THROWS_WITH(normal({2}, 1e39, 1, rng, {dtype}), Contains("normal") && Contains("mean=1e+39"));
    CHECK_THROWS_WITH(truncated_normal({2}, 0, 1e39, rng, {dtype}), Contains("std=1e+39"));
  }
  CHECK_THROWS_WITH(bernoulli({2}, 1.5, rng), Contains("bernoulli") && Contains("p=1.5"));
  CHECK_THROWS_AS(bernoulli({2}, NAN, rng), ValueError);
  CHECK_THROWS_WITH(randint(3, 3, {2}, rng), Contains("randint") && Contains("low=3"));
  CHECK_THROWS_AS(permutation(-1, rng), ValueError);
  CHECK_THROWS_WITH(sample_discrete(bad, 2, rng), Contains("weights[1]=-1"));
  CHECK_THROWS_WITH(sample_discrete(zero, 2, rng), Contains("positive weight"));
  CHECK_THROWS_AS(normal({2}, 0, 1, rng, {.dtype = i64}), DTypeError);
  CHECK_THROWS_WITH(uniform({2}, 0, 1, rng, {.dtype = boolean}), Contains("uniform") && Contains("bool"));
  CHECK(rng.offset() == 0);  // a refused call draws nothing
}

TEST_CASE("random: an assigned stream goes on from the place of the other, on its own", "[random]") {
  Rng a(3), b(5);
  normal({7}, 0, 1, a);
  b = a;
  CHECK((b.seed() == 3 && b.offset() == a.offset() && a.offset() > 0));
  CHECK(testing::same_bits(normal({9}, 0, 1, a), normal({9}, 0, 1, b)));
  normal({2}, 0, 1, b);
  CHECK(b.offset() > a.offset());
  const uint64_t before = b.offset();
  const Rng& same = b;
  b = same;
  CHECK((b.seed() == 3 && b.offset() == before));
}
