// matmul of bf16: every way through it against sums in f64, on every instruction set.
#include "support/approx.h"
#include "support/catch.h"
#include "support/isa_scope.h"

#include <sluice/core/kernel/cpu.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// y is x·w (+ bias) in f64, rounded: its neighbour at most, and that rarely; where sums cancel as exact as f32 sums
/// are.
void check_product(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias = {}) {
  const auto wide = [](const Tensor& t) { return to(t, f64); };
  const Tensor want = bias.defined() ? matmul(wide(x), wide(w)) + wide(bias) : matmul(wide(x), wide(w));
  REQUIRE(y.dtype() == bf16);
  const double k = static_cast<double>(x.dim(-1));
  const Closeness c = all_close(y, to(want, bf16), 0x1p-7, 0x1p-20 * std::sqrt(k) * std::max(1.0, max_abs(want)));
  INFO("x " << str(x) << ", w " << str(w) << ": " << c.text);
  CHECK(c);
  const auto got = y.to_vector(), right = to(want, bf16).to_vector();
  std::size_t other = 0;
  for (std::size_t i = 0; i < got.size(); ++i) other += got[i] != right[i];
  CHECK(other <= 2 + got.size() / 50);
}

}  // namespace

TEST_CASE("matmul of bf16: every size and reading", "[matmul][bf16]") {
  struct Size {
    int64_t n, m, k;
  };
  for_each_isa([] {
    Rand rand(1);
    for (const Size s :
         {Size{1, 1, 1},  {1, 33, 65},     {4, 130, 70},    {5, 1, 300},    {33, 1, 7},       {5, 7, 3},
          {17, 33, 31},   {64, 64, 64},    {9, 500, 100},   {65, 257, 129}, {130, 300, 1025}, {257, 513, 33},
          {97, 31, 2049}, {112, 545, 600}, {290, 288, 520}, {3, 1100, 300}, {47, 2085, 129},  {31, 17000, 1},
          {2, 2085, 64},  {7, 259, 520},   {4, 41, 95},     {8, 66, 545}})
      for (const bool left : {false, true})
        for (const bool right : {false, true}) {
          const Tensor a =
              left ? transpose(random_tensor({s.k, s.n}, bf16, rand), 0, 1) : random_tensor({s.n, s.k}, bf16, rand);
          const Tensor b =
              right ? transpose(random_tensor({s.m, s.k}, bf16, rand), 0, 1) : random_tensor({s.k, s.m}, bf16, rand);
          check_product(matmul(a, b), a, b);
          const Tensor bias = random_tensor({s.m}, bf16, rand);
          check_product(linear(a, b, bias), a, b, bias);
        }
  });
}

TEST_CASE("matmul of bf16: few rows, past which b goes, of every remainder", "[matmul][bf16][skinny]") {
  for_each_isa([] {
    Rand rand(6);
    for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 19, 29, 46, 47, 63})
      for (const auto& [m, k] : {std::pair<int64_t, int64_t>{64, 300}, {97, 271}, {1025, 79}, {129, 753}, {2081, 96}})
        for (const int64_t gap : {0, 3}) {  // behind each row
          const Tensor a = narrow(random_tensor({n, k + gap}, bf16, rand), 1, 0, k),
                       bias = random_tensor({m}, bf16, rand);
          const Tensor b = narrow(random_tensor({k, m + gap}, bf16, rand), 1, 0, m);
          const Tensor turned = transpose(narrow(random_tensor({m, k + gap}, bf16, rand), 1, 0, k), 0, 1);
          for (const Tensor& x : {b, turned}) check_product(linear(a, x, bias), a, x, bias);
        }
  });
}

TEST_CASE("matmul of bf16: batches, broadcast and strided", "[matmul][bf16]") {
  for_each_isa([] {
    Rand rand(2);
    const Tensor a = random_tensor({2, 3, 34, 40}, bf16, rand), b = random_tensor({3, 40, 70}, bf16, rand);
    check_product(matmul(a, b), a, b);
    const Tensor shared = random_tensor({40, 50}, bf16, rand), one = random_tensor({1, 1, 40, 9}, bf16, rand);
    check_product(matmul(a, shared), a, shared), check_product(matmul(a, one), a, one);
    const Tensor gaps = slice(random_tensor({6, 68, 80}, bf16, rand), 2, 0, 80, 2);  // neither dim contiguous
    check_product(matmul(gaps, narrow(b, 0, 0, 1)), gaps, narrow(b, 0, 0, 1));
    const Tensor rows = narrow(random_tensor({200, 90}, bf16, rand), 1, 3, 40);
    check_product(matmul(rows, shared), rows, shared);
    CHECK(matmul(zeros({3, 0}, {bf16}), zeros({0, 4}, {bf16})).to_vector() == std::vector<float>(12, 0.f));
  });
}

TEST_CASE("matmul of bf16: batches of one row or one column", "[matmul][bf16]") {
  for_each_isa([] {
    Rand rand(5);
    for (const auto& [n, m, k] : {std::array<int64_t, 3>{1, 700, 300}, {700, 1, 300}, {1, 1, 77}, {1, 33, 1}})
      for (const bool left : {false, true})
        for (const bool right : {false, true}) {
          const Tensor a = left ? transpose(random_tensor({5, k, n}, bf16, rand), 1, 2)
                                : slice(random_tensor({5, n, 2 * k}, bf16, rand), 2, 0, 2 * k, 2);
          const Tensor b = right ? transpose(random_tensor({5, m, k}, bf16, rand), 1, 2)
                                 : slice(random_tensor({5, k, m + 3}, bf16, rand), 2, 1, m + 1);
          check_product(matmul(a, b), a, b);
        }
  });
}

TEST_CASE("matmul of bf16: what is not finite, and what becomes infinite when it is rounded", "[matmul][bf16]") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for_each_isa([&] {
    Tensor a = full({40, 40}, 1.0, {bf16});
    const Tensor b = full({40, 70}, 1.0, {bf16});
    const auto row = [&](int64_t i, float x) {
      Tensor one = narrow(narrow(a, 0, i, 1), 1, 3, 1);
      fill_(one, x);
    };
    row(1, inf), row(2, -inf), row(3, nan), row(39, nan);
    const auto got = matmul(a, b).to_vector();
    for (std::size_t j = 0; j < 70; ++j) {
      CHECK(got[j] == 40);
      CHECK(got[70 + j] == inf);
      CHECK(got[140 + j] == -inf);
      CHECK(std::isnan(got[210 + j]));
      CHECK(std::isnan(got[39 * 70 + j]));
    }
    // A NaN that begins one row does not reach the row before it, which ends there.
    for (const int64_t k : {33, 95}) {
      Tensor few = full({3, k}, 1.0, {bf16}), first = narrow(narrow(few, 0, 2, 1), 1, 0, 1);
      fill_(first, nan);
      for (const Tensor& w : {full({k, 70}, 1.0, {bf16}), transpose(full({70, k}, 1.0, {bf16}), 0, 1)})
        CHECK(narrow(matmul(few, w), 0, 0, 2).to_vector() == std::vector<float>(140, static_cast<float>(k)));
    }
    // The sum, 0x1.ffp127, is finite in f32 and half way from the largest bf16 to the next power of two.
    const Tensor x = full({2, 33}, 1.0, {bf16});
    Tensor most = full({40, 2}, 0x1.fep+127, {bf16});
    Tensor second = narrow(most, 1, 1, 1);
    fill_(second, 0x1p+119);
    CHECK(matmul(most, x).to_vector() == std::vector<float>(40 * 33, inf));
  });
}

TEST_CASE("matmul of bf16: more rows or columns than are packed at a time", "[matmul][bf16]") {
  Rand rand(3);
  const Tensor tall = random_tensor({9000, 520}, bf16, rand), w = random_tensor({520, 40}, bf16, rand);
  check_product(matmul(tall, w), tall, w);
  const Tensor x = random_tensor({40, 520}, bf16, rand), broad = random_tensor({520, 9000}, bf16, rand);
  check_product(matmul(x, broad), x, broad);
  const Tensor bias = random_tensor({9000}, bf16, rand);
  check_product(linear(x, broad, bias), x, broad, bias);
  // More of both: later rows meet the first columns again, where the last ones were packed meanwhile.
  for_each_isa([&] {
    const Tensor a = random_tensor({270, 8200}, bf16, rand), b = random_tensor({8200, 270}, bf16, rand);
    check_product(matmul(a, b), a, b);
  });
}

TEST_CASE("matmul of bf16: the same bits for any number of threads", "[matmul][bf16][bits]") {
  Rand rand(4);
  const int before = num_threads();
  for (const auto& [n, m, k] :
       {std::array<int64_t, 3>{300, 600, 1100}, {530, 600, 1100}, {3, 5000, 700}, {13, 1100, 700}, {40, 40, 40}}) {
    const Tensor a = random_tensor({n, k}, bf16, rand), b = random_tensor({k, m}, bf16, rand);
    std::vector<Tensor> y;
    for (const int threads : {1, 2, 5}) set_num_threads(threads), y.push_back(matmul(a, b));
    CHECK(same_bits(y[0], y[1]));
    CHECK(same_bits(y[0], y[2]));
  }
  set_num_threads(before);
}
