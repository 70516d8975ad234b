// Sums, differences, products and remainders of elements of any dtype; magnitudes and signs of integers.
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

}  // namespace sluice::detail

// Of integers what core/number/select.h has of floats. The lowest one has no magnitude and stays.
namespace sluice::math {
template <std::integral T> SLUICE_FN T abs(T x) { return x < 0 ? detail::negated(x) : x; }
template <std::integral T> SLUICE_FN T sign(T x) { return static_cast<T>((x > 0) - (x < 0)); }
template <std::integral T> SLUICE_FN T floor(T x) { return x; }
template <std::integral T> SLUICE_FN T ceil(T x) { return x; }
template <std::integral T> SLUICE_FN T round(T x) { return x; }
template <std::integral T> SLUICE_FN T trunc(T x) { return x; }
}  // namespace sluice::math
