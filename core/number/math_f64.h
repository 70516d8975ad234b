// Bodies of the elementary functions of double, in the manner of the float ones (core/number/math.h, which alone
// includes this page and states errors and domains).
//
// Where a function must be right to the last bit, a number is the sum of a large part and a rest: what rounding the
// large part has lost. The rest is an exact difference. Products with it have few enough bits to be exact, too, so
// fused multiply-add changes nothing. 64-bit integers are only added, subtracted, shifted without sign and combined bit
// by bit, because every instruction set has these operations. Polynomials are sums of pairs of terms, which processors
// compute side by side.
#pragma once

#include <sluice/core/number/select.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace sluice::math::f64 {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double shift = 0x1.8p52;  // the low bits of x + shift are the integer next to x
constexpr double ln2 = 0x1.62e42feep-1, ln2_rest = 0x1.a39ef35793c76p-33;  // ln 2 rounded to 32 bits, and the rest
constexpr std::uint64_t sign = 0x8000000000000000u, one = 0x3ff0000000000000u, infinity = 0x7ff0000000000000u;

SLUICE_FN std::uint64_t bits(double x) { return __builtin_bit_cast(std::uint64_t, x); }
SLUICE_FN double from_bits(std::uint64_t b) { return __builtin_bit_cast(double, b); }
// x without its last 27 bits: a product of two such numbers is exact.
SLUICE_FN double high(double x) { return from_bits(bits(x) & 0xfffffffff8000000u); }
// All ones if the top bit of u is set, else 0.
SLUICE_FN std::uint64_t spread_top_bit(std::uint64_t u) { return 0 - (u >> 63); }

// Clamps that let NaN through.
SLUICE_FN double at_most(double x, double hi) { return select(x > hi, hi, x); }
SLUICE_FN double at_least(double x, double lo) { return select(x < lo, lo, x); }

// e^x = 2^n (1 + (r + rest)), where t = bits(n + shift). |r| < 0.3467, and only `rest` is rounded. Needs |x| < 1e5 or
// NaN.
struct ExpParts {
  double r, rest;
  std::uint64_t t;
};
// e^(r - less) 2^n
SLUICE_FN ExpParts exp_rest(double r, double less, double t) {
  double s = r - less, u = s * s;
  double q = 2.4999983104554660e-08 * s + 2.7630285768400450e-07;
  q = q * u + (2.7557586815446065e-06 * s + 2.4801493003062346e-05);
  q = q * u + (1.9841269505877065e-04 * s + 1.3888888943712988e-03);
  q = q * u + (8.3333333334948741e-03 * s + 4.1666666666529885e-02);
  q = q * u + (1.6666666666666410e-01 * s + 5.0000000000000111e-01);
  return {r, u * q - less, bits(t)};
}
SLUICE_FN ExpParts exp_parts(double x) {
  double t = x * 1.4426950408889634 + shift;
  double n = t - shift;
  return exp_rest(x - n * ln2, n * ln2_rest, t);  // the first is exact
}
// 2^n, where n are the low bits of t, for -1022 <= n <= 1023; any other n gives some number.
SLUICE_FN double pow2(std::uint64_t t) { return from_bits((t + 1023u) << 52); }
// 2^n v for v near 1, in two factors, because 2^n alone leaves the range at both ends.
SLUICE_FN double scale(double v, std::uint64_t t) {
  std::uint64_t half = t >> 1;
  return v * pow2(half) * pow2(t - half);
}
// 2^n v for n < 800, a little faster.
SLUICE_FN double scale_low(double v, std::uint64_t t) { return v * pow2(t + 128) * 0x1p-128; }

SLUICE_FN double exp(double x) {
  ExpParts e = exp_parts(at_most(at_least(x, -746.0), 710.0));
  return scale(1.0 + (e.r + e.rest), e.t);
}
// exp(x) to the bit, for x <= 50.
SLUICE_FN double exp_low(double x) {
  ExpParts e = exp_parts(at_least(x, -746.0));
  return scale_low(1.0 + (e.r + e.rest), e.t);
}

// (2^n - 1) + 2^n (r + rest), all in half scale, so that n = 1024 is in range.
SLUICE_FN double expm1(double x) {
  ExpParts e = exp_parts(at_most(at_least(x, -40.0), 710.0));
  double s = pow2(e.t - 1);
  double y = 2.0 * (((s - 0.5) + e.r * s) + e.rest * s);
  return select(std::fabs(x) < 1e-17, x, y);  // keeps -0 and denormals
}

// x = 2^k m with m in [3/4, 3/2), or [least, 2 least), for normal x > 0.
SLUICE_FN std::uint64_t log_bits(double x, double least = 0.75) { return bits(x) + (one - bits(least)); }
SLUICE_FN double log_exponent(double x, double least = 0.75) {
  return from_bits((log_bits(x, least) >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0);
}
SLUICE_FN double log_mantissa(double x, double least = 0.75) {
  return from_bits((log_bits(x, least) & 0x000fffffffffffffu) + bits(least));
}

// k ln 2 + log(1 + f) for -1/4 <= f <= 1/2. With s = f / (2 + f), log(1 + f) = 2 atanh s = f - (f^2/2 - s (f^2/2 + R)),
// where R is a polynomial in s^2.
SLUICE_FN double log_sum(double k, double f) {
  double s = f / (2.0 + f), w = s * s, half = 0.5 * f * f;
  double w2 = w * w;
  double p = 0.13844276559904117 * w + 0.13173412485352159;
  p = p * w2 + (0.15391123371773677 * w + 0.18181665513239714);
  p = p * w2 + (0.22222224302809590 * w + 0.28571428555768541);
  p = p * w2 + (0.40000000000056946 * w + 0.66666666666666596);
  double sum = k * ln2 + f, lost = (k * ln2 - sum) + f;
  return sum + (((s * (half + w * p) + k * ln2_rest) - half) + lost);
}
// Replaces y = log(u) for special u.
SLUICE_FN double log_or_special(double u, double y) {
  return select(u > 0.0, select(u < inf, y, u), select(u == 0.0, -inf, nan));
}

// Denormals are scaled up first.
struct Scaled {
  double x, k;
};
SLUICE_FN Scaled scale_denormal(double x) {
  bool tiny = x < 0x1p-1022;
  return {select(tiny, x * 0x1p54, x), select(tiny, -54.0, 0.0)};
}
SLUICE_FN double log(double x) {
  Scaled s = scale_denormal(x);
  return log_or_special(x, log_sum(s.k + log_exponent(s.x), log_mantissa(s.x) - 1.0));
}

// As for float: f = 2^-k x + (2^-k - 1), which is exact here, because 1 + x < 3/2 gives k = 0.
SLUICE_FN double log1p(double x) {
  double u = 1.0 + x;
  double s = from_bits(0x8000000000000000u - (log_bits(u) & 0x7ff0000000000000u));  // 4 * 2^-k
  double f = (0.25 * x) * s + (0.25 * s - 1.0);
  double y = log_or_special(u, log_sum(log_exponent(u), f));
  return select(std::fabs(x) < 1e-17, x, y);  // keeps -0 and denormals
}

// max(x, 0) + log(1 + z), z = e^-|x|.
SLUICE_FN double softplus(double x) {
  double z = exp_low(-std::fabs(x));
  bool big = z > 0.5;
  double y = log_sum(select(big, 1.0, 0.0), select(big, 0.5 * z - 0.5, z));
  return select(x > 0.0, x, 0.0) + y;
}

// |x| < 0.7: x + x^3 P(x^2) / Q(x^2). Above: 1 - 2 z / (1 + z), z = e^-2|x|, whose error counts less than half.
SLUICE_FN double tanh(double x) {
  double a = std::fabs(x), u = a * a, z = exp_low(-2.0 * a);
  double p = -1.9900399946304280e-04;
  p = p * u - 0.020494869448967858;
  p = p * u - 0.33333333333333331;
  double q = 2.0634734192028021e-04;
  q = q * u + 0.023286093432666462;
  q = q * u + 0.46148460834689164;
  q = q * u + 1.0;
  bool small = a < 0.7;
  double y = select(small, a * u * p, -2.0 * z) / select(small, q, 1.0 + z);
  return std::copysign(select(small, a, 1.0) + y, x);
}

// Phi(-a) = e^(-a^2/2) P(a) / Q(a) for 0 <= a <= 39, from where on both are 0. As for float, a splits into h + (a - h);
// all terms of P and Q are positive.
struct Tail {
  double tail, bell;
};  // bell = e^(-a^2/2)
SLUICE_FN Tail tail(double a) {
  double u = a * a;
  double p = 2.1841939157224647e-07;
  p = p * u + (6.8301227250702235e-06 * a + 1.0474310614534726e-04);
  p = p * u + (0.0010250715693504379 * a + 0.0070412735288351951);
  p = p * u + (0.035341074639996771 * a + 0.13110713751106681);
  p = p * u + (0.35547108497401331 * a + 0.677233305206694);
  p = p * u + (0.82643901167628242 * a + 0.5);
  double q = 5.4749622264256449e-07 * a + 1.7120578741890866e-05;
  q = q * u + (2.6309952765603219e-04 * a + 0.0025865939582046201);
  q = q * u + (0.017911312346517043 * a + 0.091122169470986544);
  q = q * u + (0.3457670766572471 * a + 0.97465321348953005);
  q = q * u + (1.9934920327604 * a + 2.8098922385043354);
  q = q * u + (2.4507625841554304 * a + 1.0);
  double g = p / q;
  double h = high(a), s = -0.5 * h * h;
  double t = s * 1.4426950408889634 + shift;
  double n = t - shift;
  ExpParts e = exp_rest(s - n * ln2, n * ln2_rest + 0.5 * (a - h) * (a + h), t);
  double y = e.r + e.rest;
  return {scale_low(g * y + g, e.t), scale_low(1.0 + y, e.t)};
}
struct Normal {
  double cdf, density;
};
SLUICE_FN Normal normal(double x) {
  Tail y = tail(at_most(std::fabs(x), 39.0));
  return {select(x < 0.0, y.tail, 1.0 - y.tail), y.bell * 0.3989422804014327};
}

// |x| < 1: x + x P(x^2). Above: 1 - 2 Phi(-sqrt(2) |x|), whose last term is below 0.16.
SLUICE_FN double erf(double x) {
  double a = at_most(std::fabs(x), 6.0), u = a * a;
  double u2 = u * u;
  double p = -7.7794754848323141e-10 * u + 1.3710984387566876e-08;
  p = p * u2 + (-1.6206314746124551e-07 * u + 1.6447131710596526e-06);
  p = p * u2 + (-1.4924712314370755e-05 * u + 1.2055293577619460e-04);
  p = p * u2 + (-8.5483259293422150e-04 * u + 0.005223977606119176);
  p = p * u2 + (-0.02686617064311158 * u + 0.11283791670944186);
  p = p * u2 + (-0.37612638903183521 * u + 0.12837916709551256);
  double y = select(a < 1.0, p * a + a, 1.0 - 2.0 * tail(1.4142135623730951 * a).tail);
  return std::copysign(y, x);
}

// k + log2 m for m in [sqrt(3/4), sqrt(3)), as y + rest, which has 66 correct bits. c is 1 or 3/2, s = (m - c) / (m +
// c), and log2(m / c) = s (3 + s^2 + ...) 2 / (3 ln 2); s, the sum and the product are large parts and rests.
struct Log2 {
  double y, rest;
};
SLUICE_FN Log2 log2_sum(double k, double m) {
  bool upper = m > 1.2247448713915890;
  double c = select(upper, 1.5, 1.0), c1 = select(upper, 0x1.2b8034p-1, 0.0);  // c1 + c2 = log2 c
  double c2 = select(upper, 1.3500392021297490e-08, 0.0);
  double f = m - c, v = 1.0 / (m + c), s = f * v, w = s * s;
  double s1 = high(s), d1 = high(m + c), d2 = m - (d1 - c);
  double s2 = v * ((f - s1 * d1) - s1 * d2);
  double w2 = w * w;
  double p = 0.2069938093476025 * w + 0.23066017012981851;
  p = p * w2 + (0.27272813048144201 * w + 0.33333332978231078);
  p = p * w2 + (0.42857142857863917 * w + 0.59999999999999454);
  double r = w * w * p + s2 * (s1 + s), q = s1 * s1;
  double g1 = high((3.0 + q) + r), g2 = r - ((g1 - 3.0) - q);
  double a = s1 * g1, b = s2 * g1 + g2 * s;
  double l1 = high(a + b), l2 = b - (l1 - a);
  double z1 = 0x1.ec709ep-1 * l1, z2 = -7.0284616509527583e-09 * l1 + 0.96179669392597556 * l2 + c2;
  double y = high(((z1 + z2) + c1) + k);
  return {y, z2 - (((y - k) - c1) - z1)};
}

// 2^(y log2|x|), where y is split as the logarithm is. Special values use masks made by integer arithmetic, as those of
// float do.
SLUICE_FN double pow(double x, double y) {
  std::uint64_t a = bits(std::fabs(x) + 0.0);  // where denormals are flushed, the sum is 0
  std::uint64_t zero = spread_top_bit(a - 1u);
  std::uint64_t infinite = spread_top_bit(a + 0x0010000000000000u);  // or NaN
  std::uint64_t tiny = spread_top_bit(a - 0x0010000000000000u);
  double m = from_bits((bits(from_bits(a) * 0x1p54) & tiny) | (a & ~tiny));
  constexpr double least = 0.86602540378443865;
  Log2 l = log2_sum(log_exponent(m, least) - from_bits(bits(54.0) & tiny), log_mantissa(m, least));

  // y is at most 2^70 in size, which is enough for every x but 1, even for infinity and NaN.
  std::uint64_t b = bits(y) & ~sign;
  std::uint64_t big = spread_top_bit(bits(0x1p70) - b);
  double e = from_bits((bits(y) & (sign | ~big)) | (bits(0x1p70) & big));
  double e1 = high(e), z1 = e1 * l.y, z2 = (e - e1) * l.y + e * l.rest;
  double t = (z1 + z2) + shift;
  double d = z1 - (t - shift);
  double w1 = high(d + z2), w2 = z2 - (w1 - d);
  ExpParts p = exp_rest(w1 * 0x1.62e43p-1, w1 * 1.9046542999577680e-09 - w2 * 0.69314718055994531, t);
  // Beyond the range, and for 0 and infinity, the sign of the exponent decides.
  std::uint64_t exact = zero | infinite;
  std::uint64_t end = bits(1e4) | ((bits(y) ^ zero) & sign);
  double z = from_bits((bits(z1 + z2) & ~exact) | (end & exact));
  std::uint64_t above = spread_top_bit(bits(1025.0 - z)), below = spread_top_bit(bits(z + 1080.0));
  std::uint64_t v = (bits(scale(1.0 + (p.r + p.rest), p.t)) & ~(above | below)) | (infinity & above);

  // What separates |y| and |y| / 2 from whole numbers; from 2^52 on it may be whole, too.
  double n = std::fabs(e), h = 0.5 * n;
  std::uint64_t part = bits(std::fabs(n - ((n + 0x1p52) - 0x1p52)));
  std::uint64_t fraction = spread_top_bit(0 - part) & spread_top_bit(part - one);
  std::uint64_t odd = spread_top_bit((bits(std::fabs(h - ((h + 0x1p52) - 0x1p52))) ^ bits(0.5)) - 1u);
  std::uint64_t negative = spread_top_bit(bits(x)) & ~exact;
  std::uint64_t invalid = (negative & fraction) | spread_top_bit(infinity - a) | spread_top_bit(infinity - b);
  std::uint64_t x1 = bits(x) ^ one;
  std::uint64_t is_one = spread_top_bit(((x1 - 1u) & ~x1) | (b - 1u));
  v = (v ^ (bits(x) & odd & sign)) | (invalid & bits(nan));
  return from_bits((v & ~is_one) | (one & is_one));
}

// |x| = n pi/2 + (r + rest), |r| <= pi/4. pi/2 in four parts: n times each of the first three (33 bits) is exact for n
// < 2^20. Each difference is a large part and what its rounding has lost: that is exact, because where the subtrahend
// is the larger one, both lie on a grid that has few enough points.
constexpr double quadrants_end = 0x1.8p20;  // 2^20 pi/2 is a little above
struct Quadrant {
  double r, rest;
  std::uint64_t n;
};
SLUICE_FN Quadrant quadrant(double x) {
  double a = std::fabs(x), t = a * 0.63661977236758134 + shift, n = t - shift;
  double p2 = n * 0x1.0b4611a6p-34, p3 = n * 0x1.3198a2ep-69;
  double w1 = a - n * 0x1.921fb544p+0;
  double w2 = w1 - p2, lost2 = (w1 - w2) - p2;
  double w3 = w2 - p3, lost3 = (w2 - w3) - p3;
  double less = n * 0x1.b839a252049c1p-104 - (lost2 + lost3);
  double r = w3 - less;
  return {r, (w3 - r) - less, bits(t)};
}
// Sine of r + rest in even quadrants, cosine in odd ones; bit 1 of n gives the sign.
SLUICE_FN double sine_of(Quadrant q) {
  double r = q.r, u = r * r, u2 = u * u, v = u * r;
  double s = 1.5896197813103893e-10 * u - 2.5050747220748766e-08;
  s = s * u2 + (2.7557313618029045e-06 * u - 1.9841269829580180e-04);
  s = s * u + 8.3333333333221080e-03;
  s = r - ((u * (0.5 * q.rest - v * s) - q.rest) + v * 0.1666666666666663);
  double c = -1.1358513989791139e-11 * u + 2.0875700416910810e-09;
  c = c * u2 + (-2.7557314176246680e-07 * u + 2.4801587288841424e-05);
  c = c * u2 + (-1.3888888888873040e-03 * u + 4.1666666666666595e-02);
  double half = 0.5 * u, w = 1.0 - half;
  c = w + (((1.0 - w) - half) + (u2 * c - r * q.rest));
  return from_bits(bits(select((q.n & 1u) != 0, c, s)) ^ ((q.n & 2u) << 62));
}
SLUICE_FN double sin(double x) {
  double y = from_bits(bits(sine_of(quadrant(x))) ^ (bits(x) & sign));
  return select(std::fabs(x) < 1e-9, x, y);  // keeps -0 and denormals
}
SLUICE_FN double cos(double x) {
  Quadrant q = quadrant(x);
  return sine_of({q.r, q.rest, q.n + 1u});
}

}  // namespace sluice::math::f64
