// cumsum beside its rows in support/cases_index.cpp.
#include <sluice/ops/scan/scan.h>

#include <sluice/core/number/random.h>

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include "support/catch.h"

using namespace sluice;

TEST_CASE("cumsum: by hand", "[scan]") {
  const Tensor x({1, 2, 4});
  CHECK(cumsum(x, 0).to_vector() == std::vector<float>{1, 3, 7});
  CHECK(cumsum(x, 0, {.exclusive = true}).to_vector() == std::vector<float>{0, 1, 3});
  CHECK(cumsum(x, 0, {.reverse = true}).to_vector() == std::vector<float>{7, 6, 4});
  CHECK(cumsum(x, 0, {.exclusive = true, .reverse = true}).to_vector() == std::vector<float>{6, 4, 0});
  for (DType t : {i64, i32}) {
    const Tensor y = cumsum(permute(reshape(arange(6, {t}), {2, 3}), {1, 0}), -2, {.reverse = true});
    CHECK(y.dtype() == t);
    CHECK(y.to_vector<int64_t>() == std::vector<int64_t>{3, 12, 3, 9, 2, 5});
  }
  const Tensor counts = cumsum(x > 1.0, 0);
  CHECK(counts.dtype() == i64);
  CHECK(counts.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2});
}

TEST_CASE("cumsum: the carry of a long f32 sum is f64", "[scan]") {
  const int64_t n = 1 << 20;
  for (const Shape& shape : {Shape{n}, Shape{n, 3}}) {
    const auto y = cumsum(full(shape, 0.1), 0).to_vector();
    CHECK(y.back() == Approx(0.1f * double(n)).epsilon(1e-7));
  }
}

TEST_CASE("cumsum: rows are summed alike, however many there are", "[scan]") {
  Rng rng(3);
  for (int64_t rows : {1, 3, 4, 5, 9})
    for (int64_t n : {1, 2, 37})
      for (bool exclusive : {false, true})
        for (bool reverse : {false, true}) {
          const Tensor x = normal({rows, n}, 0, 1, rng), whole = cumsum(x, 1, {exclusive, reverse});
          for (int64_t r = 0; r < rows; ++r) {
            double sum = 0;
            for (int64_t i = 0; i < n; ++i) {
              const int64_t at = reverse ? n - 1 - i : i;
              const float before = static_cast<float>(sum);
              sum += select(select(x, 0, r), 0, at).item();
              CHECK(select(select(whole, 0, r), 0, at).item() == (exclusive ? before : static_cast<float>(sum)));
            }
          }
        }
}

TEST_CASE("cumsum: empty tensors and errors", "[scan]") {
  CHECK(cumsum(empty({0}), 0).shape() == Shape{0});
  CHECK(cumsum(empty({3, 0}), 0).shape() == Shape{3, 0});
  CHECK(cumsum(empty({3, 0}), 1, {.reverse = true}).shape() == Shape{3, 0});
  CHECK_THROWS_AS(cumsum(Tensor(1.f), 0), ShapeError);
  CHECK_THROWS_AS(cumsum(Tensor({1, 2}), 1), ShapeError);
}
