// Bodies of the elementary functions of float. core/number/math.h, which alone includes this page, states their errors
// and domains.
#pragma once

#include <sluice/core/number/select.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace sluice::math::f32 {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

SLUICE_FN std::uint32_t bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
SLUICE_FN float from_bits(std::uint32_t b) { return __builtin_bit_cast(float, b); }

// 2^k for -126 <= k <= 127. Any other k gives some float, never undefined behaviour: for a NaN argument, k is
// meaningless.
SLUICE_FN float pow2(std::int32_t k) { return from_bits((static_cast<std::uint32_t>(k) + 127u) << 23); }
constexpr float shift = 12582912.0f;               // 1.5 * 2^23: the low bits of x + shift are the integer next to x
constexpr double wide_shift = 6755399441055744.0;  // 1.5 * 2^52, for a double
// 2^(k - 127), where t = bits(k + shift), 1 <= k <= 254: k becomes the exponent, and the bits above it go. An integer
// added to the shift is added to k without an instruction; an even one leaves ties as they are.
SLUICE_FN float exponent_of(std::uint32_t t) { return from_bits(t << 23); }

// Clamps that let NaN through: a comparison with NaN is false.
SLUICE_FN float at_most(float x, float hi) { return select(x > hi, hi, x); }
SLUICE_FN float at_least(float x, float lo) { return select(x < lo, lo, x); }

// e^x = 2^k (1 + p), with |p| < 0.42, where t = bits(k + from). Needs |x| < 1e5 or NaN.
struct ExpParts {
  float p;
  std::uint32_t t;
};
SLUICE_FN ExpParts exp_parts(float x, float from = shift) {
  float t = x * 1.44269502f + from;
  float n = t - from;
  float r = (x - n * 0.693145752f) - n * 1.42860677e-06f;  // ln 2 in two parts; n times the first is exact
  float q = 0.00138378562f;
  q = q * r + 0.00836731866f;
  q = q * r + 0.0416677408f;
  q = q * r + 0.166665375f;
  q = q * r + 0.49999997f;
  return {r * r * q + r, bits(t)};
}

// Two factors, because 2^k alone leaves the float range at both ends; the last product rounds into denormals.
SLUICE_FN float exp(float x) {
  ExpParts e = exp_parts(at_most(at_least(x, -104.0f), 89.0f), shift + 254.0f);
  std::uint32_t half = e.t >> 1;
  return (1.0f + e.p) * exponent_of(half) * exponent_of(e.t - half);
}
// 2^k v for -175 <= k <= 78, rounded once, where t = bits(k + shift_low).
constexpr float shift_low = shift + 176.0f;
SLUICE_FN float scale_low(float v, std::uint32_t t) { return v * exponent_of(t) * 0x1p-49f; }
// exp(x) to the bit, for x <= 50.
SLUICE_FN float exp_low(float x) {
  ExpParts e = exp_parts(at_least(x, -104.0f), shift_low);
  return scale_low(1.0f + e.p, e.t);
}

// 2^k (1 + p) - 1 = 2^k p + (2^k - 1): no cancellation, since p is itself accurate near 0. Half scale, so that k = 128
// is still a float.
SLUICE_FN float expm1(float x) {
  ExpParts e = exp_parts(at_most(at_least(x, -18.0f), 89.0f));
  float s = exponent_of(e.t + 126u);
  float y = 2.0f * (e.p * s + (s - 0.5f));
  return select(std::fabs(x) < 1e-8f, x, y);  // keeps -0 and denormals
}

// x = 2^k m with m in [sqrt(1/2), sqrt(2)), for normal x > 0.
SLUICE_FN std::int32_t log_exponent(float x) { return static_cast<std::int32_t>(bits(x) - 0x3f3504f3u) >> 23; }
SLUICE_FN float log_mantissa(float x) { return from_bits(((bits(x) - 0x3f3504f3u) & 0x007fffffu) + 0x3f3504f3u); }

// k ln 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. Small terms first; k times the first part of ln 2 is
// exact.
SLUICE_FN float log_sum(float k, float f) {
  float p = -0.0764291883f;
  p = p * f + 0.127710029f;
  p = p * f - 0.131615326f;
  p = p * f + 0.142005831f;
  p = p * f - 0.166231081f;
  p = p * f + 0.200012684f;
  p = p * f - 0.250008285f;
  p = p * f + 0.333333313f;
  float f2 = f * f;
  float y = f2 * (f * p) + k * 1.42860677e-06f;
  y = y - 0.5f * f2;
  return (f + y) + k * 0.693145752f;
}

// Replaces y = log(u) for special u: log 0 = -inf, log(<0) = NaN, inf and NaN stay.
SLUICE_FN float log_or_special(float u, float y) {
  return select((u > 0.0f) & (u < inf), y, select(u == 0.0f, -inf, select(u < 0.0f, nan, u)));
}

// Denormals are scaled up first.
struct Scaled {
  float x, k;
};
SLUICE_FN Scaled scale_denormal(float x) {
  bool tiny = x < 1.17549435e-38f;
  return {select(tiny, x * 8388608.0f, x), select(tiny, -23.0f, 0.0f)};
}

SLUICE_FN float log(float x) {
  Scaled s = scale_denormal(x);
  float y = log_sum(s.k + static_cast<float>(log_exponent(s.x)), log_mantissa(s.x) - 1.0f);
  return log_or_special(x, y);
}

// 1 + x = 2^k (1 + f) gives f = 2^-k x + (2^-k - 1): the low bits of x, lost in u = 1 + x, are still in f. u only
// chooses k. The scale is 4 * 2^-k, with x / 4, because 2^-128 is not a normal float.
SLUICE_FN float log1p(float x) {
  float u = 1.0f + x;
  std::int32_t k = log_exponent(u);
  float s = pow2(2 - k);
  float f = (0.25f * x) * s + (0.25f * s - 1.0f);
  float y = log_or_special(u, log_sum(static_cast<float>(k), f));
  return select(std::fabs(x) < 1e-8f, x, y);  // keeps -0 and denormals
}

// With z = e^-2|x|: tanh|x| = (1 - z) / (1 + z) = -m / (m + 2), m = z - 1 = expm1(-2|x|). From |x| = 9.01 on the result
// is 1.
SLUICE_FN float tanh(float x) {
  ExpParts e = exp_parts(-2.0f * at_most(std::fabs(x), 10.0f));
  float s = exponent_of(e.t + 127u);
  float m = e.p * s + (s - 1.0f);
  return std::copysign(m / (m + 2.0f), x);
}

// max(x, 0) + log(1 + z), z = e^-|x|. Since 1 <= 1 + z <= 2, log1p reduces by a single select.
SLUICE_FN float softplus(float x) {
  float z = exp_low(-std::fabs(x));
  bool big = z > 0.414213562f;
  float y = log_sum(select(big, 1.0f, 0.0f), select(big, 0.5f * z - 0.5f, z));
  return select(x > 0.0f, x, 0.0f) + y;
}

// |x| < 0.9: x + x P(x^2). Above: 1 - e^Q(|x|), where Q fits log(erfc) and erfc is small, so its error is too. Beyond 4
// the result is 1.
SLUICE_FN float erf(float x) {
  float a = at_most(std::fabs(x), 4.0f);
  float u = a * a;
  float p = -0.000602080021f;
  p = p * u + 0.00499895914f;
  p = p * u - 0.026770493f;
  p = p * u + 0.112819217f;
  p = p * u - 0.376125038f;
  p = p * u + 0.128379151f;
  float q = 0.000198213151f;
  q = q * a - 0.00306543545f;
  q = q * a + 0.0223150272f;
  q = q * a - 0.104113363f;
  q = q * a - 0.636976361f;
  q = q * a - 1.12779713f;
  q = q * a - 0.000166463884f;
  ExpParts e = exp_parts(q);
  float s = exponent_of(e.t + 127u);
  float y = select(a < 0.9f, p * a + a, (1.0f - s) - e.p * s);
  return std::copysign(y, x);
}

// tail(a) = Phi(-a) = phi(a) P(a) / (a P(a) + R(a)), where phi is the density and P begins with a^4. phi(a) = 2^k E(r),
// r = 2 (a^2/2 + k ln 2). The absolute error of a^2 counts, so a splits into h + (a - h), with 12 bits in h: h^2 is
// exact. E has the scale 2^-49, so that 2^(k + 49) is a float even where the tail is denormal.
struct Normal {
  float cdf, density;
};  // density = e^(-x^2/2) / sqrt(2 pi), for the derivative
SLUICE_FN Normal normal(float x) {
  constexpr float low = 0x1p-49f;
  float a = at_most(std::fabs(x), 15.0f);
  float p = a + 8.87702656f;
  p = p * a + 37.0700531f;
  p = p * a + 82.9880142f;
  p = p * a + 87.0487442f;
  float q = 0.999145389f * a + 8.90863895f;
  q = q * a + 34.5832443f;
  q = q * a + 69.4548492f;
  q = p * a + q;
  float h = from_bits(bits(a) & 0xfffff000u);
  float s = h * h;
  float t = s * -0.721347511f + shift_low;
  float n = t - shift_low;
  float r = ((s + n * 1.3862915f) + n * 2.85721354e-06f) + (a - h) * (a + h);
  float e = 8.62337311e-06f * low;
  e = e * r - 0.000104436724f * low;
  e = e * r + 0.00103895552f * low;
  e = e * r - 0.00831116084f * low;
  e = e * r + 0.0498677753f * low;
  e = e * r - 0.199471146f * low;
  e = e * r + 0.398942292f * low;
  float scale = exponent_of(bits(t));
  float tail = p * e * scale / q;
  // tail, or 1 - tail
  std::uint32_t right = ~static_cast<std::uint32_t>(static_cast<std::int32_t>(bits(x)) >> 31);
  return {from_bits(right & bits(1.0f)) + from_bits(bits(tail) ^ (right & 0x80000000u)), e * scale};
}

// x = n pi/2 + r, |r| <= pi/4. In double, because a float r has no correct digit left when x is near a multiple of
// pi/2. pi/2 in two parts: n times the first (29 bits) is exact up to n = 2^24 without fused multiply-add, always with
// it.
struct Quadrant {
  float r;
  std::uint32_t n;
};
SLUICE_FN Quadrant quadrant(float x) {
  double t = static_cast<double>(x) * 0.63661977236758134 + wide_shift;
  double n = t - wide_shift;
  double r = (static_cast<double>(x) - n * 1.570796325802803) - n * 9.920935796805404e-10;
  float ok = select(std::fabs(x) < 1e15f, static_cast<float>(r), nan);
  return {ok, static_cast<std::uint32_t>(__builtin_bit_cast(std::uint64_t, t))};
}

// Bit 0 of n says whether sine and cosine trade places, bit 1 gives the sign.
SLUICE_FN float sine_of(Quadrant q) {
  float r = q.r, u = r * r;
  float s = -0.000194954191f;
  s = s * u + 0.00833201315f;
  s = s * u - 0.166666523f;
  s = s * u * r + r;
  float c = 2.44120856e-05f;
  c = c * u - 0.00138871302f;
  c = c * u + 0.0416666418f;
  c = c * u * u + (1.0f - 0.5f * u);
  return from_bits(bits(select(q.n & 1u, c, s)) ^ ((q.n & 2u) << 30));
}

SLUICE_FN float sin(float x) {
  float y = sine_of(quadrant(std::fabs(x)));  // odd by construction, so sin(-0) = -0
  return from_bits(bits(y) ^ (bits(x) & 0x80000000u));
}

SLUICE_FN float cos(float x) {
  Quadrant q = quadrant(x);
  return sine_of({q.r, q.n + 1u});
}

// All ones if the top bit of u is set, else 0.
SLUICE_FN std::uint32_t spread_top_bit(std::uint32_t u) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(u) >> 31);
}

// 2^(y log2|x|) in double: y multiplies the error of the logarithm by up to 150, so a float logarithm is not enough.
// The conversion back to float handles overflow and denormals. Special values use masks made by integer arithmetic,
// never a bool: often x or y is the same for the whole loop, and g++ 12 cannot vectorise a blend whose condition is
// loop-invariant.
SLUICE_FN float pow(float x, float y) {
  constexpr float huge = 1e38f;                 // stands for the infinite logarithms of 0 and inf
  std::uint32_t a = bits(std::fabs(x) + 0.0f);  // where denormals are flushed, the sum is 0
  std::uint32_t zero = spread_top_bit(a - 1u);
  std::uint32_t infinite = spread_top_bit(a + 0x00800000u);  // or NaN

  Scaled s = scale_denormal(from_bits(a));
  float k = s.k + static_cast<float>(log_exponent(s.x));
  k = (k + from_bits(infinite & bits(huge))) - from_bits(zero & bits(huge));
  double f = static_cast<double>(log_mantissa(s.x) - 1.0f);
  double l = 0.07738621370030353;
  l = l * f - 0.14290667710275787;
  l = l * f + 0.14478428879291208;
  l = l * f - 0.14314789202884964;
  l = l * f + 0.15876220787106105;
  l = l * f - 0.18030068607540792;
  l = l * f + 0.2061759041494676;
  l = l * f - 0.2404531872708752;
  l = l * f + 0.28853727753958;
  l = l * f - 0.3606736741232584;
  l = l * f + 0.4808983615598099;
  l = l * f - 0.7213475208732265;
  l = l * f + 1.4426950408684254;
  l = l * f + static_cast<double>(k);

  // y moves off 0 by 1e-30, so that huge times a denormal y is still huge; for finite x this changes nothing. An
  // infinite y becomes the largest float, one below it in bits, so that log 1 = 0 wins.
  std::uint32_t b = bits(y) & 0x7fffffffu;
  std::uint32_t y_nan = spread_top_bit(0x7f800000u - b);
  std::uint32_t y_infinite = spread_top_bit(b + 0x00800000u) & ~y_nan;
  float e = from_bits(bits(y) - (y_infinite & 1u)) + std::copysign(1e-30f, y);
  double z = static_cast<double>(e) * l;
  z = select(z > 160.0, 160.0, z);
  z = select(z < -160.0, -160.0, z);
  double t = z + wide_shift;
  double r = z - (t - wide_shift);
  double p = 0.0001535336490067576;
  p = p * r + 0.0013398899862987462;
  p = p * r + 0.009618437517165662;
  p = p * r + 0.05550332410400684;
  p = p * r + 0.24022647911003778;
  p = p * r + 0.6931472028805618;
  p = p * r + 1.0;
  double scale = __builtin_bit_cast(double, (__builtin_bit_cast(std::uint64_t, t) << 52) + 0x3ff0000000000000u);
  std::uint32_t v = bits(static_cast<float>(p * scale));  // a NaN y has come through

  float d = e - std::rint(e);  // 0 if y is whole (e is finite); y/2 then off by 0 or 1/2
  float h = 0.5f * e;
  std::uint32_t whole = spread_top_bit((bits(d) & 0x7fffffffu) - 1u);
  std::uint32_t odd = ((bits(h - std::rint(h)) & 0x01000000u) << 7) & whole;
  std::uint32_t negative = spread_top_bit(bits(x)) & ~zero & ~infinite;
  std::uint32_t invalid = (negative & ~whole) | spread_top_bit(0x7f800000u - a);
  std::uint32_t x1 = bits(x) ^ 0x3f800000u;
  std::uint32_t one = spread_top_bit(((x1 - 1u) & ~x1) | (b - 1u));
  v = (v ^ (bits(x) & odd)) | (invalid & 0x7fc00000u);
  return from_bits((v & ~one) | (one & 0x3f800000u));
}

}  // namespace sluice::math::f32
