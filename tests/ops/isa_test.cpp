// Loops that are compiled for several instruction sets, each forced in turn: the user's maps, forward and backward.
// This file is compiled as a user's plain Release build is (tests/CMakeLists.txt), so that there is more than one.
#include "support/approx.h"
#include "support/catch.h"
#include "support/isa_scope.h"

#include <sluice/core/kernel/cpu.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/sluice.h>

#include <cmath>
#include <cstring>

using namespace sluice;
using namespace sluice::testing;
namespace fm = sluice::formula;

namespace {

constexpr int64_t kSizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 129, 1023, 1025, 40001};

/// A formula whose loops are instantiated in this file: the library has its own of the same names.
template <class F> struct Mine : F {};

using Inputs = std::vector<std::vector<float>>;

Inputs inputs(std::size_t count, int64_t n, double lo, double hi) {
  Rand rand(11);
  Inputs xs(count);
  for (auto& x : xs)
    for (int64_t i = 0; i < n; ++i) x.push_back(static_cast<float>(rand.uniform(lo, hi)));
  return xs;
}

/// y and the gradients for the cotangent 1, 2, 3, 1, 2, 3, …
template <class F, std::size_t... I>
std::vector<std::vector<float>> by_map(const F& f, const Inputs& xs, std::index_sequence<I...>) {
  const int64_t n = static_cast<int64_t>(xs[0].size());
  const Tensor x[] = {Tensor::from<float>(xs[I], {n}).requires_grad_()...};
  const Tensor y = map(f, x[I]...);
  std::vector<float> g;
  for (int64_t i = 0; i < n; ++i) g.push_back(static_cast<float>(1 + i % 3));
  const auto grads =
      grad(std::vector{y}, std::vector<Tensor>{x[I]...}, {.grad_outputs = {Tensor::from<float>(g, {n})}});
  return {y.to_vector<float>(), grads[I].template to_vector<float>()...};
}
/// The same in f64, element by element.
template <class F, std::size_t... I>
std::vector<std::vector<double>> by_dual(const F& f, const Inputs& xs, std::index_sequence<I...>) {
  constexpr std::size_t N = sizeof...(I);
  std::vector<std::vector<double>> all(1 + N);
  for (std::size_t i = 0; i < xs[0].size(); ++i) {
    const auto y = f(Dual<double, N>::variable(static_cast<double>(xs[I][i]), I, 1.0)...);
    all[0].push_back(y.v);
    for (std::size_t k = 0; k < N; ++k) all[k + 1].push_back(y.d[k] * static_cast<double>(1 + i % 3));
  }
  return all;
}

template <std::size_t N, class F> void check(const F& f, double lo, double hi) {
  constexpr auto index = std::make_index_sequence<N>();
  for (int64_t n : kSizes) {
    const Inputs xs = inputs(N, n, lo, hi);
    const auto want = by_dual(f, xs, index);
    for_each_isa([&] {
      INFO(N << " inputs, " << n << " elements");
      const auto got = by_map(Mine<F>{f}, xs, index);
      for (std::size_t o = 0; o < want.size(); ++o) {
        double largest = 0, worst = 0;
        for (double v : want[o]) largest = std::max(largest, std::abs(v));
        for (std::size_t i = 0; i < want[o].size(); ++i)
          worst = std::max(worst, std::abs(static_cast<double>(got[o][i]) - want[o][i]) /
                                      (std::abs(want[o][i]) + 0.01 * largest + 1e-30));
        INFO((o ? "gradient " : "value ") << o << ": relative error " << worst);
        CHECK(worst < 3e-5);
      }
    });
  }
}

}  // namespace

// Each elementary function and each kind of select, some in one formula: what takes time to compile is the loops.
TEST_CASE("instruction sets: a formula's loops, each set in turn", "[isa]") {
  check<1>(
      [](auto x) {
        return fm::Expm1{}(x) + fm::Tanh{}(x)*fm::Erf{}(x) + fm::Sin{}(x)*fm::Softplus{}(x) + fm::Gelu{}(x);
      },
      -3, 3);
  check<1>(
      [](auto x) { return fm::Log1p{}(x) + fm::Rsqrt{}(x)*fm::Floor{}(x) + fm::PowScalar{2.5}(x) + fm::Laplace{}(x); },
      0.1, 9);
  check<1>([](auto x) { return fm::Clamp{-1, 1}(x) + fm::Elu1{}(x)*fm::Round{}(x) + fm::PowScalar{0}(x); }, -3, 3);
  check<2>([](auto x, auto y) { return fm::Div{}(x, y) + fm::Pow{}(x, y) + fm::Maximum{}(x, y) * fm::KlTerm{}(x, y); },
           0.2, 3);
  check<2>(fm::SwiGlu{}, -3, 3);
  check<3>(fm::Lerp{}, -3, 3);
}

TEST_CASE("instruction sets: another one is other code, and the same for any number of threads", "[isa]") {
  const auto mine = [](auto x, auto g) { return x * (g * sigmoid(g)); };
  const Inputs xs = inputs(2, 200001, -3, 3);
  const int threads = num_threads();
  std::vector<std::vector<std::vector<float>>> results;
  for_each_isa([&] {
    results.push_back(by_map(mine, xs, std::make_index_sequence<2>()));
    set_num_threads(1);
    CHECK(by_map(mine, xs, std::make_index_sequence<2>()) == results.back());
    set_num_threads(threads);
  });
#if defined(__x86_64__) && !defined(__FMA__)
  if (best_isa() >= Isa::avx2) CHECK(results[0] != results[1]);  // fused multiply-add rounds once
#elif defined(__x86_64__)
  FAIL("tests/CMakeLists.txt must compile this file for plain x86-64");
#endif
}
