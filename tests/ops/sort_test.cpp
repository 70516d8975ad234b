#include <sluice/ops/index/sort.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>

#include "support/approx.h"
#include "support/catch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

using namespace sluice;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

using Indices = std::vector<int64_t>;

/// Values with many ties.
Tensor noise(const Shape& shape, DType dtype) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::round(3 * std::sin(1.0 + 12.9898 * static_cast<double>(i)));
  return to(Tensor::from(v, shape), dtype);
}

/// NaN last.
Indices naive_order(const std::vector<double>& row, bool descending) {
  Indices order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
    const double a = row[static_cast<std::size_t>(i)], b = row[static_cast<std::size_t>(j)];
    if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
    return descending ? a > b : a < b;
  });
  return order;
}

}  // namespace

TEST_CASE("sort, argsort, topk: every dim, dtype and layout against a stable sort", "[sort]") {
  const int dim = GENERATE(0, 1, 2);
  const bool descending = GENERATE(false, true);
  const DType dtype = GENERATE(f64, f32, i64, i32, boolean);
  for (const Tensor& x :
       {noise({3, 4, 17}, dtype), permute(noise({17, 3, 4}, dtype), {1, 2, 0}), noise({1, 1, 1}, dtype)}) {
    const Sorted s = sort(x, dim, descending);
    CHECK(s.values.dtype() == dtype);
    CHECK(s.indices.dtype() == i64);
    CHECK(s.values.shape() == x.shape());
    CHECK(s.values.to_vector<double>() == gather(x, dim, s.indices).to_vector<double>());
    CHECK(argsort(x, dim - 3, descending).to_vector<int64_t>() == s.indices.to_vector<int64_t>());
    const Tensor rows = transpose(x, dim, 2), got = transpose(s.indices, dim, 2);
    for (int64_t i = 0; i < rows.dim(0); ++i)
      for (int64_t j = 0; j < rows.dim(1); ++j)
        CHECK(select(select(got, 0, i), 0, j).to_vector<int64_t>() ==
              naive_order(select(select(rows, 0, i), 0, j).to_vector<double>(), descending));
    for (int64_t k : {int64_t{0}, int64_t{1}, x.dim(dim) / 2, x.dim(dim)}) {
      const Sorted top = topk(x, k, dim);
      CHECK(top.indices.to_vector<int64_t>() == narrow(argsort(x, dim, true), dim, 0, k).to_vector<int64_t>());
      CHECK(top.values.to_vector<double>() == gather(x, dim, top.indices).to_vector<double>());
    }
  }
}

// Long rows are sorted by the bytes of their numbers.
TEST_CASE("sort: long rows against a stable sort", "[sort]") {
  const bool descending = GENERATE(false, true);
  const DType dtype = GENERATE(f64, f32, bf16, i64, i32, boolean);
  const double scale = GENERATE(1.0, 1e3, 1e9);
  Rng rng(3);
  for (int64_t n : {255, 256, 3000}) {
    const Tensor x = to(round(normal({2, n}, 0, scale, rng, {f64})), dtype);
    const Indices got = argsort(x, 1, descending).to_vector<int64_t>();
    for (int64_t row = 0; row < 2; ++row)
      CHECK(Indices(got.begin() + row * n, got.begin() + (row + 1) * n) ==
            naive_order(select(x, 0, row).to_vector<double>(), descending));
  }
}

TEST_CASE("sort: a long row of special numbers", "[sort]") {
  const bool flush = flush_denormals();
  for (DType dtype : {f32, f64})
    for (bool flushed : {true, false}) {
      set_flush_denormals(flushed);
      std::vector<double> v;
      for (int i = 0; i < 300; ++i) {
        const double tiny = dtype == f32 ? 1e-40 : 1e-310;
        const double some[] = {0.0, -0.0, kInf, -kInf, kNan, tiny, -tiny, 1.0, -1.0, -kNan, 1e-300, -1e300};
        v.push_back(some[i * 7 % 12]);
      }
      const Tensor x = to(Tensor::from(v), dtype);
      for (bool descending : {false, true}) {
        // What a comparison takes for equal is equal: -0 and 0, and denormals where they are flushed.
        Indices order(v.size());
        std::iota(order.begin(), order.end(), 0);
        const std::vector<double> wide = x.to_vector<double>();
        const double least = !flushed ? 0 : dtype == f32 ? 0x1p-126 : 0x1p-1022;
        std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
          double a = wide[static_cast<std::size_t>(i)], b = wide[static_cast<std::size_t>(j)];
          if (std::abs(a) < least) a = 0;
          if (std::abs(b) < least) b = 0;
          if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
          return descending ? a > b : a < b;
        });
        INFO(str(dtype) << (descending ? " descending" : "") << (flushed ? " flushed" : ""));
        CHECK(argsort(x, 0, descending).to_vector<int64_t>() == order);
      }
    }
  set_flush_denormals(flush);
  const Tensor ends = Tensor::from<int64_t>({INT64_MAX, 0, INT64_MIN, -1});
  const Tensor many = reshape(expand(unsqueeze(ends, 0), {100, 4}), {400});
  CHECK(narrow(sort(many).values, 0, 99, 2).to_vector<int64_t>() == Indices{INT64_MIN, -1});
  CHECK(narrow(argsort(many, 0, true), 0, 0, 3).to_vector<int64_t>() == Indices{0, 4, 8});
  CHECK(argsort(full({300}, kNan)).to_vector<int64_t>() == arange(0, 300, 1, {i64}).to_vector<int64_t>());
}

TEST_CASE("sort: ties keep their order and NaN comes last", "[sort]") {
  const Tensor x({2, kNan, -kInf, 2, kInf, kNan, 0, -0.f});
  CHECK(argsort(x).to_vector<int64_t>() == Indices{2, 6, 7, 0, 3, 4, 1, 5});
  CHECK(argsort(x, 0, true).to_vector<int64_t>() == Indices{4, 0, 3, 6, 7, 2, 1, 5});
  CHECK(topk(x, 3).indices.to_vector<int64_t>() == Indices{4, 0, 3});
  CHECK(topk(x, 7).indices.to_vector<int64_t>() == Indices{4, 0, 3, 6, 7, 2, 1});
  CHECK(argsort(Tensor({kNan, kNan})).to_vector<int64_t>() == Indices{0, 1});
}

TEST_CASE("topk: few of a long row are the first of its sort", "[sort]") {
  const DType dtype = GENERATE(f32, f64, bf16, i64, i32, boolean);
  const int64_t n = GENERATE(1, 15, 31, 32, 33, 65, 300);
  std::vector<Tensor> rows{noise({n}, dtype), arange(0, static_cast<double>(n), 1, {dtype}), zeros({n}, {dtype}),
                           to(arange(static_cast<double>(n), 0, -1), dtype)};
  if (is_float(dtype)) {  // NaN, both infinities and both zeros among ties
    const Tensor x = rows[0];
    rows.push_back(where(x == 1.0, kNan, where(x == 2.0, kInf, where(x == -1.0, -kInf, where(x == 3.0, -0.0, x)))));
    rows.push_back(where(arange(0, static_cast<double>(n)) < static_cast<double>(n / 2), kNan, x));
    rows.push_back(full({n}, kNan, {dtype}));
  }
  for (const Tensor& x : rows) {
    const Indices all = argsort(x, 0, true).to_vector<int64_t>();
    for (int64_t k : {1, 2, 7, 16, 33, 64})
      if (k <= n) CHECK(topk(x, k).indices.to_vector<int64_t>() == Indices(all.begin(), all.begin() + k));
  }
}

TEST_CASE("sort: short rows of every length against a stable sort", "[sort]") {
  const DType dtype = GENERATE(f32, f64, bf16, i64, i32, boolean);
  Rng rng(8);
  for (int64_t n = 1; n <= 70; ++n) {
    Tensor x = to(round(normal({n}, 0, 4, rng)), dtype);
    if (is_float(dtype)) x = where(uniform({n}, 0, 1, rng) < 0.2, kNan, where(x == 2.0, -0.0, x));
    INFO(n << " " << name_of(dtype));
    CHECK(argsort(x).to_vector<int64_t>() == naive_order(x.to_vector<double>(), false));
    const Indices all = naive_order(x.to_vector<double>(), true);
    CHECK(argsort(x, 0, true).to_vector<int64_t>() == all);
    for (int64_t k : {n / 2, n - 1})
      CHECK(topk(x, k).indices.to_vector<int64_t>() == Indices(all.begin(), all.begin() + k));
  }
}

TEST_CASE("topk: many of a long row, which are selected as it is read", "[sort]") {
  const DType dtype = GENERATE(f32, f64, bf16, i64, i32);
  Rng rng(9);
  for (int64_t n : {1025, 2049, 20001}) {
    const Tensor some = to(round(normal({n}, 0, 3000, rng)), dtype), up = to(arange(n), dtype);
    std::vector<Tensor> rows{some, up, flip(up, {0}), zeros({n}, {dtype})};
    if (is_float(dtype)) {
      const Tensor place = arange(n);
      rows.push_back(where(place < n / 2, kNan, some)), rows.push_back(where(place > 70, kNan, some));
      rows.push_back(full({n}, kNan, {dtype}));
    }
    for (const Tensor& x : rows) {
      const Indices all = naive_order(x.to_vector<double>(), true);
      for (int64_t k : {65, 127, 128, 1024})
        CHECK(topk(x, k).indices.to_vector<int64_t>() == Indices(all.begin(), all.begin() + k));
    }
  }
}

TEST_CASE("sort: a gradient returns to where its value came from", "[sort]") {
  Tensor x({3, 1, 2});
  x.requires_grad_();
  const Tensor g({10, 20, 30});
  CHECK(grad(sort(x).values, x, {.grad_outputs = {g}}).to_vector() == std::vector<float>{30, 10, 20});
  CHECK(grad(topk(x, 1).values, x, {.grad_outputs = {Tensor({5})}}).to_vector() == std::vector<float>{5, 0, 0});
  CHECK_FALSE(sort(x).indices.requires_grad());
}

TEST_CASE("sort: scalars, empty tensors and errors", "[sort]") {
  CHECK(sort(Tensor(3.f)).values.item() == 3);
  CHECK(sort(Tensor(3.f)).indices.item() == 0);
  CHECK(argsort(Tensor(3.f)).item() == 0);
  CHECK(sort(empty({0})).indices.shape() == Shape{0});
  CHECK(sort(empty({0, 3}), 1).values.shape() == Shape{0, 3});
  CHECK(sort(empty({3, 0}), 0).values.shape() == Shape{3, 0});
  CHECK(topk(empty({3, 0}), 0, 1).values.shape() == Shape{3, 0});
  CHECK(topk(empty({3, 0}), 2, 0).values.shape() == Shape{2, 0});
  CHECK_THROWS_AS(sort(Tensor({1, 2}), 1), ShapeError);
  CHECK_THROWS_AS(topk(Tensor({1, 2}), 3), ValueError);
  CHECK_THROWS_AS(topk(Tensor({1, 2}), -1), ValueError);
  CHECK_THROWS_AS(topk(Tensor(1.f), 1), ShapeError);
}

TEST_CASE("argmax, argmin: the first best or NaN, every way through memory", "[ops][reduce]") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const std::vector<double> specials[] = {{}, {inf, -inf}, {nan, inf}, {nan, nan, -inf}, {-0.0, 5, -5}};
  for (DType t : {f32, f64, bf16, i64, i32, boolean})
    for (const Shape& s : {Shape{3, 7, 1},
                           {2, 64, 1},
                           {2, 127, 1},
                           {2, 2'050, 1},
                           {2, 70'001, 1},
                           {1, 40'007, 3},
                           {2, 3'001, 70},
                           {2, 9, 129}})
      for (const std::vector<double>& special : specials) {
        if (!special.empty() && !is_float(t)) continue;
        INFO(str(t, " ", s, " ", special.size()));
        testing::Rand rand(special.size() + 1);
        std::vector<double> v(static_cast<std::size_t>(s.numel()));
        for (double& x : v) x = t == boolean ? double(rand.below(2)) : double(rand.below(9) - 4);
        for (double x : special)
          for (int64_t i = 0; i < s.numel(); i += s[1] + 1 + rand.below(2 * s[1])) v[static_cast<std::size_t>(i)] = x;
        if (!special.empty()) v.back() = 9;  // the best of its column, but for inf and NaN
        const Tensor x = testing::tensor_of(v, s, t);
        for (bool largest : {true, false}) {
          const Indices got = (largest ? argmax(x, 1) : argmin(x, 1)).to_vector<int64_t>();
          int64_t wrong = 0;
          for (int64_t i = 0; i < s[0] * s[2]; ++i) {
            const double* column = v.data() + i / s[2] * s[1] * s[2] + i % s[2];
            int64_t best = 0;
            for (int64_t k = 1; k < s[1] && !std::isnan(column[best * s[2]]); ++k) {
              const double a = column[k * s[2]], b = column[best * s[2]];
              if (std::isnan(a) || (largest ? a > b : a < b)) best = k;
            }
            wrong += got[static_cast<std::size_t>(i)] != best;
          }
          CHECK(wrong == 0);
        }
      }
}
