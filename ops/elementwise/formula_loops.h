// How map.h compiles its loops over formulas, and the formulas that have loops of their own: without calls of the C
// library, or over bf16.
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/elementwise/formulas.h>

#include <array>
#include <bit>
#include <concepts>
#include <type_traits>

#if defined(__clang__)
#define SLUICE_LOOP [[gnu::flatten]] SLUICE_FN
#elif defined(__GNUC__)
// Not always_inline: GCC's early inliner skips always_inline functions, and its later inliner does not inline a formula
// that has been specialised by then. Loops over formulas of three tensors then call a function per number: 50 times as
// slow.
#define SLUICE_LOOP [[gnu::flatten]] inline
#else
#define SLUICE_LOOP inline
#endif

namespace sluice::formula {

/// quick(f, x…, y): y = f(x…) without a call of the C library, for formulas that have such a loop. Returns false where
/// y is wrong, which is rare: there the loop calls the formula itself.
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

/// quick_slopes(f, x…, d): d[k] = ∂f/∂x_k, by the rules of quick().
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
/// Formulas whose result is a bf16 if the operands are: nothing is rounded.
template <class F> constexpr bool is_exact_in_bf16 = is_one_of<F, Relu, Maximum, Minimum, Floor, Ceil, Round, Trunc>;
/// Formulas so short that buffers of f32 would take longer: their loops read and write bf16.
template <class F>
constexpr bool is_short = is_exact_in_bf16<F> || is_one_of<F, Add, Sub, Mul, Div, Scale, AddScalar, SubFrom, DivBy,
                                                           Reciprocal, Square, Sqrt, Rsqrt, LeakyRelu, Clamp, Neg, Abs>;
/// f(x) for formulas that change the sign only.
SLUICE_FN BFloat16 on_bits(const Neg&, BFloat16 x) {
  return std::bit_cast<BFloat16>(static_cast<uint16_t>(x.bits ^ 0x8000));
}
SLUICE_FN BFloat16 on_bits(const Abs&, BFloat16 x) {
  return std::bit_cast<BFloat16>(static_cast<uint16_t>(x.bits & 0x7fff));
}

}  // namespace sluice::formula

namespace sluice::detail {

#if defined(__clang__)  // as in core/kernel/vectorise.h; with -g the warning is about these lines
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

/// Calls quick(i) for all i < n, and exact(i) where it returns false. `Word` is as wide as the numbers, to vectorise.
template <class Word> SLUICE_LOOP void quick_loop(int64_t n, auto quick, auto exact) {
  for (int64_t b = 0; b < n; b += kTile) {
    const int64_t end = std::min(n, b + kTile);
    Word wrong = 0;
    SLUICE_VECTORIZE
    for (int64_t i = b; i < end; ++i) wrong |= quick(i) ? 0u : 1u;
    for (int64_t i = b; wrong && i < end; ++i)
      if (!quick(i)) exact(i);
  }
}
template <class T> using WordOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

/// Two neighbours of bf16 in memory, the first in the low half. A word of 32 bits becomes two numbers of f32 by a shift
/// and a mask, and two results become a word likewise: no vector is taken apart.
using Bf16Pair [[gnu::may_alias, gnu::aligned(2)]] = uint32_t;

/// f of numbers of bf16, in the upper half of the result. The lower half is undefined.
template <class F, class... X> SLUICE_FN uint32_t upper_call(const F& f, X... upper) {
  const float y = call(f, Value<float>{std::bit_cast<float>(upper), {}}...).v;
  const uint32_t u = std::bit_cast<uint32_t>(y);
  if constexpr (formula::is_exact_in_bf16<F>) return u;
  else return y != y ? u | 0x400000 : u + 0x7fff + (u >> 16 & 1);  // as BFloat16(y)
}
/// f of pairs of bf16.
template <class F, class... X> SLUICE_FN uint32_t pair_call(const F& f, X... pairs) {
  return upper_call(f, (pairs << 16)...) >> 16 | (upper_call(f, (pairs & 0xffff0000)...) & 0xffff0000);
}

template <class F> constexpr bool is_selecting = requires { requires F::selects; };
/// g · slope. For a formula that `selects`, 0 where the slope is 0, even if g is infinite.
template <class F, class T> SLUICE_FN T pulled_back(const T& g, const T& slope) {
  if constexpr (is_selecting<F>) return math::select(slope == T(0), T(0), g * slope);
  else return g * slope;
}

#if defined(__clang__)
#pragma clang diagnostic pop
#endif

}  // namespace sluice::detail
