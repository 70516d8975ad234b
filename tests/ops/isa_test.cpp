// Loops that are compiled for several instruction sets, each forced in turn: the user's maps, forward and backward.
// This file is compiled as a user's plain Release build is (tests/CMakeLists.txt), so that there is more than one.
#include "support/approx.h"
#include "support/catch.h"
#include "support/isa_scope.h"

#include <sluice/core/kernel/cpu.h>
#include <sluice/core/number/normal_batch.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/sluice.h>

#include <bit>
#include <cfloat>
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

constexpr double kInf = std::numeric_limits<double>::infinity();

/// How far `got` is from `want`, in units of the last place of a double at `want`; infinitely, if what libm calls
/// special differs.
double ulps(double got, long double want) {
  const double nearest = static_cast<double>(want);
  if (std::isnan(nearest) || std::isnan(got)) return std::isnan(nearest) == std::isnan(got) ? 0 : kInf;
  if (got == nearest) return std::signbit(got) == std::signbit(nearest) ? 0 : kInf;
  if (std::isinf(nearest) || std::isinf(got)) return kInf;
  int exponent = 0;
  std::frexp(nearest, &exponent);
  return static_cast<double>(std::abs(got - want) / std::ldexp(1.0L, std::max(exponent - 53, -1074)));
}

/// Special numbers, where functions overflow, underflow and change their formula, powers of 2, all with neighbours; and
/// `random` numbers in [lo, hi] and as many of any size.
std::vector<double> doubles(double lo, double hi, int random) {
  std::vector<double> x;
  const auto around = [&x](double v) {
    for (double end : {kInf, -kInf}) {
      double at = v;
      for (int i = 0; i < 20; ++i, at = std::nextafter(at, end)) x.push_back(at), x.push_back(-at);
    }
  };
  for (double v : {0.0,
                   DBL_MIN,
                   DBL_MAX,
                   kInf,
                   709.782712893384,
                   745.1332191019412,
                   708.3964185322641,
                   37.43,
                   0.5,
                   0.75,
                   1.5,
                   0.7,
                   1.0,
                   6.0,
                   39.0,
                   0.8660254037844386,
                   1.224744871391589,
                   0x1.921fb54442d18p-1,
                   0x1.921fb54442d18p0,
                   0x1.921fb54442d18p1,
                   355.0,
                   177.5,
                   0x1.8p20})
    around(v);
  for (int e = -1074; e < 1024; e += 7) x.push_back(std::ldexp(1, e)), x.push_back(-std::ldexp(1.3, e));
  Rand rand(21);
  for (int i = 0; i < random; ++i)
    x.push_back(rand.uniform(lo, hi)), x.push_back(std::bit_cast<double>(rand.bits())),
        x.push_back(rand.uniform(-2, 2));
  return x;
}

struct Function {
  const char* name;
  void (*f)(const double* x, int64_t n, double* y);
  long double (*want)(long double);
  double lo, hi, ulps;
};
/// A loop over f64 alone: the loops of a map for all dtypes, forward and backward, would take ten times as long to
/// compile.
template <class F> void loop(const F& f, const double* x, int64_t n, double* y) {
  detail::vectorised(
      [=](int64_t count) {
        for (int64_t i = 0; i < count; ++i) y[i] = f(Value<double>{x[i], {}}).v;
      },
      n);
}
template <class F> void mine(const double* x, int64_t n, double* y) { loop(F{}, x, n, y); }
template <class F> void slope(const double* x, int64_t n, double* y) {
  detail::vectorised(
      [=](int64_t count) {
        for (int64_t i = 0; i < count; ++i) y[i] = F{}(Dual<double, 1>::variable(x[i], 0, 1.0)).d[0];
      },
      n);
}

const Function kFunctions[] = {
    {"exp", mine<fm::Exp>, std::exp, -750, 710, 1.1},
    {"expm1", mine<fm::Expm1>, std::expm1, -40, 40, 1.35},
    {"log", mine<fm::Log>, std::log, 0, 1e3, 1},
    {"log1p", mine<fm::Log1p>, std::log1p, -1, 20, 1},
    {"sin", mine<fm::Sin>, std::sin, -2e6, 2e6, 0.8},
    {"cos", mine<fm::Cos>, std::cos, -2e6, 2e6, 0.8},
    {"slope of sin", slope<fm::Sin>, std::cos, -2e6, 2e6, 0.8},
    {"slope of cos", slope<fm::Cos>, [](long double x) { return -std::sin(x); }, -2e6, 2e6, 0.8},
    {"tanh", mine<fm::Tanh>, std::tanh, -20, 20, 1.4},
    {"erf", mine<fm::Erf>, std::erf, -6, 6, 1.6},
    {"sigmoid", mine<fm::Sigmoid>,
     [](long double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }, -745, 60, 2.5},
    {"softplus", mine<fm::Softplus>, [](long double x) { return (x < 0 ? 0 : x) + std::log1p(std::exp(-std::abs(x))); },
     -745, 60, 1.6},
    {"normal_cdf", mine<fm::NormalCdf>, [](long double x) { return std::erfc(x * -0.70710678118654752440L) / 2; }, -39,
     9, 8},
    {"pow 1.7", [](const double* x, int64_t n, double* y) { loop(fm::PowScalar{1.7}, x, n, y); },
     [](long double x) { return std::pow(x, static_cast<long double>(1.7)); }, 0, 20, 1},
    {"pow 7", [](const double* x, int64_t n, double* y) { loop(fm::PowScalar{7}, x, n, y); },
     [](long double x) { return std::pow(x, 7.0L); }, -20, 20, 1},
};

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

TEST_CASE("instruction sets: functions of f64 are as near to long double as core/number/math.h says", "[isa]") {
  if (LDBL_MANT_DIG < 64) return;
  const bool flush = flush_denormals();
  set_flush_denormals(false);
  for_each_isa([] {
    for (const Function& f : kFunctions) {
      const std::vector<double> x = doubles(f.lo, f.hi, 20000);
      std::vector<double> y(x.size());
      f.f(x.data(), std::ssize(x), y.data());
      double worst = 0, at = 0;
      for (std::size_t i = 0; i < x.size(); ++i)
        if (const double u = ulps(y[i], f.want(x[i])); !(u <= worst)) worst = u, at = x[i];
      INFO(f.name << ": " << worst << " ulp at " << str(at));
      CHECK(worst <= f.ulps);
    }
    std::vector<double> base, exponent;
    for (double b : doubles(-3, 3, 100))
      for (double e : {0.0, -0.0, 1.0, -1.0, 3.0, 4.0, 0.5, -2.5, 1e-300, 0x1p52 + 1, 0x1p53 + 2, -0x1p54, 1e308, kInf,
                       -kInf, std::nan(""), 700.5, -1100.25})
        base.push_back(b), exponent.push_back(e);
    const std::vector<double> y =
        map(Mine<fm::Pow>{}, Tensor::from<double>(base), Tensor::from<double>(exponent)).to_vector<double>();
    double worst = 0, b = 0, e = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
      if (const double u =
              ulps(y[i], std::pow(static_cast<long double>(base[i]), static_cast<long double>(exponent[i])));
          !(u <= worst))
        worst = u, b = base[i], e = exponent[i];
    INFO(b << " ^ " << e << ": " << worst << " ulp");
    CHECK(worst <= 1);
  });
  set_flush_denormals(flush);
}

namespace {
template <class T> T bits_of(Rand& rand) {
  if constexpr (sizeof(T) == 4) return std::bit_cast<float>(static_cast<uint32_t>(rand.bits()));
  else return std::bit_cast<double>(rand.bits());
}
/// Dividends and divisors of any size, whole ones, and quotients beside whole numbers, small and large.
template <class T> std::pair<std::vector<T>, std::vector<T>> divisions(int64_t n, Rand& rand) {
  std::vector<T> a, b;
  for (int64_t i = 0; i < n; ++i) {
    T x = bits_of<T>(rand), y = bits_of<T>(rand);
    const auto integer = [&](double most) { return static_cast<T>(std::floor(rand.uniform(-most, most))); };
    if (i % 5 == 1) x = integer(20), y = integer(5);
    if (i % 5 == 2) y = static_cast<T>(rand.uniform(-3, 3)), x = y * integer(9);
    if (i % 5 == 3) y = static_cast<T>(rand.uniform(-3, 3)), x = std::nextafter(y * integer(1e4), integer(1e6));
    if (i % 5 == 4)
      y = static_cast<T>(rand.uniform(-3, 3)), x = static_cast<T>(y * std::ldexp(1.3, static_cast<int>(i % 64)));
    a.push_back(x), b.push_back(i % 211 == 0 ? static_cast<T>(kInf) : y);
  }
  return {a, b};
}
template <class T> void check_divisions(bool extremes) {
  const auto same = [](T x, T y) { return (x != x && y != y) || std::memcmp(&x, &y, sizeof x) == 0; };
  Rand rand(5);
  for (int64_t n : kSizes) {
    auto [a, b] = divisions<T>(n, rand);
    if (!extremes)  // one alone in its tile must not spoil the others
      for (int64_t i = 0; i < n; i += 5) a[static_cast<std::size_t>(i)] = 7, b[static_cast<std::size_t>(i)] = T(-2.1);
    const Tensor x = Tensor::from<T>(a, {n}).requires_grad_(), y = Tensor::from<T>(b, {n}).requires_grad_();
    const Tensor remainders = map(Mine<fm::Remainder>{}, x, y);
    const auto left = remainders.template to_vector<T>();
    const std::vector<Tensor> slopes = grad({remainders}, {x, y}, {.grad_outputs = {ones({n}, x.options())}});
    const auto down = slopes[1].template to_vector<T>();
    const auto quotients = map(Mine<fm::FloorDivide>{}, x, y).template to_vector<T>();
    int64_t wrong = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const T r = std::fmod(a[i], b[i]);
      const bool differ = r != 0 && (r < 0) != (b[i] < 0);
      T q = std::rint((a[i] - r) / b[i]) - T(differ);
      if (b[i] == 0) q = a[i] / b[i];
      else if (q == 0) q = std::copysign(T(0), a[i] / b[i]);
      wrong += !same(left[i], differ ? r + b[i] : r) + !same(quotients[i], q) + !same(down[i], T(0) - q);
    }
    CHECK(slopes[0].template to_vector<T>() == std::vector<T>(a.size(), T(1)));
    INFO(n << " elements of " << sizeof(T) << " bytes");
    CHECK(wrong == 0);
  }
}
}  // namespace

TEST_CASE("instruction sets: remainders and whole quotients are those of fmod, to the bit", "[isa]") {
  const bool flush = flush_denormals();
  set_flush_denormals(false);
  for_each_isa([] {
    for (bool extremes : {true, false}) check_divisions<float>(extremes), check_divisions<double>(extremes);
  });
  set_flush_denormals(flush);
}

TEST_CASE("instruction sets: normal numbers are the same on each", "[isa]") {
  constexpr int64_t n = 1 << 18;
  for_each_isa([] {
    std::vector<uint32_t> words(n);
    for (int64_t i = 0; i < n; i += 256) detail::philox_batch(7, static_cast<uint64_t>(i / 4), 64, words.data() + i);
    std::vector<float> z(n);
    detail::vectorised([&] {
      for (int64_t i = 0; i < n; i += 256) detail::normal_batch(words.data() + i, 0, 1, z.data() + i);
    });
    Rng rng(7);
    CHECK(z == normal({n}, 0, 1, rng).to_vector<float>());
    uint64_t hash = 0;
    double worst = 0;
    for (int64_t i = 0; i < n; i += 2) {
      const double u = ((words[i] >> 8) + 1) * 0x1p-24, angle = (words[i + 1] >> 8) * 0x1p-24f * 6.2831853f;
      const double radius = std::sqrt(-2 * std::log(u));
      worst =
          std::max({worst, std::abs(z[i] - radius * std::cos(angle)), std::abs(z[i + 1] - radius * std::sin(angle))});
      hash = (hash * 31 + std::bit_cast<uint32_t>(z[i])) * 31 + std::bit_cast<uint32_t>(z[i + 1]);
    }
    CHECK(worst < 6e-7);                   // 1.3 units of the last place of numbers from 4 to 8
    CHECK(hash == 13224084781121430947u);  // what streams have been since version 0.1
  });
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
