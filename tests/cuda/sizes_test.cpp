// Kernels of the device against those of the CPU at the edges of their own tiles: a warp's and a block's rows, pieces
// of long sums, tiles of columns and of sorted rows, each with one more; and the same bits in every schedule. The op
// table runs on the device, too (SLUICE_TEST_DEVICE), but knows nothing of these sizes.
#include "cuda/against_cpu.h"

#include <sluice/core/number/random.h>
#include <sluice/cuda/tensors.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/rope.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// f(device) throws, with the CPU's message.
template <class F> void same_error(F f) {
  auto message = [&](Device d) -> std::string {
    try {
      f(d);
    } catch (const Error& e) { return e.what(); }
    return "";
  };
  const std::string want = message(cpu);
  CHECK(want != "");
  CHECK(message(Device::cuda()) == want);
}

const int64_t kWidths[] = {1, 31, 33, 1024, 1025, 2049};

}  // namespace

TEST_CASE("cuda: rows of a warp and of a block") {
  for (DType t : {f32, f64})
    for (int64_t n : kWidths)
      for (int64_t rows : {1, 9}) {
        INFO(str(t) << " rows " << rows << " of " << n);
        for (bool log : {false, true})
          check(
              [&](Device d) {
                const Tensor x = values({rows, n}, t, d, 1), g = values({rows, n}, t, d, 2);
                Tensor y = empty_like(x), dx = empty_like(x);
                kernel::softmax(x, y, log);
                kernel::softmax_backward(y, g, dx, log);
                return std::vector{y, dx};
              },
              20.0 + static_cast<double>(n) / 16);
        for (bool centred : {false, true})
          check(
              [&](Device d) {
                const Tensor x = values({rows, n}, t, d, 3), g = values({rows, n}, t, d, 4);
                const Tensor w = values({n}, t, d, 5), b = values({n}, t, d, 6);
                Tensor y = empty_like(x), stats = empty({rows, 2}, x.options()), dx = empty_like(x), dw = empty_like(w),
                       db = empty_like(w);
                kernel::norm(x, w, centred ? b : Tensor(), y, stats, {centred, 1e-2});
                kernel::norm_backward(x, centred ? w : Tensor(), g, stats, dx, dw, db, {centred, 1e-2});
                return std::vector{y, stats, dx, dw, db};
              },
              400);
        for (double smoothing : {0.0, 0.1})
          check(
              [&](Device d) {
                const Tensor x = values({rows, n}, t, d, 7), g = values({rows}, t, d, 8);
                const Tensor target = values({rows}, i64, d, 9, [&] {
                  std::vector<std::pair<int64_t, double>> at;
                  for (int64_t r = 0; r < rows; ++r)
                    at.push_back({r, r == 4 ? -1.0 : r % 2 ? 0.0 : static_cast<double>(n - 1)});
                  return at;
                }());
                Tensor loss = empty({rows}, x.options()), dx = empty_like(x);
                kernel::cross_entropy(x, target, loss, smoothing);
                kernel::cross_entropy_backward(x, target, g, dx, smoothing);
                return std::vector{loss, dx};
              },
              20.0 + static_cast<double>(n) / 16);
      }
}

TEST_CASE("cuda: rows with infinities and NaN") {
  const int64_t n = 1025;
  std::vector<std::pair<int64_t, double>> others = {{n - 1, kInf}, {2 * n - 1, kNan}, {3 * n - 1, -kInf}};
  for (int64_t i = 0; i < n; ++i) others.push_back({3 * n + i, -kInf});
  for (bool log : {false, true})
    check(
        [&](Device d) {
          const Tensor x = values({4, n}, f32, d, 1, others);
          Tensor y = empty_like(x);
          kernel::softmax(x, y, log);
          return std::vector{y};
        },
        100);
}

TEST_CASE("cuda: weights and biases of norms of many rows") {
  for (int64_t rows : {33, 300})
    for (int64_t n : {3, 33})
      check(
          [&](Device d) {
            const Tensor x = values({rows, n}, f32, d, 1), g = values({rows, n}, f32, d, 2), w = values({n}, f32, d, 3);
            Tensor y = empty_like(x), stats = empty({rows, 2}, x.options()), dx = empty_like(x), dw = empty_like(w),
                   none;
            kernel::norm(x, w, {}, y, stats, {false, 1e-2});
            kernel::norm_backward(x, w, g, stats, dx, dw, none, {false, 1e-2});
            return std::vector{dx, dw};
          },
          1000);
}

TEST_CASE("cuda: targets are checked and counted") {
  auto run = [](Device d, const Tensor& targets, int64_t ignored) {
    Tensor flat = empty(targets.shape(), {i64, d}), share = empty({}, {f64, d});
    kernel::cross_entropy_targets(to(targets, d), ignored, 4, flat, share);
    return std::vector{flat, share};
  };
  std::vector<double> v(300, 2);
  for (std::size_t i = 7; i < 208; ++i) v[i] = -7;
  const Tensor good = tensor_of(v, {300}, i64, cpu);
  check([&](Device d) { return run(d, good, -7); });
  check([&](Device d) { return run(d, full({40}, -1, {i64, cpu}), -1); });  // nothing is left
  for (int bad : {-8, -1, 4}) {
    v[299] = bad, v[250] = bad;
    same_error([&](Device d) { run(d, tensor_of(v, {300}, i64, cpu), -7); });
  }
}

TEST_CASE("cuda: reductions of every form") {
  const ReduceShape shapes[] = {{1, 1, 1},     {5, 32, 3},  {3, 33, 1},  {9, 1025, 1}, {2, 8193, 1},
                                {1, 20001, 1}, {1, 33, 33}, {2, 257, 3}, {3, 700, 5},  {1, 513, 70}};
  for (const ReduceShape& s : shapes) {
    INFO(s.outer << " × " << s.n << " × " << s.inner);
    const int64_t n = s.outer * s.n * s.inner;
    for (DType t : {f32, f64, i64})
      check(
          [&](Device d) {
            Tensor y = empty({s.outer, s.inner}, {t, d});
            kernel::reduce(ReduceKind::sum, values({n}, t, d, 1, {{n - 1, 2}}), y, s);
            return std::vector{y};
          },
          300);
    for (double last : {2.0, 1e30, kInf, kNan})
      check(
          [&](Device d) {
            Tensor y = empty({s.outer, s.inner}, {f32, d});
            kernel::reduce(ReduceKind::norm, values({n}, f32, d, 1, {{n - 1, last}}), y, s);
            return std::vector{y};
          },
          4);
    for (double last : {0.5, 2.0, -2.0, kInf, kNan})
      check([&](Device d) {
        const Tensor x = values({n}, f32, d, 2, {{n - 1, last}});
        Tensor top = empty({s.outer, s.inner}, x.options()), low = empty_like(top);
        Tensor at = empty(top.shape(), {i64, d}), under = empty_like(at);
        kernel::reduce(ReduceKind::max, x, top, s);
        kernel::reduce(ReduceKind::min, x, low, s);
        kernel::arg_extreme(true, x, at, s);
        kernel::arg_extreme(false, x, under, s);
        return std::vector{top, low, at, under};
      });
    for (DType t : {f64, i64, i32, boolean})  // many equal values: the first
      check([&](Device d) {
        const Tensor x = values({n}, t, d, 3, {{n / 2, is_float(t) ? kNan : 1.0}});
        Tensor at = empty({s.outer, s.inner}, {i64, d}), under = empty_like(at);
        kernel::arg_extreme(true, x, at, s);
        kernel::arg_extreme(false, x, under, s);
        return std::vector{at, under};
      });
  }
}

TEST_CASE("cuda: running sums of every form") {
  for (const Shape& shape :
       {Shape{1, 1, 1}, {3, 33, 1}, {1, 1025, 1}, {2, 2051, 1}, {1, 16385, 1}, {2, 33, 3}, {1, 700, 5}, {1, 257, 300}})
    for (DType t : {f32, f64, i64, i32})
      for (bool exclusive : {false, true})
        for (bool reverse : {false, true}) {
          INFO(str(t) << " " << str(shape) << (exclusive ? " exclusive" : "") << (reverse ? " reverse" : ""));
          check(
              [&](Device d) {
                const Tensor x = values(shape, t, d, 1);
                Tensor y = empty_like(x);
                kernel::cumsum(x, y, 1, {.exclusive = exclusive, .reverse = reverse});
                return std::vector{y};
              },
              2000);
        }
  check(
      [&](Device d) {  // what comes before an infinity stays finite
        const Tensor x = values({2, 300}, f64, d, 1, {{200, kInf}, {500, kNan}});
        Tensor y = empty_like(x);
        kernel::cumsum(x, y, 1, {.exclusive = true});
        return std::vector{y};
      },
      2000);
}

TEST_CASE("cuda: sorted rows, ties by place, NaN last") {
  for (int64_t n : {1, 2, 3, 33, 65, 128, 129, 257, 385, 1025})
    for (DType t : {f32, f64, i64, i32, boolean})
      for (bool descending : {false, true}) {
        INFO(str(t) << " " << n << (descending ? " descending" : ""));
        check([&](Device d) {
          std::vector<std::pair<int64_t, double>> others;
          if (is_float(t))
            for (int64_t i = 0; i < 2 * n; i += 5)
              others.push_back(
                  {i, std::vector{kNan, -0.0, 0.0, kInf, -kInf, 0.25, 0.25}[static_cast<std::size_t>(i / 5 % 7)]});
          const Tensor x = values({2, n}, t, d, 1, others);
          Tensor all = empty({2, n}, {i64, d}), some = empty({2, (n + 2) / 3}, {i64, d});
          kernel::argsort(x, all, descending);
          kernel::argsort(x, some, descending);
          return std::vector{all, some};
        });
      }
  for (bool descending : {false, true})
    check([&](Device d) {
      Tensor least = full({1, 1}, -9.3e18, {i64, d}), most = full({1, 1}, 9.3e18, {i64, d}),
             at = empty({1, 1025}, {i64, d});
      const Tensor x =
          cat({values({1, 500}, i64, d, 1), most, values({1, 523}, i64, d, 1), least}, 1);  // the ends of the range
      kernel::argsort(x, at, descending);
      return std::vector{at};
    });
}

TEST_CASE("cuda: gathers from strided tensors of any dtype") {
  for (DType t : {f32, f64, bf16, i64, i32, boolean})
    for (int dim : {0, 1, 2})
      check([&](Device d) {
        const Tensor x = transpose(to(values({5, 3, 7}, t == bf16 ? f32 : t, d, 1), t), 0, 2);  // [7, 3, 5]
        Shape shape = {2, 3, 5};
        shape[dim] = 300;
        Shape chosen = x.shape();
        chosen[dim] = 300;
        Tensor y = empty(shape, {t, d}), picked = empty(chosen, {t, d});
        Rand rand(7);
        std::vector<double> each(static_cast<std::size_t>(shape.numel())), slices(300);
        for (double& v : each) v = static_cast<double>(rand.below(x.dim(dim)));
        for (double& v : slices) v = static_cast<double>(rand.below(x.dim(dim)));
        kernel::gather(x, dim, tensor_of(each, shape, i64, d), y);
        kernel::index_select("take", x, dim, tensor_of(slices, {300}, i64, d), picked);
        const DType as = t == bf16 ? f32 : t;
        return std::vector{to(y, as), to(picked, as)};
      });
}

TEST_CASE("cuda: slices that are runs of memory") {
  for (DType t : {f32, f64, boolean})
    for (int64_t width : {31, 128, 130, 1104, 4100})
      for (int64_t skip : {0, 1, 4})  // starts and strides that are no multiples of 16 bytes
        for (int64_t room : {width + skip + 2, (width + skip + 15) / 16 * 16})
          check([&](Device d) {
            const Tensor x = narrow(values({3, 4, room}, t, d, 1), 2, skip, width);
            const Tensor index = tensor_of({3, 0, 3, 2, 1}, {5}, i64, d), rows = tensor_of({2, 0}, {2}, i64, d);
            Tensor y = empty({3, 5, width}, {t, d}), z = empty({2, 4, width}, {t, d});
            kernel::index_select("take", x, 1, index, y);
            kernel::index_select("take", x, 0, rows, z);
            if (t == boolean) return std::vector{y, z};
            Tensor sums = values({3, 4, width}, t, d, 2);
            kernel::index_add(sums, 1, index, y);
            return std::vector{y, z, sums};
          });
}

TEST_CASE("cuda: additions at indices, in their order") {
  for (DType t : {f32, f64, i64, i32})
    for (int dim : {0, 1, 2})
      for (int64_t n : {1, 40, 256, 257, 700})
        check([&](Device d) {
          Shape shape = {2, 3, 5}, target = {4, 3, 6};
          shape[dim] = n, target[dim] = 9;
          Rand rand(static_cast<uint64_t>(n));
          std::vector<double> each(static_cast<std::size_t>(shape.numel())), slices(static_cast<std::size_t>(n));
          for (double& v : each) v = static_cast<double>(rand.below(8));  // nothing goes to the last
          for (double& v : slices) v = static_cast<double>(rand.below(8));
          Tensor y = values(target, t, d, 2), z = values(
                                                  [&] {
                                                    Shape s = shape;
                                                    return s[dim] = 9, s;
                                                  }(),
                                                  t, d, 3);
          const Tensor src = values(shape, t, d, 4);
          kernel::scatter_add(y, dim, tensor_of(each, shape, i64, d), src);
          kernel::index_add(z, dim, tensor_of(slices, {n}, i64, d), src);
          return std::vector{y, z};
        });
  same_error([&](Device d) {
    Tensor y = zeros({4, 3}, {f32, d});
    kernel::scatter_add(y, 0, tensor_of({0, 3, 1, 2, 4, -1}, {2, 3}, i64, d), zeros({2, 3}, {f32, d}));
  });
  same_error([&](Device d) {
    Tensor y = zeros({4, 3}, {f32, d});
    kernel::index_add(y, 1, tensor_of({0, 2, -1}, {3}, i64, d), zeros({4, 3}, {f32, d}));
  });
  same_error([&](Device d) {
    Tensor y = zeros({3}, {f32, d});
    kernel::index_select("embedding", zeros({4}, {f32, d}), 0, tensor_of({3, 0, 4}, {3}, i64, d), y);
  });
}

TEST_CASE("cuda: random numbers are the host's, beyond whole blocks") {
  for (int64_t n : {1, 2, 3, 5, 255, 1025})
    for (DType t : {f32, f64}) {
      INFO(str(t) << " " << n);
      check([&](Device d) {
        Rng rng(7);  // a uniform number's product and sum are exact within these bounds
        const Tensor some = uniform({n}, -2, 2, rng, {t, d}), one = uniform({n}, 0.5, 0.5, rng, {t, d});
        const Tensor coins = bernoulli({n}, 0.3, rng, d), dice = randint(-5, 1000, {n}, rng, d);
        return std::vector{some, one, coins, dice, permutation(n, rng, d)};
      });
      check(
          [&](Device d) {
            Rng rng(8);
            const Tensor some = uniform({n}, -2, 3, rng, {t, d}), bell = normal({n}, 0.5, 2, rng, {t, d});
            return std::vector{some, bell, truncated_normal({n}, -1, 3, rng, {t, d})};
          },
          8);
    }
}

TEST_CASE("cuda: a grid has at most 2^31 − 1 blocks") {
  const int64_t most = (int64_t{1} << 31) - 1;
  for (int64_t blocks : {int64_t{1}, most - 1, most, most + 1, 2 * most, 4 * most})
    CHECK(cuda::grid_of(blocks).x == (blocks < most ? blocks : most));
}

TEST_CASE("cuda: walks through dims of 2^32 elements and more") {
  const int64_t wide = (int64_t{1} << 32) + 5;
  const detail::StridedRange walk(Layout({2, wide}, {1, 2}, 0)), plain(Layout({3, 4}, {1, 7}, 0));
  CHECK((walk.wide && !plain.wide));
  for (const int64_t i : {int64_t{0}, int64_t{7}, wide - 1}) {
    CHECK(cuda::offset_at(walk, i) == 2 * i);
    CHECK(cuda::offset_at(walk, wide + i) == 2 * i + 1);
  }
  for (const int64_t i : {0, 3, 4, 11}) CHECK(cuda::offset_at(plain, i) == i / 4 + i % 4 * 7);
}

TEST_CASE("cuda: rotations of pairs, and channels that stay") {
  for (DType t : {f32, f64})
    for (RopePairing pairing : {RopePairing::half, RopePairing::interleaved})
      for (bool inverse : {false, true})
        check(
            [&](Device d) {
              const Tensor positions =
                  tensor_of({0, -5, 7, 1e6, 9007199254740992, -9007199254740992, 300}, {7}, i64, d);
              Tensor cos = empty({7, 45}, {t, d}), sin = empty_like(cos);
              std::vector<double> frequency;
              for (int k = 0; k < 45; ++k) frequency.push_back(std::pow(100.0, -k / 45.0));
              kernel::rope_angles(positions, 3, tensor_of(frequency, {45}, f64, d), cos, sin);
              std::vector results{cos, sin};
              for (int64_t inner : {1, 3}) {
                const Tensor x = values({6, 7, inner, 93}, t, d, 1);
                kernel::rope(x, cos, sin, results.emplace_back(empty_like(x)), pairing, inverse);
              }
              return results;
            },
            4);
  for (double far : {9007199254740994.0, -9007199254740994.0})
    same_error([&](Device d) {
      std::vector<double> v(100, 1.0);
      v[99] = v[70] = far, v[80] = 2 * far;
      Tensor cos = empty({100, 2}, {f32, d}), sin = empty_like(cos);
      kernel::rope_angles(tensor_of(v, {100}, i64, d), 0, tensor_of({1, 0.1}, {2}, f64, d), cos, sin);
    });
}

TEST_CASE("cuda: T5's buckets are the host's") {
  for (bool causal : {false, true})
    check([&](Device d) {
      const Tensor distance = arange(-300, 300, 1, {i64, d});
      Tensor bucket = empty_like(distance);
      kernel::t5_buckets(distance, {.causal = causal}, bucket);
      return std::vector{bucket};
    });
}
