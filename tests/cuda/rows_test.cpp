// Rows and columns on the device against the CPU: lengths around every border between the ways in which threads share
// them, by eights and one by one, f32 and bf16.
#include "support/approx.h"
#include "support/catch.h"

#include "cuda/same_there.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/backend.h>
#include <sluice/core/kernel/observer.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/rope.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/rearrange.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("cuda: rows by eights and one by one", "[cuda]") {
  for (const DType dtype : {f32, bf16})
    // One warp's rows, a block's; with and without eights; held by 32, 64, 128 and 256 threads, and read again.
    for (const int64_t width : {1, 9, 64, 264, 512, 520, 1024, 1032, 2048, 2049, 2056, 4096, 4104}) {
      const Tensor x = numbers({5, width}, dtype, 11), w = numbers({width}, dtype, 12);
      same_there(
          "softmax", {x}, [](const auto& t) { return softmax(t[0]); }, 4);
      same_there(
          "log_softmax", {x}, [](const auto& t) { return log_softmax(t[0]); }, 8);
      same_there(
          "layer_norm", {x, w}, [](const auto& t) { return layer_norm(t[0], t[1], t[1]); }, 16);
      same_there(
          "rms_norm", {x, w}, [](const auto& t) { return rms_norm(t[0], t[1]); }, 16);
      same_there(
          "layer_norm without weights", {x}, [](const auto& t) { return layer_norm(t[0]); }, 16);
      const auto gradient = [&](const std::string& what, auto f, double ulps) {
        if (width == 1) return;  // the gradient of a constant: nothing but rounding errors
        same_there(
            what, {x, numbers({5, width}, dtype, 14), w},
            [=](const auto& t) {
              const Tensor leaf = t[0].detach().requires_grad_();
              return grad({f(leaf, t[2])}, {leaf}, {.grad_outputs = {t[1]}})[0];
            },
            ulps);
      };
      gradient(
          "softmax, backward", [](const Tensor& v, const Tensor&) { return softmax(v); }, 16);
      gradient(
          "log_softmax, backward", [](const Tensor& v, const Tensor&) { return log_softmax(v); }, 16);
      gradient(
          "layer_norm, backward", [](const Tensor& v, const Tensor& s) { return layer_norm(v, s, s); }, 16);
      gradient(
          "rms_norm, backward", [](const Tensor& v, const Tensor& s) { return rms_norm(v, s); }, 16);
      gradient(
          "layer_norm without weights, backward", [](const Tensor& v, const Tensor&) { return layer_norm(v); }, 16);
      const Tensor targets = Tensor::from(std::vector<int64_t>{0, width - 1, width / 2, -100, 0}, {5});
      for (const double smoothing : {0.0, 0.1}) {
        const auto loss = [=](const Tensor& v, const Tensor& at) {
          return cross_entropy(v, at, {.label_smoothing = smoothing});
        };
        same_there(
            "cross_entropy", {x, targets}, [=](const auto& t) { return loss(t[0], t[1]); }, 16);
        same_there(
            "cross_entropy, backward", {x, targets},
            [=](const auto& t) {
              const Tensor leaf = t[0].detach().requires_grad_();
              return grad({loss(leaf, t[1])}, {leaf})[0];
            },
            16);
      }
      CHECK(max_abs(to(layer_norm(full({5, width}, 123.456, {dtype, gpu})), cpu)) == 0);
    }
  for (const DType dtype : {f32, bf16})
    for (const RopePairing pairing : {RopePairing::half, RopePairing::interleaved})
      for (const int64_t d : {16, 32, 48, 20, 6}) {
        RopeOptions o;
        o.pairing = pairing;
        same_there(
            "rope", {numbers({2, 3, 37, d}, dtype, 13)}, [&](const auto& t) { return rope(t[0], o); }, 4);
      }
}

TEST_CASE("cuda: running sums of rows, eight numbers a thread", "[cuda]") {
  for (const DType dtype : {f32, bf16})
    for (const int64_t n :
         {8, 12, 248, 256, 264, 2048, 2056, 4104})  // a warp's rows, a block's; a round and a piece more
      for (const bool exclusive : {false, true})
        for (const bool reverse : {false, true})
          same_there(
              "cumsum", {numbers({3, n}, dtype, 33)},
              [=](const auto& t) {
                return cumsum(t[0], 1, {exclusive, reverse});
              },
              1);
}

TEST_CASE("cuda: columns by eights and one by one, alone, in blocks and in pieces", "[cuda]") {
  for (const DType dtype : {f32, bf16})
    for (const int64_t n : {3, 33, 127, 128, 129, 512, 700})  // 128: four rows of each thread of a block
      for (const int64_t inner : {1, 8, 12, 64, 72, 136}) {
        const Tensor x = numbers({3, n, inner}, dtype, 22);
        const double ulps = dtype == bf16 ? 1 : 4;  // the CPU adds columns of f32 in another precision
        same_there(
            "sum", {x}, [](const auto& t) { return sum(t[0], {1}); }, ulps);
        same_there(
            "norm", {x}, [](const auto& t) { return norm(t[0], {1}); }, ulps);
        same_there("max", {x}, [](const auto& t) { return max(t[0], {1}); });
        same_there("min", {x}, [](const auto& t) { return min(t[0], {1}); });
        for (const int64_t skipped : {int64_t{1}, inner})
          same_there(
              "a view", {x},
              [=](const auto& t) {
                const Tensor part = narrow(reshape(t[0], {3 * n * inner}), 0, skipped, (3 * n - 1) * inner);
                return sum(reshape(part, {3 * n - 1, inner}), {0});
              },
              ulps);
        same_there(
            "dw", {reshape(x, {3 * n, inner}), numbers({inner}, dtype, 23)},
            [](const auto& t) {
              const Tensor w = t[1].detach().requires_grad_();
              return grad({layer_norm(t[0], w, w)}, {w}, {.grad_outputs = {t[0]}})[0];
            },
            dtype == bf16 ? 2 : 32);
      }
  std::vector<double> others(40 * 8, 1);
  others[8] = INFINITY, others[17] = NAN, others[39 * 8 + 2] = -INFINITY;
  const Tensor x = to(Tensor::from(others, {40, 8}), bf16);
  same_there("max", {x}, [](const auto& t) { return max(t[0], {0}); });
  same_there("sum", {x}, [](const auto& t) { return sum(t[0], {0}); });
}

TEST_CASE("cuda: softmax of columns, alone, in blocks and in pieces", "[cuda]") {
  // One thread's columns, a block's, and those that are cut into pieces; with and without eights, tiles of 32 columns.
  for (const DType dtype : {f32, bf16, f64})
    for (const Shape& shape :
         {Shape{1, 16}, {3, 1, 17}, {2, 32, 24}, {33, 33}, {2, 257, 40}, {512, 64}, {520, 19}, {3, 2, 600, 16}})
      for (const bool log : {false, true}) {
        const auto along = [=](const Tensor& x) { return log ? log_softmax(x, -2) : softmax(x, -2); };
        const Tensor x = numbers(shape, dtype, 30), g = numbers(shape, dtype, 31);
        const double ulps = dtype == f64 ? 0x1p-25 : 8;  // 16 of f64's
        same_there(
            "softmax of columns", {x}, [=](const auto& t) { return along(t[0]); }, ulps);
        same_there(
            "its gradient", {x, g},
            [=](const auto& t) {
              Tensor leaf = t[0].detach();
              leaf.requires_grad_();
              return grad({along(leaf)}, {leaf}, {.grad_outputs = {t[1]}})[0];
            },
            4 * ulps);
      }
  const Tensor x = numbers({2, 40, 24}, bf16, 32);  // not transposed, not widened
  sluice::detail::WorkCounter counter;
  const Tensor there = to(x, gpu), y = softmax(there, 1);
  CHECK(counter.work().widened == 0);
  CHECK(same_bits(narrow(y, 1, 0, 40), y));
}

TEST_CASE("cuda: an extreme of 0 and -0 is 0", "[cuda]") {
  for (const DType dtype : {f32, f64, bf16})
    for (const int64_t n : {1, 5, 40, 600})
      for (const int d : {0, 1}) {
        INFO(str(dtype, " ", n, " ", d));
        Tensor x = full(d == 0 ? Shape{n, 24} : Shape{24, n}, -0.0, {dtype});
        Tensor some = narrow(x, d, n / 2, 1);
        fill_(some, 0);
        const Tensor there = to(x, gpu), zero = zeros({24}, {dtype});
        CHECK(same_bits(to(max(there, {d}), cpu), zero));
        CHECK(same_bits(to(min(there, {d}), cpu), zero));
      }
}

TEST_CASE("cuda: columns with infinities and NaN", "[cuda]") {
  for (const int64_t n : {5, 40, 600}) {
    const int64_t m = 24;
    std::vector<std::pair<int64_t, double>> others = {{m + 1, kInf}, {2, kNan}, {3, -kInf}, {4, kInf}, {m + 4, kNan}};
    others.insert(others.end(), {{5, kInf}, {(n - 1) * m + 5, kInf}, {6, kInf}, {m + 6, 200}, {7, -kInf}, {8, 3e38}});
    others.insert(others.end(), {{m + 7, kInf}, {(n - 1) * m + 9, kInf}, {10, kNan}, {m + 10, kInf}});
    for (int64_t i = 0; i < n; ++i) others.push_back({i * m, -kInf});
    for (const DType dtype : {f32, f64})
      for (const bool log : {false, true})
        check(
            [&](Device d) {
              const Tensor x = values({n, m}, dtype, d, 1, others);
              return std::vector{log ? log_softmax(x, 0) : softmax(x, 0)};
            },
            100);
  }
}
