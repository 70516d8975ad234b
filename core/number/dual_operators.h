// Operators on dual numbers: arithmetic with duals and numbers, comparisons, select, assignment.
#pragma once

#include <sluice/core/number/dual.h>

#include <utility>

namespace sluice {

template <class C>
concept Number = std::is_arithmetic_v<C>;

// -- arithmetic ------------------------------------------------------------------------------------

template <class T, std::size_t N> SLUICE_FN Dual<T, N> operator+(const Dual<T, N>& a, const Dual<T, N>& b) {
  Dual<T, N> r{detail::sum_of(a.v, b.v), {}, a.without & b.without};
  for (std::size_t k = 0; k < N; ++k) r.d[k] = PartialOps<T>::add(a.d[k], b.d[k]);
  return r;
}
template <class T, std::size_t N> SLUICE_FN Dual<T, N> operator-(const Dual<T, N>& a, const Dual<T, N>& b) {
  Dual<T, N> r{detail::difference_of(a.v, b.v), {}, a.without & b.without};
  for (std::size_t k = 0; k < N; ++k) r.d[k] = PartialOps<T>::sub(a.d[k], b.d[k]);
  return r;
}
template <class T, std::size_t N> SLUICE_FN Dual<T, N> operator*(const Dual<T, N>& a, const Dual<T, N>& b) {
  return detail::chain(a, b, T(detail::product_of(a.v, b.v)), b.v, a.v);
}
template <class T, std::size_t N> SLUICE_FN Dual<T, N> operator/(const Dual<T, N>& a, const Dual<T, N>& b) {
  T y = a.v / b.v;
  if constexpr (N == 0) return {y, {}};
  else return detail::chain(a, b, y, T(detail::scalar(y, 1) / b.v), T(-(y / b.v)));
}
template <class T, std::size_t N> SLUICE_FN Dual<T, N> operator-(const Dual<T, N>& x) {
  Dual<T, N> r{detail::negated(x.v), {}, x.without};
  for (std::size_t k = 0; k < N; ++k) r.d[k] = PartialOps<T>::sub(PartialOps<T>::zero(), x.d[k]);
  return r;
}

template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> operator+(const Dual<T, N>& x, C c) {
  return {detail::sum_of(x.v, detail::scalar(x.v, double(c))), x.d, x.without};
}
template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> operator+(C c, const Dual<T, N>& x) { return x + c; }
template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> operator-(const Dual<T, N>& x, C c) {
  return {detail::difference_of(x.v, detail::scalar(x.v, double(c))), x.d, x.without};
}
template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> operator-(C c, const Dual<T, N>& x) {
  return (-x) + c;
}
template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> operator*(const Dual<T, N>& x, C c) {
  auto s = detail::scalar(x.v, double(c));
  return detail::chain(x, T(detail::product_of(x.v, s)), s);
}
template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> operator*(C c, const Dual<T, N>& x) { return x * c; }
template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> operator/(const Dual<T, N>& x, C c) {
  return detail::chain(x, T(x.v / detail::scalar(x.v, double(c))), detail::scalar(x.v, 1.0 / double(c)));
}
template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> operator/(C c, const Dual<T, N>& x) {
  T y = detail::scalar(x.v, double(c)) / x.v;
  return detail::chain(x, y, T(-(y / x.v)));
}

// -- comparisons: on values; a bool, or a mask tensor (ops/elementwise/dual_tensor.h) ---------------------------------
// Comparisons that return bool are pure: otherwise clang warns in a user's formula that & and | of two calls with
// possible side effects may be meant as && and ||.
template <std::size_t N, class T> SLUICE_FN bool mask_of(bool m, const T&) { return m; }
template <class T>
concept NumberValue = requires(const T& v) {
  { v < v } -> std::same_as<bool>;
};
#define SLUICE_DUAL_COMPARISON(op, attribute, condition)                                                          \
  template <class T, std::size_t N>                                                                               \
  requires(condition) attribute SLUICE_FN auto operator op(const Dual<T, N>& a, const Dual<T, N>& b) {            \
    return mask_of<N>(a.v op b.v, a.v);                                                                           \
  }                                                                                                               \
  template <class T, std::size_t N, class C>                                                                      \
  requires(std::is_arithmetic_v<C> && condition) attribute SLUICE_FN auto operator op(const Dual<T, N>& x, C c) { \
    return mask_of<N>(x.v op detail::scalar(x.v, double(c)), x.v);                                                \
  }                                                                                                               \
  template <class T, std::size_t N, class C>                                                                      \
  requires(std::is_arithmetic_v<C> && condition) attribute SLUICE_FN auto operator op(C c, const Dual<T, N>& x) { \
    return mask_of<N>(like(Value<T>{x.v, {}}, double(c)).v op x.v, x.v);                                          \
  }
#define SLUICE_DUAL_COMPARISONS(op)                           \
  SLUICE_DUAL_COMPARISON(op, [[gnu::pure]], (NumberValue<T>)) \
  SLUICE_DUAL_COMPARISON(op, , (!NumberValue<T>))
SLUICE_DUAL_COMPARISONS(<)
SLUICE_DUAL_COMPARISONS(<=)
SLUICE_DUAL_COMPARISONS(>)
SLUICE_DUAL_COMPARISONS(>=)
SLUICE_DUAL_COMPARISONS(==)
SLUICE_DUAL_COMPARISONS(!=)
#undef SLUICE_DUAL_COMPARISONS
#undef SLUICE_DUAL_COMPARISON

template <class M>  // a bool, an int, which bool & bool is, or a mask of tensors (dual_tensor.h)
concept FormulaMask = std::is_integral_v<M> || requires(const M& m) {
  m.mask;
};
/// mask ? a : b. Both are evaluated, so both must be finite where their gradient is to be finite.
template <FormulaMask M, class T, std::size_t N>
SLUICE_FN Dual<T, N> select(const M& mask, const Dual<T, N>& a, const Dual<T, N>& b) {
  using P = PartialOps<T>;
  if constexpr (std::is_integral_v<M> && !std::is_arithmetic_v<T>) return mask ? a : b;  // a captured bool
  Dual<T, N> r{P::select(mask, a.v, b.v), {}, a.without & b.without};
  for (std::size_t k = 0; k < N; ++k) r.d[k] = P::select(mask, a.d[k], b.d[k]);
  return r;
}
template <FormulaMask M, class T, std::size_t N, Number C>
SLUICE_FN Dual<T, N> select(const M& mask, const Dual<T, N>& a, C b) {
  return select(mask, a, like(a, double(b)));
}
template <FormulaMask M, class T, std::size_t N, Number C>
SLUICE_FN Dual<T, N> select(const M& mask, C a, const Dual<T, N>& b) {
  return select(mask, like(b, double(a)), b);
}

// -- functions of a dual and a number ---------------------------------------------------------------------

#define SLUICE_DUAL_WITH_NUMBER(name)                                                               \
  template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> name(const Dual<T, N>& x, C c) { \
    return name(x, like(x, double(c)));                                                             \
  }                                                                                                 \
  template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> name(C c, const Dual<T, N>& x) { \
    return name(like(x, double(c)), x);                                                             \
  }
SLUICE_DUAL_WITH_NUMBER(max)
SLUICE_DUAL_WITH_NUMBER(min)
SLUICE_DUAL_WITH_NUMBER(remainder)
SLUICE_DUAL_WITH_NUMBER(floor_divide)
#undef SLUICE_DUAL_WITH_NUMBER

/// c^x.
template <class T, std::size_t N, Number C> SLUICE_FN Dual<T, N> pow(C c, const Dual<T, N>& x) {
  return pow(like(x, double(c)), x);
}
/// mask ? a : b of two numbers.
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) SLUICE_FN double select(bool mask, A a, B b) {
  return mask ? double(a) : double(b);
}

// -- assignment ---------------------------------------------------------------------------------------------

#define SLUICE_DUAL_ASSIGNMENT(op)                                                      \
  template <class T, std::size_t N, class C>                                            \
  requires(std::is_arithmetic_v<C> || std::same_as<C, Dual<T, N>>) SLUICE_FN Dual<T, N> \
  &operator op##=(Dual<T, N>& x, const C& y) { return x = x op y; }
SLUICE_DUAL_ASSIGNMENT(+)
SLUICE_DUAL_ASSIGNMENT(-)
SLUICE_DUAL_ASSIGNMENT(*)
SLUICE_DUAL_ASSIGNMENT(/)
#undef SLUICE_DUAL_ASSIGNMENT
/// x == 0, as of numbers in C++.
template <class T, std::size_t N> SLUICE_FN auto operator!(const Dual<T, N>& x) { return x == 0; }
/// x becomes x + 1, which is the result.
template <class T, std::size_t N> SLUICE_FN Dual<T, N>& operator++(Dual<T, N>& x) { return x += 1; }
/// x becomes x − 1, which is the result.
template <class T, std::size_t N> SLUICE_FN Dual<T, N>& operator--(Dual<T, N>& x) { return x -= 1; }
/// x becomes x + 1; the result is x before.
template <class T, std::size_t N> SLUICE_FN Dual<T, N> operator++(Dual<T, N>& x, int) {
  return std::exchange(x, x + 1);
}
/// x becomes x − 1; the result is x before.
template <class T, std::size_t N> SLUICE_FN Dual<T, N> operator--(Dual<T, N>& x, int) {
  return std::exchange(x, x - 1);
}

namespace detail {
/// f(x, …); a constant result becomes a Dual like x.
template <class F, class T, std::size_t N, class... Ds>
SLUICE_FN Dual<T, N> call(const F& f, const Dual<T, N>& x, const Ds&... xs) {
  if constexpr (std::is_arithmetic_v<decltype(f(x, xs...))>) return like(x, static_cast<double>(f(x, xs...)));
  else return f(x, xs...);
}
}  // namespace detail

}  // namespace sluice
