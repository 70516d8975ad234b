#include "support/scalars.h"

namespace sluice::testing {

Cx operator+(const Cx& a, const Cx& b) { return a.z + b.z; }
Cx operator-(const Cx& a, const Cx& b) { return a.z - b.z; }
Cx operator*(const Cx& a, const Cx& b) { return a.z * b.z; }
Cx operator/(const Cx& a, const Cx& b) { return a.z / b.z; }
Cx operator-(const Cx& a) { return -a.z; }
Cx operator+(const Cx& a, double c) { return a + Cx(c); }
Cx operator-(const Cx& a, double c) { return a - Cx(c); }
Cx operator*(const Cx& a, double c) { return a * Cx(c); }
Cx operator/(const Cx& a, double c) { return a / Cx(c); }
Cx operator+(double c, const Cx& a) { return Cx(c) + a; }
Cx operator-(double c, const Cx& a) { return Cx(c) - a; }
Cx operator*(double c, const Cx& a) { return Cx(c) * a; }
Cx operator/(double c, const Cx& a) { return Cx(c) / a; }
Cx like(const Cx&, double c) { return Cx(c); }
Cx select(bool m, const Cx& a, const Cx& b) { return m ? a : b; }
Cx exp(const Cx& x) { return std::exp(x.z); }
Cx expm1(const Cx& x) { return std::exp(x.z) - Cx::C(1); }
Cx log(const Cx& x) { return std::log(x.z); }
Cx log1p(const Cx& x) { return std::log(Cx::C(1) + x.z); }
Cx sqrt(const Cx& x) { return std::sqrt(x.z); }
Cx rsqrt(const Cx& x) { return Cx::C(1) / std::sqrt(x.z); }
Cx sin(const Cx& x) { return std::sin(x.z); }
Cx cos(const Cx& x) { return std::cos(x.z); }
Cx sigmoid(const Cx& x) { return Cx::C(1) / (Cx::C(1) + std::exp(-x.z)); }
Cx softplus(const Cx& x) { return std::log(Cx::C(1) + std::exp(x.z)); }
Cx tanh(const Cx& x) {
  const Cx::C e = std::exp(Cx::C(2) * x.z);
  return (e - Cx::C(1)) / (e + Cx::C(1));
}
Cx erf(const Cx& x) {
  Cx::C term = x.z, sum = x.z;
  for (int n = 1; n < 400; ++n) {
    term *= Cx::C(2) * x.z * x.z / Cx::C(2.0L * n + 1);
    sum += term;
    if (std::abs(term) < 1e-24L * std::abs(sum)) break;
  }
  return Cx::C(2 / std::sqrt(std::acos(-1.0L))) * std::exp(-x.z * x.z) * sum;
}
Cx normal_cdf(const Cx& x) { return (Cx(1.0) + erf(Cx(x.z / std::sqrt(Cx::C(2))))) * Cx(0.5); }
Cx pow(const Cx& x, const Cx& e) { return std::exp(e.z * std::log(x.z)); }
Cx pow(const Cx& x, double c) {
  if (c != std::floor(c)) return pow(x, Cx(c));
  Cx y(1.0);
  for (double k = 0; k < std::abs(c); ++k) y = y * x;
  return c < 0 ? Cx(1.0) / y : y;
}
Cx max(const Cx& a, const Cx& b) { return a.re() > b.re() ? a : b; }
Cx min(const Cx& a, const Cx& b) { return a.re() < b.re() ? a : b; }
Cx abs(const Cx& x) { return x.re() < 0 ? -x : x; }
Cx sign(const Cx& x) { return Cx(x.re() < 0 ? -1.0 : x.re() > 0 ? 1.0 : 0.0); }
Cx floor(const Cx& x) { return Cx(static_cast<double>(std::floor(x.re()))); }
Cx remainder(const Cx& a, const Cx& b) { return a - b * floor(a / b); }
Cx floor_divide(const Cx& a, const Cx& b) { return floor(a / b); }
Cx ceil(const Cx& x) { return Cx(static_cast<double>(std::ceil(x.re()))); }
Cx trunc(const Cx& x) { return Cx(static_cast<double>(std::trunc(x.re()))); }
Cx round(const Cx& x) { return Cx(static_cast<double>(std::rint(x.re()))); }

}  // namespace sluice::testing
