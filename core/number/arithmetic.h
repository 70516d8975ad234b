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
/// a − b·⌊a/b⌋, with the sign of b; a itself where the integer b is 0.
template <class T> SLUICE_FN T remainder_of(const T& a, const T& b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == 0) return a;
    const T r = b == -1 ? 0 : a % b;  // the quotient of the lowest number by −1 overflows
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  } else if constexpr (std::is_floating_point_v<T>) {
    const T r = std::fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
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
    const T r = std::fmod(a, b), q = math::round((a - r) / b) - T(r != 0 && (r < 0) != (b < 0));
    return math::select(b == 0, a / b, math::select(q == 0, math::copysign(T(0), a / b), q));
  } else {
    return floor_divide(a, b);
  }
}

}  // namespace sluice::detail

// Of integers what core/number/select.h has of floats. The lowest one has no magnitude and stays.
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
