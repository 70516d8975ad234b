// Scalars on which formulas are evaluated to check them: complex numbers whose imaginary part carries a
// derivative exactly (f(x + ih) = f(x) + ih·f'(x) + O(h²), and h = 1e-20 leaves no O(h²)).
//
// Every primitive here is a function of a complex variable in its own right — from exp, log, sqrt, sin
// and cos of std::complex, or a power series — and knows no derivative. Where a formula chooses, the
// choice is made on the real part. abs, sign and the roundings are not analytic: they act piece by piece.
#pragma once

#include <cmath>
#include <complex>

namespace sluice::testing {

struct Cx {
  using C = std::complex<long double>;
  C z;

  Cx() = default;
  Cx(C v) : z(v) {}
  explicit Cx(double re, long double im = 0) : z(re, im) {}
  long double re() const { return z.real(); }
};

Cx operator+(const Cx& a, const Cx& b);
Cx operator-(const Cx& a, const Cx& b);
Cx operator*(const Cx& a, const Cx& b);
Cx operator/(const Cx& a, const Cx& b);
Cx operator-(const Cx& a);
Cx operator+(const Cx& a, double c);
Cx operator-(const Cx& a, double c);
Cx operator*(const Cx& a, double c);
Cx operator/(const Cx& a, double c);
Cx operator+(double c, const Cx& a);
Cx operator-(double c, const Cx& a);
Cx operator*(double c, const Cx& a);
Cx operator/(double c, const Cx& a);

inline bool operator<(const Cx& a, const Cx& b) { return a.re() < b.re(); }
inline bool operator>(const Cx& a, const Cx& b) { return a.re() > b.re(); }
inline bool operator<(const Cx& a, double c) { return a.re() < c; }
inline bool operator<=(const Cx& a, double c) { return a.re() <= c; }
inline bool operator>(const Cx& a, double c) { return a.re() > c; }
inline bool operator>=(const Cx& a, double c) { return a.re() >= c; }
inline bool operator==(const Cx& a, double c) { return a.re() == c; }
inline bool operator!=(const Cx& a, double c) { return a.re() != c; }

Cx like(const Cx&, double c);
Cx select(bool m, const Cx& a, const Cx& b);

Cx exp(const Cx& x);
Cx expm1(const Cx& x);
Cx log(const Cx& x);
Cx log1p(const Cx& x);
Cx sqrt(const Cx& x);
Cx rsqrt(const Cx& x);
Cx sin(const Cx& x);
Cx cos(const Cx& x);
Cx sigmoid(const Cx& x);
Cx softplus(const Cx& x);
/// (e^{2x} − 1) / (e^{2x} + 1)
Cx tanh(const Cx& x);
/// 2/√π · e^{−z²} · Σ 2ⁿ z^{2n+1} / (2n+1)!!, whose terms have one sign on the real axis.
Cx erf(const Cx& x);
Cx normal_cdf(const Cx& x);
Cx pow(const Cx& x, const Cx& e);
/// Whole exponents by repeated multiplication, so that negative x need no logarithm.
Cx pow(const Cx& x, double c);

Cx max(const Cx& a, const Cx& b);
Cx min(const Cx& a, const Cx& b);
Cx abs(const Cx& x);
Cx sign(const Cx& x);
Cx floor(const Cx& x);
Cx remainder(const Cx& a, const Cx& b);
Cx floor_divide(const Cx& a, const Cx& b);
Cx ceil(const Cx& x);
Cx trunc(const Cx& x);
Cx round(const Cx& x);

}  // namespace sluice::testing
