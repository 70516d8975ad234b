// Products of few rows against loops in f64; batches of small products.
#include <sluice/ops/matmul/skinny.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/isa_scope.h"
#include "support/worse.h"

#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/gemm/ladder.h>
#include <sluice/sluice.h>

#include <cmath>
#include <cstring>
#include <vector>

using namespace sluice;
using namespace sluice::detail;
using namespace sluice::testing;

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
      worst = worse(worst, std::abs(double(c[std::size_t(i * ldc + j)]) - want));
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
    for (int64_t n = 1; n <= 2 * kSkinnyRows + 1; ++n)
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

TEST_CASE("few rows, past which b goes: every remainder, with the bits of more rows", "[skinny][matmul][bits]") {
  for_each_isa([](Isa isa) {
    Rand r(9);
    for (const DType dtype : {f32, f64, bf16})
      for (const int64_t n : {5, 6, 7, 9, 13, 14, 15, 29, 47, 63})
        for (const auto& [m, k] : {std::pair<int64_t, int64_t>{64, 8209}, {1057, 513}, {545, 1000}})
          for (const int64_t gap : {0, 3}) {  // behind each row
            const Tensor all = narrow(random_tensor({70, k + gap}, dtype, r), 1, 0, k), a = narrow(all, 0, 1, n);
            const Tensor plain = narrow(random_tensor({k, m + gap}, dtype, r), 1, 0, m),
                         bias = random_tensor({m}, dtype, r);
            const Tensor turned = transpose(narrow(random_tensor({m, k + gap}, dtype, r), 1, 0, k), 0, 1);
            for (const Tensor& b : {plain, turned}) {
              const Tensor y = linear(a, b, bias), more = narrow(linear(all, b, bias), 0, 1, n);
              INFO(n << " x " << m << " x " << k << ' ' << str(dtype) << (&b == &plain ? "" : " transposed"));
              // Dots with a transposed b, OpenBLAS's products and those of pairs of bf16 add in another order.
              const bool dots = &b != &plain && (n <= 8 || (dtype == bf16 && isa >= Isa::avx512));
              const bool other = dots || isa == Isa::base || (dtype == bf16 && isa >= Isa::avx512_bf16);
              if (!other) CHECK(same_bits(contiguous(y), contiguous(more)));
              else CHECK(max_abs_diff(to(y, f64), to(more, f64)) < (dtype == bf16 ? 1.5 : 1e-3));
            }
          }
  });
}

TEST_CASE("few rows, past which b from memory goes: right, with the same bits on any number of threads",
          "[skinny][matmul][bits]") {
  Rand r(10);
  const int before = num_threads();
  for (const DType dtype : {f32, bf16}) {
    const Tensor a = random_tensor({17, 2100}, dtype, r), b = random_tensor({2100, 2300}, dtype, r);
    set_num_threads(1);
    const Tensor y = matmul(a, b), turned = matmul(a, transpose(contiguous(transpose(b, 0, 1)), 0, 1));
    set_num_threads(5);
    CHECK(same_bits(y, matmul(a, b)));
    CHECK(max_abs_diff(to(y, f64), matmul(to(a, f64), to(b, f64))) < (dtype == f32 ? 1e-4 : 0.3));
    CHECK(max_abs_diff(to(turned, f64), to(y, f64)) < (dtype == f32 ? 1e-4 : 0.3));
  }
  set_num_threads(before);
}

TEST_CASE("matmul: batches of small matrices and of vectors, in every layout", "[gemm][matmul][bits]") {
  Rng rng(5);
  for_each_isa([&](Isa i) {
    struct Sizes {
      int64_t n, m, k;
    };
    for (const Sizes& s : {Sizes{2, 2, 2},
                           {3, 3, 3},
                           {2, 3, 5},
                           {16, 2, 1},
                           {4, 4, 4},
                           {1, 1, 1},
                           {1, 1, 70},
                           {1, 5, 9},
                           {5, 1, 9},
                           {1, 70, 1},
                           {70, 1, 1},
                           {1, 37, 68},
                           {37, 1, 68},
                           {1, 37, 20},
                           {37, 1, 20}})
      for (int layout = 0; layout < 16; ++layout) {
        // Matrices of whole numbers, whose sums are exact: plain or transposed, with dims of the batch exchanged or
        // not.
        const auto draw = [&](int64_t rows, int64_t cols, bool turned, bool exchanged) {
          Shape shape = exchanged ? Shape{3, 2} : Shape{2, 3};
          shape.push_back(turned ? cols : rows), shape.push_back(turned ? rows : cols);
          Tensor x = to(randint(-9, 10, shape, rng), f32);
          if (turned) x = transpose(x, 2, 3);
          return exchanged ? transpose(x, 0, 1) : x;
        };
        const Tensor a = draw(s.n, s.k, layout & 1, layout & 2), b = draw(s.k, s.m, layout & 4, layout & 8);
        const Tensor c = matmul(a, b), plain_a = contiguous(a), plain_b = contiguous(b);
        INFO(isa_name(i) << ' ' << s.n << " × " << s.m << " × " << s.k << ", layout " << layout);
        REQUIRE(matmul(to(a, f64), to(b, f64)).to_vector<float>() == c.to_vector<float>());
        std::vector<float> want(std::size_t(6 * s.n * s.m));
        for (int64_t j = 0; j < 6; ++j)
          gemm_naive(Product<float>{Trans::no, Trans::no, s.n, s.m, s.k, 1, plain_a.data<float>() + j * s.n * s.k, s.k,
                                    plain_b.data<float>() + j * s.k * s.m, s.m, 0, &want[std::size_t(j * s.n * s.m)],
                                    s.m});
        REQUIRE(c.to_vector<float>() == want);
      }
    // One row of each operand repeats; and the bits are those of a chain, as in a larger product.
    const Tensor a = normal({3, 3}, 0, 1, rng), b = normal({7, 3, 3}, 0, 1, rng), wide = cat({b, b, b, b}, 2);
    const Tensor small = matmul(a, b), large = contiguous(narrow(matmul(a, wide), 2, 0, 3));
    if (i != Isa::base) CHECK(!std::memcmp(small.raw(), large.raw(), 7 * 9 * sizeof(float)));
    const Tensor bias = normal({2}, 0, 1, rng), x = normal({2, 5}, 0, 1, rng), w = normal({5, 2}, 0, 1, rng);
    CHECK(linear(x, w, bias).to_vector() == (matmul(x, w) + bias).to_vector());
    const Tensor columns = normal({5, 3}, 0, 1, rng), rows = transpose(columns, 0, 1);  // no plain rows
    CHECK(linear(rows, w, bias).to_vector() == (matmul(rows, w) + bias).to_vector());
  });
}
