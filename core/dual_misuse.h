// What stands beside the numbers of a formula and is none: a captured tensor, a comparison, % and ^. Each is an error of a few
// lines that says what to write; each is said once, of the numbers that map() tries a formula on first, those with derivatives
// that are tensors. The errors stand in plain functions: of macros and of calls on the way compilers would tell in more lines.
#pragma once

#include <sluice/core/dual.h>

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
/// One of the two is a Dual, the other a stranger.
template <class A, class B>
concept Strangers = (is_dual<A> && std::is_class_v<B> && !is_dual<B>) || (is_dual<B> && std::is_class_v<A> && !is_dual<A>);
template <class A, class B>
using DualOf = std::conditional_t<is_dual<A>, A, B>;
}  // namespace detail

#define SLUICE_NO_STRANGERS "a formula computes with its parameters and numbers: no sum(x); a captured tensor is one more parameter, map([](auto x, auto y) { return x * y; }, a, b); a comparison is for select(x > 0.0, a, b)"
template <class A, class B>
  requires detail::Strangers<A, B>
SLUICE_FN detail::DualOf<A, B> operator+(const A&, const B&) {
  static_assert(!detail::is_checked<detail::DualOf<A, B>>, SLUICE_NO_STRANGERS);
  return {};
}
template <class A, class B>
  requires detail::Strangers<A, B>
SLUICE_FN detail::DualOf<A, B> operator-(const A&, const B&) {
  static_assert(!detail::is_checked<detail::DualOf<A, B>>, SLUICE_NO_STRANGERS);
  return {};
}
template <class A, class B>
  requires detail::Strangers<A, B>
SLUICE_FN detail::DualOf<A, B> operator*(const A&, const B&) {
  static_assert(!detail::is_checked<detail::DualOf<A, B>>, SLUICE_NO_STRANGERS);
  return {};
}
template <class A, class B>
  requires detail::Strangers<A, B>
SLUICE_FN detail::DualOf<A, B> operator/(const A&, const B&) {
  static_assert(!detail::is_checked<detail::DualOf<A, B>>, SLUICE_NO_STRANGERS);
  return {};
}
#undef SLUICE_NO_STRANGERS
#define SLUICE_DUAL_STRANGERS(name, result)                                              \
  template <class A, class B>                                                            \
    requires detail::Strangers<A, B>                                                     \
  SLUICE_FN auto name(const A& a, const B& b) { return a + b result; }
SLUICE_DUAL_STRANGERS(operator<, < 0.0)
SLUICE_DUAL_STRANGERS(operator<=, < 0.0)
SLUICE_DUAL_STRANGERS(operator>, < 0.0)
SLUICE_DUAL_STRANGERS(operator>=, < 0.0)
SLUICE_DUAL_STRANGERS(operator==, < 0.0)
SLUICE_DUAL_STRANGERS(operator!=, < 0.0)
SLUICE_DUAL_STRANGERS(max, )
SLUICE_DUAL_STRANGERS(min, )
SLUICE_DUAL_STRANGERS(pow, )
#undef SLUICE_DUAL_STRANGERS
template <class M, class A, class B>
  requires detail::Strangers<A, B>
SLUICE_FN auto select(const M&, const A& a, const B& b) {
  return a + b;
}
template <class T, std::size_t N, class C>
SLUICE_FN Dual<T, N> operator%(const Dual<T, N>& x, const C&) {
  static_assert(!detail::is_checked<Dual<T, N>>, "in a formula write remainder(x, y), not x % y");
  return x;
}
template <class T, std::size_t N, class C>
SLUICE_FN Dual<T, N> operator^(const Dual<T, N>& x, const C&) {
  static_assert(!detail::is_checked<Dual<T, N>>, "in a formula write pow(x, y), not x ^ y");
  return x;
}

}  // namespace sluice
