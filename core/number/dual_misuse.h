// Overloads that turn common mistakes in a formula (a captured tensor, std::max, %, a stream) into one short error
// each. They fire only for Dual<Tensor, N>, which map() instantiates first. Each has a function of its own, because
// errors inside macros and helpers print more lines.
#pragma once

#include <sluice/core/number/dual_operators.h>

#include <algorithm>
#include <initializer_list>
#include <ios>

// clang-format off
namespace sluice {

namespace detail {
template <class T>
inline constexpr bool is_dual = false;
template <class T, std::size_t N>
inline constexpr bool is_dual<Dual<T, N>> = true;
template <class T>
inline constexpr bool is_checked = false;
template <class T, std::size_t N>
inline constexpr bool is_checked<Dual<T, N>> = N > 0 && !std::is_arithmetic_v<T>;
template <class...>
struct FirstDual {
  using type = void;
};
template <class A, class... B>
struct FirstDual<A, B...> : std::conditional_t<is_dual<A>, std::type_identity<A>, FirstDual<B...>> {};
/// The first Dual among A…
template <class... A>
using DualOf = typename FirstDual<A...>::type;
/// False for the Dual<Tensor, N> that map() instantiates first, so that only there the static_assert fails.
template <class... A>
inline constexpr bool is_said = !is_checked<DualOf<A...>>;
/// The conversion is never defined: a formula that passed with tensors but uses it with numbers of a loop does not
/// link.
struct NoResult {
  template <class T>
  operator T() const;
};
/// One of A and B is a Dual, the other another class.
template <class B, class A>
concept StrangeTo = (is_dual<A> && std::is_class_v<B> && !is_dual<B>) || (is_dual<B> && std::is_class_v<A> && !is_dual<A>);
template <class... A>
concept HasDual = (is_dual<A> || ...);
}  // namespace detail

#define SLUICE_STRANGER "a formula computes with its parameters and numbers: no sum(x); a captured tensor is one more parameter, map([](auto x, auto y) { return x * y; }, a, b); a comparison is for select(x > 0.0, a, b)"
template <class A, detail::StrangeTo<A> B>
detail::DualOf<A, B> operator+(const A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); return detail::NoResult(); }
template <class A, detail::StrangeTo<A> B>
detail::DualOf<A, B> operator-(const A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); return detail::NoResult(); }
template <class A, detail::StrangeTo<A> B>
detail::DualOf<A, B> operator*(const A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); return detail::NoResult(); }
template <class A, detail::StrangeTo<A> B>
detail::DualOf<A, B> operator/(const A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); return detail::NoResult(); }
template <class A, detail::StrangeTo<A> B>
void operator+=(A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); }
template <class A, detail::StrangeTo<A> B>
void operator-=(A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); }
template <class A, detail::StrangeTo<A> B>
void operator*=(A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); }
template <class A, detail::StrangeTo<A> B>
void operator/=(A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); }
template <class A, detail::StrangeTo<A> B>
bool operator<(const A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); return detail::NoResult(); }
template <class A, detail::StrangeTo<A> B>
bool operator<=(const A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); return detail::NoResult(); }
template <class A, detail::StrangeTo<A> B>
bool operator>(const A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); return detail::NoResult(); }
template <class A, detail::StrangeTo<A> B>
bool operator>=(const A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); return detail::NoResult(); }
template <class A, detail::StrangeTo<A> B>
bool operator==(const A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); return detail::NoResult(); }
template <class A, detail::StrangeTo<A> B>
bool operator!=(const A&, const B&) { static_assert(detail::is_said<A, B>, SLUICE_STRANGER); return detail::NoResult(); }
#undef SLUICE_STRANGER

// Calls that match no row of dual.h: with a captured tensor, with too many operands, or select() without a mask.
#define SLUICE_CALL \
  "ops/elementwise/map.h lists what a formula may call, of its parameters and numbers: a captured tensor is " \
  "one more parameter, map([](auto x, auto y) { return max(x, y); }, a, b); select(x > 0.0, a, b) begins with " \
  "a comparison"
template <class... A> requires detail::HasDual<A...>
detail::DualOf<A...> max(const A&...) { static_assert(detail::is_said<A...>, SLUICE_CALL); return detail::NoResult(); }
template <class... A> requires detail::HasDual<A...>
detail::DualOf<A...> min(const A&...) { static_assert(detail::is_said<A...>, SLUICE_CALL); return detail::NoResult(); }
template <class... A> requires(detail::HasDual<A...> && !(std::is_arithmetic_v<A> || ...))  // pow(x, 2) converts
detail::DualOf<A...> pow(const A&...) { static_assert(detail::is_said<A...>, SLUICE_CALL); return detail::NoResult(); }
template <class... A> requires detail::HasDual<A...>
detail::DualOf<A...> remainder(const A&...) { static_assert(detail::is_said<A...>, SLUICE_CALL); return detail::NoResult(); }
template <class... A> requires detail::HasDual<A...>
detail::DualOf<A...> clamp(const A&...) { static_assert(detail::is_said<A...>, SLUICE_CALL); return detail::NoResult(); }
template <class... A> requires detail::HasDual<A...>
detail::DualOf<A...> select(const A&...) { static_assert(detail::is_said<A...>, SLUICE_CALL); return detail::NoResult(); }
template <class... A> requires detail::HasDual<A...>
detail::DualOf<A...> where(const A&...) { static_assert(detail::is_said<A...>, SLUICE_CALL); return detail::NoResult(); }
template <class... A> requires detail::HasDual<A...>
detail::DualOf<A...> leaky_relu(const A&...) { static_assert(detail::is_said<A...>, SLUICE_CALL); return detail::NoResult(); }
template <class... A> requires detail::HasDual<A...>
detail::DualOf<A...> elu(const A&...) { static_assert(detail::is_said<A...>, SLUICE_CALL); return detail::NoResult(); }
template <class... A> requires detail::HasDual<A...>
detail::DualOf<A...> gelu(const A&...) { static_assert(detail::is_said<A...>, SLUICE_CALL); return detail::NoResult(); }
#undef SLUICE_CALL

template <class T, std::size_t N, class C>
Dual<T, N> operator%(const Dual<T, N>&, const C&) {
  static_assert(detail::is_said<Dual<T, N>>, "in a formula write remainder(x, y), not x % y");
  return detail::NoResult();
}
template <class T, std::size_t N, class C>
Dual<T, N> operator^(const Dual<T, N>&, const C&) {
  static_assert(detail::is_said<Dual<T, N>>, "in a formula write pow(x, y), not x ^ y");
  return detail::NoResult();
}
template <std::derived_from<std::ios_base> S, class T, std::size_t N>
S& operator<<(S& s, const Dual<T, N>&) {
  static_assert(detail::is_said<Dual<T, N>>, "a formula computes many numbers at once and prints none: print the tensor that map() gives");
  return s;
}

// std::max(x, 0.0) matches nothing in std; the compiler's own error takes 46 lines.
namespace not_std {
#define SLUICE_STD \
  "a formula computes with its parameters: write max(x, 0.0), not std::max(x, 0.0). ops/elementwise/map.h " \
  "lists what it may call"
using detail::NoResult, detail::is_dual, detail::is_said;
template <class T, std::size_t N, class B>
Dual<T, N> max(const Dual<T, N>&, const B&) { static_assert(is_said<Dual<T, N>>, SLUICE_STD); return NoResult(); }
template <class T, std::size_t N, class B>
Dual<T, N> max(const B&, const Dual<T, N>&) { static_assert(is_said<Dual<T, N>>, SLUICE_STD); return NoResult(); }
template <class T, std::size_t N>
Dual<T, N> max(const Dual<T, N>&, const Dual<T, N>&) { static_assert(is_said<Dual<T, N>>, SLUICE_STD); return NoResult(); }
template <class D> requires is_dual<D>
D max(const D&, const D&) { static_assert(is_said<D>, SLUICE_STD); return NoResult(); }
template <class D> requires is_dual<D>
D max(std::initializer_list<D>) { static_assert(is_said<D>, SLUICE_STD); return NoResult(); }
template <class T, std::size_t N, class B>
Dual<T, N> min(const Dual<T, N>&, const B&) { static_assert(is_said<Dual<T, N>>, SLUICE_STD); return NoResult(); }
template <class T, std::size_t N, class B>
Dual<T, N> min(const B&, const Dual<T, N>&) { static_assert(is_said<Dual<T, N>>, SLUICE_STD); return NoResult(); }
template <class T, std::size_t N>
Dual<T, N> min(const Dual<T, N>&, const Dual<T, N>&) { static_assert(is_said<Dual<T, N>>, SLUICE_STD); return NoResult(); }
template <class D> requires is_dual<D>
D min(const D&, const D&) { static_assert(is_said<D>, SLUICE_STD); return NoResult(); }
template <class D> requires is_dual<D>
D min(std::initializer_list<D>) { static_assert(is_said<D>, SLUICE_STD); return NoResult(); }
template <class T, std::size_t N, class B, class C>
Dual<T, N> clamp(const Dual<T, N>&, const B&, const C&) { static_assert(is_said<Dual<T, N>>, SLUICE_STD); return NoResult(); }
template <class T, std::size_t N>
Dual<T, N> clamp(const Dual<T, N>&, const Dual<T, N>&, const Dual<T, N>&) { static_assert(is_said<Dual<T, N>>, SLUICE_STD); return NoResult(); }
template <class D> requires is_dual<D>
D clamp(const D&, const D&, const D&) { static_assert(is_said<D>, SLUICE_STD); return NoResult(); }
template <class T, std::size_t N, class B>
Dual<T, N> pow(const Dual<T, N>&, const B&) { static_assert(is_said<Dual<T, N>>, SLUICE_STD); return NoResult(); }
#undef SLUICE_STD
}  // namespace not_std

}  // namespace sluice

// Only the implementation may declare functions in std. No program that compiles calls these, so none depends on them.
namespace std {
using sluice::not_std::clamp, sluice::not_std::max, sluice::not_std::min, sluice::not_std::pow;
}
