// Elementwise arithmetic, comparisons and mathematics. All broadcast by NumPy's rules and, where they
// are smooth, have gradients of any order.
#pragma once

#include <sluice/core/tensor.h>

#include <optional>

namespace sluice {

// A scalar argument takes the dtype and device of the tensor. With an integer tensor, a fraction throws DTypeError,
// except in comparisons and in x / c with a whole 1/c. With i64, a number of 2^53 to 2^63, which a double may have
// rounded, throws DTypeError, too. A number outside the range of the integers throws DTypeError in scale, x ± c and c −
// x, and saturates elsewhere.

// -- arithmetic: f32, f64, bf16. Also i64, i32: add, sub, mul, neg, scale, square, pow by a number, remainder,
// floor_divide, maximum, minimum, clamp, where and masked_fill; the last two also bool. a/b of integers is to(a, f32) /
// to(b, f32); floor_divide stays in integers --

/// a + b, a − b, a·b, a/b, −x: also as operators.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor neg(const Tensor& x);
/// factor · x
Tensor scale(const Tensor& x, double factor);
/// x + c
Tensor add_scalar(const Tensor& x, double c);
/// x^e. Slope in x: e·x^(e−1), 0 where e = 0. Slope in a tensor exponent: x^e·log x, 0 where x <= 0. Powers of integers
/// wrap around; a negative exponent beside integers is a ValueError.
Tensor pow(const Tensor& x, double exponent);
Tensor pow(const Tensor& x, const Tensor& exponent);
Tensor pow(double base, const Tensor& exponent);
/// x²
Tensor square(const Tensor& x);
/// 1/x
Tensor reciprocal(const Tensor& x);
/// a − b·⌊a/b⌋, as Python's %, also as operator: has the sign of b. Slopes 1 and −⌊a/b⌋. Where b is 0: a for integers,
/// NaN for floats.
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, double b);
Tensor remainder(double a, const Tensor& b);
/// ⌊a/b⌋, as Python's //: with the remainder r above, a = b·⌊a/b⌋ + r. Its gradient is 0. Where b is 0: 0 for integers,
/// a/b for floats.
Tensor floor_divide(const Tensor& a, const Tensor& b);
Tensor floor_divide(const Tensor& a, double b);
Tensor floor_divide(double a, const Tensor& b);
/// The larger or smaller of two values. NaN wins; at a tie each gets half of the gradient.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, double b);
inline Tensor maximum(double a, const Tensor& b) { return maximum(b, a); }
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, double b);
inline Tensor minimum(double a, const Tensor& b) { return minimum(b, a); }
/// x limited to [lo, hi], on one side where the other is {}; slope 1 on the bounds. Throws ValueError when lo > hi.
Tensor clamp(const Tensor& x, std::optional<double> lo, std::optional<double> hi = {});
/// a + w·(b − a)
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& w);
Tensor lerp(const Tensor& a, const Tensor& b, double w);
/// mask ? a : b, mask bool. Gradients flow to the chosen side only. Of two numbers: f32.
Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& mask, const Tensor& a, double b);
Tensor where(const Tensor& mask, double a, const Tensor& b);
Tensor where(const Tensor& mask, double a, double b);
/// A rank-0 tensor of the dtype (f32 for integers) and device of x: a constant beside x.
Tensor like(const Tensor& x, double c);
/// x with `value` where mask is true.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

// -- mathematics: f32, f64, bf16; abs, sign and the roundings also i64, i32 ---------------------------------
/// e^x
Tensor exp(const Tensor& x);
/// e^x − 1, accurate near 0
Tensor expm1(const Tensor& x);
/// The natural logarithm; NaN below 0, −∞ at 0.
Tensor log(const Tensor& x);
/// log(1 + x), accurate near 0
Tensor log1p(const Tensor& x);
/// √x
Tensor sqrt(const Tensor& x);
/// 1/√x
Tensor rsqrt(const Tensor& x);
/// The hyperbolic tangent.
Tensor tanh(const Tensor& x);
/// 1/(1 + e^−x)
Tensor sigmoid(const Tensor& x);
/// log(1 + e^x) without overflow
Tensor softplus(const Tensor& x);
/// The error function (2/√π) ∫₀ˣ e^(−t²) dt.
Tensor erf(const Tensor& x);
/// The standard normal distribution function Φ(x) = ½ erfc(−x/√2); far left it keeps its relative accuracy.
Tensor normal_cdf(const Tensor& x);
/// Sine and cosine of x in radians. In f32 and bf16 NaN from |x| = 10^15 on; without FMA with fewer digits from
/// 2.6·10^7 on.
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
/// Slope sign(x): 0 at 0. The lowest integer has no magnitude and stays.
Tensor abs(const Tensor& x);
/// −1, 0 or 1. Its gradient and those of the four roundings below are 0. round() rounds halves to even. Roundings leave
/// integers as they are.
Tensor sign(const Tensor& x);
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);
Tensor trunc(const Tensor& x);

// -- comparisons: the result is bool. Both sides float or both not, unless one has rank 0 --------------------
/// a == b, a != b, a < b, a <= b, a > b, a >= b: also as operators. With a NaN all but a != b are false.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& x, double c);
Tensor ne(const Tensor& x, double c);
Tensor lt(const Tensor& x, double c);
Tensor le(const Tensor& x, double c);
Tensor gt(const Tensor& x, double c);
Tensor ge(const Tensor& x, double c);
/// a & b, a | b, !x or ~x of bool tensors: also as operators.
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);
/// True where an element is NaN (isnan), an infinity (isinf), neither of them (isfinite).
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);
/// True if |a − b| <= atol + rtol·|b| everywhere; a and b broadcast. An infinity is close to itself; NaN is close to
/// nothing or, with equal_nan, to NaN. bf16 is compared in f32, integers and bool in f64. DTypeError if only one side
/// is floating-point.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);

// -- operators ---------------------------------------------------------------------------------------------
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& x) { return neg(x); }
inline Tensor operator+(const Tensor& x, double c) { return add_scalar(x, c); }
inline Tensor operator+(double c, const Tensor& x) { return add_scalar(x, c); }
Tensor operator-(const Tensor& x, double c);
/// c − x
Tensor operator-(double c, const Tensor& x);
inline Tensor operator*(const Tensor& x, double c) { return scale(x, c); }
inline Tensor operator*(double c, const Tensor& x) { return scale(x, c); }
/// x / c, rounded once
Tensor operator/(const Tensor& x, double c);
/// c / x
Tensor operator/(double c, const Tensor& x);
inline Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }
inline Tensor operator%(const Tensor& a, double b) { return remainder(a, b); }
inline Tensor operator%(double a, const Tensor& b) { return remainder(a, b); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
inline Tensor operator<(const Tensor& x, double c) { return lt(x, c); }
inline Tensor operator<=(const Tensor& x, double c) { return le(x, c); }
inline Tensor operator>(const Tensor& x, double c) { return gt(x, c); }
inline Tensor operator>=(const Tensor& x, double c) { return ge(x, c); }
inline Tensor operator==(const Tensor& x, double c) { return eq(x, c); }
inline Tensor operator!=(const Tensor& x, double c) { return ne(x, c); }
inline Tensor operator<(double c, const Tensor& x) { return gt(x, c); }
inline Tensor operator<=(double c, const Tensor& x) { return ge(x, c); }
inline Tensor operator>(double c, const Tensor& x) { return lt(x, c); }
inline Tensor operator>=(double c, const Tensor& x) { return le(x, c); }
inline Tensor operator==(double c, const Tensor& x) { return eq(x, c); }
inline Tensor operator!=(double c, const Tensor& x) { return ne(x, c); }
inline Tensor operator&(const Tensor& a, const Tensor& b) { return logical_and(a, b); }
inline Tensor operator|(const Tensor& a, const Tensor& b) { return logical_or(a, b); }
inline Tensor operator!(const Tensor& x) { return logical_not(x); }
inline Tensor operator~(const Tensor& x) { return logical_not(x); }

/// x += y is x = x + y: x becomes a new tensor, and tensors that shared memory with the old x keep their values (add_
/// and scale_ edit memory). AutogradError if x is a leaf that requires a gradient: the parameter would be lost.
Tensor& operator+=(Tensor& x, const Tensor& y);
Tensor& operator-=(Tensor& x, const Tensor& y);
Tensor& operator*=(Tensor& x, const Tensor& y);
Tensor& operator/=(Tensor& x, const Tensor& y);
Tensor& operator+=(Tensor& x, double c);
Tensor& operator-=(Tensor& x, double c);
Tensor& operator*=(Tensor& x, double c);
Tensor& operator/=(Tensor& x, double c);

}  // namespace sluice
