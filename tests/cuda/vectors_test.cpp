// What takes eight numbers a thread, or goes through tiles, on the device against the CPU: counts beyond every loop and
// one more, rows beyond the tiles, views that begin at any number, broadcasts; f32, bf16 and what is copied bit by bit.
#include "support/approx.h"
#include "support/catch.h"

#include "cuda/same_there.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/backend.h>
#include <sluice/core/kernel/observer.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/rearrange.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>
#include <functional>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// 0 … 6 in an order without a pattern that a kernel could know, i64 [n].
Tensor remainder_of_7(int64_t n) {
  std::vector<int64_t> index;
  for (int64_t i = 0; i < n; ++i) index.push_back(i * i * 3 % 7);
  return Tensor::from(index, {n});
}

}  // namespace

TEST_CASE("cuda: eight numbers a thread, at every count, offset and broadcast", "[cuda]") {
  for (const DType dtype : {f32, bf16}) {
    for (const int64_t n : {1, 7, 8, 9, 2048, 12289, 12296}) {  // 6,144 are one round of the emulated device's threads
      const Tensor a = numbers({n}, dtype, 1), b = numbers({n}, dtype, 2);
      same_there("add", {a, b}, [](const auto& x) { return x[0] + x[1]; });
      same_there("where", {a, b}, [](const auto& x) { return where(x[0] > x[1], x[0], x[1]); });
      same_there("to f32", {a}, [](const auto& x) { return to(x[0], f32); });
      same_there("to bf16", {a}, [](const auto& x) { return to(x[0], bf16); });
      for (const int64_t skipped : {1, 3, 8})
        if (skipped < n)
          same_there("view", {a, b}, [=](const auto& x) {
            return narrow(x[0], 0, skipped, n - skipped) * narrow(x[1], 0, 0, n - skipped);
          });
    }
    for (const int64_t width : {5, 8, 24, 33}) {
      const Tensor a = numbers({70, width}, dtype, 3), row = numbers({width}, dtype, 4),
                   column = numbers({70, 1}, dtype, 5);
      same_there("row", {a, row}, [](const auto& x) { return x[0] * x[1]; });
      same_there("column", {a, column}, [](const auto& x) { return x[0] - x[1]; });
      same_there("one", {a, numbers({1, 1}, dtype, 6)}, [](const auto& x) { return x[0] + x[1]; });
      same_there("columns", {a}, [=](const auto& x) { return contiguous(narrow(x[0], 1, 1, width - 1)); });
    }
  }
}

TEST_CASE("cuda: copies of transposed tensors, beyond a tile in each dim", "[cuda]") {
  for (const DType dtype : {f32, bf16, f64, i64, boolean})
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{33, 65},
                               {8, 9},
                               {7, 40},
                               {64, 32},
                               {97, 31},
                               {64, 128},
                               {136, 72},
                               {12, 132},
                               {200, 20}}) {
      same_there("matrix", {numbers({m, n}, dtype, 7)},
                 [](const auto& x) { return contiguous(transpose(x[0], 0, 1)); });
      same_there("heads", {numbers({2, m, 3, n}, dtype, 8)},
                 [](const auto& x) { return contiguous(transpose(x[0], 1, 3)); });
      same_there("batch", {numbers({3, m, n}, dtype, 9)},
                 [](const auto& x) { return contiguous(transpose(x[0], 1, 2)); });
      for (const int64_t skipped : {1, 8})
        same_there("a view", {numbers({m + 8, n + 8}, dtype, 9)}, [=](const auto& x) {
          return contiguous(transpose(narrow(narrow(x[0], 0, 8, m), 1, skipped, n), 0, 1));
        });
    }
  for (const DType to_dtype : {f32, bf16})
    same_there("converted", {numbers({33, 65}, to_dtype == f32 ? bf16 : f32, 10)},
               [=](const auto& x) { return to(transpose(x[0], 0, 1), to_dtype); });
}

TEST_CASE("cuda: formulas of transposed operands, which are copied if they are large", "[cuda]") {
  for (const DType dtype : {f32, bf16, f64})
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{8, 9}, {129, 80}, {2, 8192}}) {
      const Tensor a = numbers({m, n}, dtype, 40), b = numbers({n, m}, dtype, 41), many = numbers({3, m, n}, dtype, 42);
      same_there("transposed", {a, b}, [](const auto& x) { return x[0] + transpose(x[1], 0, 1); });
      same_there("repeated", {many, b}, [](const auto& x) { return transpose(x[1], 0, 1) * x[0]; });
      same_there("mask", {a, b},
                 [](const auto& x) { return where(transpose(x[1] > 0.0, 0, 1), x[0], transpose(x[1], 0, 1)); });
      same_there("gradient", {a, b}, [](const auto& x) {
        const Tensor leaf = transpose(x[1], 0, 1).detach().requires_grad_();
        return grad({leaf * x[0]}, {leaf}, {.grad_outputs = {transpose(x[1], 0, 1)}})[0];
      });
    }
}

TEST_CASE("cuda: slices are copied by four pieces and one by one", "[cuda]") {
  for (const int64_t pieces : {32, 33, 127, 128, 129, 260, 2049, 3100})  // of 16 bytes; a warp's slices, a block's
    for (const DType dtype : {f32, bf16})
      same_there(str(pieces, " pieces"), {numbers({7, pieces * 16 / size_of(dtype)}, dtype, 15), remainder_of_7(9)},
                 [](const auto& t) { return index_select(t[0], 0, t[1]); });
}

TEST_CASE("cuda: slices are added by pieces of 32 bytes and column by column, in the order of the index", "[cuda]") {
  for (const DType dtype : {f32, bf16, f64, i64})
    for (const int64_t width : {4, 8, 16, 24, 33, 48, 512, 528})  // bf16 has 16 columns in a piece, f64 four
      for (const int64_t n : {1, 2, 5, 7, 40, 133}) {             // four slices of a target at a time, and one by one
        const Tensor x = numbers({2, 7, width}, dtype, 50), y = numbers({2, n, width}, dtype, 51),
                     more = numbers({1 + 2 * n * width}, dtype, 51);
        same_there("sums", {x, y, remainder_of_7(n)}, [](const auto& t) { return index_add(t[0], 1, t[2], t[1]); });
        same_there("a view", {x, more, remainder_of_7(n)}, [=](const auto& t) {  // it begins between two pieces
          return index_add(t[0], 1, t[2], reshape(narrow(t[1], 0, 1, 2 * n * width), {2, n, width}));
        });
      }
}

TEST_CASE("cuda: of several numbers for a place scatter writes the last, and only that has a gradient", "[cuda]") {
  for (const DType dtype : {f32, bf16, f64, i64, i32, boolean})
    for (const int64_t n : {1, 2, 17, 256, 257, 700})
      for (const int dim : {0, 1, 2}) {
        Shape shape = {2, 3, 5}, target = {4, 3, 6};
        shape[dim] = n, target[dim] = n == 700 ? 4000 : 9;  // a large result: by sorting
        const Tensor x = numbers(target, dtype, 33), src = numbers(shape, dtype, 34);
        const Tensor index = reshape(remainder_of_7(shape.numel()), shape);
        same_there("scatter", {x, src, index}, [=](const auto& t) { return scatter(t[0], dim, t[2], t[1]); });
        if (!is_float(dtype)) continue;
        for (const std::size_t k : {0, 1})
          same_there("its gradient", {x, src, index, numbers(target, dtype, 35)}, [=](const auto& t) {
            std::vector<Tensor> leaves{t[0].detach(), t[1].detach()};
            for (Tensor& leaf : leaves) leaf.requires_grad_();
            const Tensor y = scatter(leaves[0], dim, t[2], leaves[1]);
            return grad({y}, leaves, {.grad_outputs = {t[3]}})[k];
          });
      }
}

TEST_CASE("cuda: the memory that scatter takes is that of the index, not of the result", "[cuda]") {
  const Tensor x = zeros({2, 200000}, {bf16, gpu}), src = ones({2, 257}, {bf16, gpu});
  const Tensor index = zeros({2, 257}, {i64, gpu});
  sluice::detail::backend(gpu).reset_peak(0);
  const int64_t before = memory_stats(gpu).live;
  const Tensor y = scatter(x, 1, index, src);
  CHECK(memory_stats(gpu).peak - before < 2 * y.numel() + 100 * index.numel());
}

TEST_CASE("cuda: sigmoid from one end of the numbers to the other", "[cuda]") {
  std::vector<float> x{-INFINITY, -3e38f, -0.0f, 0.0f, 1e-30f, 3e38f, INFINITY, NAN};
  for (float v = -110; v < 110; v += 0.37f) x.push_back(v);
  const Tensor at = Tensor::from(x, {static_cast<int64_t>(x.size())});
  const auto got = to(sigmoid(to(at, gpu)), cpu).to_vector<double>(), want = sigmoid(to(at, f64)).to_vector<double>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    INFO("sigmoid(" << x[i] << ") = " << got[i]);
    if (std::isnan(want[i])) CHECK(std::isnan(got[i]));
    else CHECK(std::abs(got[i] - want[i]) <= 8 * 0x1p-24 * want[i] + 0x1p-126);  // below, some devices have only 0
    if (x[i] > 30) CHECK(got[i] == 1);
  }
}

TEST_CASE("cuda: fills and dropout, at every count and offset", "[cuda]") {
  for (const DType dtype : {f32, bf16, f64, i64})
    for (const int64_t n : {1, 3, 4, 5, 7, 8, 9, 255, 2049, 12289})
      for (const int64_t skipped : {0, 1, 2, 4, 8}) {
        if (skipped >= n) continue;
        const Tensor x = numbers({n}, dtype, 22);
        for (const int64_t left : {int64_t{0}, std::min<int64_t>(1, n - skipped - 1)})
          for (const double value : {0.0, -2.7, is_float(dtype) ? double{NAN} : 5.0})
            same_there("fill", {x}, [=](const auto& t) {
              Tensor y = clone(t[0]), part = narrow(y, 0, skipped, n - skipped - left);
              fill_(part, value);
              return y;
            });
        if (is_float(dtype))
          for (const double p : {0.3, 1.0})
            same_there("dropout", {x}, [=](const auto& t) {
              Rng rng(23);
              return dropout(narrow(t[0], 0, skipped, n - skipped), p, rng);
            });
      }
  for (const DType dtype : {f32, bf16})
    for (const int64_t width : {8, 15, 16, 24}) {
      same_there("fill of columns", {numbers({70, 32}, dtype, 24)}, [=](const auto& t) {
        Tensor y = clone(t[0]), part = narrow(y, 1, 8, width);
        fill_(part, 0.3);
        return y;
      });
    }
}

TEST_CASE("cuda: sums and draws of bf16 tensors are rounded once, without copies in f32", "[cuda]") {
  const auto same_and_narrow = [](const std::string& what, const std::vector<Tensor>& x,
                                  const std::function<Tensor(const std::vector<Tensor>&)>& f) {
    same_there(what, x, f);
    std::vector<Tensor> there;
    for (const Tensor& t : x) there.push_back(to(t, gpu));
    sluice::detail::WorkCounter counter;
    f(there);
    CHECK(counter.work().widened == 0);
  };
  for (const int64_t n : {1, 2, 9, 16, 17, 300, 2049}) {
    const Tensor x = numbers({3, n, 5}, bf16, 14), row = numbers({2, n}, bf16, 15);
    for (const bool exclusive : {false, true})
      for (const bool reverse : {false, true}) {
        same_and_narrow("cumsum of columns", {x}, [=](const auto& t) { return cumsum(t[0], 1, {exclusive, reverse}); });
        same_and_narrow("cumsum of rows", {row}, [=](const auto& t) { return cumsum(t[0], 1, {exclusive, reverse}); });
      }
    const Tensor to_rows = remainder_of_7(n), by_element = remainder_of_7(3 * n * 5);
    same_and_narrow("index_add", {numbers({3, 7, 5}, bf16, 16), x, to_rows},
                    [](const auto& t) { return index_add(t[0], 1, t[2], t[1]); });
    same_and_narrow("index_add of wide rows", {numbers({7, 70}, bf16, 17), numbers({n, 70}, bf16, 18), to_rows},
                    [](const auto& t) { return index_add(t[0], 0, t[2], t[1]); });
    // By target up to 16 numbers in a lane; then in a copy, unless the result is large or lanes are longer than 256.
    for (const int64_t rows : {7, 700})
      same_and_narrow("scatter_add", {numbers({3, rows, 5}, bf16, 19), x, reshape(by_element, {3, n, 5})},
                      [](const auto& t) { return scatter_add(t[0], 1, t[2], t[1]); });
    same_and_narrow("dropout", {row}, [](const auto& t) {
      Rng rng(20);
      return dropout(t[0], 0.3, rng);
    });
    same_and_narrow("add_", {row, numbers({2, n}, bf16, 21)}, [](const auto& t) {
      Tensor sum = clone(t[0]);
      add_(sum, t[1], 0.7);
      return sum;
    });
  }
}
