// Sums, differences, products and remainders of elements of any dtype.
#pragma once

#include <sluice/core/number/math.h>

#include <cmath>
#include <limits>
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
/// remainder_of() for loops in vectors; NaN where the quotient is so large, or b so small, that it takes fmod().
template <class T> SLUICE_FN T quick_remainder_of(T a, T b) {
  // Up to 2^digits(T) the floor of the rounded quotient is ⌊a/b⌋ or, where it was rounded up to a whole number, one
  // more. Then `part` is exact, because |part| < |b|, and b has no digit behind the last of a: b is added as above.
  constexpr T largest = T(int64_t{1} << (std::numeric_limits<T>::digits - 2));
  constexpr T smallest = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();  // part is no denormal
  const T q = a / b, whole = math::floor(q), part = std::fma(-whole, b, a);
  const T r = math::select(whole == T(0), a, math::select(part == T(0), math::copysign(T(0), a), part));
  const T y = math::select((r != T(0)) & ((r < T(0)) != (b < T(0))), r + b, r);
  constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  return math::select(math::abs(q) < largest, math::select(math::abs(b) > smallest, y, nan), nan);
}
template <class A> SLUICE_FN auto negated(const A& a) {
  if constexpr (std::is_integral_v<A>) return difference_of(A(0), a);
  else return -a;
}

}  // namespace sluice::detail
