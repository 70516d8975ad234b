// cumsum, cumprod and prod beside their rows in support/cases_*.cpp.
#include <sluice/ops/scan/scan.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include "support/approx.h"
#include "support/catch.h"

#include <algorithm>
#include <cmath>

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
    for (int64_t n : {1, 2, 15, 16, 37, 300})
      for (bool exclusive : {false, true})
        for (bool reverse : {false, true}) {
          const Tensor x = normal({rows, n}, 0, 1, rng), whole = cumsum(x, 1, {exclusive, reverse});
          for (DType t : {f32, f64, bf16, i64, i32}) {
            const Tensor of = to(x * 9, t), columns = contiguous(transpose(of, 0, 1));
            CHECK(testing::same_bits(cumsum(of, 1, {exclusive, reverse}),
                                     transpose(cumsum(columns, 0, {exclusive, reverse}), 0, 1)));
          }
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

TEST_CASE("cumprod, prod: runs of every kind, with and without zeros, against loops", "[scan]") {
  testing::Rand rand(5);
  for (const Shape& shape :
       {Shape{9, 3, 1}, Shape{6, 256, 1}, Shape{3, 257, 1}, Shape{2, 513, 2}, Shape{5, 600, 1}, Shape{2, 300, 2},
        Shape{1, 520, 3}, Shape{1, 40, 4}, Shape{3, 270, 70}, Shape{70000, 2, 1}})
    for (const int64_t zeros : {0, 1, 2}) {
      const int64_t n = shape[1], inner = shape[2], runs = shape[0] * inner;
      INFO(shape[0] << " x " << n << " x " << inner << " with " << zeros << " zeros");
      const auto place = [&](int64_t r, int64_t j) { return std::size_t((r / inner * n + j) * inner + r % inner); };
      auto values = testing::random_tensor(shape, f64, rand, 0.8, 1.25).to_vector<double>();
      for (int64_t r = 0; r < runs; ++r)
        for (int64_t k = 0; k < zeros; ++k) values[place(r, rand.below(n))] = 0;
      Tensor x = to(Tensor::from<double>(values, shape), f32).requires_grad_();
      values = x.to_vector<double>();
      const Tensor dy = testing::random_tensor(shape, f32, rand), dp = narrow(dy, 1, 0, 1);
      const auto g = dy.to_vector<double>();
      std::vector<double> y(values.size()), dx(values.size()), all, dx_all(values.size()), slack(values.size());
      for (int64_t r = 0; r < runs; ++r) {
        double before = 1;
        for (int64_t j = 0; j < n; ++j) {
          double others = before, size = 0;  // Π_{k<=i} x_k without x_j
          for (int64_t i = j; i < n; ++i) {
            if (i > j) others *= values[place(r, i)];
            dx[place(r, j)] += others * g[place(r, i)], size += std::abs(others);
          }
          dx_all[place(r, j)] = others * g[place(r, 0)], slack[place(r, j)] = 1e-6 * (size + 1e-30);
          y[place(r, j)] = before *= values[place(r, j)];
        }
      }
      for (int64_t o = 0; o < shape[0]; ++o)
        for (int64_t c = 0; c < inner; ++c) all.push_back(y[place(o * inner + c, n - 1)]);
      const auto near = [](const Tensor& got, const std::vector<double>& want, const std::vector<double>& allowed) {
        const auto close = testing::all_close(got.to_vector<double>(), want, allowed);
        INFO(close.text);
        CHECK(close);
      };
      const std::vector<double> small(values.size(), 1e-6 * *std::max_element(y.begin(), y.end()) + 1e-30);
      const Tensor products = cumprod(x, 1), product = prod(x, 1, keep);
      near(products, y, small);
      near(product, all, std::vector<double>(all.size(), small[0]));
      for (const bool again : {false, true}) {
        const auto of = [&](const Tensor& f, const Tensor& df) {
          return grad({f}, {x}, {.create_graph = again, .retain_graph = true, .grad_outputs = {df}})[0];
        };
        near(of(products, dy), dx, slack);
        near(of(product, dp), dx_all, slack);
      }
    }
}

TEST_CASE("cumsum: empty tensors and errors", "[scan]") {
  CHECK(cumsum(empty({0}), 0).shape() == Shape{0});
  CHECK(cumsum(empty({3, 0}), 0).shape() == Shape{3, 0});
  CHECK(cumsum(empty({3, 0}), 1, {.reverse = true}).shape() == Shape{3, 0});
  CHECK_THROWS_AS(cumsum(Tensor({1, 2}), 1), ShapeError);
}

TEST_CASE("cumsum, cumprod: a scalar has one entry", "[scan]") {
  Tensor x = Tensor(3.f).requires_grad_();
  for (const int64_t dim : {0, -1})
    for (const Tensor& y : {cumsum(x, dim), cumsum(x, dim, {.reverse = true}), cumprod(x, dim)}) {
      CHECK(y.shape() == Shape{});
      CHECK(y.item() == 3);
      CHECK(grad(y, x).item() == 1);
    }
  CHECK(cumsum(x, 0, {.exclusive = true}).item() == 0);
  CHECK(grad(cumsum(x, 0, {.exclusive = true}), x).item() == 0);
  const Tensor yes = ones({}, {boolean});
  for (const Tensor& y : {cumsum(yes, 0), cumprod(yes, 0)}) CHECK(y.dtype() == i64);
  CHECK_THROWS_WITH(cumsum(x, 1), "cumsum: dim 1 is out of range for rank 0; need -1 <= dim < 1");
  CHECK_THROWS_WITH(cumprod(x, -2), "cumprod: dim -2 is out of range for rank 0; need -1 <= dim < 1");
}
