// The random generator Philox4x32-10 (Salmon et al. 2011) and the values made from its words, in one source for every
// device. Block i of a stream is a pure function of (seed, i).
#pragma once

#include <sluice/core/kernel/fn.h>
#include <sluice/core/number/select.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace sluice::detail {

inline constexpr uint32_t kPhiloxMul0 = 0xD2511F53, kPhiloxMul1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9, kPhiloxWeyl1 = 0xBB67AE85;  // key increments: golden ratio, √3

SLUICE_FN void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0, uint32_t k1) {
  const uint64_t p0 = uint64_t{c0} * kPhiloxMul0, p1 = uint64_t{c2} * kPhiloxMul1;
  c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
  c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
  c1 = static_cast<uint32_t>(p1);
  c3 = static_cast<uint32_t>(p0);
}

struct PhiloxWords {
  uint32_t word[4];
};
/// The four words of a block.
SLUICE_FN PhiloxWords philox_block(uint64_t seed, uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += kPhiloxWeyl0, k1 += kPhiloxWeyl1) philox_round(c0, c1, c2, c3, k0, k1);
  return {{c0, c1, c2, c3}};
}

inline constexpr int64_t kPhiloxBatch = 64;  // most blocks that are computed side by side, for the vectoriser
/// The words of `count` blocks, at most kPhiloxBatch, from `first` on.
SLUICE_FN void philox_batch(uint64_t seed, uint64_t first, int64_t count, uint32_t* __restrict__ words) {
  uint32_t c0[kPhiloxBatch], c1[kPhiloxBatch], c2[kPhiloxBatch], c3[kPhiloxBatch];
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t block = first + static_cast<uint64_t>(i);
    c0[i] = static_cast<uint32_t>(block), c1[i] = static_cast<uint32_t>(block >> 32), c2[i] = c3[i] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += kPhiloxWeyl0, k1 += kPhiloxWeyl1)
    for (int64_t i = 0; i < count; ++i) philox_round(c0[i], c1[i], c2[i], c3[i], k0, k1);
  for (int64_t i = 0; i < count; ++i) {
    words[4 * i] = c0[i], words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i], words[4 * i + 3] = c3[i];
  }
}
/// Calls use(i, words, count) for runs i … i + count − 1 of the n words that begin `skip` words after block `block`.
template <class Use> SLUICE_FN void for_philox_words(uint64_t seed, uint64_t block, int64_t skip, int64_t n, Use use) {
  uint32_t words[4 * kPhiloxBatch];
  block += static_cast<uint64_t>(skip / 4), skip %= 4;
  for (int64_t i = 0; i < n;) {
    const int64_t blocks = std::min(kPhiloxBatch, (skip + n - i + 3) / 4), count = std::min(4 * blocks - skip, n - i);
    if (blocks < 8)  // too few for the vectors
      for (int64_t b = 0; b < blocks; ++b)
        std::copy_n(philox_block(seed, block + static_cast<uint64_t>(b)).word, 4, words + 4 * b);
    else philox_batch(seed, block, blocks, words);
    use(i, words + skip, count);
    i += count, block += kPhiloxBatch, skip = 0;
  }
}

SLUICE_FN uint64_t word64(const uint32_t* words, int64_t i) { return uint64_t{words[2 * i + 1]} << 32 | words[2 * i]; }

// A float takes one word (24 bits of it), a double two (53 bits).
template <class T> inline constexpr int kPerBlock = 16 / sizeof(T);
template <class T> inline constexpr T kUnit = sizeof(T) == 4 ? T(0x1p-24) : T(0x1p-53);
/// Integer in [0, 1/kUnit), exact in T.
template <class T> SLUICE_FN T random_bits(const uint32_t* words, int64_t i) {
  if constexpr (sizeof(T) == 4) return static_cast<T>(static_cast<int32_t>(words[i] >> 8));
  else return static_cast<T>(static_cast<int64_t>(word64(words, i) >> 11));
}

/// Dropout with probability p: x/(1 − p) of an element whose word is at least p·2³², 0 of the others.
template <class T> struct Dropping {
  explicit Dropping(double p) : least(static_cast<uint64_t>(std::ldexp(p, 32))), grow(p < 1 ? T(1 / (1 - p)) : T(0)) {}
  SLUICE_FN T operator()(uint32_t word, T x = T(1)) const { return word >= least ? x * grow : T(0); }
  uint64_t least;
  T grow;
};

/// floor(w · range / 2^64): uniform on [0, range).
SLUICE_FN uint64_t scaled_word(uint64_t w, uint64_t range) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(w) * range >> 64);
}

/// Uniform on [a, a + span), clamped to `last`, because a + u·span may round up to the upper bound. One rounding by
/// name: compilers are free to make one or two of a sum of products.
template <class T> SLUICE_FN T uniform_value(const uint32_t* words, int64_t i, T a, T span, T last) {
  const T x = std::fma(random_bits<T>(words, i) * kUnit<T>, span, a);
  return last < x ? last : x;
}

// Logarithm of x in [2^-24, 1], and sine and cosine of an angle in [0, 7), in loops that vectorise. To the bit what
// glibc 2.36 computes (logf, sinf and cosf of Arm's Optimized Routines) for all words, so that streams stay what they
// were, whatever the C library. The tables: 1/c and log c, where c is near the middle of an interval of [0.7, 1.4).
inline constexpr double kInverses[16] = {
    0x1.661ec79f8f3bep+0, 0x1.571ed4aaf883dp+0, 0x1.49539f0f010bp+0,  0x1.3c995b0b80385p+0, 0x1.30d190c8864a5p+0,
    0x1.25e227b0b8eap+0,  0x1.1bb4a4a1a343fp+0, 0x1.12358f08ae5bap+0, 0x1.0953f419900a7p+0, 0x1p+0,
    0x1.e608cfd9a47acp-1, 0x1.ca4b31f026aap-1,  0x1.b2036576afce6p-1, 0x1.9c2d163a1aa2dp-1, 0x1.886e6037841edp-1,
    0x1.767dcf5534862p-1};
inline constexpr double kLogs[16] = {
    -0x1.57bf7808caadep-2, -0x1.2bef0a7c06ddbp-2, -0x1.01eae7f513a67p-2, -0x1.b31d8a68224e9p-3, -0x1.6574f0ac07758p-3,
    -0x1.1aa2bc79c81p-3,   -0x1.a4e76ce8c0e5ep-4, -0x1.1973c5a611cccp-4, -0x1.252f438e10c1ep-5, 0,
    0x1.aa5aa5df25984p-5,  0x1.c5e53aa362eb4p-4,  0x1.526e57720db08p-3,  0x1.bc2860d22477p-3,   0x1.1058bc8a07ee1p-2,
    0x1.4043057b6ee09p-2};
SLUICE_FN uint32_t log_interval(float x) { return (__builtin_bit_cast(uint32_t, x) - 0x3f330000u) >> 19 & 15; }
SLUICE_FN float stream_log(float x, double inverse, double log) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), from = bits - 0x3f330000u;
  const int32_t k = static_cast<int32_t>(from) >> 23;
  const double m = static_cast<double>(__builtin_bit_cast(float, bits - (from & 0xff800000u)));  // x = 2^k m
  const double r = m * inverse - 1, u = r * r;
  const double y = -0x1.00ea348b88334p-2 * u + (0x1.5575b0be00b6ap-2 * r - 0x1.ffffef20a4123p-2);
  return static_cast<float>(y * u + (log + k * 0x1.62e42fefa39efp-1 + r));
}
SLUICE_FN void stream_sine(float angle, float& sine, float& cosine) {
  const double a = static_cast<double>(angle);
  const int32_t n = (static_cast<int32_t>(a * 0x1.45f306dc9c883p+23) + 0x800000) >> 24;  // quarter turns, rounded
  const double x = a - n * 0x1.921fb54442d18p0, u = x * x, v = x * u, w = u * u;
  const double s = (x + v * -0x1.555545995a603p-3) + v * u * (0x1.1107605230bc4p-7 + u * -0x1.994eb3774cf24p-13);
  const double c = ((1 + u * -0x1.ffffffd0c621cp-2) + w * 0x1.55553e1068f19p-5) +
                   w * u * (-0x1.6c087e89a359dp-10 + u * 0x1.99343027bf8c3p-16);
  const float near = static_cast<float>(s), far = static_cast<float>(c);
  const bool odd = (n & 1) != 0;
  const uint32_t y = __builtin_bit_cast(uint32_t, math::select(odd, far, near));
  const uint32_t z = __builtin_bit_cast(uint32_t, math::select(odd, near, far));
  sine = __builtin_bit_cast(float, y ^ static_cast<uint32_t>(n & 2) << 30);
  cosine = __builtin_bit_cast(float, z ^ static_cast<uint32_t>((n + 1) & 2) << 30);
}

template <class T> SLUICE_FN T first_uniform(const uint32_t* words, int64_t i) {  // (0, 1], so that the log is finite
  return (random_bits<T>(words, i) + 1) * kUnit<T>;
}
template <class T> SLUICE_FN T second_angle(const uint32_t* words, int64_t i) {
  return random_bits<T>(words, i + 1) * kUnit<T> * (2 * std::numbers::pi_v<T>);
}
/// Values i and i + 1 (i even) of a normal distribution, by Box and Muller.
template <class T> SLUICE_FN void normal_pair(const uint32_t* words, int64_t i, T mean, T std, T& x, T& y) {
  const T angle = second_angle<T>(words, i), radius = std * std::sqrt(-2 * std::log(first_uniform<T>(words, i)));
  x = std::fma(radius, std::cos(angle), mean);
  y = std::fma(radius, std::sin(angle), mean);
}
/// All values of a batch, to the bit as normal_pair(); a lookup within the second loop would keep it scalar.
SLUICE_FN void normal_batch(const uint32_t* words, float mean, float std, float* __restrict__ out) {
  constexpr int64_t n = 2 * kPhiloxBatch;
  double inverse[n], log[n];
  for (int64_t j = 0; j < n; ++j) {
    const uint32_t at = log_interval(first_uniform<float>(words, 2 * j));
    inverse[j] = kInverses[at], log[j] = kLogs[at];
  }
  for (int64_t j = 0; j < n; ++j) {
    const float radius = std * std::sqrt(-2 * stream_log(first_uniform<float>(words, 2 * j), inverse[j], log[j]));
    float sine, cosine;
    stream_sine(second_angle<float>(words, 2 * j), sine, cosine);
    out[2 * j] = std::fma(radius, cosine, mean);
    out[2 * j + 1] = std::fma(radius, sine, mean);
  }
}

/// erf(y) = x for |x| < 1: Winitzki's formula (error 2e-3), then two Halley steps, each of which cubes the error.
SLUICE_FN double erf_inverse(double x) {
  constexpr double a = 0.147;
  const double log_term = std::log1p(-x * x), b = 2 / (std::numbers::pi * a) + log_term / 2;
  const double square = std::sqrt(b * b - log_term / a) - b;
  double y = std::copysign(std::sqrt(square > 0 ? square : 0.0), x);
  for (int step = 0; step < 2; ++step) {
    const double u = (std::erf(y) - x) * std::exp(y * y) / (2 * std::numbers::inv_sqrtpi);
    y -= u / (1 + y * u);
  }
  return y;
}
/// A standard normal value cut to ±2, by its inverse distribution function; edge = erf(√2) = P(|z| < 2).
template <class T> SLUICE_FN double truncated_normal_value(const uint32_t* words, int64_t i, double edge) {
  const double u = (static_cast<double>(random_bits<T>(words, i)) + 0.5) * static_cast<double>(kUnit<T>);  // (0, 1)
  const double z = std::numbers::sqrt2 * erf_inverse((2 * u - 1) * edge);
  return z < -2.0 ? -2.0 : z > 2.0 ? 2.0 : z;
}

}  // namespace sluice::detail
