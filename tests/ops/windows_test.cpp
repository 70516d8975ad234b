// Windows, as unfold() makes them: what is computed of them, and their gradients, do not depend on how they lie.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

using namespace sluice;
using sluice::testing::same_bits;

namespace {

constexpr std::pair<int64_t, int64_t> kSizesAndSteps[] = {{1, 1}, {2, 1}, {3, 1}, {7, 1}, {3, 2},
                                                          {2, 2}, {3, 3}, {2, 3}, {1, 5}, {11, 4}};

/// x [a, n, b] with windows along n, added into a tensor of n = `length` by a loop over their numbers.
Tensor added_by_loop(const Tensor& windows, int64_t length, int64_t step) {
  const int64_t a = windows.dim(0), count = windows.dim(1), b = windows.dim(2), size = windows.dim(3);
  const auto w = to(windows, f64).to_vector<double>();
  std::vector<double> y(static_cast<std::size_t>(a * length * b));
  for (int64_t i = 0; i < a * count * b * size; ++i) {
    const int64_t k = i % size, column = i / size % b, window = i / size / b % count, row = i / size / b / count;
    y[static_cast<std::size_t>((row * length + window * step + k) * b + column)] += w[static_cast<std::size_t>(i)];
  }
  return to(Tensor::from<double>(y, {a, length, b}), windows.dtype());
}

/// The gradient of x through f, which takes windows of x.
Tensor slope(const Tensor& x, const Tensor& g, auto f) { return grad({f(x)}, {x}, {.grad_outputs = {g}})[0]; }

}  // namespace

TEST_CASE("fold: windows in any order of memory, of any dtype, against a loop", "[view]") {
  Rng rng(1);
  for (DType t : {f32, f64, bf16, i64, i32})
    for (const auto& window : kSizesAndSteps)
      for (int64_t count : {1, 2, 13})
        for (int64_t rest : {0, 1}) {  // numbers that are in no window
          const int64_t size = window.first, step = window.second;
          if (rest >= step) continue;
          const int64_t length = (count - 1) * step + size + rest;
          const Tensor w = to(uniform({3, count, 5, size}, -9, 9, rng), i32);  // sums are exact
          INFO(str(count, " windows of ", size, " every ", step, " in ", length, " ", t));
          const Tensor windows = to(w, t), expected = added_by_loop(windows, length, step);
          CHECK(all(fold(windows, 1, length, step) == expected).item() != 0);
          CHECK(fold(windows, 1, length, step).is_contiguous());
          for (const Shape& order : {Shape{3, 2, 1, 0}, Shape{3, 0, 2, 1}, Shape{0, 2, 3, 1}, Shape{1, 0, 3, 2}}) {
            Shape back = order;
            for (int i = 0; i < 4; ++i) back[static_cast<int>(order[i])] = i;
            const Tensor view = permute(contiguous(permute(windows, order)), back);
            CHECK(all(fold(view, 1, length, step) == expected).item() != 0);
            CHECK(all(fold(flip(flip(windows, {0, 3}), {0, 3}), 1, length, step) == expected).item() != 0);
            if (!is_float(t)) continue;
            const Tensor x = zeros({3, length, 5}, {t}).requires_grad_();
            const Tensor dx = slope(x, view, [&](const Tensor& v) { return unfold(v, 1, size, step); });
            CHECK(all(dx == expected).item() != 0);
          }
          const Tensor one = expand(narrow(windows, 3, 0, 1), windows.shape());  // as gradients of means are
          CHECK(all(fold(one, 1, length, step) == added_by_loop(clone(one), length, step)).item() != 0);
        }
}

TEST_CASE("unfold: NaN and infinities reach the places of their windows alone", "[view]") {
  const double inf = std::numeric_limits<double>::infinity();
  for (DType t : {f32, f64, bf16})
    for (int64_t step : {1, 2, 3}) {
      Tensor g = zeros({1, 9, 1, 2}, {t});
      Tensor bad = narrow(narrow(g, 1, 4, 1), 3, 1, 1), vast = narrow(narrow(g, 1, 7, 1), 3, 0, 1);
      fill_(bad, std::nan("")), fill_(vast, -inf);
      const auto y = to(fold(g, 1, 8 * step + 2, step), f64).to_vector<double>();
      for (std::size_t i = 0; i < y.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        INFO(str("every ", step, " ", t, " at ", at));
        CHECK(std::isnan(y[i]) == (at == 4 * step + 1));
        CHECK((y[i] == -inf) == (at == 7 * step));
      }
    }
}

TEST_CASE("max: windows, which share numbers, have the values and gradients of their copies", "[reduce]") {
  Rng rng(2);
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (DType t : {f32, f64, bf16})
    for (const auto& window : kSizesAndSteps)
      for (const bool kept : {false, true}) {
        const int64_t size = window.first, step = window.second;
        if (size > 4) continue;
        INFO(str(size, " every ", step, " ", t));
        Tensor x = floor(uniform({2, 3, 11, 17}, -3, 4, rng));  // with ties
        x = where(uniform(x.shape(), 0, 1, rng) < 0.02, std::nan(""), x);
        x = to(where(uniform(x.shape(), 0, 1, rng) < 0.02, inf, x), t).requires_grad_();
        const auto windows = [&](const Tensor& v) { return unfold(unfold(v, 2, size, step), 3, size, step); };
        const auto places = [&](const Tensor& v) { return max(windows(v), {4, 5}, kept); };
        const auto copies = [&](const Tensor& v) { return max(clone(windows(v)), {4, 5}, kept); };
        const Tensor y = places(x), g = to(normal(y.shape(), 0, 1, rng), t);
        CHECK(same_bits(y, copies(x)));
        CHECK(y.is_contiguous());
        CHECK(same_bits(slope(x, g, places), slope(x, g, copies)));
        const auto smallest = [&](const Tensor& v) { return min(unfold(v, 3, size, step), {-1}, kept); };
        const auto of_copies = [&](const Tensor& v) { return min(clone(unfold(v, 3, size, step)), {-1}, kept); };
        const Tensor h = to(normal(smallest(x).shape(), 0, 1, rng), t);
        CHECK(same_bits(smallest(x), of_copies(x)));
        CHECK(same_bits(slope(x, h, smallest), slope(x, h, of_copies)));
      }
  for (const Tensor& few :
       {transpose(ones({3, 1}), 0, 1), slice(ones({1, 6}), 1, 0, 6, 2), narrow(ones({2, 3}), 1, 1, 2)})
    CHECK(max(few, {-1}).to_vector() == std::vector<float>(static_cast<std::size_t>(few.dim(0)), 1));
}
