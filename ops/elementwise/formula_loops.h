// How map.h compiles its loops over formulas, and the formulas that have one without calls of the C library.
#pragma once

#include <sluice/ops/elementwise/formulas.h>

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

}  // namespace sluice::formula
