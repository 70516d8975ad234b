// How map.h compiles its loops over formulas, and the formulas that have loops of their own: without calls of the C
// library, or over bf16.
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/ops/elementwise/formulas.h>

#include <array>
#include <bit>
#include <concepts>

#if defined(__clang__)
#define SLUICE_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#define SLUICE_LOOP [[gnu::flatten]] SLUICE_FN
#elif defined(__GNUC__)
#define SLUICE_VECTORIZE _Pragma("GCC ivdep")
// Not always_inline: GCC's early inliner skips always_inline functions, and its later inliner does not inline a formula
// that has been specialised by then. Loops over formulas of three tensors then call a function per number: 50 times as
// slow.
#define SLUICE_LOOP [[gnu::flatten]] inline
#else
#define SLUICE_VECTORIZE
#define SLUICE_LOOP inline
#endif

#define SLUICE_RESTRICT __restrict__

namespace sluice::formula {

/// quick(f, x…, y): y = f(x…) without a call of the C library, for loops of formulas that have it. False where y is
/// wrong, which is rare: there the formula itself is called.
SLUICE_FN bool quick(const Sin&, double x, double& y) {
  y = math::f64::sin(x);
  return math::abs(x) < math::f64::quadrants_end;
}
SLUICE_FN bool quick(const Cos&, double x, double& y) {
  y = math::f64::cos(x);
  return math::abs(x) < math::f64::quadrants_end;
}
template <std::floating_point T> SLUICE_FN bool quick(const Remainder&, T a, T b, T& y) {
  T r;
  const bool right = detail::quick_fmod(a, b, r);
  y = detail::remainder_from(a, b, r);
  return right;
}
template <std::floating_point T> SLUICE_FN bool quick(const FloorDivide&, T a, T b, T& y) {
  T r;
  const bool right = detail::quick_fmod(a, b, r);
  y = detail::floor_quotient_from(a, b, r);
  return right;
}

/// quick_slopes(f, x…, d): d[k] = ∂f/∂x_k, as quick() gives y.
SLUICE_FN bool quick_slopes(const Sin&, double x, std::array<double, 1>& d) { return quick(Cos(), x, d[0]); }
SLUICE_FN bool quick_slopes(const Cos&, double x, std::array<double, 1>& d) {
  const bool right = quick(Sin(), x, d[0]);
  d[0] = -d[0];
  return right;
}
template <std::floating_point T> SLUICE_FN bool quick_slopes(const Remainder&, T a, T b, std::array<T, 2>& d) {
  const bool right = quick(FloorDivide(), a, b, d[1]);
  d[0] = T(1), d[1] = T(0) - d[1];
  return right;
}

/// True if F is in the list.
template <class F, class... Fs> constexpr bool is_one_of = (std::same_as<F, Fs> || ...);
/// Formulas that make a bf16 of operands of bf16: nothing is rounded.
template <class F> constexpr bool is_exact_in_bf16 = is_one_of<F, Relu, Maximum, Minimum, Floor, Ceil, Round, Trunc>;
/// Formulas so short that buffers of f32 would take longer: their loops read and write bf16.
template <class F>
constexpr bool is_short =
    is_exact_in_bf16<F> ||
    is_one_of<F, Add, Sub, Mul, Div, Scale, AddScalar, SubFrom, DivBy, Square, Sqrt, Rsqrt, LeakyRelu, Clamp, Neg, Abs>;
/// f(x) where only the sign changes.
SLUICE_FN BFloat16 on_bits(const Neg&, BFloat16 x) {
  return std::bit_cast<BFloat16>(static_cast<uint16_t>(x.bits ^ 0x8000));
}
SLUICE_FN BFloat16 on_bits(const Abs&, BFloat16 x) {
  return std::bit_cast<BFloat16>(static_cast<uint16_t>(x.bits & 0x7fff));
}

}  // namespace sluice::formula
