#include <sluice/ops/scan/scan.h>

#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/view.h>

#include "support/catch.h"

#include <cmath>

using namespace sluice;

namespace {

std::vector<double> naive(const Tensor& x, int dim, CumsumOptions o) {
  auto v = x.to_vector<double>();
  int64_t inner = 1;
  for (int d = dim + 1; d < x.rank(); ++d) inner *= x.dim(d);
  const int64_t n = x.dim(dim);
  std::vector<double> y(v.size());
  for (std::size_t p = 0; p < v.size(); ++p) {
    const int64_t i = static_cast<int64_t>(p) / inner % n;
    for (int64_t j = 0; j < n; ++j) {
      const bool in = o.reverse ? j > i : j < i;
      if (in || (j == i && !o.exclusive))
        y[p] += v[static_cast<std::size_t>(static_cast<int64_t>(p) + (j - i) * inner)];
    }
  }
  return y;
}

Tensor noise(const Shape& shape, DType dtype) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = std::round(8 * std::sin(1.0 + 12.9898 * static_cast<double>(i)));
  return to(Tensor::from(v, shape), dtype);  // small integers: sums are exact in every dtype
}

}  // namespace

TEST_CASE("cumsum: every dim, direction, dtype and layout against loops", "[scan]") {
  const CumsumOptions o{GENERATE(false, true), GENERATE(false, true)};
  const int dim = GENERATE(0, 1, 2);
  const DType dtype = GENERATE(f64, f32, i64, i32);
  for (const Tensor& x :
       {noise({3, 4, 5}, dtype), noise({2, 5, 130}, dtype), permute(noise({7, 3, 4}, dtype), {1, 2, 0}),
        expand(noise({1, 4, 1}, dtype), {3, 4, 2}), noise({1, 1, 1}, dtype)}) {
    const Tensor y = cumsum(x, dim, o);
    CHECK(y.dtype() == dtype);
    CHECK(y.shape() == x.shape());
    CHECK(y.to_vector<double>() == naive(x, dim, o));
    CHECK(cumsum(x, dim - 3, o).to_vector<double>() == y.to_vector<double>());
  }
}

TEST_CASE("cumsum: by hand", "[scan]") {
  const Tensor x({1, 2, 4});
  CHECK(cumsum(x, 0).to_vector() == std::vector<float>{1, 3, 7});
  CHECK(cumsum(x, 0, {.exclusive = true}).to_vector() == std::vector<float>{0, 1, 3});
  CHECK(cumsum(x, 0, {.reverse = true}).to_vector() == std::vector<float>{7, 6, 4});
  CHECK(cumsum(x, 0, {.exclusive = true, .reverse = true}).to_vector() == std::vector<float>{6, 4, 0});
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

TEST_CASE("cumsum: empty tensors and errors", "[scan]") {
  CHECK(cumsum(empty({0}), 0).shape() == Shape{0});
  CHECK(cumsum(empty({3, 0}), 0).shape() == Shape{3, 0});
  CHECK(cumsum(empty({3, 0}), 1, {.reverse = true}).shape() == Shape{3, 0});
  CHECK_THROWS_AS(cumsum(Tensor(1.f), 0), ShapeError);
  CHECK_THROWS_AS(cumsum(Tensor({1, 2}), 1), ShapeError);
  CHECK_THROWS_AS(cumsum(to(Tensor({1, 2}), bf16), 0), DTypeError);
}
