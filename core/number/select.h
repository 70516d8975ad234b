// Elementary functions without polynomials: selection, sign, rounding, square root; one source for float and double.
// Loops over them vectorise under plain -O3.
#pragma once
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <sluice/core/kernel/fn.h>

// The C library sets errno for the root of a negative number, so a loop would call sqrt for one number after the other.
// Declared const, sqrt is an instruction for many numbers at once. This changes ::sqrt and ::sqrtf in every program
// that includes this header, and no other function. Outside glibc the declaration may differ, so it is left alone and
// such a loop is slower.
#if defined(__GLIBC__) && !defined(__CUDACC__)
extern "C" {
[[gnu::const]] float sqrtf(float) noexcept;
[[gnu::const]] double sqrt(double) noexcept;
}
#endif

namespace sluice::math {

template <class T> using if_real = std::enable_if_t<std::is_same_v<T, float> || std::is_same_v<T, double>, T>;

// c ? a : b; both arguments are evaluated. Every formula branches with it. Written on the bits so that it compiles to a
// blend. The compiler may make a branch of `c ? a : b`, which it cannot undo if a or b is arithmetic that may trap, and
// -fno-trapping-math is not what every program is built with.
#ifdef __CUDA_ARCH__
template <class T> SLUICE_FN if_real<T> select(bool c, T a, T b) { return c ? a : b; }
#else
SLUICE_FN float select(bool c, float a, float b) {
  std::uint32_t mask = -static_cast<std::uint32_t>(c);
  return __builtin_bit_cast(
      float, (__builtin_bit_cast(std::uint32_t, a) & mask) | (__builtin_bit_cast(std::uint32_t, b) & ~mask));
}
SLUICE_FN double select(bool c, double a, double b) {
  std::uint64_t mask = -static_cast<std::uint64_t>(c);
  return __builtin_bit_cast(
      double, (__builtin_bit_cast(std::uint64_t, a) & mask) | (__builtin_bit_cast(std::uint64_t, b) & ~mask));
}
#endif

// Exact. Clears the sign bit, NaN included.
template <class T> SLUICE_FN if_real<T> abs(T x) { return std::fabs(x); }

// Exact. Magnitude of the first, sign bit of the second.
template <class T> SLUICE_FN if_real<T> copysign(T x, T s) { return std::copysign(x, s); }

// -1, 0 or 1. Zero keeps its sign; NaN -> NaN.
template <class T> SLUICE_FN if_real<T> sign(T x) { return select(x > T(0), T(1), select(x < T(0), T(-1), x)); }

// A NaN in either argument is the result (std::fmax would drop it). Of two zeros the second is returned.
template <class T> SLUICE_FN if_real<T> min(T a, T b) { return select((a < b) | (a != a), a, b); }
template <class T> SLUICE_FN if_real<T> max(T a, T b) { return select((a > b) | (a != a), a, b); }

// Exact. round: to the nearest integer, halves to even. floor, ceil and trunc use round, which alone of the four
// vectorises without -fno-trapping-math.
template <class T> SLUICE_FN if_real<T> round(T x) { return std::rint(x); }
template <class T> SLUICE_FN if_real<T> floor(T x) {
  T r = round(x);
  return math::copysign(math::select(r > x, r - T(1), r), x);
}
template <class T> SLUICE_FN if_real<T> ceil(T x) {
  T r = round(x);
  return math::copysign(math::select(r < x, r + T(1), r), x);
}
template <class T> SLUICE_FN if_real<T> trunc(T x) { return math::copysign(math::floor(math::abs(x)), x); }

// Domain x >= 0, below -> NaN. Correctly rounded (0.5 ulp). sqrt(-0) = -0.
SLUICE_FN double sqrt(double x) { return ::sqrt(x); }
// 1 / sqrt(x). Domain x >= 0, below -> NaN. 1.5 ulp. rsqrt(+-0) = +-inf, rsqrt(inf) = 0.
SLUICE_FN double rsqrt(double x) { return 1.0 / ::sqrt(x); }
SLUICE_FN float sqrt(float x) { return ::sqrtf(x); }
#ifdef __CUDA_ARCH__
SLUICE_FN float rsqrt(float x) { return ::rsqrtf(x); }
#else
SLUICE_FN float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
#endif

// sigmoid(x) from z = e^-|x|, which cannot overflow. z / (1 + z) on the left keeps the relative accuracy of small
// results.
template <class T> SLUICE_FN if_real<T> logistic(T x, T z) { return select(x < T(0), z, T(1)) / (T(1) + z); }
#ifdef __CUDA_ARCH__
// Within 1.5 ulp. A divisor from 1 to 2 has a reciprocal by one step of Newton's; the exact division has branches and a
// call, and would keep eight neighbours of a thread from being computed side by side.
__device__ inline float logistic(float x, float z) {
  const float d = 1.0f + z;
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  return (x < 0.0f ? z : 1.0f) * ::fmaf(r, ::fmaf(-d, r, 1.0f), r);
}
#endif

}  // namespace sluice::math
