// Scalar elementary functions that vectorise inside plain loops.
//
// Their bodies are straight-line code: polynomials, integer work on the bits, and select() that becomes a blend. No
// branch, no table, no libm call, so `for (i) y[i] = math::exp(x[i])` becomes SIMD under g++ and clang++ with plain
// -O3, for the instruction set that the function is compiled for (for double under g++: from AVX2 on). Nothing here
// needs -ffast-math, and nothing here survives it: NaN tests and the rounding trick would be optimised away. Sine and
// cosine of double call <cmath>; maps of one of them, and their gradients, take f64::sin and f64::cos, 0.8 ulp, below
// 1.5 million. Device code calls the CUDA functions, which have their own errors.
//
// Polynomials are minimax fits made for these files (Remez exchange in 40 digits, coefficients then rounded to the
// working type). `ulp` is the largest error seen, in units of the last place of the exact result; two numbers are that
// of float and that of double. For float against <cmath> in double, over 330 million floats spread evenly over all bit
// patterns (for pow 30 million random pairs, and lines of one x or one y); for double against libquadmath, over six
// million numbers per function or more, of all sizes and around breakpoints. The worst unseen argument may be slightly
// worse. Results hold with and without fused multiply-add, except where a comment says otherwise.
#pragma once

#include <sluice/core/number/math_f32.h>
#include <sluice/core/number/math_f64.h>
#include <sluice/core/number/select.h>

#include <cmath>

namespace sluice::math {

// Device code takes the first of the two.
#ifdef __CUDA_ARCH__
#define SLUICE_ON(device, host) device
#else
#define SLUICE_ON(device, host) host
#endif

// All x. 1.05 and 0.95 ulp. exp(-inf) = 0, exp(inf) = inf. float: overflow from 88.7229 -> inf, denormal results below
// -87.3366, 0 below -103.97.
SLUICE_FN float exp(float x) { return SLUICE_ON(::expf(x), f32::exp(x)); }
SLUICE_FN double exp(double x) { return SLUICE_ON(std::exp(x), f64::exp(x)); }
// exp(x) for x <= 50, a quarter faster; above, any value. -inf and NaN as exp.
SLUICE_FN float exp_low(float x) { return SLUICE_ON(::expf(x), f32::exp_low(x)); }
SLUICE_FN double exp_low(double x) { return SLUICE_ON(std::exp(x), f64::exp_low(x)); }

// e^x - 1. All x. 1.65 and 1.2 ulp, also near 0. expm1(-0) = -0, expm1(-inf) = -1, expm1(inf) = inf.
SLUICE_FN float expm1(float x) { return SLUICE_ON(::expm1f(x), f32::expm1(x)); }
SLUICE_FN double expm1(double x) { return SLUICE_ON(std::expm1(x), f64::expm1(x)); }

// Domain x >= 0, below -> NaN. 0.85 and 0.9 ulp, denormals included. log(+-0) = -inf, log(inf) = inf.
SLUICE_FN float log(float x) { return SLUICE_ON(::logf(x), f32::log(x)); }
SLUICE_FN double log(double x) { return SLUICE_ON(std::log(x), f64::log(x)); }

// log(1 + x). Domain x >= -1, below -> NaN. 1.45 and 0.9 ulp, also near 0. log1p(-0) = -0, log1p(-1) = -inf,
// log1p(inf) = inf.
SLUICE_FN float log1p(float x) { return SLUICE_ON(::log1pf(x), f32::log1p(x)); }
SLUICE_FN double log1p(double x) { return SLUICE_ON(std::log1p(x), f64::log1p(x)); }

// All x. 2.5 and 1.3 ulp, also near 0. tanh(+-0) = +-0, tanh(+-inf) = +-1.
SLUICE_FN float tanh(float x) { return SLUICE_ON(::tanhf(x), f32::tanh(x)); }
SLUICE_FN double tanh(double x) { return SLUICE_ON(std::tanh(x), f64::tanh(x)); }

// 1 / (1 + e^-x). All x. 2.4 ulp, also far left, down to denormal results. sigmoid(-inf) = 0, sigmoid(inf) = 1.
SLUICE_FN float sigmoid(float x) { return logistic(x, SLUICE_ON(::expf(-std::fabs(x)), f32::exp_low(-std::fabs(x)))); }
SLUICE_FN double sigmoid(double x) { return logistic(x, exp_low(-std::fabs(x))); }

// log(1 + e^x). All x. 1.7 and 1.5 ulp, also far left, down to denormal results. softplus(-inf) = 0,
// softplus(inf) = inf.
SLUICE_FN float softplus(float x) {
  return SLUICE_ON((x > 0.0f ? x : 0.0f) + ::log1pf(::expf(-std::fabs(x))), f32::softplus(x));
}
SLUICE_FN double softplus(double x) {
  return SLUICE_ON((x > 0.0 ? x : 0.0) + std::log1p(std::exp(-std::fabs(x))), f64::softplus(x));
}

// All x. 1.2 and 1.5 ulp, also near 0. erf(+-0) = +-0, erf(+-inf) = +-1.
SLUICE_FN float erf(float x) { return SLUICE_ON(::erff(x), f32::erf(x)); }
SLUICE_FN double erf(double x) { return SLUICE_ON(std::erf(x), f64::erf(x)); }

// The standard normal distribution function, erfc(-x / sqrt2) / 2. All x. 4.6 ulp, of double 5.8 from x = -8 on and 7.2
// below, also far left, down to denormal results. 0 below -14.17 and -38.5; normal_cdf(-inf) = 0, normal_cdf(inf) = 1.
SLUICE_FN float normal_cdf(float x) { return SLUICE_ON(::normcdff(x), f32::normal(x).cdf); }
SLUICE_FN double normal_cdf(double x) {
  return SLUICE_ON(0.5 * std::erfc(x * -0.70710678118654752), f64::normal(x).cdf);
}
// normal_cdf(x), and its derivative `density` = e^(-x^2/2) / sqrt(2 pi): 1.6 and 1.5 ulp.
SLUICE_FN float normal_cdf(float x, float& density) {
#ifdef __CUDA_ARCH__
  return density = ::expf(-0.5f * x * x) * 0.398942280f, ::normcdff(x);
#else
  f32::Normal n = f32::normal(x);
  return density = n.density, n.cdf;
#endif
}
SLUICE_FN double normal_cdf(double x, double& density) {
#ifdef __CUDA_ARCH__
  return density = std::exp(-0.5 * x * x) * 0.3989422804014327, normal_cdf(x);
#else
  f64::Normal n = f64::normal(x);
  return density = n.density, n.cdf;
#endif
}

// float: |x| < 1e15 with fused multiply-add, |x| < 2.6e7 without (larger x gives wrong values). 1.6 ulp up to 2.6e7,
// then within 1e-7. From 1e15 on NaN: neighbouring floats are ten million periods apart there. sin(+-0) = +-0; +-inf ->
// NaN.
SLUICE_FN float sin(float x) { return SLUICE_ON(::sinf(x), f32::sin(x)); }
SLUICE_FN double sin(double x) { return std::sin(x); }
SLUICE_FN float cos(float x) { return SLUICE_ON(::cosf(x), f32::cos(x)); }
SLUICE_FN double cos(double x) { return std::cos(x); }

// x^y. 0.55 and 0.95 ulp. Special values as std::pow: pow(x, 0) = pow(1, y) = 1 even for NaN; negative x with whole y
// works, otherwise NaN; zeros and infinities in either argument, signed zeros included.
SLUICE_FN float pow(float x, float y) { return SLUICE_ON(::powf(x, y), f32::pow(x, y)); }
SLUICE_FN double pow(double x, double y) { return SLUICE_ON(std::pow(x, y), f64::pow(x, y)); }

#undef SLUICE_ON

}  // namespace sluice::math
