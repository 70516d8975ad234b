// Wrong arguments of map(), not a formula or not tensors: each gives one short error that says what to write. Mistakes
// inside a formula are in core/number/dual_misuse.h.
#pragma once

#include <sluice/core/number/dual_misuse.h>
#include <sluice/core/tensor.h>

namespace sluice {

namespace detail {
/// The result of f when the arguments do not fit its parameters. Without it, compilers would list every candidate.
struct NoCall {};
struct LastChoice {
  NoCall operator()(...) const;
};
template <class F> struct OrLastChoice : F {
  using F::operator();
  NoCall operator()(...) const;
};
template <class F> struct Callee : std::conditional<std::is_final_v<F>, F, OrLastChoice<F>> {};
template <class F>
requires(!std::is_class_v<F> || requires { &F::operator(); })  // not generic
    struct Callee<F> {
  using type = LastChoice;
};
/// exp or std::exp instead of a lambda that calls it.
struct NamedOp {
  NamedOp(Tensor (*)(const Tensor&)) {}
  NamedOp(double (*)(double)) {}
  NamedOp(double (*)(double, double)) {}
  NamedOp(const double& (*)(const double&, const double&)) {}
};
/// For decltype: formula() is the formula, number() its argument for one tensor. ResultOf<R> has the result type of
/// map() for a formula that returns R.
template <class F> const typename Callee<F>::type& formula();
template <std::size_t N, class = Tensor> Dual<Tensor, N> number() { return {}; }
template <class R> struct ResultOf { using type = Tensor; };
}  // namespace detail

/// Takes all other calls of map(): not a formula and tensors, or a formula that already failed to compile.
#define SLUICE_TENSORS                                                                             \
  "map: a formula, then its tensors: map([c](auto x, auto y) { return c * x * y; }, a, b), where " \
  "numbers like c are captured"
template <class F, class... Ts> Tensor map(const F&, const Ts&...) {
  constexpr bool tensors = sizeof...(Ts) > 0 && (std::same_as<Ts, Tensor> && ...);
  static_assert(tensors, SLUICE_TENSORS);
  fail<ValueError>("map: no formula");
}
template <class F> Tensor map(const F&, std::initializer_list<Tensor>) {
  static_assert(sizeof(F) == 0, SLUICE_TENSORS);
  return {};
}
#undef SLUICE_TENSORS
template <class... Ts> Tensor map(detail::NamedOp, const Ts&...) {
  static_assert(sizeof...(Ts) > 6,
                "map: a formula names its parameters: map([](auto x) { return exp(x); }, a); but exp(a) is an op");
  return {};
}

}  // namespace sluice
