// Reductions do not depend on the layout: along columns, and of transposed views, they have the bits of rows.
#include <sluice/ops/rows/reduce.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

using namespace sluice;
using sluice::testing::same_bits;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
const double not_a_number = std::nan("");

/// What columns of x [n, m] reduce to, in long double.
template <class F> std::vector<long double> by_columns(const Tensor& x, F join) {
  const std::vector<double> all = to(x, f64).to_vector<double>();
  const std::size_t m = static_cast<std::size_t>(x.dim(1));
  std::vector<long double> total(m);
  for (std::size_t k = 0; k < all.size(); ++k) total[k % m] += join(all[k]);
  return total;
}

}  // namespace

TEST_CASE("reduce: columns have the bits of rows, beyond every block", "[reduce]") {
  Rng rng(1);
  for (DType t : {f32, f64, bf16, i64, i32})
    for (int64_t n :
         {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 47, 63, 64, 65, 96, 127, 129, 321, 1023, 1024, 1025, 1151, 2100})
      for (int64_t m : {2, 3, 16, 63, 64, 65, 130}) {
        INFO(n << "x" << m << " " << name_of(t));
        const Tensor x = to(normal({n, m}, 0.5, 300, rng), t), rows = contiguous(transpose(x, 0, 1));
        const Tensor wide = to(normal({n, m + 9}, 0.5, 300, rng), t), part = narrow(wide, 1, 5, m);
        CHECK(same_bits(sum(x, {0}), sum(rows, {1})));
        CHECK(same_bits(sum(transpose(x, 0, 1), {1}), sum(rows, {1})));
        CHECK(same_bits(sum(transpose(rows, 0, 1), {0}), sum(rows, {1})));
        CHECK(same_bits(sum(part, {0}), sum(contiguous(transpose(part, 0, 1)), {1})));
        CHECK(same_bits(max(x, {0}), max(rows, {1})));
        CHECK(same_bits(min(transpose(rows, 0, 1)), min(rows)));
        if (is_float(t)) CHECK(same_bits(norm(x, {0}), norm(rows, {1})));
        if (t != bf16) continue;
        Tensor leaf = clone(x);
        CHECK(same_bits(norm(leaf.requires_grad_(), {0}).detach(), norm(x, {0})));
        CHECK(same_bits(norm(leaf).detach(), norm(x)));
      }
}

TEST_CASE("prod: of integers as a loop that wraps around, of bf16 that of f32, rounded once", "[reduce][bf16]") {
  Rng rng(2);
  for (int64_t n : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 1023, 1024, 1025, 2100})
    for (int64_t m : {1, 2, 15, 16, 17, 65}) {
      INFO(n << "x" << m);
      const Tensor odd = randint(-50, 50, {n, m}, rng) * 2 + 1;  // whose products never become 0
      const std::vector<int64_t> all = odd.to_vector<int64_t>();
      std::vector<uint64_t> expected(static_cast<std::size_t>(m), 1);
      for (std::size_t i = 0; i < all.size(); ++i)
        expected[i % static_cast<std::size_t>(m)] *= static_cast<uint64_t>(all[i]);
      const std::vector<int64_t> columns = prod(odd, {0}).to_vector<int64_t>();
      CHECK(std::equal(columns.begin(), columns.end(), expected.begin(),
                       [](int64_t a, uint64_t b) { return static_cast<uint64_t>(a) == b; }));
      CHECK(same_bits(prod(contiguous(transpose(odd, 0, 1)), {1}), prod(odd, {0})));
      const Tensor x = to(uniform({m, n}, 0.9, 1.1, rng), bf16);
      for (int64_t d : {0, 1}) CHECK(same_bits(prod(x, {d}), to(prod(to(x, f32), {d}), bf16)));
    }
}

TEST_CASE("sum: of i32 and bool it is that of i64, in every layout", "[reduce]") {
  Rng rng(4);
  for (int64_t n : {1, 15, 16, 17, 33, 64, 130, 600, 1023, 1025, 2100})
    for (int64_t m : {1, 3, 16, 65}) {
      const Tensor numbers = to(randint(-2000000000, 2000000000, {m, 2, n + 3}, rng), i32);
      for (const Tensor& all : {numbers, numbers > 0.0})
        for (const Tensor& x :
             {all, narrow(all, 2, 1, n), transpose(all, 0, 2), expand(narrow(all, 2, 0, 1), {m, 2, n})})
          for (const Shape& dims : {Shape{}, Shape{0}, Shape{1}, Shape{2}, Shape{0, 2}}) {
            INFO(str(x, " over ", dims));
            CHECK(same_bits(sum(x, dims), sum(to(contiguous(x), i64), dims)));
          }
    }
}

TEST_CASE("mean: of bf16 it is that of f32, rounded once, and so is its gradient", "[reduce][bf16]") {
  Rng rng(3);
  for (int64_t n : {1, 3, 33, 130, 1025}) {
    const Tensor x = to(normal({4, 3, n}, 1, 1, rng), bf16);
    const Tensor repeated = expand(narrow(x, 2, 0, 1), {4, 3, n});
    for (const Tensor& from : {x, transpose(x, 0, 1), transpose(x, 1, 2), repeated})
      for (const Shape& dims : {Shape{}, Shape{0}, Shape{1}, Shape{2}, Shape{0, 2}, Shape{0, 1}})
        for (bool kept : {false, true}) {
          INFO(n << " " << str(from, " over ", dims));
          Tensor leaf = from.detach().requires_grad_(), wide = to(from, f32).requires_grad_();
          const Tensor y = mean(leaf, dims, kept), expected = mean(wide, dims, kept);
          CHECK(same_bits(y.detach(), to(expected.detach(), bf16)));
          const Tensor g = to(normal(y.shape(), 0, 1, rng), bf16);
          const Tensor dx = grad({y}, {leaf}, {.grad_outputs = {g}})[0];
          CHECK(same_bits(contiguous(dx),
                          to(contiguous(grad({expected}, {wide}, {.grad_outputs = {to(g, f32)}})[0]), bf16)));
        }
  }
}

TEST_CASE("reduce: few rows of many columns have the bits of rows", "[reduce]") {
  Rng rng(6);
  for (DType t : {f32, f64, bf16, i64, i32})
    for (int64_t n : {1, 2, 3, 5, 6, 15, 16, 19, 33, 63, 64, 200})
      for (int64_t m : {127, 256, 257, 511, 512, 513, 1025}) {
        INFO(n << "x" << m << " " << name_of(t));
        const Tensor x = to(normal({2, n, m}, 0.5, 300, rng), t), rows = contiguous(transpose(x, 1, 2));
        CHECK(same_bits(sum(x, {1}), sum(rows, {2})));
        CHECK(same_bits(max(x, {1}), max(rows, {2})));
        CHECK(same_bits(sum(narrow(x, 2, 1, m - 1), {1}), sum(narrow(rows, 1, 1, m - 1), {2})));
        if (is_float(t)) CHECK(same_bits(norm(x, {1}), norm(rows, {2})));
      }
}

TEST_CASE("max, min: short rows of every length, with infinities, and NaN in some", "[reduce]") {
  Rng rng(7);
  for (DType t : {f32, f64, bf16, i64, i32})
    for (int64_t n = 1; n < 70; ++n)
      for (int64_t rows : {1, 15, 16, 17, 83, 300}) {
        Tensor x = floor(uniform({rows, n}, -40, 40, rng));
        if (is_float(t)) x = where(uniform({rows, n}, 0, 1, rng) < 0.1 / static_cast<double>(n), not_a_number, x);
        if (is_float(t)) x = where(uniform({rows, n}, 0, 1, rng) < 0.1, inf, where(x == 3.0, -inf, x));
        const Tensor y = to(x, t);
        const auto all = to(y, f64).to_vector<double>(), largest = to(max(y, {1}), f64).to_vector<double>(),
                   smallest = to(min(y, {1}), f64).to_vector<double>();
        for (int64_t r = 0; r < rows; ++r) {
          double low = inf, high = -inf;
          for (int64_t k = r * n; k < (r + 1) * n; ++k) {
            const double v = all[static_cast<std::size_t>(k)];
            low = std::isnan(v) || v < low ? v : low, high = std::isnan(v) || v > high ? v : high;
          }
          const double a = smallest[static_cast<std::size_t>(r)], b = largest[static_cast<std::size_t>(r)];
          if (std::isnan(low) ? !std::isnan(a) : a != low) FAIL(str("min of row ", r, " of ", rows, " × ", n, " ", t));
          if (std::isnan(high) ? !std::isnan(b) : b != high)
            FAIL(str("max of row ", r, " of ", rows, " × ", n, " ", t));
        }
      }
}

TEST_CASE("reduce: windows, which share numbers, have the bits of their copies", "[reduce]") {
  Rng rng(8);
  for (DType t : {f32, f64, bf16, i64, i32})
    for (int64_t size : {1, 2, 3, 4})
      for (int64_t step : {1, 2}) {
        INFO(size << " every " << step << " " << name_of(t));
        const Tensor x = to(normal({3, 37, 70}, 0.5, 300, rng), t);
        const Tensor windows = unfold(unfold(x, 1, size, step), 2, size, step), rows = flip(unfold(x, 2, 7, 5), {3});
        for (const Tensor& view : {windows, rows, unfold(x, 1, 15, 1), unfold(x, 2, 16, 1)})
          for (const Shape& dims : {Shape{-1}, Shape{-2, -1}}) {
            CHECK(same_bits(sum(view, dims), sum(clone(view), dims)));
            CHECK(same_bits(max(view, dims, keep), max(clone(view), dims, keep)));
            if (is_float(t)) CHECK(same_bits(norm(view, dims), norm(clone(view), dims)));
          }
      }
}

TEST_CASE("argmax: short rows and few columns find what a loop finds", "[reduce]") {
  Rng rng(9);
  for (DType t : {f32, f64, bf16, i64, i32, boolean})
    for (const Shape& shape : {Shape{1, 5, 1}, Shape{40, 1, 1}, Shape{70, 7, 1}, Shape{16, 15, 1}, Shape{17, 16, 1},
                               Shape{15, 3, 1}, Shape{5, 90, 3}, Shape{1, 700, 15}, Shape{3, 15, 2}, Shape{2, 16, 16},
                               Shape{300, 33, 1}, Shape{16, 63, 1}, Shape{17, 64, 1}}) {
      Tensor x = to(uniform(shape, -2, 3, rng), i32);  // ties
      if (is_float(t)) x = where(uniform(shape, 0, 1, rng) < 0.05, not_a_number, to(x, f32));
      x = to(x, t);
      INFO(str(shape, " ", t));
      const auto value = to(x, f64).to_vector<double>();
      const int64_t n = shape[1], inner = shape[2];
      const auto place = [&](int64_t i, auto better) {
        const auto at = [&](int64_t k) {
          return value[static_cast<std::size_t>((i / inner * n + k) * inner + i % inner)];
        };
        int64_t best = 0;
        for (int64_t k = 1; k < n; ++k)
          if (!std::isnan(at(best)) && (std::isnan(at(k)) || better(at(k), at(best)))) best = k;
        return best;
      };
      std::vector<int64_t> largest, smallest;
      for (int64_t i = 0; i < shape[0] * inner; ++i)
        largest.push_back(place(i, std::greater<>())), smallest.push_back(place(i, std::less<>()));
      for (const Tensor& view : {x, transpose(contiguous(transpose(x, 0, 1)), 0, 1)}) {
        CHECK(argmax(view, 1).to_vector<int64_t>() == largest);
        CHECK(argmin(view, 1).to_vector<int64_t>() == smallest);
      }
    }
}

TEST_CASE("reduce: permuted views of three dims, over each dim and over neighbours", "[reduce]") {
  Rng rng(2);
  for (DType t : {f32, f64, bf16, i32})
    for (const Shape& shape : {Shape{5, 67, 34}, Shape{3, 1, 70}, Shape{2, 1100, 18}}) {
      const Tensor x = to(normal(shape, 0.5, 300, rng), t);
      for (const Shape& order : {Shape{0, 2, 1}, Shape{2, 1, 0}, Shape{1, 2, 0}, Shape{2, 0, 1}, Shape{1, 0, 2}}) {
        const Tensor view = permute(x, order);
        for (const Tensor& y : {view, slice(view, 0, 0, std::nullopt, 2), flip(view, {1})}) {
          const Tensor copy = clone(contiguous(y));
          for (const Shape& dims : {Shape{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}}) {
            INFO(name_of(t) << " " << str(y.shape()) << " by " << str(order) << " over " << str(dims));
            CHECK(same_bits(sum(y, dims), sum(copy, dims)));
            CHECK(same_bits(sum(y, dims, keep), sum(copy, dims, keep)));
            CHECK(same_bits(max(y, dims), max(copy, dims)));
            CHECK(sum(y, dims).is_contiguous());
          }
        }
      }
    }
}

TEST_CASE("reduce: sums of columns are within the bound of 64 lanes", "[reduce]") {
  Rng rng(3);
  for (int64_t n : {64, 1000, 1024, 5000})
    for (DType t : {f32, f64}) {
      INFO(n << " " << name_of(t));
      const Tensor x = uniform({n, 70}, 0, 1, rng, {t});
      const std::vector<double> got = to(sum(x, {0}), f64).to_vector<double>();
      const auto want = by_columns(x, [](double v) { return static_cast<long double>(v); });
      // A lane adds up to 16 numbers, and 6 steps join the lanes: rounded 22 times, where 128 in a row are 128.
      const long double eps = t == f32 ? 0x1p-24L : 0x1p-53L,
                        blocks = t == f32 ? 1 : static_cast<long double>(n) / 1024;
      for (std::size_t k = 0; k < got.size(); ++k) CHECK(std::abs(got[k] - want[k]) <= (23 + blocks) * eps * want[k]);
    }
}

TEST_CASE("reduce: norms of f64 of every size, along rows and columns", "[reduce]") {
  Rng rng(4);
  for (double size : {1.0, 1e-300, 1e-170, 1e-140, 1e-130, 1e140, 1e152, 1e160, 1e300})
    for (int64_t n : {1, 5, 17, 1100}) {
      INFO(n << " of " << size);
      const Tensor x = normal({n, 66}, 0, 1, rng, {f64}) * size;
      const auto want = by_columns(x, [](double v) { return static_cast<long double>(v) * v; });
      for (const Tensor& y : {norm(x, {0}), norm(transpose(x, 0, 1), {1}), norm(contiguous(transpose(x, 0, 1)), {1})}) {
        const std::vector<double> got = y.to_vector<double>();
        for (std::size_t k = 0; k < got.size(); ++k)
          CHECK(std::abs(got[k] - std::sqrt(want[k])) <= 40 * 0x1p-53L * std::sqrt(want[k]));
      }
    }
  const Tensor x = Tensor::from<double>({0, 0, 3e200, 4e200, inf, 1, not_a_number, inf, -inf, inf, 3e-200, 4e-200});
  const std::vector<double> got = norm(reshape(x, {6, 2}), {1}).to_vector<double>();
  CHECK(got[0] == 0);
  CHECK(std::abs(got[1] / 5e200 - 1) < 1e-15);
  CHECK(got[2] == inf);
  CHECK(std::isnan(got[3]));
  CHECK(got[4] == inf);
  CHECK(std::abs(got[5] / 5e-200 - 1) < 1e-15);
}

TEST_CASE("reduce: NaN and infinities in columns", "[reduce]") {
  for (DType t : {f32, f64, bf16})
    for (int64_t n : {1, 16, 64, 65, 200, 1030})
      for (int64_t at : {int64_t{0}, n / 2, n - 1})
        for (double value : {not_a_number, inf, -inf}) {
          Tensor x = full({n, 70}, 2, {t}), place = narrow(narrow(x, 0, at, 1), 1, 66, 1);
          fill_(place, value);
          for (const Tensor& y : {sum(x, {0}), max(x, {0}), min(x, {0}), norm(x, {0})}) {
            INFO(n << " at " << at << " " << name_of(t) << " of " << value);
            const std::vector<double> got = to(y, f64).to_vector<double>();
            CHECK(std::isfinite(got[65]));
            CHECK(std::isnan(got[66]) == std::isnan(value));
          }
          if (std::isnan(value)) continue;
          CHECK(to(sum(x, {0}), f64).to_vector<double>()[66] == value);
          CHECK(to(norm(x, {0}), f64).to_vector<double>()[66] == inf);
          CHECK(to(max(x, {0}), f64).to_vector<double>()[66] == (value > 0 ? value : n == 1 ? value : 2));
        }
}

TEST_CASE("reduce: the extremes of long rows, and NaN at any place of them", "[reduce]") {
  Rng rng(5);
  for (DType t : {f32, f64, bf16, i64})
    for (int64_t n : {63, 64, 511, 512, 513, 575, 576, 1023, 1024, 1537, 3001}) {
      INFO(n << " " << name_of(t));
      Tensor x = to(normal({2, n}, 0, 1000, rng), t);
      const std::vector<double> all = to(x, f64).to_vector<double>();
      const auto most = std::max_element(all.begin(), all.begin() + n),
                 least = std::min_element(all.begin() + n, all.end());
      CHECK(to(max(x, {1}), f64).to_vector<double>()[0] == *most);
      CHECK(to(min(x, {1}), f64).to_vector<double>()[1] == *least);
      CHECK(argmax(x, 1).to_vector<int64_t>()[0] == most - all.begin());
      for (int64_t at = 0; is_float(t) && at < n; at += at % 64 < 2 || n - at < 3 ? 1 : 31) {
        const double old = all[static_cast<std::size_t>(n + at)];
        Tensor place = narrow(narrow(x, 0, 1, 1), 1, at, 1);
        fill_(place, at % 2 == 0 ? not_a_number : -not_a_number);
        for (const Tensor& y : {max(x, {1}), min(x, {1})}) {
          CHECK(std::isfinite(to(y, f64).to_vector<double>()[0]));
          CHECK(std::isnan(to(y, f64).to_vector<double>()[1]));
        }
        CHECK(argmax(x, 1).to_vector<int64_t>()[1] == at);
        fill_(place, old);
      }
    }
}

TEST_CASE("reduce: an extreme of 0 and -0 is 0, in every layout", "[reduce]") {
  for (DType t : {f32, f64, bf16})
    for (int64_t n : {1, 2, 3, 17, 64, 65, 600, 1030, 70'001})
      for (int64_t at : {int64_t{0}, n / 2, n - 1}) {
        INFO(str(t, " ", n, " ", at));
        Tensor x = full({n, 3}, -0.0, {t});
        Tensor one = narrow(x, 0, at, 1);
        fill_(one, 0);
        for (const Tensor& y : {x, contiguous(transpose(x, 0, 1))})
          for (int d : {0, 1}) {
            const Tensor least = min(y, {d}), largest = max(y, {d});
            CHECK(same_bits(least, zeros(least.shape(), {t})));
            CHECK(same_bits(largest, zeros(largest.shape(), {t})));
          }
        CHECK(same_bits(max(x), zeros({}, {t})));
      }
}

TEST_CASE("reduce: partial results of a vast tensor that have no room are an error of the library", "[reduce]") {
  const Tensor vast = unfold(empty({1 << 26}), 0, 1 << 25, 1);  // [2²⁵ + 1, 2²⁵] of overlapping rows
  CHECK_THROWS_AS(sum(vast, {0}), MemoryError);                 // 2⁴² bytes, not a std::bad_alloc
  CHECK_THROWS_AS(max(vast, {0}), MemoryError);
}

TEST_CASE("reduce: numbers that a view repeats are read once, and take no memory", "[reduce]") {
  const int64_t n = int64_t{1} << 20;
  const double times = static_cast<double>(n * n);
  for (DType t : {f32, f64, bf16, i64, i32}) {
    INFO(name_of(t));
    const Tensor x = to(reshape(Tensor({1, -3, 4}), {1, 3, 1}), t), vast = expand(x, {n, 3, n});
    const DType of_sum = is_float(t) ? t : i64;
    CHECK(sum(vast).item() == 2 * times);
    CHECK(same_bits(sum(vast, {0, 2}), to(Tensor({1, -3, 4}), of_sum) * times));
    CHECK(same_bits(sum(vast, {1, 2}, keep), full({n, 1, 1}, 2 * static_cast<double>(n), {of_sum})));
    CHECK(max(vast).item() == 4);
    CHECK(same_bits(min(vast, {1, 2}), full({n}, -3, {t})));
    CHECK(mean(vast, {0, 2}).to_vector<double>() == std::vector<double>{1, -3, 4});
    if (is_float(t)) CHECK(same_bits(norm(vast, {0, 2}), to(Tensor({1, 3, 4}), t) * static_cast<double>(n)));
  }
  // bf16 is rounded once, 771 to 772; integers are exact.
  CHECK(same_bits(sum(expand(to(Tensor({256, 1}), bf16), {3 * n * n, 2})), full({}, 772 * times, {bf16})));
  const int64_t odd = (int64_t{1} << 53) + 1;
  CHECK(sum(expand(to(Tensor({3}), i64), {odd})).item<int64_t>() == 3 * odd);
  const Tensor some = expand(reshape(Tensor({0, 1}) > 0.5, {2, 1}), {2, n * n});
  CHECK(any(some, {1}).to_vector<bool>() == std::vector<bool>{false, true});
  CHECK(all(some, {1}).to_vector<bool>() == std::vector<bool>{false, true});
  CHECK(same_bits(argmin(some, 1), zeros({2}, {i64})));
  Tensor w = ones({1});
  backward(sum(expand(w.requires_grad_(), {n * n})));
  CHECK(w.grad().item() == times);
  const Tensor many = expand(full({1, 3}, 0.1), {n, 3});  // added one by one
  const int64_t before = memory_stats().live;
  reset_peak_memory();
  sum(many), sum(many, {0}), norm(many, {1}), sum(transpose(many, 0, 1), {1});
  CHECK(memory_stats().peak - before < 6 * n);
}

TEST_CASE("reduce: views that repeat numbers have the bits of their copies", "[reduce]") {
  Rng rng(11);
  for (DType t : {f32, f64, bf16, i64, i32})
    for (const Shape& shape : {Shape{1, 5, 1}, Shape{7, 1, 1}, Shape{1, 1, 6}, Shape{1, 1, 1}, Shape{7, 5, 1}}) {
      const Tensor x = to(normal(shape, 0.5, 30, rng), t), view = expand(x, {7, 5, 6});
      for (const Tensor& y : {view, narrow(view, 0, 1, 1), narrow(view, 2, 0, 0)})
        for (const Shape& dims : {Shape{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}}) {
          const Tensor copy = clone(y);
          INFO(str(t, " ", shape, " as ", y.shape(), " over ", dims));
          CHECK(sum(y, dims).is_contiguous());
          CHECK(same_bits(sum(y, dims, keep), sum(copy, dims, keep)));
          if (is_float(t)) CHECK(same_bits(norm(y, dims), norm(copy, dims)));
          if (y.numel() == 0) continue;
          CHECK(same_bits(max(y, dims), max(copy, dims)));
          CHECK(same_bits(min(y, dims, keep), min(copy, dims, keep)));
          for (bool kept : {false, true}) CHECK(same_bits(argmax(y, dims[0], kept), argmax(copy, dims[0], kept)));
        }
    }
}
