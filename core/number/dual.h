// Dual numbers: a value and N partial derivatives. A formula evaluated on duals yields its exact
// gradient, so backward kernels are generated from the formula instead of being written.
//
//   T = float, double   inside vectorised loops; N = 0 is the forward kernel, N = #inputs the backward
//   T = Tensor          the same text as a composition of ops: it serves gradients of any order
//
// This page holds the gradient rows of all functions; core/number/dual_operators.h has the operators. Convention at
// kinks: abs'(0) = 0; max and min split a tie in halves; sign, floor, ceil, round, trunc and floor_divide have
// derivative 0.
#pragma once

#include <sluice/core/number/arithmetic.h>
#include <sluice/core/number/math.h>

#include <array>
#include <concepts>
#include <cstddef>

namespace sluice {

class Tensor;

/// Arithmetic of partial derivatives. The specialisation for Tensor (ops/elementwise/dual_tensor.h) knows exact
/// zeros and ones, so that a composed gradient holds no needless ops.
template <class T> struct PartialOps {
  static SLUICE_FN T zero() { return T(0); }
  static SLUICE_FN T add(const T& a, const T& b) { return a + b; }
  static SLUICE_FN T sub(const T& a, const T& b) { return a - b; }
  template <class M> static SLUICE_FN T select(const M& mask, const T& a, const T& b) {
    if constexpr (std::is_floating_point_v<T>) return math::select(mask, a, b);
    else return mask ? a : b;
  }
};

template <class T, std::size_t N> struct Dual {
  T v;
  std::array<T, N> d;
  unsigned without = 0;  // bit k: the value does not depend on variable k, and d[k] is an exact 0
#if defined(__clang__)
  // Returns go through memory, which inlining removes. clang returns a small trivial struct in integer registers, and
  // from clang 19 on its vectoriser stops at them: loops over f32 were scalar.
  SLUICE_FN ~Dual() {}
#endif

  /// The constant c.
  static SLUICE_FN Dual constant(const T& c) {
    Dual x{c, {}, ~0u};
    for (std::size_t k = 0; k < N; ++k) x.d[k] = PartialOps<T>::zero();
    return x;
  }
  /// The i-th independent variable.
  static SLUICE_FN Dual variable(const T& v, std::size_t i, const T& one) {
    Dual x{v, {}, ~(1u << i)};
    for (std::size_t k = 0; k < N; ++k) x.d[k] = k == i ? one : PartialOps<T>::zero();
    return x;
  }

  /// Converting a Dual to double is a mistake (std::exp(x), double c = x): static_assert. It fails once, for the
  /// Dual<Tensor, N> that map() instantiates first.
  operator double() const {
    static_assert(N == 0 || std::is_arithmetic_v<T>,
                  "a formula computes with its parameters: write exp(x), not std::exp(x), and auto, not double; a "
                  "constant result is like(x, 1). ops/elementwise/map.h lists what it may call");
    if constexpr (std::is_arithmetic_v<T>) return static_cast<double>(v);
    else return 0;
  }
  /// Lets softmax(x, 0) compile in a formula; map() refuses its result with one error.
  template <std::same_as<Tensor> U> operator U() const { return {}; }
};

template <class T> using Value = Dual<T, 0>;

namespace detail {
/// slope · x.d[k]; exactly 0 if x does not depend on variable k, even for an infinite slope. So ∂(x·y)/∂x at x = ∞ is
/// y, not y·1 + x·0. For numbers, `without` is a constant when a loop is compiled; for tensors, an undefined d[k]
/// stands for 0.
template <class T, std::size_t N, class S> SLUICE_FN T part(const S& slope, const Dual<T, N>& x, std::size_t k) {
  if constexpr (std::is_arithmetic_v<T>) return x.without >> k & 1 ? T(0) : slope * x.d[k];
  else if constexpr (std::same_as<S, T>) return PartialOps<T>::mul(slope, x.d[k]);
  else return PartialOps<T>::mul(x.d[k], slope);
}
/// y(x) with slope dy/dx.
template <class T, std::size_t N, class S> SLUICE_FN Dual<T, N> chain(const Dual<T, N>& x, const T& y, const S& slope) {
  Dual<T, N> r{y, {}, x.without};
  for (std::size_t k = 0; k < N; ++k) r.d[k] = part(slope, x, k);
  return r;
}
/// y(a, b) with both slopes.
template <class T, std::size_t N>
SLUICE_FN Dual<T, N> chain(const Dual<T, N>& a, const Dual<T, N>& b, const T& y, const T& slope_a, const T& slope_b) {
  Dual<T, N> r{y, {}, a.without & b.without};
  for (std::size_t k = 0; k < N; ++k) r.d[k] = PartialOps<T>::add(part(slope_a, a, k), part(slope_b, b, k));
  return r;
}
template <class T, std::size_t N> SLUICE_FN Dual<T, N> flat(const T& y) { return Dual<T, N>::constant(y); }
/// The constant c for arithmetic with x: a T for numbers, a double for tensors, which ops accept.
template <class T> SLUICE_FN auto scalar(const T&, double c) {
  if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(c);
  else return c;
}

}  // namespace detail

/// The constant c as a Dual of the type of x.
template <class T, std::size_t N> SLUICE_FN Dual<T, N> like(const Dual<T, N>& x, double c) {
  if constexpr (std::is_arithmetic_v<T>) return Dual<T, N>::constant(static_cast<T>(c));
  else return Dual<T, N>::constant(like(x.v, c));
}

// -- functions ---------------------------------------------------------------------------------------
// Each row:  y = f(x)   slope.  `using math::f` serves float and double; Tensor finds its op by ADL.

// clang-format off
#define SLUICE_DUAL_ROW(name, slope)                        \
  template <class T, std::size_t N>                         \
  SLUICE_FN Dual<T, N> name(const Dual<T, N>& dual) {       \
    using math::name;                                       \
    const T& x = dual.v;                                    \
    T y = name(x);                                          \
    if constexpr (N == 0) return {y, {}};                   \
    else return detail::chain(dual, y, T(slope));           \
  }
namespace detail {
template <class T> SLUICE_FN T slope_exp(const T& x) { using math::exp; return exp(x); }
template <class T> SLUICE_FN T slope_sin(const T& x) { using math::sin; return sin(x); }
template <class T> SLUICE_FN T slope_cos(const T& x) { using math::cos; return cos(x); }
template <class T> SLUICE_FN T slope_sigmoid(const T& x) { using math::sigmoid; return sigmoid(x); }
template <class T> SLUICE_FN T slope_sign(const T& x) { using math::sign; return sign(x); }
/// x; of tensors x limited to [−c, c]. Beyond c e^(−x²/2) is 0, and so are its derivatives, which would be 0·∞.
template <class T> SLUICE_FN T limited(const T& x, double c) {
  if constexpr (std::is_arithmetic_v<T>) return x;
  else return clamp(x, -c, c);
}
template <class T> SLUICE_FN T slope_erf(const T& given) {
  const T x = limited(given, 30);
  return slope_exp(T(-(x * x))) * scalar(x, 1.1283791670955126);  // 2/√π
}
}  // namespace detail

SLUICE_DUAL_ROW(exp, y)
SLUICE_DUAL_ROW(expm1, detail::slope_exp(x))  // y + 1 has no digits far below 0
SLUICE_DUAL_ROW(log, detail::scalar(x, 1) / x)
SLUICE_DUAL_ROW(log1p, detail::scalar(x, 1) / (x + detail::scalar(x, 1)))
SLUICE_DUAL_ROW(sqrt, detail::scalar(x, 0.5) / y)
SLUICE_DUAL_ROW(rsqrt, y * detail::scalar(x, -0.5) * y * y)  // y³ may overflow
SLUICE_DUAL_ROW(tanh, detail::scalar(x, 1) - y * y)
SLUICE_DUAL_ROW(sigmoid, y * detail::slope_sigmoid(T(-x)))  // 1 − y has no digits far above 0
SLUICE_DUAL_ROW(softplus, detail::slope_sigmoid(x))
SLUICE_DUAL_ROW(erf, detail::slope_erf(x))
SLUICE_DUAL_ROW(sin, detail::slope_cos(x))
SLUICE_DUAL_ROW(cos, -detail::slope_sin(x))
SLUICE_DUAL_ROW(abs, detail::slope_sign(x))
#undef SLUICE_DUAL_ROW
// clang-format on

/// The standard normal distribution function. Slope e^(−x²/2)/√2π, which the value needs anyway.
template <class T, std::size_t N> SLUICE_FN Dual<T, N> normal_cdf(const Dual<T, N>& dual) {
  using math::normal_cdf;
  const T& x = dual.v;
  if constexpr (N == 0) {
    return {normal_cdf(x), {}};
  } else if constexpr (std::is_arithmetic_v<T>) {
    T density, y = normal_cdf(x, density);
    return detail::chain(dual, y, density);
  } else {
    const T near = detail::limited(x, 40);
    return detail::chain(dual, normal_cdf(x), T(detail::slope_exp(T(near * near * -0.5)) * 0.3989422804014327));
  }
}

#define SLUICE_DUAL_FLAT(name)                                                       \
  template <class T, std::size_t N> SLUICE_FN Dual<T, N> name(const Dual<T, N>& x) { \
    using math::name;                                                                \
    return detail::flat<T, N>(name(x.v));                                            \
  }
SLUICE_DUAL_FLAT(sign)
SLUICE_DUAL_FLAT(floor)
SLUICE_DUAL_FLAT(ceil)
SLUICE_DUAL_FLAT(round)
SLUICE_DUAL_FLAT(trunc)
#undef SLUICE_DUAL_FLAT

/// x^c for a fixed exponent: slope c·x^(c−1), exactly 0 when c = 0.
template <class T, std::size_t N> SLUICE_FN Dual<T, N> pow(const Dual<T, N>& x, double c) {
  using math::pow;
  T y = pow(x.v, detail::scalar(x.v, c));
  if constexpr (N == 0) {
    return {y, {}};
  } else {
    if (!std::is_arithmetic_v<T> && c == 0) return detail::flat<T, N>(y);
    T slope = pow(x.v, detail::scalar(x.v, c - 1)) * detail::scalar(x.v, c);
    if constexpr (std::is_arithmetic_v<T>) slope = math::select(c == 0, T(0), slope);  // no branch in a loop
    return detail::chain(x, y, slope);
  }
}
/// x^e. The slope in x is e·x^(e−1), which is 0 at 0⁰ and NaN⁰. The slope in e is x^e·log x, and 0 where x <= 0: there
/// the power is not smooth in e.
template <class T, std::size_t N> SLUICE_FN Dual<T, N> pow(const Dual<T, N>& x, const Dual<T, N>& e) {
  using math::abs, math::log, math::pow;
  using P = PartialOps<T>;
  T y = pow(x.v, e.v);
  if constexpr (N == 0) return {y, {}};
  else {
    const auto none = detail::scalar(x.v, 0);
    const T zero = like(Value<T>{x.v, {}}, 0).v, one = like(Value<T>{x.v, {}}, 1).v;
    // At 0⁰ the slope 0 · 0^−1 would be NaN, here and in the second gradient. The exponent 0 gives 0 · 0⁰ = 0 instead.
    const T less = e.v - detail::scalar(x.v, 1);
    const T lower = P::select(e.v == none, T(P::select(abs(x.v) > none, less, zero)), less);
    const auto flat = x.v <= none;
    return detail::chain(x, e, y, T(e.v * pow(x.v, lower)),
                         T(P::select(flat, zero, T(y * log(T(P::select(flat, one, x.v)))))));
  }
}

namespace detail {
template <class T> SLUICE_FN T larger(const T& a, const T& b) {
  if constexpr (std::is_integral_v<T>) return a > b ? a : b;
  else if constexpr (std::is_floating_point_v<T>) return math::max(a, b);
  else return maximum(a, b);
}
template <class T> SLUICE_FN T smaller(const T& a, const T& b) {
  if constexpr (std::is_integral_v<T>) return a < b ? a : b;
  else if constexpr (std::is_floating_point_v<T>) return math::min(a, b);
  else return minimum(a, b);
}
/// y is a where `first` holds, else b. A tie splits the gradient in halves.
template <class T, std::size_t N, class Mask>
SLUICE_FN Dual<T, N> one_of(const Dual<T, N>& a, const Dual<T, N>& b, const T& y, const Mask& first) {
  using P = PartialOps<T>;
  auto c = [&](double w) { return like(Value<T>{a.v, {}}, w).v; };
  T wa = P::select(first, c(1), T(P::select(a.v == b.v, c(0.5), c(0))));
  return chain(a, b, y, wa, T(scalar(a.v, 1) - wa));
}
}  // namespace detail
/// The larger (smaller) value; a NaN in either wins. Its operand gets the gradient, which a tie splits in halves.
template <class T, std::size_t N> SLUICE_FN Dual<T, N> max(const Dual<T, N>& a, const Dual<T, N>& b) {
  T y = detail::larger(a.v, b.v);
  if constexpr (N == 0) return {y, {}};
  else return detail::one_of(a, b, y, (a.v > b.v) | (a.v != a.v));
}
template <class T, std::size_t N> SLUICE_FN Dual<T, N> min(const Dual<T, N>& a, const Dual<T, N>& b) {
  T y = detail::smaller(a.v, b.v);
  if constexpr (N == 0) return {y, {}};
  else return detail::one_of(a, b, y, (a.v < b.v) | (a.v != a.v));
}

/// a − b·⌊a/b⌋, which has the sign of b: slopes 1 and −⌊a/b⌋.
template <class T, std::size_t N> SLUICE_FN Dual<T, N> remainder(const Dual<T, N>& a, const Dual<T, N>& b) {
  T y = detail::remainder_of(a.v, b.v);
  if constexpr (N == 0) return {y, {}};
  else return detail::chain(a, b, y, like(Value<T>{a.v, {}}, 1).v, T(-detail::floor_quotient_of(a.v, b.v)));
}
/// ⌊a/b⌋
template <class T, std::size_t N> SLUICE_FN Dual<T, N> floor_divide(const Dual<T, N>& a, const Dual<T, N>& b) {
  return detail::flat<T, N>(detail::floor_quotient_of(a.v, b.v));
}
}  // namespace sluice
