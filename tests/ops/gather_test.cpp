// What the rows in support/cases_index.cpp do not say: other dtypes, long sums, errors, edges.
#include <sluice/ops/index/gather.h>

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include "support/catch.h"

#include <cmath>

using namespace sluice;

namespace {

/// Values without pattern, the same on every run.
Tensor noise(const Shape& shape) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(1.0 + 12.9898 * static_cast<double>(i));
  return Tensor::from(v, shape);
}

}  // namespace

TEST_CASE("gather: other dtypes", "[gather]") {
  const Tensor values = noise({3, 4, 5}), i = Tensor::from<int64_t>({2, 0, 2, 1}),
               at = expand(reshape(i, {1, 4, 1}), {3, 4, 5});
  for (DType t : {f32, f64}) {  // i32 and strided indices
    const Tensor v = to(values, t), narrow32 = slice(repeat_interleave(to(i, i32), 2, 0), 0, 0, 8, 2);
    CHECK(gather(v, 1, to(at, i32)).to_vector<double>() == gather(v, 1, at).to_vector<double>());
    CHECK(index_select(v, -2, narrow32).to_vector<double>() == index_select(v, 1, i).to_vector<double>());
    CHECK(index_add(v, 1, narrow32, v).to_vector<double>() == index_add(v, 1, i, v).to_vector<double>());
    CHECK(scatter_add(v, 1, to(at, i32), v).to_vector<double>() == scatter_add(v, 1, at, v).to_vector<double>());
  }
  const Tensor x = reshape(arange(12), {3, 4}), index = Tensor::from<int64_t>({2, 0});
  CHECK(index_select(x, 0, index).to_vector<int64_t>() == std::vector<int64_t>{8, 9, 10, 11, 0, 1, 2, 3});
  CHECK(index_select(x < 1.0, 0, index).to_vector<bool>() ==
        std::vector<bool>{false, false, false, false, true, false, false, false});
  CHECK(gather(to(x, bf16), 1, Tensor::from<int64_t>({3, 1, 2}, {3, 1})).to_vector() == std::vector<float>{3, 5, 10});
  const Tensor counts = index_add(zeros({3}, {i64}), 0, Tensor::from<int32_t>({2, 2, 0}), ones({3}, {i64}));
  CHECK(counts.to_vector<int64_t>() == std::vector<int64_t>{1, 0, 2});
  CHECK(scatter_add(zeros({3}, {i32}), 0, Tensor::from<int32_t>({2, 2, 0}), ones({3}, {i32})).to_vector<int64_t>() ==
        counts.to_vector<int64_t>());
}

TEST_CASE("scatter: of several the last counts, in every dtype and dim", "[gather]") {
  const DType dtype = GENERATE(f32, f64, bf16, i64, i32, boolean);
  const int dim = GENERATE(0, 1, 2);
  const Shape shape{7, 9, 300}, part{5, 8, 270};  // the index is smaller than x
  const Tensor number = noise(shape) * 100.0;
  const Tensor x = dtype == boolean ? number > 0.0 : to(number, dtype), src = narrow(narrow(x, 0, 2, 5), 1, 1, 8);
  const Tensor values = clone(narrow(src, 2, 30, 270));
  const Tensor index = to(abs(noise(part)) * 6.99, i64);  // of 7 places: with many repeats
  std::vector<double> want = x.to_vector<double>();
  const std::vector<double> from = values.to_vector<double>();
  const std::vector<int64_t> to_place = index.to_vector<int64_t>();
  for (int64_t i = 0, e = 0; i < part[0]; ++i)
    for (int64_t j = 0; j < part[1]; ++j)
      for (int64_t k = 0; k < part[2]; ++k, ++e) {
        int64_t at[] = {i, j, k};
        at[dim] = to_place[static_cast<std::size_t>(e)];
        want[static_cast<std::size_t>((at[0] * shape[1] + at[1]) * shape[2] + at[2])] =
            from[static_cast<std::size_t>(e)];
      }
  CHECK(scatter(x, dim, index, values).to_vector<double>() == want);
  CHECK(scatter(transpose(clone(transpose(x, 0, 2)), 0, 2), dim, to(index, i32), narrow(src, 2, 30, 270))
            .to_vector<double>() == want);
}

TEST_CASE("one_hot: rows of one task and of many", "[gather]") {
  const DType dtype = GENERATE(f32, f64, bf16, i64, i32, boolean);
  const int64_t classes = GENERATE(1, 3, 40000);
  const Tensor index = reshape(remainder(arange(6) * int64_t{7919}, static_cast<double>(classes)), {2, 3});
  const Tensor y = one_hot(to(index, i64), classes, {dtype});
  CHECK(y.dtype() == dtype);
  CHECK(sum(to(y, f64), {-1}).to_vector<double>() == std::vector<double>(6, 1.0));
  CHECK(argmax(to(y, f32), -1).to_vector<int64_t>() == index.to_vector<int64_t>());
  for (int64_t none : {int64_t{0}, classes}) CHECK(one_hot(zeros({0}, {i64}), none).shape() == Shape{0, none});
}

TEST_CASE("index_add: a long sum keeps the precision of one rounding", "[gather]") {
  const int64_t n = 300000;
  const Tensor y = index_add(zeros({1, 2}), 0, zeros({n}, {i64}), full({n, 2}, 0.1));
  CHECK(y.to_vector()[0] == Approx(0.1f * double(n)).epsilon(1e-7));
}

TEST_CASE("index_add: each place once and with repeats, in slices of any width and every dtype", "[gather]") {
  const DType dtype = GENERATE(f32, f64, bf16, i64, i32);
  const int64_t width = GENERATE(1, 5, 40, 300);
  const bool once = GENERATE(true, false);
  const Shape shape{3, 50, width}, part{3, 20, width};
  const Tensor index = once ? arange(3, 43, 2) : remainder(arange(20) * int64_t{7919}, 6.0);
  const Tensor x = to(round(noise(shape) * 9.0), dtype), src = to(round(noise(part) * 5.0 + 1.0), dtype);
  std::vector<double> want = x.to_vector<double>();
  const std::vector<double> from = src.to_vector<double>();
  for (int64_t i = 0; i < part.numel(); ++i) {
    const int64_t place = i / width / 20 * 50 + index.to_vector<int64_t>()[static_cast<std::size_t>(i / width % 20)];
    want[static_cast<std::size_t>(place * width + i % width)] += from[static_cast<std::size_t>(i)];
  }
  CHECK(index_add(x, 1, index, src).to_vector<double>() == want);
  CHECK(index_select(index_add(x, 1, index, src), 1, index).to_vector<double>() ==
        index_select(Tensor::from<double>(want, shape), 1, index).to_vector<double>());
  if (dtype == bf16)
    CHECK(index_add(full({1, width}, 300, {bf16}), 0, zeros({300}, {i64}), ones({300, width}, {bf16})).to_vector() ==
          std::vector<float>(static_cast<std::size_t>(width), 600));
}

TEST_CASE("index_add: along the last dim, each sum rounded once", "[gather]") {
  const DType dtype = GENERATE(f32, f64, bf16, i64);
  const int64_t rows = GENERATE(7, 8, 300), size = GENERATE(3, 100, 130), n = 33;
  const Tensor index = remainder(arange(n) * int64_t{7919}, static_cast<double>(size));
  const Tensor x = to(noise({rows, size}) * 9.0, dtype), src = to(noise({rows, n}) * 500.0, dtype);
  std::vector<double> want = x.to_vector<double>();
  const std::vector<double> from = src.to_vector<double>();
  const std::vector<int64_t> at = index.to_vector<int64_t>();
  for (int64_t i = 0; i < src.numel(); ++i)
    want[static_cast<std::size_t>(i / n * size + at[static_cast<std::size_t>(i % n)])] +=
        from[static_cast<std::size_t>(i)];
  CHECK(index_add(x, 1, index, src).to_vector<double>() == to(Tensor::from(want), dtype).to_vector<double>());
}

TEST_CASE("nonzero, masked_select: places in order, in pieces and in rows of every length", "[gather]") {
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0}, Shape{40'001}, Shape{2, 300, 80}, Shape{20'000, 2},
                             Shape{7, 1, 5, 257}, Shape{3, 256, 64}, Shape{513, 1}}) {
    INFO(str(shape));
    const Tensor x = noise(shape), mask = x > 0.3;
    const std::vector<double> all = x.to_vector<double>();
    std::vector<int64_t> places;
    std::vector<double> chosen;
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (!(all[static_cast<std::size_t>(i)] > 0.3)) continue;
      chosen.push_back(all[static_cast<std::size_t>(i)]);
      for (int d = 0; d < shape.rank(); ++d) {
        int64_t inner = 1;
        for (int k = d + 1; k < shape.rank(); ++k) inner *= shape[k];
        places.push_back(i / inner % shape[d]);
      }
    }
    CHECK(nonzero(mask).shape() == Shape{static_cast<int64_t>(chosen.size()), shape.rank()});
    CHECK(nonzero(mask).to_vector<int64_t>() == places);
    CHECK(nonzero(to(mask, f32)).to_vector<int64_t>() == places);
    CHECK(masked_select(x, mask).to_vector<double>() == chosen);
  }
  CHECK(nonzero(Tensor::from<float>({1e-40f, 0, -0.0f, NAN, 1})).to_vector<int64_t>() == std::vector<int64_t>{0, 3, 4});
}

TEST_CASE("index_select, index_add: tasks that begin within a row", "[gather]") {
  const int64_t n = 40000;
  const Tensor x = reshape(arange(2 * n), {2, n}), up = arange(n), down = flip(up, {0}), back = flip(x, {1});
  CHECK(index_select(x, 1, down).to_vector<int64_t>() == back.to_vector<int64_t>());
  CHECK(index_add(x, 1, up, x).to_vector<int64_t>() == (x * 2).to_vector<int64_t>());
  CHECK(index_add(x, 1, down, x).to_vector<int64_t>() == (x + back).to_vector<int64_t>());
}

TEST_CASE("gather: the first wrong index is named, wherever it is found", "[gather]") {
  const Tensor x = noise({400, 300}), y = noise({400, 300});
  Tensor index = zeros({400, 300}, {i64});
  index.mutable_data<int64_t>()[299 * 300 + 7] = 300, index.mutable_data<int64_t>()[390 * 300] = -5;
  const auto says = Contains("index 300 is outside [0, 300) — got it at element 89707");
  CHECK_THROWS_WITH(gather(x, 1, index), says);
  CHECK_THROWS_WITH(scatter_add(x, 1, index, y), says);
  CHECK_THROWS_WITH(scatter(x, 1, index, y), says);
  index.mutable_data<int64_t>()[299 * 300 + 7] = 400;
  CHECK_THROWS_WITH(scatter_add(x, 0, index, y), Contains("index 400 is outside [0, 400)"));
}

TEST_CASE("gather: what does not fit is refused", "[gather]") {
  const Tensor x = noise({3, 4}), i = Tensor::from<int64_t>({0, 4, -1});
  CHECK_THROWS_AS(gather(x, 1, reshape(i, {3, 1})), ValueError);
  CHECK_THROWS_WITH(gather(x, 1, reshape(i, {3, 1})),
                    Contains("gather: index 4 is outside [0, 4)") && Contains("[3,1]"));
  CHECK_THROWS_WITH(index_select(x, 0, i), Contains("index_select: index 4 is outside [0, 3)"));
  CHECK_THROWS_WITH(index_add(x, 0, i, x), Contains("index_add: index 4 is outside [0, 3)"));
  CHECK_THROWS_WITH(scatter_add(x, 1, reshape(i, {3, 1}), noise({3, 1})), Contains("scatter_add: index 4"));
  CHECK_THROWS_WITH(embedding(x, Tensor::from<int32_t>({2, -1})), Contains("embedding: index -1 is outside [0, 3)"));
  CHECK_THROWS_WITH(one_hot(Tensor::from<int32_t>({2, 0, -1, 1}, {2, 2}), 3),
                    "one_hot: index -1 is outside [0, 3) — got it at element 2 of an index of shape [2,2]");
  CHECK_THROWS_AS(embedding(empty({0, 4}), Tensor::from<int64_t>({0})), ValueError);
  CHECK_THROWS_AS(gather(x, 2, reshape(i, {3, 1})), ShapeError);
  CHECK_THROWS_AS(gather(x, 0, i), ShapeError);
  CHECK_THROWS_AS(gather(x, 0, zeros({1, 5}, {i64})), ShapeError);
  CHECK_THROWS_AS(gather(Tensor(1.f), 0, zeros({}, {i64})), ShapeError);
  CHECK_THROWS_AS(gather(x, 0, x), DTypeError);
  CHECK_THROWS_AS(index_select(x, 0, zeros({1, 1}, {i64})), ShapeError);
  CHECK_THROWS_AS(index_add(x, 0, zeros({2}, {i64}), x), ShapeError);
  CHECK_THROWS_AS(index_add(x, 0, zeros({3}, {i64}), to(x, f32)), DTypeError);
  CHECK_THROWS_AS(index_add(x, 0, zeros({3}, {i64}), to(x, bf16)), DTypeError);
  CHECK_THROWS_AS(scatter_add(x, 0, zeros({2, 4}, {i64}), x), ShapeError);
  CHECK_THROWS_AS(embedding(noise({3}), zeros({2}, {i64})), ShapeError);
}

TEST_CASE("triu, tril, causal_mask: empty and refused", "[gather]") {
  CHECK(triu(empty({0, 3})).shape() == Shape{0, 3});
  CHECK(tril(empty({3, 0})).shape() == Shape{3, 0});
  CHECK(tril(ones({3, 4}, {boolean}), 1).to_vector<bool>() == causal_mask(3, 4).to_vector<bool>());
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
