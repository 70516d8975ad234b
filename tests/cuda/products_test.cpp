// Products, running products and their gradients, and logsumexp on the device against the CPU: columns that a thread
// takes alone, rows of a warp and of a block, and pieces of long ones, each with one more; zeros, infinities and NaN.
#include "cuda/against_cpu.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/observer.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

const ReduceShape kShapes[] = {{1, 1, 1},     {5, 32, 3},  {3, 33, 1},  {9, 1025, 1}, {2, 2051, 1}, {2, 8193, 1},
                               {1, 20001, 1}, {1, 33, 33}, {2, 257, 3}, {1, 700, 5},  {1, 257, 300}};

/// Numbers from 0.9 to 1.1, whose products stay in the range of f32, with others at some places.
Tensor factors(const Shape& shape, DType dtype, Device device,
               const std::vector<std::pair<int64_t, double>>& others = {}) {
  Rand rand(5);
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (double& x : v) x = rand.uniform(0.9, 1.1);
  for (const auto& [at, value] : others) v[static_cast<std::size_t>(at)] = value;
  return tensor_of(v, shape, dtype, device);
}
/// bf16 as f32, in whose units check() counts: less than one of them is equal in bf16.
Tensor readable(const Tensor& x) { return x.dtype() == bf16 ? to(x, f32) : x; }

/// True if numbers of dtype t are tested with list number `list`. Short rows meet each list in each dtype. Tensors of
/// 5,000 numbers and more meet each list in one dtype, because they take long.
bool takes(std::size_t list, int64_t all, DType t) {
  return all < 5000 || list % 3 == (t == f32 ? 0u : t == f64 ? 1u : 2u);
}

template <class F> void for_each_shape(F f) {
  for (const ReduceShape& s : kShapes)
    for (DType t : {f32, f64, bf16}) {
      INFO(s.outer << " × " << s.n << " × " << s.inner << " " << str(t));
      f(s, t);
    }
}

}  // namespace

TEST_CASE("cuda: products and running products of every form") {
  for_each_shape([](const ReduceShape& s, DType t) {
    const int64_t all = s.outer * s.n * s.inner;
    std::size_t list = 0;
    for (const auto& others : {std::vector<std::pair<int64_t, double>>{},
                               {{all / 2, 0}},
                               {{all / 3, 0}, {all - 1, -0.5}},
                               {{all / 2, kInf}},
                               {{all / 3, kNan}},
                               {{0, 0}, {all - 1, kInf}}}) {
      if (!takes(list++, all, t)) continue;
      check(
          [&](Device d) {
            const Tensor x = factors({s.outer, s.n, s.inner}, t, d, others);
            Tensor whole = empty({s.outer, s.inner}, x.options()), y = empty_like(x);
            kernel::prod(x, whole, s);
            kernel::cumprod(x, y, 1);
            return std::vector{readable(whole), readable(y)};
          },
          t == f64 ? 4.0 * static_cast<double>(s.n) : 2);
    }
  });
}

TEST_CASE("cuda: gradients of running products of every form, of all entries and of the last") {
  for_each_shape([](const ReduceShape& s, DType t) {
    const int64_t all = s.outer * s.n * s.inner;
    std::size_t list = 0;
    for (const auto& others :
         {std::vector<std::pair<int64_t, double>>{}, {{all / 2, 0}}, {{all / 3, 0}, {all - 1, 0}}, {{all / 2, kNan}}})
      for (const int64_t entries : {s.n, int64_t{1}}) {
        if (!takes(list++, all, t)) continue;
        check(
            [&](Device d) {
              const Tensor x = factors({s.outer, s.n, s.inner}, t, d, others);
              const Tensor g = values({s.outer, entries, s.inner}, t, d, 2);
              Tensor dx = empty_like(x);
              kernel::cumprod_backward(x, g, dx, 1);
              return std::vector{readable(dx)};
            },
            t == f64   ? 1e3 * static_cast<double>(s.n)
            : t == f32 ? 40
                       : 2);
      }
  });
}

TEST_CASE("cuda: running products of a piece may leave the range of numbers") {
  // The products of a piece of x overflow by themselves. Before them stands a 0, or the loss reads only what is before.
  constexpr int64_t n = 40000;
  for (const bool zero : {false, true}) {
    const auto of = [&](Device d) {
      std::vector<double> x(n, 1.1);
      if (zero) x[3] = 0;
      const Tensor leaf = to(Tensor::from(x, {n}), d).requires_grad_();
      const Tensor first = narrow(cumprod(leaf, 0), 0, 0, 10);
      return std::pair{to(first.detach(), cpu), to(grad(sum(first), leaf), cpu)};
    };
    const auto [y, dx] = of(Device::cuda());
    const auto [y_cpu, dx_cpu] = of(cpu);
    CHECK(max_abs_diff(y, y_cpu) <= 1e-14 * max_abs(y_cpu));
    const int64_t finite = zero ? n : 7448;  // then the product of all before is ∞, and ∞ · 0 is NaN
    const Tensor want = narrow(dx_cpu, 0, 0, finite);
    CHECK(max_abs_diff(narrow(dx, 0, 0, finite), want) <= 1e-13 * max_abs(want));
  }
  std::vector<double> halves(n, 0.5);
  std::fill(halves.begin() + n / 2, halves.end(), 2.0);
  const Tensor y = cumprod(to(Tensor::from(halves, {n}), Device::cuda()), 0);
  CHECK((select(y, 0, 0).item() == 0.5 && select(y, 0, -1).item() == 1));
}

TEST_CASE("cuda: products are one kernel of each, and their slopes another") {
  for (DType t : {f32, f64}) {
    detail::WorkCounter counter;
    Tensor x = factors({3, 50}, t, Device::cuda()).requires_grad_();
    const int64_t before = counter.calls();
    const Tensor y = prod(x, {1}), z = cumprod(x, 1);
    CHECK(counter.calls() - before == 2);
    const auto dx = grad({y, z}, {x}, {.grad_outputs = {ones_like(y), ones_like(z)}});
    CHECK(dx[0].shape() == x.shape());
  }
  for (Device d : {cpu, Device::cuda()}) {
    const Tensor none = zeros({2, 0, 3}, {f32, d});
    CHECK(same_bits(to(prod(none, {1}), cpu), ones({2, 3})));
    CHECK(cumprod(none, 1).shape() == Shape{2, 0, 3});
    CHECK(cumprod(to(ones({4}, {f32, d}) * 3, i64), 0).to_vector<double>() == std::vector<double>{3, 9, 27, 81});
  }
}

TEST_CASE("cuda: logsumexp of every form") {
  for_each_shape([](const ReduceShape& s, DType t) {
    const int64_t all = s.outer * s.n * s.inner;
    if (t == bf16 && s.inner > 1) return;  // the CPU's kernel has rows of bf16 alone
    for (const double other : {0.5, 300.0, kInf, -kInf, kNan})
      check(
          [&](Device d) {
            const Tensor x = values({all}, t, d, 3, {{all - 1, other}, {0, other == kNan ? kInf : other}});
            Tensor y = empty({s.outer, s.inner}, x.options());
            kernel::logsumexp(x, y, s);
            const Tensor hidden = full({all}, -kInf, {t, d});  // log 0
            Tensor nothing = empty_like(y);
            kernel::logsumexp(hidden, nothing, s);
            return std::vector{readable(y), readable(nothing)};
          },
          8);
  });
  check(
      [](Device d) {  // columns of bf16, as the op takes them on either device
        const Tensor x = to(values({3, 300, 5}, f32, d, 4), bf16), y = logsumexp(x, {1}), z = logsumexp(x, {0, 2});
        return std::vector{readable(y), readable(z)};
      },
      2);
}
