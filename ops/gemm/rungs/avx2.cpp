// The tile in AVX2 with FMA: 6 rows of 2 vectors are 12 of the 16 registers, for two multiply-adds a cycle of latency 4
// or 5; b_p takes 2, the broadcast element of a_p 1.
#include <sluice/ops/gemm/micro.h>

#if defined(__x86_64__)
#include <immintrin.h>

namespace sluice::detail {

namespace {

#define SLUICE_TARGET [[gnu::target("avx2,fma"), gnu::always_inline]]
#define SLUICE_TARGET_TILE [[gnu::target("avx2,fma")]]

template <class T> struct Vector { using type = __m256; };
template <> struct Vector<double> { using type = __m256d; };
template <class T> constexpr int kWidth = 32 / sizeof(T);
using Mask = __m256i;
template <class T> SLUICE_TARGET inline Mask first(int64_t count) {
  alignas(32) static constexpr int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ones + 8 - count * int64_t{sizeof(T) / 4}));
}

SLUICE_TARGET inline __m256 broadcast(float x) { return _mm256_set1_ps(x); }
SLUICE_TARGET inline __m256d broadcast(double x) { return _mm256_set1_pd(x); }
SLUICE_TARGET inline __m256 load(const float* p) { return _mm256_loadu_ps(p); }
SLUICE_TARGET inline __m256d load(const double* p) { return _mm256_loadu_pd(p); }
SLUICE_TARGET inline __m256 load(Mask mask, const float* p) { return _mm256_maskload_ps(p, mask); }
SLUICE_TARGET inline __m256d load(Mask mask, const double* p) { return _mm256_maskload_pd(p, mask); }
SLUICE_TARGET inline void store(float* p, __m256 x) { _mm256_storeu_ps(p, x); }
SLUICE_TARGET inline void store(double* p, __m256d x) { _mm256_storeu_pd(p, x); }
SLUICE_TARGET inline void store(Mask mask, float* p, __m256 x) { _mm256_maskstore_ps(p, mask, x); }
SLUICE_TARGET inline void store(Mask mask, double* p, __m256d x) { _mm256_maskstore_pd(p, mask, x); }
SLUICE_TARGET inline __m256 fma(__m256 x, __m256 y, __m256 z) { return _mm256_fmadd_ps(x, y, z); }
SLUICE_TARGET inline __m256d fma(__m256d x, __m256d y, __m256d z) { return _mm256_fmadd_pd(x, y, z); }
template <class V> SLUICE_TARGET inline void keep_in_register(V& x) { asm("" : "+x"(x)); }

constexpr int kTileRows = 6;
#include <sluice/ops/gemm/rungs/tile.inc>

SLUICE_TARGET inline __m256 gather_lanes(const float* p0, const float* p1) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p0)), _mm_loadu_ps(p1), 1);
}
SLUICE_TARGET inline __m256d gather_lanes(const double* p0, const double* p1) {
  return _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p0)), _mm_loadu_pd(p1), 1);
}
/// Transposes the square in each lane of 16 bytes: 4 × 4 or 2 × 2 numbers.
SLUICE_TARGET inline void transpose_lanes(__m256 (&v)[4]) {
  const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(v[0], v[1])),
                b = _mm256_castps_pd(_mm256_unpackhi_ps(v[0], v[1]));
  const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(v[2], v[3])),
                d = _mm256_castps_pd(_mm256_unpackhi_ps(v[2], v[3]));
  v[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c)), v[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
  v[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d)), v[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}
SLUICE_TARGET inline void transpose_lanes(__m256d (&v)[2]) {
  const __m256d a = _mm256_unpacklo_pd(v[0], v[1]);
  v[1] = _mm256_unpackhi_pd(v[0], v[1]), v[0] = a;
}

/// to[q · ld_to + i] = row[i][q] for q and i below the width of a vector. Rows r and r + e meet in one vector, where e
/// is the numbers in 16 bytes; then lanes are transposed.
template <class T> SLUICE_TARGET inline void transpose_square(const T* const* row, int64_t p, T* to, int64_t ld_to) {
  constexpr int e = 16 / sizeof(T);
  V<T> v[2][e];
#pragma GCC unroll 4
  for (int r = 0; r < e; ++r)
#pragma GCC unroll 2
    for (int q = 0; q < 2; ++q) v[q][r] = gather_lanes(row[r] + p + q * e, row[r + e] + p + q * e);
#pragma GCC unroll 2
  for (int q = 0; q < 2; ++q) {
    transpose_lanes(v[q]);
#pragma GCC unroll 4
    for (int r = 0; r < e; ++r) store(to + (q * e + r) * ld_to, v[q][r]);
  }
}

template <class T>
SLUICE_TARGET_TILE void transpose(const T* from, int64_t ld, int64_t rows, int64_t k, T* to, int64_t ld_to) {
  constexpr int W = kWidth<T>;
  for (int64_t j = (rows - 1) / W * W; j >= 0; j -= W) {  // what a part of a vector overwrites comes later
    const int64_t count = rows - j < W ? rows - j : W;
    const T* row[W];
    for (int i = 0; i < W; ++i) row[i] = from + (j + (i < count ? i : 0)) * ld;
    int64_t p = 0;
    for (; p + W <= k; p += W) {
      for (int i = 0; i < count; ++i) _mm_prefetch(reinterpret_cast<const char*>(row[i] + rows * ld + p), _MM_HINT_T1);
      transpose_square(row, p, to + p * ld_to + j, ld_to);
    }
    if (p < k && k >= W) transpose_square(row, k - W, to + (k - W) * ld_to + j, ld_to), p = k;
    for (; p < k; ++p)
      for (int64_t i = 0; i < count; ++i) to[p * ld_to + j + i] = row[i][p];
  }
}

}  // namespace

const Micro<float> avx2_f32{kTileRows, 16, &choose<float>, &transpose<float>};
const Micro<double> avx2_f64{kTileRows, 8, &choose<double>, &transpose<double>};

}  // namespace sluice::detail
#endif
