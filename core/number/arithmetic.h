// Sums, differences, products, quotients and remainders of elements of any dtype; magnitudes, signs and powers of
// integers.
#pragma once

#include <sluice/core/number/math.h>

#include <cmath>
#include <concepts>
#include <type_traits>

namespace sluice::detail {

/// a + b, a − b, a · b. Integers wrap around. They are computed unsigned, because signed overflow is undefined in C++.
template <class A, class B> SLUICE_FN auto sum_of(const A& a, const B& b) {
  if constexpr (std::is_integral_v<A>) return static_cast<A>(std::make_unsigned_t<A>(a) + std::make_unsigned_t<A>(b));
  else return a + b;
}
template <class A, class B> SLUICE_FN auto difference_of(const A& a, const B& b) {
  if constexpr (std::is_integral_v<A>) return static_cast<A>(std::make_unsigned_t<A>(a) - std::make_unsigned_t<A>(b));
  else return a - b;
}
template <class A, class B> SLUICE_FN auto product_of(const A& a, const B& b) {
  if constexpr (std::is_integral_v<A>) return static_cast<A>(std::make_unsigned_t<A>(a) * std::make_unsigned_t<A>(b));
  else return a * b;
}
/// r = std::fmod(a, b), exact, in a loop that vectorises. Returns false where std::fmod itself must be called: for a
/// large quotient, an extreme b, or an operand that is not finite. b is the sum of two halves, whose products with a
/// small whole quotient are exact.
template <class T> SLUICE_FN bool quick_fmod(T a, T b, T& r) {
  constexpr double least = sizeof(T) == 4 ? 0x1p-100 : 0x1p-960, most = sizeof(T) == 4 ? 0x1p100 : 0x1p960;
  const double x = static_cast<double>(math::abs(a)), y = static_cast<double>(math::abs(b));
  const double high = math::f64::high(y), q = math::trunc(x / y);
  double rest = (x - q * high) - q * (y - high);
  rest = math::select(rest < 0, rest + y, rest);  // x / y was rounded up to a whole number
  r = math::copysign(math::select(x < y, math::abs(a), static_cast<T>(rest)), a);
  return (y > least) & (y < most) & (x < y * 0x1p24);
}
template <class T> SLUICE_FN bool signs_differ(T r, T b) { return (r != 0) & ((r < 0) != (b < 0)); }
/// remainder_of() and floor_quotient_of() of floats, from r = std::fmod(a, b).
template <class T> SLUICE_FN T remainder_from(T, T b, T r) { return math::select(signs_differ(r, b), r + b, r); }
template <class T> SLUICE_FN T floor_quotient_from(T a, T b, T r) {
  const T q = math::round((a - r) / b) - math::select(signs_differ(r, b), T(1), T(0));
  return math::select(b == 0, a / b, math::select(q == 0, math::copysign(T(0), a / b), q));
}

/// a − b·⌊a/b⌋, with the sign of b; a itself where the integer b is 0.
template <class T> SLUICE_FN T remainder_of(const T& a, const T& b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == 0) return a;
    const T r = b == -1 ? 0 : a % b;  // the quotient of the lowest number by −1 overflows
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  } else if constexpr (std::is_floating_point_v<T>) {
    return remainder_from(a, b, std::fmod(a, b));
  } else {
    return remainder(a, b);
  }
}
template <class A> SLUICE_FN auto negated(const A& a) {
  if constexpr (std::is_integral_v<A>) return difference_of(A(0), a);
  else return -a;
}
/// ⌊a/b⌋, which with remainder_of() makes a = b·⌊a/b⌋ + r; 0 where the integer b is 0.
template <class T> SLUICE_FN T floor_quotient_of(const T& a, const T& b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == 0) return 0;
    if (b == -1) return negated(a);  // the lowest number is its own negative
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
  } else if constexpr (std::is_floating_point_v<T>) {
    return floor_quotient_from(a, b, std::fmod(a, b));
  } else {
    return floor_divide(a, b);
  }
}

}  // namespace sluice::detail

// The functions of core/number/select.h for integers. abs() of the lowest integer is that integer itself.
namespace sluice::math {
template <std::integral T> SLUICE_FN T abs(T x) { return x < 0 ? detail::negated(x) : x; }
template <std::integral T> SLUICE_FN T sign(T x) { return static_cast<T>((x > 0) - (x < 0)); }
template <std::integral T> SLUICE_FN T floor(T x) { return x; }
template <std::integral T> SLUICE_FN T ceil(T x) { return x; }
template <std::integral T> SLUICE_FN T round(T x) { return x; }
template <std::integral T> SLUICE_FN T trunc(T x) { return x; }
/// x^e for e >= 0, by squares.
template <std::integral T> SLUICE_FN T pow(T x, T e) {
  T y = 1;
  for (; e > 0; e /= 2, x = detail::product_of(x, x))
    if (e % 2 == 1) y = detail::product_of(y, x);
  return y;
}
}  // namespace sluice::math
