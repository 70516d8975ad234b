// Products of few rows against loops in f64.
#include <sluice/ops/matmul/skinny.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/kernel/parallel.h>

#include <cmath>
#include <vector>

using namespace sluice;
using namespace sluice::detail;
using sluice::testing::Rand;

namespace {

template <class T> std::vector<T> draw(Rand& r, int64_t n) {
  std::vector<T> x(static_cast<std::size_t>(n));
  for (T& v : x) v = static_cast<T>(r.uniform(-1, 1));
  return x;
}

template <class T> void check(Trans trans, int64_t n, int64_t m, int64_t k, bool biased, Rand& r) {
  const int64_t lda = k + 3, ldb = (trans == Trans::no ? m : k) + 2, ldc = m + 1;
  const std::vector<T> a = draw<T>(r, n * lda), bias = draw<T>(r, m);
  const std::vector<T> b = draw<T>(r, (trans == Trans::no ? k : m) * ldb);
  auto product = [&] {
    std::vector<T> c(static_cast<std::size_t>(n * ldc), T(-7));
    skinny_matmul(trans, n, m, k, a.data(), lda, b.data(), ldb, biased ? bias.data() : nullptr, c.data(), ldc);
    return c;
  };
  const std::vector<T> c = product();
  INFO("n " << n << " m " << m << " k " << k << (trans == Trans::no ? "" : " transposed"));
  double worst = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      double want = biased ? double(bias[std::size_t(j)]) : 0;
      for (int64_t l = 0; l < k; ++l)
        want += double(a[std::size_t(i * lda + l)]) *
                double(b[std::size_t(trans == Trans::no ? l * ldb + j : j * ldb + l)]);
      worst = std::max(worst, std::abs(double(c[std::size_t(i * ldc + j)]) - want));
    }
    REQUIRE(c[std::size_t(i * ldc + m)] == T(-7));  // beside the result nothing is written
  }
  // Roundings of a sum that grows as √k, up to k/4 one after the other.
  CHECK(worst < (sizeof(T) == 4 ? 0x1p-22 : 0x1p-51) * (10 + std::sqrt(double(k)) + double(k) / 16));
  const int threads = num_threads();
  set_num_threads(1);
  CHECK(product() == c);
  set_num_threads(threads);
}

}  // namespace

TEST_CASE("few rows: sums and dot products of every remainder", "[skinny]") {
  Rand r(7);
  for (Trans trans : {Trans::no, Trans::yes})
    for (int64_t n = 1; n <= kSkinnyRows; ++n)
      for (int64_t m : {1, 4, 5, 18, 35})
        for (int64_t k : {0, 1, 4, 7, 16, 33, 67})
          check<float>(trans, n, m, k, (m + k) % 2 == 0, r), check<double>(trans, n, m, k, (m + k) % 2 == 1, r);
}

TEST_CASE("few rows: cut across columns and across k", "[skinny]") {
  Rand r(8);
  for (Trans trans : {Trans::no, Trans::yes})
    for (auto [m, k] : {std::pair<int64_t, int64_t>{4099, 70}, {2048, 129}, {513, 400}, {7, 30011}, {1, 150001}}) {
      check<float>(trans, 1, m, k, true, r);
      check<float>(trans, 3, m, k, false, r);
    }
  check<double>(Trans::no, 2, 4099, 70, true, r);
}
