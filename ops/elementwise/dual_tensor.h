// Formulas on tensors: comparisons and derivatives of a Dual whose numbers are tensors.
#pragma once

#include <sluice/core/number/dual_operators.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>

namespace sluice {

namespace detail {
/// The scalar 1 that seeds derivatives, of the dtype and device of x; is_unit() recognises it.
Tensor unit(const Tensor& x);
bool is_unit(const Tensor& x);
}  // namespace detail

/// The result of a comparison in a formula on tensors: a mask, not a bool. The error for `if (x > 0.0)` names this
/// type. map() first tries a formula with derivatives; without derivatives (N = 0) the type converts to bool, so that
/// the error appears once.
template <std::size_t N> struct in_a_formula_write_select_instead_of_if {
  Tensor mask, x;  // x: the compared tensor
};
template <> struct in_a_formula_write_select_instead_of_if<0> {
  Tensor mask, x;
  operator bool() const { return false; }
};
namespace detail {
template <std::size_t N> using Comparison = in_a_formula_write_select_instead_of_if<N>;
}  // namespace detail
template <std::size_t N> detail::Comparison<N> mask_of(const Tensor& mask, const Tensor& x) { return {mask, x}; }
template <std::size_t N>
detail::Comparison<N> operator&(const detail::Comparison<N>& a, const detail::Comparison<N>& b) {
  return {logical_and(a.mask, b.mask), a.x};
}
template <std::size_t N>
detail::Comparison<N> operator|(const detail::Comparison<N>& a, const detail::Comparison<N>& b) {
  return {logical_or(a.mask, b.mask), a.x};
}
template <std::size_t N> detail::Comparison<N> operator!(const detail::Comparison<N>& a) {
  return {logical_not(a.mask), a.x};
}
// && on bools branches and stops vectorisation: 20 times as slow.
#define SLUICE_BOTH "in a formula write & and |, not && and ||: both sides are computed"
template <std::size_t N>
detail::Comparison<N> operator&&(const detail::Comparison<N>& a, const detail::Comparison<N>&) {
  static_assert(N == 0, SLUICE_BOTH);
  return a;
}
template <std::size_t N>
detail::Comparison<N> operator||(const detail::Comparison<N>& a, const detail::Comparison<N>&) {
  static_assert(N == 0, SLUICE_BOTH);
  return a;
}
#undef SLUICE_BOTH
template <std::size_t N, class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) Dual<Tensor, N> select(const detail::Comparison<N>& c, A a,
                                                                                   B b) {
  return Dual<Tensor, N>::constant(where(c.mask, like(c.x, double(a)), double(b)));
}

/// Partial derivatives that are tensors: undefined is an exact 0, unit() an exact 1.
template <> struct PartialOps<Tensor> {
  static Tensor zero() { return {}; }
  static Tensor mul(const Tensor& slope, const Tensor& d) {
    if (!slope.defined() || !d.defined()) return {};
    if (detail::is_unit(d)) return slope;
    return detail::is_unit(slope) ? d : sluice::mul(slope, d);
  }
  static Tensor mul(const Tensor& d, double slope) { return d.defined() ? scale(d, slope) : d; }
  static Tensor add(const Tensor& a, const Tensor& b) {
    if (!a.defined()) return b;
    return b.defined() ? sluice::add(a, b) : a;
  }
  static Tensor sub(const Tensor& a, const Tensor& b) {
    if (!b.defined()) return a;
    return a.defined() ? sluice::sub(a, b) : scale(b, -1);
  }
  template <std::size_t N>
  static Tensor select(const detail::Comparison<N>& comparison, const Tensor& a, const Tensor& b) {
    return select(comparison.mask, a, b);
  }
  static Tensor select(const Tensor& mask, const Tensor& a, const Tensor& b) {
    if (!a.defined() && !b.defined()) return {};
    return where(mask, a.defined() ? a : like(b, 0), b.defined() ? b : like(a, 0));
  }
};

}  // namespace sluice
