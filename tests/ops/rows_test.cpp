// Rows of every length: what is left over beside the lanes that kernels take at a time.
#include <sluice/ops/rows/reduce.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

using namespace sluice;
using namespace sluice::testing;

namespace {

std::vector<int64_t> lengths() {
  std::vector<int64_t> all;
  for (int64_t n = 1; n <= 150; ++n) all.push_back(n);
  for (int64_t n : {191, 255, 256, 257, 1000, 1023, 1024, 1025, 1103, 2100}) all.push_back(n);
  return all;
}

}  // namespace

TEST_CASE("rows: sums and extremes of every length", "[rows]") {
  Rng rng(1);
  for (DType dtype : {f32, f64, bf16})
    for (int64_t n : lengths()) {
      INFO(n << " " << name_of(dtype));
      const Tensor x = normal({3, n}, 0.5, 1, rng, {dtype});
      const std::vector<double> values = to(x, f64).to_vector<double>();
      for (int64_t r = 0; r < 3; ++r) {
        const auto row = values.begin() + r * n;
        double total = 0;
        for (int64_t i = 0; i < n; ++i) total += row[i];
        const double eps = dtype == bf16 ? 0x1p-8 : dtype == f32 ? 0x1p-22 : 0x1p-50;
        CHECK(std::abs(to(sum(x, {1}), f64).to_vector<double>()[r] - total) <= eps * (std::abs(total) + double(n)));
        CHECK(to(max(x, {1}), f64).to_vector<double>()[r] == *std::max_element(row, row + n));
        CHECK(to(min(x, {1}), f64).to_vector<double>()[r] == *std::min_element(row, row + n));
      }
    }
}

TEST_CASE("rows: extremes of integers and their places", "[rows]") {
  Rng rng(7);
  for (DType dtype : {i64, i32})
    for (int64_t n : {1, 2, 15, 16, 17, 63, 64, 65, 200, 1025, 70'001})
      for (int64_t columns : {1, 3, 130}) {
        if (n * columns > 300'000) continue;
        INFO(str(n, "x", columns, " ", dtype));
        const int64_t least = dtype == i64 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int32_t>::min();
        for (int64_t first : {least, int64_t{-1000}, -1 - least - 1000}) {
          const Tensor x = to(randint(0, 1000, {n, columns}, rng) + Tensor::from<int64_t>({first}), dtype);
          const auto all = to(x, i64).to_vector<int64_t>();
          const auto largest = to(max(x, {0}), i64).to_vector<int64_t>(),
                     least_of = to(min(x, {0}), i64).to_vector<int64_t>();
          const auto place = argmax(x, 0).to_vector<int64_t>();
          for (int64_t c = 0; c < columns; ++c) {
            std::vector<int64_t> column;
            for (int64_t i = 0; i < n; ++i) column.push_back(all[i * columns + c]);
            const auto top = std::max_element(column.begin(), column.end());
            CHECK(largest[c] == *top);
            CHECK(place[c] == top - column.begin());
            CHECK(least_of[c] == *std::min_element(column.begin(), column.end()));
          }
          CHECK(max(x).item<int64_t>() == *std::max_element(all.begin(), all.end()));
        }
      }
}

TEST_CASE("rows: a part of each row gives the bits of its copy, over any dims", "[rows]") {
  Rng rng(3);
  for (DType t : {f32, f64, bf16, i64, i32})
    for (int64_t width : {191, 192, 257, 1025, 2049}) {
      const Tensor x = to(normal({5, 33, width + 70}, 0, 300, rng), t);
      for (const Tensor& part : {narrow(x, 2, 3, width), narrow(narrow(x, 1, 1, 31), 2, 0, width),
                                 transpose(narrow(x, 2, 1, width), 0, 1), transpose(narrow(x, 2, 1, width), 1, 2),
                                 slice(x, 2, 0, width, 2), expand(narrow(x, 1, 2, 1), {5, 9, width + 70})}) {
        const Tensor copy = clone(contiguous(part));
        for (const Shape& dims : {Shape{}, {0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}}) {
          INFO(name_of(t) << ", " << str(part.shape()) << " over " << str(dims));
          CHECK(same_bits(sum(part, dims), sum(copy, dims)));
          CHECK(same_bits(max(part, dims), max(copy, dims)));
          if (is_float(t)) CHECK(same_bits(norm(part, dims), norm(copy, dims)));
        }
      }
    }
}

TEST_CASE("rows: a NaN is the largest wherever it stands", "[rows]") {
  for (int64_t n : {1, 2, 15, 16, 17, 63, 64, 65, 100, 130})
    for (int64_t at = 0; at < n; ++at) {
      Tensor x = full({1, n}, 2);
      Tensor place = narrow(x, 1, at, 1);
      fill_(place, std::numeric_limits<double>::quiet_NaN());
      CHECK(std::isnan(max(x, {1}).item()));
      CHECK(std::isnan(min(x, {1}).item()));
      CHECK(std::isnan(sum(x, {1}).item()));
      CHECK(std::isnan(sum(softmax(x, -1)).item()));
    }
}

TEST_CASE("rows: softmax and norms of every length", "[rows]") {
  Rng rng(2);
  for (int64_t n : lengths()) {
    INFO(n);
    const Tensor x = normal({4, n}, 0, 3, rng), exact = to(x, f64);
    const Tensor e = exp(exact - max(exact, {1}, true)), c = exact - mean(exact, {1}, true);
    CHECK(max_abs_diff(to(softmax(x, -1), f64), e / sum(e, {1}, true)) < 1e-6);
    CHECK(max_abs_diff(to(log_softmax(x, -1), f64), log(e / sum(e, {1}, true))) < 1e-5);
    CHECK(max_abs_diff(to(layer_norm(x, {}, {}, 1e-3), f64), c / sqrt(mean(c * c, {1}, true) + 1e-3)) < 1e-5);
    CHECK(max_abs_diff(to(rms_norm(x, {}, 1e-3), f64), exact / sqrt(mean(exact * exact, {1}, true) + 1e-3)) < 1e-5);
  }
}

TEST_CASE("rows: gradients of a norm's weight and bias are added up in blocks", "[rows]") {
  const Tensor x = full({1 << 18, 4}, 3), g = full(x.shape(), 0.7);
  Tensor w = ones({4}).requires_grad_(), b = zeros({4}).requires_grad_(), v = ones({4}).requires_grad_();
  backward(sum(layer_norm(x, w, b) * g) + sum(rms_norm(x, v) * g));
  const double want = double(0.7f) * (1 << 18), most = 256 * 0x1p-24;  // 512 rows, half a unit each
  CHECK(max(abs(to(b.grad(), f64) / want - 1)).item() < most);
  const double unit = to(rms_norm(narrow(x, 0, 0, 1)), f64).to_vector<double>()[0];
  CHECK(max(abs(to(v.grad(), f64) / (want * unit) - 1)).item() < most);
}

TEST_CASE("rows: the bits of a row do not depend on the rows beside it", "[rows]") {
  Rng rng(6);
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (DType dtype : {f32, f64, bf16})
    for (int64_t n = 1; n <= 70; ++n) {
      INFO(str(n, " ", dtype));
      Tensor x = normal({300, n}, 0, 3, rng, {dtype});
      for (auto [row, value] : {std::pair{4, -inf}, {5, nan}, {299, 100.0}}) {
        Tensor some = narrow(x, 0, row, 1);
        fill_(some, value);
      }
      for (int64_t first : {0, 128, 297}) {
        const Tensor few = narrow(x, 0, first, 3);
        CHECK(same_bits(narrow(softmax(x), 0, first, 3), softmax(few)));
        CHECK(same_bits(narrow(log_softmax(x), 0, first, 3), log_softmax(few)));
        CHECK(same_bits(narrow(logsumexp(x, {1}), 0, first, 3), logsumexp(few, {1})));
      }
      CHECK(max_abs(narrow(softmax(x), 0, 4, 1)) == 0);
      CHECK(std::isnan(to(sum(narrow(softmax(x), 0, 5, 1)), f64).item()));
      fill_(x, inf);
      CHECK(std::isnan(to(sum(softmax(x)), f64).item()));
      CHECK(to(min(logsumexp(x, {1})), f64).item() == inf);
    }
}

TEST_CASE("rows: logsumexp of every length, along rows, columns and dims apart", "[rows]") {
  Rng rng(4);
  const auto check = [](const Tensor& x, const Shape& dims) {
    INFO(str(x.shape(), " over ", dims, " ", x.dtype()));
    const Tensor exact = to(x, f64), top = max(exact, dims, keep);
    const Tensor want = log(sum(exp(exact - top), dims, keep)) + top;
    const double eps = x.dtype() == bf16 ? 0x1p-8 : x.dtype() == f32 ? 0x1p-22 : 0x1p-50;
    CHECK(max_abs_diff(to(logsumexp(x, dims, keep), f64), want) <= eps * (1 + max_abs(want)));
    CHECK(logsumexp(x, dims).shape() == sum(x, dims).shape());
  };
  for (DType dtype : {f32, f64, bf16}) {
    for (int64_t n : lengths()) check(normal({3, n}, 0, 3, rng, {dtype}), {1});
    for (int64_t inner : {2, 15, 16, 129})
      for (int64_t n : {1, 2, 127, 300}) check(normal({2, n, inner}, 0, 3, rng, {dtype}), {1});
    check(normal({150'001}, 0, 3, rng, {dtype}), {0});  // in pieces
    check(normal({2, 70'001}, 100, 3, rng, {dtype}), {1});
    check(normal({2, 1501, 140}, 0, 3, rng, {dtype}), {1});
    check(normal({7, 5, 6}, 0, 3, rng, {dtype}), {0, 2});
    check(permute(normal({7, 5, 6}, 0, 3, rng, {dtype}), {2, 0, 1}), {0, 1});
  }
}

TEST_CASE("rows: logsumexp of inf and NaN, in pieces, too", "[rows]") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto value = [](double fill, int64_t count, double at, bool rows, DType dtype) {
    const int64_t n = 70'001, columns = rows ? 1 : 20;
    Tensor x = full({n, columns}, fill, {dtype}), some = narrow(narrow(x, 1, columns - 1, 1), 0, 40'000, count);
    fill_(some, at);
    return to(logsumexp(x, {0}), f64).to_vector<double>().back();
  };
  for (DType dtype : {f32, f64, bf16})
    for (bool rows : {true, false}) {
      CHECK(value(-inf, 1, -inf, rows, dtype) == -inf);
      CHECK(value(-inf, 1, 5, rows, dtype) == 5);
      CHECK(value(-1000, 3, inf, rows, dtype) == inf);
      CHECK(value(-inf, 1, inf, rows, dtype) == inf);
      CHECK(std::isnan(value(0, 1, nan, rows, dtype)));
      CHECK(std::isnan(value(inf, 1, nan, rows, dtype)));
      CHECK(value(-1e30, 2, 3e38, rows, dtype) == Approx(3e38).epsilon(dtype == bf16 ? 0x1p-8 : 1e-6));
    }
}

TEST_CASE("rows: slopes of logsumexp, of both orders", "[rows]") {
  Rng rng(5);
  for (const Shape& dims : {Shape{0}, Shape{1}, Shape{2}, Shape{0, 2}, Shape{}})
    for (int64_t inner : {3, 17}) {
      const Tensor x = normal({2, 3, inner}, 0, 1, rng, {f64}).requires_grad_();
      const auto of = [&](const std::vector<Tensor>& in) { return logsumexp(in[0], dims); };
      CHECK(gradcheck(of, {x}));
      CHECK(gradgradcheck(of, {x}));
    }
  const Tensor x = Tensor::from<double>({3, 1e30, 1e30, -1e30}).requires_grad_();
  CHECK(grad(logsumexp(x), x).to_vector<double>() == std::vector<double>{0, 0.5, 0.5, 0});
  const Tensor half = normal({5, 100}, 0, 1, rng, {bf16}).requires_grad_(), wide = to(half.detach(), f32);
  CHECK(same_bits(grad(sum(logsumexp(half, {1})), half), to(softmax(wide), bf16)));
}

TEST_CASE("rows: of equal numbers nothing is left behind their mean", "[rows]") {
  Rng rng(5);
  for (DType dtype : {f32, f64, bf16})
    for (int64_t n : {1, 3, 16, 17, 100, 1000})
      for (double value : {0.1, 123.456, -1000000.125, 3e5}) {
        INFO(n << " of " << value << " " << name_of(dtype));
        const Tensor x = full({2, n}, value, {dtype}).requires_grad_(), y = layer_norm(x, {}, {}, 1e-12);
        CHECK(max_abs(y) == 0);
        GradOptions by{.retain_graph = true, .grad_outputs = {normal(x.shape(), 0, 1, rng, {dtype})}};
        const Tensor slope = grad({y}, {x}, by)[0];
        by.create_graph = true;  // r = 10⁶ is the size of the slope
        const double eps = dtype == bf16 ? 0x1p-8 : dtype == f32 ? 0x1p-24 : 0x1p-53;
        CHECK(max_abs_diff(grad({y}, {x}, by)[0], slope) <= 32 * eps * 1e6);
      }
}

TEST_CASE("rows: beside one much larger number the others keep their digits", "[rows]") {
  Rng rng(6);
  for (int64_t n : {768, 4097})
    for (int64_t place : {int64_t{0}, int64_t{5}, n - 1}) {
      INFO(n << ", at " << place);
      const Tensor x = normal({2, n}, 0, 0.1, rng), others = ones({2, n});
      Tensor large = narrow(x, 1, place, 1), left_out = narrow(others, 1, place, 1);
      fill_(large, 1000), fill_(left_out, 0);
      const auto error = [&](const Tensor& y, const Tensor& exact) {
        const Tensor shown = exact * to(others, f64);
        return max_abs((to(y, f64) - exact) * to(others, f64)) / max_abs(shown);
      };
      const Tensor a = x.detach().requires_grad_(), b = to(x, f64).requires_grad_(), g = normal({2, n}, 0, 1, rng);
      const Tensor w = ones({n}).requires_grad_(), v = ones({n}, {f64}).requires_grad_();
      const Tensor y = layer_norm(a, w, {}), exact = layer_norm(b, v, {});
      CHECK(error(y, exact) <= 1e-6);
      const Tensor right = grad({exact}, {v}, {.grad_outputs = {to(g, f64)}})[0];
      for (bool recorded : {false, true}) {
        const GradOptions by{.create_graph = recorded, .retain_graph = true, .grad_outputs = {g}};
        CHECK(error(grad({y}, {w}, by)[0], right) <= 1e-6);
      }
    }
}

TEST_CASE("rows: variances of numbers far from 0", "[rows]") {
  Rng rng(7);
  for (double mean : {1e4, -1e6}) {
    const Tensor x = normal({300, 65}, mean, 1, rng), exact = var(to(x, f64), {1});
    CHECK(max_abs((to(var(x, {1}), f64) - exact) / exact) <= 1e-6);
    CHECK(max_abs((to(square(std_dev(x, {1})), f64) - exact) / exact) <= 2e-6);
  }
}

TEST_CASE("rows: a dot, and a column times one number", "[rows]") {
  Rng rng(3);
  for (DType dtype : {f32, f64, bf16})
    for (int64_t k : {0, 1, 2, 15, 16, 17, 300, 70001}) {
      INFO(k << " " << name_of(dtype));
      const Tensor a = normal({k}, 0, 1, rng, {dtype}), b = normal({k}, 0, 1, rng, {dtype});
      const double total = sum(to(a, f64) * to(b, f64)).item<double>();
      const double eps = dtype == bf16 ? 0x1p-8 : dtype == f32 ? 0x1p-21 : 0x1p-48;
      const double size = 1 + sum(abs(to(a, f64) * to(b, f64))).item<double>();
      CHECK(std::abs(to(matmul(a, b), f64).item<double>() - total) <= eps * size);
      const Tensor column = unsqueeze(a, 1), one = full({1, 1}, 0.5, {dtype});
      CHECK(same_bits(matmul(column, one), column * 0.5));
      CHECK(same_bits(matmul(one, transpose(column, 0, 1)), transpose(column, 0, 1) * 0.5));
    }
}
