// The tile in NEON: 12 rows of 2 vectors are 24 of the 32 registers, for two to four multiply-adds a cycle of latency
// 4; b_p takes 2. The instruction takes an element of a_p from one lane of a register. So the element is loaded as a
// number, not broadcast, and the load occupies no multiplier.
#include <sluice/ops/gemm/micro.h>

#if defined(__aarch64__)
#include <arm_neon.h>

namespace sluice::detail {

namespace {

#define SLUICE_TARGET [[gnu::always_inline]]
#define SLUICE_TARGET_TILE

template <class T> struct Vector { using type = float32x4_t; };
template <> struct Vector<double> { using type = float64x2_t; };
template <class T> constexpr int kWidth = 16 / sizeof(T);
using Mask = int64_t;  // number of leading lanes, fewer than a whole vector
template <class T> SLUICE_TARGET inline Mask first(int64_t count) { return count; }

/// Keeps x in a register: the compiler would broadcast it from memory.
template <class T> SLUICE_TARGET inline T broadcast(T x) {
  asm("" : "+w"(x));
  return x;
}
SLUICE_TARGET inline float32x4_t load(const float* p) { return vld1q_f32(p); }
SLUICE_TARGET inline float64x2_t load(const double* p) { return vld1q_f64(p); }
SLUICE_TARGET inline float32x4_t load(Mask count, const float* p) {
  const float32x2_t zero = vdup_n_f32(0);
  if (count == 1) return vcombine_f32(vld1_lane_f32(p, zero, 0), zero);
  return vcombine_f32(vld1_f32(p), count == 3 ? vld1_lane_f32(p + 2, zero, 0) : zero);
}
SLUICE_TARGET inline float64x2_t load(Mask, const double* p) { return vcombine_f64(vld1_f64(p), vdup_n_f64(0)); }
SLUICE_TARGET inline void store(float* p, float32x4_t x) { vst1q_f32(p, x); }
SLUICE_TARGET inline void store(double* p, float64x2_t x) { vst1q_f64(p, x); }
SLUICE_TARGET inline void store(Mask count, float* p, float32x4_t x) {
  if (count == 1) return vst1q_lane_f32(p, x, 0);
  vst1_f32(p, vget_low_f32(x));
  if (count == 3) vst1q_lane_f32(p + 2, x, 2);
}
SLUICE_TARGET inline void store(Mask, double* p, float64x2_t x) { vst1q_lane_f64(p, x, 0); }
SLUICE_TARGET inline float32x4_t fma(float x, float32x4_t y, float32x4_t z) { return vfmaq_n_f32(z, y, x); }
SLUICE_TARGET inline float64x2_t fma(double x, float64x2_t y, float64x2_t z) { return vfmaq_n_f64(z, y, x); }
template <class V> SLUICE_TARGET inline void keep_in_register(V& x) { asm("" : "+w"(x)); }

constexpr int kTileRows = 12;
#include <sluice/ops/gemm/rungs/tile.inc>

/// Transposes a square: 4 × 4 or 2 × 2 numbers.
SLUICE_TARGET inline void transpose_square(float32x4_t (&v)[4]) {
  const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(v[0], v[1])),
                    b = vreinterpretq_f64_f32(vtrn2q_f32(v[0], v[1]));
  const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(v[2], v[3])),
                    d = vreinterpretq_f64_f32(vtrn2q_f32(v[2], v[3]));
  v[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c)), v[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
  v[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c)), v[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}
SLUICE_TARGET inline void transpose_square(float64x2_t (&v)[2]) {
  const float64x2_t a = vtrn1q_f64(v[0], v[1]);
  v[1] = vtrn2q_f64(v[0], v[1]), v[0] = a;
}

template <class T> void transpose(const T* from, int64_t ld, int64_t rows, int64_t k, T* to, int64_t ld_to) {
  constexpr int W = kWidth<T>;
  for (int64_t j = 0; j < rows; j += W) {
    const int64_t count = rows - j < W ? rows - j : W;
    int64_t p = 0;
    for (; count == W && p + W <= k; p += W) {
      V<T> v[W];
#pragma GCC unroll 4
      for (int i = 0; i < W; ++i) {
        __builtin_prefetch(from + (j + W + i) * ld + p, 0, 2);
        v[i] = load(from + (j + i) * ld + p);
      }
      transpose_square(v);
#pragma GCC unroll 4
      for (int i = 0; i < W; ++i) store(to + (p + i) * ld_to + j, v[i]);
    }
    for (; p < k; ++p)
      for (int64_t i = 0; i < count; ++i) to[p * ld_to + j + i] = from[(j + i) * ld + p];
  }
}

}  // namespace

const Micro<float> neon_f32{kTileRows, 8, &choose<float>, &transpose<float>};
const Micro<double> neon_f64{kTileRows, 4, &choose<double>, &transpose<double>};

}  // namespace sluice::detail
#endif
