// The random generator Philox4x32-10 (Salmon et al. 2011) and the values made from its words, in one source for every
// device. Block i of a stream is a pure function of (seed, i).
#pragma once

#include <sluice/core/kernel/fn.h>

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
