#include <sluice/ops/gather.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/parallel.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include "support/catch.h"

#include <cmath>

using namespace sluice;
using Catch::Contains;

namespace {

std::vector<double> noise_values(int64_t n) {
  std::vector<double> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(1.0 + 12.9898 * static_cast<double>(i));
  return v;
}
Tensor noise(const Shape& shape, DType dtype = f64) {
  return to(Tensor::from(noise_values(shape.numel()), shape), dtype);
}

/// Indices in [0, size), not in order, with repeats.
Tensor indices(const Shape& shape, int64_t size, DType dtype = i64) {
  std::vector<int64_t> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<int64_t>((i * 7919 + i * i) % static_cast<std::size_t>(size));
  return to(Tensor::from(v, shape), dtype);
}

/// Calls f(position in index, position in x) for a 3-d index along dim.
template <class F>
void for_each_pair(const Tensor& index, int dim, const Shape& x, F f) {
  const auto at = index.to_vector<int64_t>();
  std::size_t p = 0;
  for (int64_t i = 0; i < index.dim(0); ++i)
    for (int64_t j = 0; j < index.dim(1); ++j)
      for (int64_t k = 0; k < index.dim(2); ++k, ++p) {
        int64_t c[3] = {i, j, k};
        c[dim] = at[p];
        f(p, static_cast<std::size_t>((c[0] * x[1] + c[1]) * x[2] + c[2]));
      }
}

bool close(const Tensor& y, const std::vector<double>& want, double tolerance) {
  const auto got = y.to_vector<double>();
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (std::abs(got[i] - want[i]) > tolerance) return false;
  return true;
}

}  // namespace

TEST_CASE("gather and scatter_add: against loops, every dim and layout", "[gather]") {
  const int dim = GENERATE(0, 1, 2);
  const bool strided = GENERATE(false, true), smaller = GENERATE(false, true);
  const DType dtype = GENERATE(f64, f32), index_type = GENERATE(i64, i32);
  const Tensor x = strided ? permute(noise({5, 3, 4}, dtype), {1, 2, 0}) : noise({3, 4, 5}, dtype);
  Shape shape = smaller ? Shape{2, 3, 4} : Shape{3, 4, 5};
  shape[dim] = 7;
  Tensor index = indices(shape, x.dim(dim), index_type);
  if (strided) index = transpose(contiguous(transpose(index, 0, 2)), 0, 2);
  const auto in = x.to_vector<double>();

  std::vector<double> taken(static_cast<std::size_t>(index.numel())), added = in;
  const Tensor src =
      strided ? transpose(noise({shape[1], shape[0], shape[2]}, dtype), 0, 1) : noise(shape, dtype);
  const auto from = src.to_vector<double>();
  for_each_pair(index, dim, x.shape(),
                [&](std::size_t p, std::size_t q) { taken[p] = in[q], added[q] += from[p]; });
  CHECK(gather(x, dim, index).to_vector<double>() == taken);
  CHECK(gather(x, dim - 3, index).shape() == shape);
  CHECK(close(scatter_add(x, dim, index, src), added, dtype == f64 ? 1e-14 : 2e-6));
  CHECK(x.to_vector<double>() == in);  // out of place
}

TEST_CASE("index_select and index_add: against loops, every dim and layout", "[gather]") {
  const int dim = GENERATE(0, 1, 2);
  const bool strided = GENERATE(false, true);
  const DType dtype = GENERATE(f64, f32);
  const Tensor x = strided ? permute(noise({5, 3, 4}, dtype), {1, 2, 0}) : noise({3, 4, 5}, dtype);
  const Tensor index = GENERATE(indices({7}, 3), indices({7}, 3, i32), slice(indices({14}, 3), 0, 0, 14, 2),
                                empty({0}, {i64}));
  Shape shape = x.shape();
  shape[dim] = index.numel();
  const Tensor src = noise(shape, dtype);
  const auto in = x.to_vector<double>(), from = src.to_vector<double>();

  Shape column{1, 1, 1};
  column[dim] = index.numel();
  const Tensor full_index = expand(reshape(index, column), shape);
  std::vector<double> taken(from.size()), added = in;
  for_each_pair(full_index, dim, x.shape(),
                [&](std::size_t p, std::size_t q) { taken[p] = in[q], added[q] += from[p]; });
  CHECK(index_select(x, dim, index).to_vector<double>() == taken);
  CHECK(index_select(x, dim, index).shape() == shape);
  CHECK(close(index_add(x, dim, index, src), added, dtype == f64 ? 1e-14 : 1e-6));
  CHECK(x.to_vector<double>() == in);
}

TEST_CASE("gather: other dtypes", "[gather]") {
  const Tensor x = reshape(arange(12), {3, 4}), index = Tensor::from<int64_t>({2, 0});
  CHECK(index_select(x, 0, index).to_vector<int64_t>() == std::vector<int64_t>{8, 9, 10, 11, 0, 1, 2, 3});
  CHECK(index_select(x < 1.0, 0, index).to_vector<bool>() ==
        std::vector<bool>{false, false, false, false, true, false, false, false});
  CHECK(gather(to(x, bf16), 1, Tensor::from<int64_t>({3, 1, 2}, {3, 1})).to_vector() ==
        std::vector<float>{3, 5, 10});
  const Tensor counts = index_add(zeros({3}, {i64}), 0, Tensor::from<int32_t>({2, 2, 0}), ones({3}, {i64}));
  CHECK(counts.to_vector<int64_t>() == std::vector<int64_t>{1, 0, 2});
  CHECK(scatter_add(zeros({3}, {i32}), 0, Tensor::from<int32_t>({2, 2, 0}), ones({3}, {i32}))
            .to_vector<int64_t>() == counts.to_vector<int64_t>());
}

TEST_CASE("embedding: rows by index, gradients summed per row", "[gather]") {
  const int64_t V = 11, D = 200;
  Tensor weight = noise({V, D}, f32);
  const Tensor index = indices({3, 50}, V - 1);  // the last row is never used
  weight.requires_grad_();
  const Tensor y = embedding(weight, index);
  REQUIRE(y.shape() == Shape{3, 50, D});
  const auto w = weight.to_vector(), out = y.to_vector();
  const auto at = index.to_vector<int64_t>();
  const Tensor g = noise(y.shape(), f32);
  const auto gs = g.to_vector<double>();
  std::vector<double> want(static_cast<std::size_t>(V * D));
  for (std::size_t i = 0; i < at.size(); ++i)
    for (std::size_t d = 0; d < std::size_t{D}; ++d) {
      const std::size_t q = static_cast<std::size_t>(at[i]) * D + d;
      REQUIRE(out[i * D + d] == w[q]);
      want[q] += gs[i * D + d];
    }
  CHECK(close(grad(y, weight, {.grad_outputs = {g}}), want, 1e-6));
  CHECK(embedding(weight, Tensor::from<int64_t>({3}, {})).shape() == Shape{D});
  CHECK(embedding(weight, empty({2, 0}, {i64})).shape() == Shape{2, 0, D});
  CHECK(embedding(empty({4, 0}), Tensor::from<int32_t>({1, 3})).shape() == Shape{2, 0});
  CHECK(embedding(transpose(noise({3, 4}), 0, 1), Tensor::from<int32_t>({1})).to_vector<double>() ==
        select(noise({3, 4}), 1, 1).to_vector<double>());
}

TEST_CASE("gather: sums do not depend on the number of threads", "[gather]") {
  const Tensor index = indices({4096}, 97), src = noise({4096, 300}, f32), x = noise({97, 300}, f32);
  const Tensor wide = contiguous(expand(reshape(index, {4096, 1}), {4096, 300}));
  set_num_threads(1);
  const auto rows = index_add(x, 0, index, src).to_vector(), lanes = scatter_add(x, 0, wide, src).to_vector();
  set_num_threads(4);
  CHECK(index_add(x, 0, index, src).to_vector() == rows);
  CHECK(scatter_add(x, 0, wide, src).to_vector() == lanes);
  set_num_threads(0);
}

TEST_CASE("index_add: a long sum keeps the precision of one rounding", "[gather]") {
  const int64_t n = 300000;
  const Tensor y = index_add(zeros({1, 2}), 0, zeros({n}, {i64}), full({n, 2}, 0.1));
  CHECK(y.to_vector()[0] == Approx(0.1f * double(n)).epsilon(1e-7));
}

TEST_CASE("gather: what does not fit is refused", "[gather]") {
  const Tensor x = noise({3, 4}), i = Tensor::from<int64_t>({0, 4, -1});
  CHECK_THROWS_AS(gather(x, 1, reshape(i, {3, 1})), ValueError);
  CHECK_THROWS_WITH(gather(x, 1, reshape(i, {3, 1})),
                    Contains("gather: index 4 is outside [0, 4)") && Contains("[3,1]"));
  CHECK_THROWS_WITH(index_select(x, 0, i), Contains("index_select: index 4 is outside [0, 3)"));
  CHECK_THROWS_WITH(index_add(x, 0, i, x), Contains("index_add: index 4 is outside [0, 3)"));
  CHECK_THROWS_WITH(scatter_add(x, 1, reshape(i, {3, 1}), noise({3, 1})), Contains("scatter_add: index 4"));
  CHECK_THROWS_WITH(embedding(x, Tensor::from<int32_t>({2, -1})),
                    Contains("embedding: index -1 is outside [0, 3)"));
  CHECK_THROWS_AS(embedding(empty({0, 4}), Tensor::from<int64_t>({0})), ValueError);
  CHECK_THROWS_AS(gather(x, 2, reshape(i, {3, 1})), ShapeError);
  CHECK_THROWS_AS(gather(x, 0, i), ShapeError);
  CHECK_THROWS_AS(gather(x, 0, zeros({1, 5}, {i64})), ShapeError);
  CHECK_THROWS_AS(gather(Tensor(1.f), 0, zeros({}, {i64})), ShapeError);
  CHECK_THROWS_AS(gather(x, 0, x), DTypeError);
  CHECK_THROWS_AS(index_select(x, 0, zeros({1, 1}, {i64})), ShapeError);
  CHECK_THROWS_AS(index_add(x, 0, zeros({2}, {i64}), x), ShapeError);
  CHECK_THROWS_AS(index_add(x, 0, zeros({3}, {i64}), to(x, f32)), DTypeError);
  CHECK_THROWS_AS(index_add(to(x, bf16), 0, zeros({3}, {i64}), to(x, bf16)), DTypeError);
  CHECK_THROWS_AS(scatter_add(x, 0, zeros({2, 4}, {i64}), x), ShapeError);
  CHECK_THROWS_AS(embedding(noise({3}), zeros({2}, {i64})), ShapeError);
}

TEST_CASE("triu, tril, causal_mask: against loops", "[gather]") {
  const int64_t n = GENERATE(1, 3, 5), m = GENERATE(1, 4);
  const int64_t k = GENERATE(-9, -1, 0, 2, 9);
  Tensor x = transpose(noise({2, m, n}), 1, 2);
  const auto in = x.to_vector<double>();
  std::vector<double> up, low;
  std::vector<bool> seen;
  for (std::size_t p = 0; p < in.size(); ++p) {
    const int64_t i = static_cast<int64_t>(p) / m % n, j = static_cast<int64_t>(p) % m;
    up.push_back(j >= i + k ? in[p] : 0);
    low.push_back(j <= i + k ? in[p] : 0);
    if (p < in.size() / 2) seen.push_back(i + m - n >= j);
  }
  CHECK(triu(x, k).to_vector<double>() == up);
  CHECK(tril(x, k).to_vector<double>() == low);
  CHECK(causal_mask(n, m).to_vector<bool>() == seen);
  CHECK(tril(ones({n, m}, {boolean}), m - n).to_vector<bool>() == seen);
}

TEST_CASE("triu, tril, causal_mask: empty and refused", "[gather]") {
  CHECK(triu(empty({0, 3})).shape() == Shape{0, 3});
  CHECK(tril(empty({3, 0})).shape() == Shape{3, 0});
  CHECK(causal_mask(0, 3).shape() == Shape{0, 3});
  CHECK(causal_mask(2, 0).shape() == Shape{2, 0});
  const Tensor square = noise({3, 3});
  for (int64_t k : {INT64_MAX, INT64_MIN}) {  // a diagonal beyond every corner
    CHECK(triu(square, k).to_vector() == (k > 0 ? zeros({3, 3}) : square).to_vector());
    CHECK(tril(square, k).to_vector() == (k > 0 ? square : zeros({3, 3})).to_vector());
  }
  CHECK_THROWS_AS(triu(noise({3})), ShapeError);
  CHECK_THROWS_AS(causal_mask(-1, 3), ShapeError);
  // Dropped values are gone, whatever they were; the same goes for their gradients.
  Tensor x = full({2, 2}, std::nan(""));
  CHECK(tril(x, -5).to_vector() == std::vector<float>(4, 0.f));
  x.requires_grad_();
  const Tensor g = full({2, 2}, std::numeric_limits<double>::infinity());
  CHECK(grad(tril(x, -1), x, {.grad_outputs = {g}}).to_vector()[1] == 0);
}
