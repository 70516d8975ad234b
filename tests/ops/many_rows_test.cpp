// Kernels that take many rows, columns or windows side by side: results have the bits of few of them.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <functional>
#include <limits>
#include <vector>

using namespace sluice;
using sluice::testing::same_bits;

namespace {

/// f(x, …) of `few` rows of all operands at a time, joined.
Tensor in_parts(const std::vector<Tensor>& operands, int64_t few, auto f) {
  std::vector<Tensor> parts;
  for (int64_t r = 0; r < operands[0].dim(0); r += few) {
    std::vector<Tensor> some;
    for (const Tensor& x : operands) some.push_back(contiguous(narrow(x, 0, r, std::min(few, x.dim(0) - r))));
    parts.push_back(f(some));
  }
  return cat(parts, 0);
}

/// The result of f and the gradient of its operand, one behind the other.
Tensor with_slope(const Tensor& x, const Tensor& g, auto f) {
  Tensor leaf = clone(x);
  const Tensor y = f(leaf.requires_grad_());
  return cat({y.detach(), grad({y}, {leaf}, {.grad_outputs = {g}})[0]}, -1);
}

}  // namespace

TEST_CASE("reduce: many rows have the bits of one, with NaN and infinities", "[reduce]") {
  Rng rng(1);
  const double inf = std::numeric_limits<double>::infinity();
  for (DType t : {f32, f64, bf16})
    for (int64_t n : {15, 16,  17,  20,  31,  32,  33,  47,  48,  63,  64,   65,   79,   80,
                      96, 100, 111, 112, 127, 128, 129, 191, 193, 255, 1000, 1023, 1024, 1025})
      for (int64_t rows : {16, 83}) {
        INFO(rows << "x" << n << " " << name_of(t));
        Tensor wide = normal({rows, n + 5}, 0.5, 300, rng);
        const auto check = [&](const Tensor& all) {
          const Tensor x = narrow(to(all, t), 1, 3, n);
          for (const auto& f : std::vector<std::function<Tensor(const Tensor&)>>{
                   [](const Tensor& v) { return sum(v, {1}); }, [](const Tensor& v) { return norm(v, {1}); },
                   [](const Tensor& v) { return max(v, {1}); }, [](const Tensor& v) { return min(v, {1}); }}) {
            const Tensor expected = in_parts({x}, 1, [&](const std::vector<Tensor>& v) { return f(v[0]); });
            CHECK(allclose(f(x), expected, 0, 0, true));
            CHECK(allclose(f(contiguous(x)), expected, 0, 0, true));
          }
        };
        check(wide);
        for (int64_t r = 0; r < rows; ++r) {  // each at another place, the first and the last included
          Tensor number = narrow(narrow(wide, 0, r, 1), 1, 3 + r * 7 % n, 1);
          fill_(number, r % 3 == 0 ? inf : r % 3 == 1 ? std::nan("") : -inf);
        }
        check(wide);
      }
}

TEST_CASE("softmax, norms, cross_entropy: many short rows have the bits of few", "[softmax][norm][loss]") {
  Rng rng(2);
  for (DType t : {f32, f64, bf16})
    for (int64_t n : {1, 2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 22, 23, 24, 31, 32, 33, 47, 63, 64, 65})
      for (int64_t rows : {32, 129, 300}) {
        INFO(rows << "x" << n << " " << name_of(t));
        const Tensor x = to(normal({rows, n}, 1, 3, rng), t), g = to(normal({rows, n}, 0, 1, rng), t);
        const Tensor w = to(normal({n}, 1, 1, rng), t), b = to(normal({n}, 0, 1, rng), t);
        Tensor targets = randint(0, n, {rows}, rng);
        targets = where(targets == randint(0, n + 3, {rows}, rng), full({rows}, -100, {i64}), targets);
        const auto check = [&](auto f) {
          const auto both = [&](const std::vector<Tensor>& v) { return with_slope(v[0], v[1], f); };
          CHECK(same_bits(both({x, g}), in_parts({x, g}, 31, both)));
        };
        check([](const Tensor& v) { return softmax(v); });
        check([](const Tensor& v) { return log_softmax(v); });
        check([&](const Tensor& v) { return layer_norm(v, w, b); });
        check([&](const Tensor& v) { return rms_norm(v, w); });
        check([](const Tensor& v) { return rms_norm(v); });
        for (double smoothing : {0.0, 0.1}) {
          const auto loss = [&](const std::vector<Tensor>& v) {
            const auto each = [&](const Tensor& logits) {
              return unsqueeze(
                  cross_entropy(logits, v[1], {.label_smoothing = smoothing, .reduction = Reduction::none}), 1);
            };
            return with_slope(v[0], narrow(v[2], 1, 0, 1), each);
          };
          CHECK(same_bits(loss({x, targets, g}), in_parts({x, targets, g}, 31, loss)));
        }
      }
}

TEST_CASE("layer_norm: gradients of weight and bias of many short rows", "[norm]") {
  Rng rng(3);
  for (DType t : {f32, f64})
    for (int64_t n : {1, 2, 3, 8, 20, 23})
      for (int64_t rows : {32, 127, 128, 129, 700}) {
        INFO(rows << "x" << n << " " << name_of(t));
        const Tensor x = to(normal({rows, n}, 1, 3, rng), t), g = to(normal({rows, n}, 0.2, 1, rng), t);
        const Tensor w = ones({n}, {t}).requires_grad_(), b = zeros({n}, {t}).requires_grad_();
        const std::vector<Tensor> slopes = grad({layer_norm(x, w, b)}, {w, b}, {.grad_outputs = {g}});
        const Tensor unit = to(layer_norm(x), f64), wide = to(g, f64);
        const double eps = 16 * (t == f32 ? 0x1p-24 : 0x1p-53);
        CHECK(all(abs(to(slopes[0], f64) - sum(wide * unit, {0})) <= eps * sum(abs(wide * unit), {0})).item() != 0);
        CHECK(all(abs(to(slopes[1], f64) - sum(wide, {0})) <= eps * sum(abs(wide), {0})).item() != 0);
      }
}

TEST_CASE("softmax: columns of bf16 have the bits of rows", "[softmax]") {
  Rng rng(4);
  for (int64_t n : {1, 2, 3, 5, 16, 17, 40, 127, 129, 300, 1024, 1025})
    for (int64_t columns : {16, 31, 128, 129, 200}) {
      INFO(n << "x" << columns);
      const Tensor x = to(normal({2, n, columns}, 1, 3, rng), bf16), g = to(normal({2, n, columns}, 0, 1, rng), bf16);
      const Tensor rows = contiguous(transpose(x, 1, 2)), slopes = contiguous(transpose(g, 1, 2));
      const auto turned = [](const Tensor& y, int64_t at, int64_t count) {
        return contiguous(transpose(narrow(y, -1, at, count), 1, 2));
      };
      for (const auto& f : {softmax, log_softmax}) {
        const Tensor y = with_slope(x, g, [&](const Tensor& v) { return f(v, 1); });
        const Tensor expected = with_slope(rows, slopes, [&](const Tensor& v) { return f(v, 2); });
        CHECK(same_bits(contiguous(narrow(y, 2, 0, columns)), turned(expected, 0, n)));
        CHECK(same_bits(contiguous(narrow(y, 2, columns, columns)), turned(expected, n, n)));
      }
    }
}

TEST_CASE("index_add: along the last dim many positions have the bits of one", "[index]") {
  Rng rng(5);
  for (DType t : {f32, f64, bf16, i64, i32})
    for (int64_t size : {1, 7, 30})
      for (int64_t count : {120, 121, 127, 131, 200}) {
        INFO(size << " places, " << count << " numbers " << name_of(t));
        const Tensor x = to(normal({37, size}, 0, 300, rng), t), from = to(normal({37, count}, 0, 300, rng), t);
        const Tensor at = randint(0, std::max<int64_t>(1, size - 1), {count}, rng);
        const auto add = [&](const std::vector<Tensor>& v) { return index_add(v[0], 1, at, v[1]); };
        CHECK(same_bits(add({x, from}), in_parts({x, from}, 1, add)));
      }
}

TEST_CASE("fold: dims beyond every block, against a loop", "[view]") {
  Rng rng(6);
  for (int64_t step : {1, 2, 3})
    for (int64_t inner : {1, 3, 700})
      for (int64_t count : {1, 2, 40, 9000}) {
        if (count * inner > 100'000) continue;
        const int64_t size = 4, length = (count - 1) * step + size;
        INFO(count << " windows, " << step << " apart, of " << inner);
        const Tensor windows = to(uniform({2, count, inner, size}, -9, 9, rng), i32);  // sums are exact
        const std::vector<int64_t> all_of = to(windows, i64).to_vector<int64_t>();
        std::vector<int64_t> y(static_cast<std::size_t>(2 * length * inner));
        for (int64_t i = 0; i < windows.numel(); ++i) {
          const int64_t k = i % size, j = i / size % inner, window = i / size / inner % count;
          const int64_t place = i / size / inner / count * length + window * step + k;
          y[static_cast<std::size_t>(place * inner + j)] += all_of[static_cast<std::size_t>(i)];
        }
        const Tensor expected = Tensor::from<int64_t>(y, {2, length, inner});
        for (DType t : {f32, bf16}) {
          const Tensor by_entry = permute(contiguous(permute(to(windows, t), {3, 0, 1, 2})), {1, 2, 3, 0});
          CHECK(all(to(fold(by_entry, 1, length, step), i64) == expected).item() != 0);
        }
      }
}

TEST_CASE("cat, stack: more than is written at a time, with a rest, against a loop", "[view]") {
  Rng rng(7);
  for (int64_t rows : {1, 2, 301, 1025}) {
    const Tensor wide = normal({rows, 3, 200}, 0, 1, rng), narrow_rows = normal({rows, 3, 7}, 0, 1, rng);
    const Tensor turned = transpose(normal({3, rows, 155}, 0, 1, rng), 0, 1);
    INFO(rows);
    const Tensor y = cat({wide, narrow_rows, turned}, 2);
    const std::vector<float> all = y.to_vector<float>();
    const std::vector<float> parts[] = {wide.to_vector<float>(), narrow_rows.to_vector<float>(),
                                        contiguous(turned).to_vector<float>()};
    const int64_t sizes[] = {200, 7, 155};
    bool same = y.shape() == Shape{rows, 3, 362};
    for (std::size_t i = 0, at = 0; same && i < static_cast<std::size_t>(rows * 3); ++i)
      for (std::size_t k = 0; k < 3; ++k)
        for (std::size_t j = 0, n = static_cast<std::size_t>(sizes[k]); j < n; ++j)
          same = same && all[at++] == parts[k][i * n + j];
    CHECK(same);
    const Tensor pair = stack({wide, wide + 1.0}, 1);
    CHECK(same_bits(contiguous(select(pair, 1, 0)), wide));
    CHECK(same_bits(contiguous(select(pair, 1, 1)), wide + 1.0));
  }
}
