// Batches of normal f32 numbers, in loops that vectorise.
#pragma once

#include <sluice/core/number/philox.h>
#include <sluice/core/number/select.h>

namespace sluice::detail {

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

}  // namespace sluice::detail
