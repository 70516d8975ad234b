// Every formula of ops/elementwise/formulas.h: its derivative by dual numbers against the complex step, its f32
// evaluation against f64, its conventions at kinks, and what it does with NaN.
#include <sluice/ops/elementwise/formulas_of_layers.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"
#include "support/op_table.h"
#include "support/scalars.h"
#include "support/worse.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>

using namespace sluice;
using namespace sluice::testing;
namespace fm = sluice::formula;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::set<std::string>& checked() {
  static std::set<std::string> names;
  return names;
}

struct Range {
  double lo, hi;
};
template <std::size_t N> using Point = std::array<double, N>;

/// f on Dual<T, N>: the value and all partials.
template <class T, std::size_t N, class F> Dual<T, N> on_dual(const F& f, const Point<N>& x) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return f(Dual<T, N>::variable(static_cast<T>(x[I]), I, T(1))...);
  }
  (std::make_index_sequence<N>());
}

/// A formula without its type: f(x), ∂f/∂x_k and the two other evaluations they are held against.
struct Evaluations {
  std::function<double(const double* x, double* partials)> dual;
  std::function<double(const double* x)> narrow;
  std::function<Cx(const Cx* x)> complex;
};

/// Evaluates a formula at random points and compares. `ulps` bounds the f32 error of the value in units
/// of ε₃₂ · (|y| + Σ|x·∂y/∂x| + 0.02·largest |y|).
void judge(const std::string& name, const std::vector<Range>& ranges, double ulps, const Evaluations& f) {
  checked().insert(name);
  Rand rand(5);
  const std::size_t n = ranges.size();
  double worst = 0, largest = 0, used = 0, partials[4];
  std::vector<std::array<double, 4>> points(300);
  for (auto& x : points) {
    for (std::size_t k = 0; k < n; ++k) x[k] = static_cast<float>(rand.uniform(ranges[k].lo, ranges[k].hi));
    largest = std::max(largest, std::abs(f.dual(x.data(), partials)));
  }
  for (const auto& x : points) {
    const double y = f.dual(x.data(), partials);
    double condition = std::abs(y) + 0.02 * largest;
    for (std::size_t k = 0; k < n; ++k) {
      Cx at[4];
      for (std::size_t j = 0; j < n; ++j) at[j] = Cx(x[j], j == k ? 1e-20L : 0);
      const Cx z = f.complex(at);
      const double value = static_cast<double>(z.z.real()), slope = static_cast<double>(z.z.imag() / 1e-20L);
      worst = worse(worst, std::abs(y - value) / (std::abs(value) + 0.1));
      worst = worse(worst, std::abs(partials[k] - slope) / (std::abs(slope) + 0.01));
      condition += std::abs(x[k] * slope);
    }
    const double off = std::abs(f.narrow(x.data()) - y);
    if (off != 0) used = worse(used, off / (ulps * 0x1p-23 * condition));
  }
  INFO(name << ": complex step " << worst << ", f32 " << 100 * used << " % of allowed");
  CHECK(worst < 1e-12);
  CHECK(used <= 1);
  note_check("formula " + name, Column::gradient, worst, worst < 1e-12);
  note_check("formula " + name, Column::f32, used, used <= 1);
}

template <std::size_t N, class F> void check(const char* name, const F& f, std::vector<Range> ranges, double ulps) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    Evaluations e;
    e.dual = [f](const double* x, double* partials) {
      const auto y = f(Dual<double, N>::variable(x[I], I, 1.0)...);
      ((partials[I] = y.d[I]), ...);
      return y.v;
    };
    e.narrow = [f](const double* x) { return f(Value<float>{static_cast<float>(x[I]), {}}...).v; };
    e.complex = [f](const Cx* x) { return f(x[I]...); };
    judge(name, ranges, ulps, e);
  }
  (std::make_index_sequence<N>());
}
template <class F> void check1(const char* name, const F& f, Range x, double ulps = 4) { check<1>(name, f, {x}, ulps); }
template <class F> void check2(const char* name, const F& f, Range x, Range y, double ulps = 4) {
  check<2>(name, f, {x, y}, ulps);
}
template <class F> void check3(const char* name, const F& f, Range x, Range y, Range z, double ulps = 4) {
  check<3>(name, f, {x, y, z}, ulps);
}

template <class F> void check4(const char* name, const F& f, Range x, Range y, Range z, Range w, double ulps = 4) {
  check<4>(name, f, {x, y, z, w}, ulps);
}

template <class F> double slope_at(const F& f, double x) { return on_dual<double, 1>(f, {x}).d[0]; }
template <class F> double value_at(const F& f, double x) { return on_dual<double, 1>(f, {x}).v; }
template <class F> float value32(const F& f, double x) { return on_dual<float, 1>(f, {x}).v; }

}  // namespace

TEST_CASE("formulas: dual numbers agree with the complex step", "[formulas]") {
  const Range any{-3, 3}, plus{0.2, 3}, minus{-3, -0.2}, small{0.05, 0.45};
  check2("Add", fm::Add{}, any, any);
  check2("Sub", fm::Sub{}, any, any);
  check2("Mul", fm::Mul{}, any, any);
  check2("Div", fm::Div{}, any, plus);
  check2("Div", fm::Div{}, any, minus);
  check1("Neg", fm::Neg{}, any);
  check1("Scale", fm::Scale{-1.5}, any);
  check1("AddScalar", fm::AddScalar{0.25}, any);
  check1("SubFrom", fm::SubFrom{0.25}, any);
  check1("DivBy", fm::DivBy{-2.5}, any);
  check1("DivInto", fm::DivInto{-2.5}, plus);
  check1("Reciprocal", fm::Reciprocal{}, plus);
  check2("Pow", fm::Pow{}, plus, any);
  for (double c : {-2.0, -0.5, 0.5, 1.0, 2.0, 3.0}) check1("PowScalar", fm::PowScalar{c}, plus);
  check1("PowScalar", fm::PowScalar{0}, plus);
  check1("PowScalar", fm::PowScalar{3}, minus);
  check1("PowHalf", fm::PowHalf{}, plus);
  check1("PowMinusHalf", fm::PowMinusHalf{}, plus);
  check1("Square", fm::Square{}, any);
  check1("Cube", fm::Cube{}, any);
  check2("Maximum", fm::Maximum{}, any, any);
  check2("Minimum", fm::Minimum{}, any, any);
  check1("Clamp", fm::Clamp{-1, 0.75}, any);
  check3("Where", fm::Where{}, {1, 1}, any, any);
  check3("Where", fm::Where{}, {0, 0}, any, any);
  check2("MaskedFill", fm::MaskedFill{-2}, any, {1, 1});
  check2("MaskedFill", fm::MaskedFill{-2}, any, {0, 0});
  check2("FinitePadding", fm::FinitePadding{}, any, {1, 1});
  check2("FinitePadding", fm::FinitePadding{}, any, {0, 0});
  check1("Exp", fm::Exp{}, {-5, 5});
  check1("Expm1", fm::Expm1{}, any);
  check1("Log", fm::Log{}, plus);
  check1("Log1p", fm::Log1p{}, {-0.8, 4});
  check1("Sqrt", fm::Sqrt{}, plus);
  check1("Rsqrt", fm::Rsqrt{}, plus);
  check1("Tanh", fm::Tanh{}, any);
  check1("Sigmoid", fm::Sigmoid{}, {-6, 6});
  check1("Softplus", fm::Softplus{}, {-6, 6});
  check1("Erf", fm::Erf{}, any);
  check1("NormalCdf", fm::NormalCdf{}, any);
  check1("Sin", fm::Sin{}, {-9, 9});
  check1("Cos", fm::Cos{}, {-9, 9});
  for (Range r : {plus, minus}) {
    check1("Abs", fm::Abs{}, r);
    check1("Sign", fm::Sign{}, r);
    check1("Relu", fm::Relu{}, r);
    check1("Relu2", fm::Relu2{}, r);
    check1("Elu", fm::Elu{}, r);
    check1("Elu", fm::Elu{0.5}, r);
    check1("Elu1", fm::Elu1{}, r);
    check1("LeakyRelu", fm::LeakyRelu{0.1}, r);
    check2("ReGlu", fm::ReGlu{}, any, r);
  }
  for (Range r : {small, {-0.95, -0.55}, {1.05, 1.45}, {-2.45, -2.05}}) {
    check1("Floor", fm::Floor{}, r);
    check1("Ceil", fm::Ceil{}, r);
    check1("Round", fm::Round{}, r);
    check1("Trunc", fm::Trunc{}, r);
  }
  check1("Identity", fm::Identity{}, any);
  check1("Silu", fm::Silu{}, {-6, 6});
  check1("Gelu", fm::Gelu{}, {-4, 4}, 8);
  check1("GeluTanh", fm::GeluTanh{}, {-4, 4}, 4);
  check1("Laplace", fm::Laplace{}, {-0.4, 1.8}, 8);
  check1("NsSigmoid", fm::NsSigmoid{}, {-6, 6});
  check2("Glu", fm::Glu{}, any, any);
  check2("GeGlu", fm::GeGlu{}, any, any, 8);
  check2("GeGluTanh", fm::GeGluTanh{}, any, any, 8);
  check2("SwiGlu", fm::SwiGlu{}, any, any);
  check2("Bilinear", fm::Bilinear{}, any, any);
  check2("NsGlu", fm::NsGlu{}, any, any);
  check2("SiluGlu", fm::SiluGlu{}, any, any);
  check3("Lerp", fm::Lerp{}, any, any, {0, 1});
  check2("LerpBy", fm::LerpBy{0.25}, any, any);
  check2("LerpBy", fm::LerpBy{0.75}, any, any);
  check3("ScaleOffset", fm::ScaleOffset{}, any, any, any);
  check2("AbsoluteError", fm::AbsoluteError{}, {1, 2}, {-1, 0.5});
  check2("AbsoluteError", fm::AbsoluteError{}, {-1, 0.5}, {1, 2});
  check2("Huber", fm::Huber{0.5}, {1, 2}, {-1, 0.4});
  check2("Huber", fm::Huber{2}, {-1, 0.4}, {0, 0.9});
  check2("Remainder", fm::Remainder{}, {0.1, 0.9}, {1, 2});
  check2("Remainder", fm::Remainder{}, {-2.4, -2.1}, {1.3, 1.9});
  check2("Remainder", fm::Remainder{}, {4.2, 4.4}, {-2, -1.5});
  check2("FloorDivide", fm::FloorDivide{}, {-2.4, -2.1}, {1.3, 1.9});
  check2("FloorDivide", fm::FloorDivide{}, {4.2, 4.4}, {-2, -1.5});
  check3("WeightedBceWithLogits", fm::WeightedBceWithLogits{}, {-6, 6}, {0, 1}, {0.2, 3});
  check2("SquaredError", fm::SquaredError{}, any, any);
  check2("SquaredDeviation", fm::SquaredDeviation{}, any, any);
  check2("BceWithLogits", fm::BceWithLogits{}, {-6, 6}, {0, 1});
  check2("KlTerm", fm::KlTerm{}, {-3, 0}, {0.05, 1});
  check2("CrossEntropyTerm", fm::CrossEntropyTerm{}, {0, 1}, {-3, 0});
  check2("Quotient", fm::Quotient{0.1}, any, plus);
  check2("Quotient", fm::Quotient{0.1}, any, minus, 16);
  check4("MixedQuotient", fm::MixedQuotient{0.1}, any, any, plus, {0, 1});
  check1("LogDecay", fm::LogDecay{0.0625}, {-6, 6});
  check2("Decayed", fm::Decayed{}, any, any);
  check2("FavorFeature", fm::FavorFeature{0.5, 0.01}, any, plus);
  check1("ReluOffset", fm::ReluOffset{0.1}, plus);
  check1("ReluOffset", fm::ReluOffset{0.1}, minus);
  check3("AddScaled", fm::AddScaled{}, any, any, any);
  check3("AddGated", fm::AddGated{}, any, any, {-6, 6});
  check3("SoftplusDecay", fm::SoftplusDecay{}, {-6, 6}, {-2, 2}, {-3, 2});
  check3("BoundedDecay", fm::BoundedDecay{-5}, {-6, 6}, {-2, 2}, {-2, 1});
  check3("GatedInput", fm::GatedInput{}, any, {-6, 6}, {-4, -0.1});
  check3("StabilisedQuotient", fm::StabilisedQuotient{0.1}, any, {1.5, 3}, {-0.3, 2});
  check3("StabilisedQuotient", fm::StabilisedQuotient{0.1}, any, {-0.1, 0.1}, {-2, 2});

  // Nobody is left out, here and in the lists of ops/elementwise/formulas.h.
  const auto names = formula_names(sluice::testing::source_folder());
  CHECK(names.size() > 45);
  std::size_t listed = 0;
  fm::each_list([&]<std::size_t N, class... F>(fm::Formulas<N, F...>) { listed += sizeof...(F); });
  CHECK(listed == names.size());
  for (const std::string& name : names) {
    INFO("formula " << name << " is not checked here");
    CHECK(checked().count(name));
  }
}

TEST_CASE("formulas: derivatives keep their accuracy far from 0", "[formulas]") {
  // Where the result is tiny or huge, f64 partials against closed forms.
  CHECK(slope_at(fm::Sigmoid{}, -40) == Approx(std::exp(-40.0)).epsilon(1e-14));
  CHECK(slope_at(fm::Softplus{}, -40) == Approx(std::exp(-40.0)).epsilon(1e-14));
  CHECK(slope_at(fm::Softplus{}, 800) == 1);
  CHECK(slope_at(fm::Tanh{}, 30) == 0);
  CHECK(slope_at(fm::Sigmoid{}, 40) == Approx(std::exp(-40.0)).epsilon(1e-14));
  CHECK(slope_at(fm::GeluTanh{}, 1e150) == 1);
  CHECK(slope_at(fm::GeluTanh{}, -1e150) == 0);
  CHECK(slope_at(fm::Silu{}, 800) == 1);
  CHECK(slope_at(fm::Silu{}, -800) == 0);
  CHECK(slope_at(fm::Gelu{}, 40) == 1);
  CHECK(slope_at(fm::Gelu{}, -40) == 0);
  CHECK(slope_at(fm::Elu{}, -40) == Approx(std::exp(-40.0)).epsilon(1e-14));
  CHECK(slope_at(fm::Elu{}, -800) == 0);
  CHECK(slope_at(fm::Elu1{}, 800) == 1);
  for (double x : {-90.0, -30.0, 30.0, 90.0})
    for (float y : {value32(fm::Silu{}, x), value32(fm::Gelu{}, x), value32(fm::GeluTanh{}, x), value32(fm::Elu{}, x)})
      CHECK(std::abs(y - (x > 0 ? x : std::round(static_cast<double>(y)))) < 1e-5);
}

TEST_CASE("formulas: conventions at kinks", "[formulas]") {
  CHECK(slope_at(fm::Relu{}, 0) == 0);
  CHECK(slope_at(fm::Relu2{}, 0) == 0);
  CHECK(slope_at(fm::Abs{}, 0) == 0);
  CHECK(slope_at(fm::Sign{}, 0) == 0);
  CHECK(slope_at(fm::LeakyRelu{0.25}, 0) == 0.25);
  CHECK(slope_at(fm::Elu{0.5}, 0) == 0.5);
  CHECK(slope_at(fm::Elu1{}, 0) == 1);
  CHECK(value_at(fm::Elu1{}, 0) == 1);
  for (double bound : {-1.0, 2.0}) CHECK(slope_at(fm::Clamp{-1, 2}, bound) == 1);
  CHECK(slope_at(fm::Clamp{-1, 2}, std::nextafter(2, 3)) == 0);
  CHECK(slope_at(fm::Clamp{-1, 2}, std::nextafter(-1, -2)) == 0);
  for (double x : {-2.0, 0.0, 1.5}) {
    const auto larger = on_dual<double, 2>(fm::Maximum{}, {x, x}), smaller = on_dual<double, 2>(fm::Minimum{}, {x, x});
    CHECK(larger.d[0] == 0.5);
    CHECK(larger.d[1] == 0.5);
    CHECK(smaller.d[0] == 0.5);
    CHECK(smaller.d[1] == 0.5);
  }
  for (double x : {-1.0, 0.0, 1.0, 2.5}) {
    CHECK(slope_at(fm::Floor{}, x) == 0);
    CHECK(slope_at(fm::Ceil{}, x) == 0);
    CHECK(slope_at(fm::Round{}, x) == 0);
    CHECK(slope_at(fm::Trunc{}, x) == 0);
  }
  CHECK(value_at(fm::Round{}, 0.5) == 0);  // halves to even
  CHECK(value_at(fm::Round{}, 1.5) == 2);
  CHECK(value_at(fm::Round{}, -2.5) == -2);
  // x^e at and below 0: no slope in the exponent, a finite one in x where there is one.
  CHECK(on_dual<double, 2>(fm::Pow{}, {0, 2}).d[0] == 0);
  CHECK(on_dual<double, 2>(fm::Pow{}, {0, 1}).d[0] == 1);
  CHECK(on_dual<double, 2>(fm::Pow{}, {0, 2}).d[1] == 0);
  CHECK(on_dual<double, 2>(fm::Pow{}, {-2, 3}).d[0] == 12);
  CHECK(on_dual<double, 2>(fm::Pow{}, {-2, 3}).d[1] == 0);
  CHECK(slope_at(fm::PowScalar{0}, 0) == 0);
  CHECK(slope_at(fm::PowScalar{1}, 0) == 1);
  CHECK(slope_at(fm::PowScalar{2}, 0) == 0);
  // Roots, as powers.
  for (double x : {0.0, -0.0, kInf, -kInf, -1.0, kNan, 4.0}) {
    const auto same = [](double y, double want) {
      return std::bit_cast<uint64_t>(y) == std::bit_cast<uint64_t>(want) || (y != y && want != want);
    };
    const auto agree = [&](auto root, double c) {
      INFO(x << " ^ " << c);
      CHECK(same(value_at(root, x), std::pow(x, c)));
      CHECK(same(static_cast<double>(value32(root, x)), std::pow(x, c)));
      CHECK(same(slope_at(root, x), slope_at(fm::PowScalar{c}, x)));
    };
    agree(fm::PowHalf{}, 0.5), agree(fm::PowMinusHalf{}, -0.5);
  }
  // p·log p is 0 at p = 0.
  CHECK(on_dual<double, 2>(fm::KlTerm{}, {-1, 0}).v == 0);
}

TEST_CASE("formulas: NaN is never swallowed", "[formulas]") {
  auto both = [](auto f) { return std::isnan(value_at(f, kNan)) && std::isnan(value32(f, kNan)); };
  CHECK(both(fm::Relu{}));
  CHECK(both(fm::Relu2{}));
  CHECK(both(fm::LeakyRelu{}));
  CHECK(both(fm::Clamp{-1, 1}));
  CHECK(both(fm::Abs{}));
  CHECK(both(fm::Sign{}));
  CHECK(both(fm::Elu{}));
  CHECK(both(fm::Elu1{}));
  CHECK(both(fm::Exp{}));
  CHECK(both(fm::Expm1{}));
  CHECK(both(fm::Log{}));
  CHECK(both(fm::Log1p{}));
  CHECK(both(fm::Sqrt{}));
  CHECK(both(fm::Tanh{}));
  CHECK(both(fm::Sigmoid{}));
  CHECK(both(fm::Softplus{}));
  CHECK(both(fm::Erf{}));
  CHECK(both(fm::Sin{}));
  CHECK(both(fm::Cos{}));
  CHECK(both(fm::Floor{}));
  CHECK(both(fm::Round{}));
  CHECK(both(fm::Silu{}));
  CHECK(both(fm::Gelu{}));
  CHECK(both(fm::GeluTanh{}));
  CHECK(both(fm::Laplace{}));
  CHECK(both(fm::PowScalar{2}));
  for (Point<2> p : {Point<2>{kNan, 1}, {1, kNan}, {kNan, kNan}}) {
    CHECK(std::isnan(on_dual<double, 2>(fm::Maximum{}, p).v));
    CHECK(std::isnan(on_dual<double, 2>(fm::Minimum{}, p).v));
    CHECK(std::isnan(on_dual<float, 2>(fm::Maximum{}, p).v));
    CHECK(std::isnan(on_dual<float, 2>(fm::Minimum{}, p).v));
  }
  CHECK(std::isnan(value_at(fm::Log{}, -1)));
  CHECK(value_at(fm::Log{}, 0) == -kInf);
  CHECK(value_at(fm::Exp{}, -kInf) == 0);
  CHECK(value32(fm::Exp{}, -kInf) == 0);
}

TEST_CASE("formulas: the exponential of what is at most 50 is the exponential, to the bit", "[formulas]") {
  auto differs = [](float x) {
    const float y = math::exp_low(x), want = math::exp(x);
    return std::memcmp(&y, &want, sizeof(float)) != 0 && !(y != y && want != want);
  };
  int64_t different = 0;
  for (uint64_t b = 0; b < (uint64_t{1} << 32); b += 4099)  // all signs and exponents, denormals and NaN among them
    if (const float x = std::bit_cast<float>(static_cast<uint32_t>(b)); !(x > 50)) different += differs(x);
  for (float x = -110; x <= 50; x += 0x1p-12f) different += differs(x);
  CHECK(different == 0);
  for (double x = -750; x <= 50; x += 0x1.01p-6) different += !(math::exp_low(x) == math::exp(x));
  CHECK(different == 0);
  CHECK_FALSE(differs(-std::numeric_limits<float>::infinity()));
  CHECK(std::isnan(math::exp_low(std::numeric_limits<float>::quiet_NaN())));
}
