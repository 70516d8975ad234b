// The tile in AVX-512: 14 rows of 2 vectors are 28 of the 32 registers; the rest hold b_p (2) and one element of a_p,
// broadcast. 28 independent chains cover the latency of two multiply-adds a cycle (4 cycles each) three times over. A
// step of p loads 16 values while its 28 multiply-adds take 14 cycles.
//
// Tiles of every height exist, so n rows are cut into equal tiles instead of full ones and a remainder.
#include <sluice/ops/gemm/micro.h>

#if defined(__x86_64__)
#include <immintrin.h>

namespace sluice::detail {

namespace {

#define SLUICE_TARGET [[gnu::target("avx512f"), gnu::always_inline]]
#define SLUICE_TARGET_TILE [[gnu::target("avx512f")]]

template <class T> struct Vector { using type = __m512; };
template <> struct Vector<double> { using type = __m512d; };
template <class T> constexpr int kWidth = 64 / sizeof(T);
using Mask = unsigned;
template <class T> SLUICE_TARGET inline Mask first(int64_t count) { return (1u << count) - 1; }

SLUICE_TARGET inline __m512 broadcast(float x) { return _mm512_set1_ps(x); }
SLUICE_TARGET inline __m512d broadcast(double x) { return _mm512_set1_pd(x); }
SLUICE_TARGET inline __m512 load(const float* p) { return _mm512_loadu_ps(p); }
SLUICE_TARGET inline __m512d load(const double* p) { return _mm512_loadu_pd(p); }
SLUICE_TARGET inline __m512 load(Mask mask, const float* p) { return _mm512_maskz_loadu_ps(__mmask16(mask), p); }
SLUICE_TARGET inline __m512d load(Mask mask, const double* p) { return _mm512_maskz_loadu_pd(__mmask8(mask), p); }
SLUICE_TARGET inline void store(float* p, __m512 x) { _mm512_storeu_ps(p, x); }
SLUICE_TARGET inline void store(double* p, __m512d x) { _mm512_storeu_pd(p, x); }
SLUICE_TARGET inline void store(Mask mask, float* p, __m512 x) { _mm512_mask_storeu_ps(p, __mmask16(mask), x); }
SLUICE_TARGET inline void store(Mask mask, double* p, __m512d x) { _mm512_mask_storeu_pd(p, __mmask8(mask), x); }
SLUICE_TARGET inline __m512 fma(__m512 x, __m512 y, __m512 z) { return _mm512_fmadd_ps(x, y, z); }
SLUICE_TARGET inline __m512d fma(__m512d x, __m512d y, __m512d z) { return _mm512_fmadd_pd(x, y, z); }
template <class V> SLUICE_TARGET inline void keep_in_register(V& x) { asm("" : "+v"(x)); }

constexpr int kTileRows = 14;
#include <sluice/ops/gemm/rungs/tile.inc>

// Without a mask of ones g++ 12 warns of its own intrinsics.
SLUICE_TARGET inline __m512 unpack_lo(__m512 x, __m512 y) { return _mm512_maskz_unpacklo_ps(0xffff, x, y); }
SLUICE_TARGET inline __m512 unpack_hi(__m512 x, __m512 y) { return _mm512_maskz_unpackhi_ps(0xffff, x, y); }
SLUICE_TARGET inline __m512d unpack_lo(__m512d x, __m512d y) { return _mm512_maskz_unpacklo_pd(0xff, x, y); }
SLUICE_TARGET inline __m512d unpack_hi(__m512d x, __m512d y) { return _mm512_maskz_unpackhi_pd(0xff, x, y); }

SLUICE_TARGET inline __m512 gather_lanes(const float* p0, const float* p1, const float* p2, const float* p3) {
  __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(p0));
  v = _mm512_insertf32x4(v, _mm_loadu_ps(p1), 1);
  v = _mm512_insertf32x4(v, _mm_loadu_ps(p2), 2);
  return _mm512_insertf32x4(v, _mm_loadu_ps(p3), 3);
}
SLUICE_TARGET inline __m512d gather_lanes(const double* p0, const double* p1, const double* p2, const double* p3) {
  return _mm512_castps_pd(gather_lanes(reinterpret_cast<const float*>(p0), reinterpret_cast<const float*>(p1),
                                       reinterpret_cast<const float*>(p2), reinterpret_cast<const float*>(p3)));
}
/// Transposes the square in each lane of 16 bytes: 4 × 4 or 2 × 2 numbers.
SLUICE_TARGET inline void transpose_lanes(__m512 (&v)[4]) {
  const __m512d a = _mm512_castps_pd(unpack_lo(v[0], v[1])), b = _mm512_castps_pd(unpack_hi(v[0], v[1]));
  const __m512d c = _mm512_castps_pd(unpack_lo(v[2], v[3])), d = _mm512_castps_pd(unpack_hi(v[2], v[3]));
  v[0] = _mm512_castpd_ps(unpack_lo(a, c)), v[1] = _mm512_castpd_ps(unpack_hi(a, c));
  v[2] = _mm512_castpd_ps(unpack_lo(b, d)), v[3] = _mm512_castpd_ps(unpack_hi(b, d));
}
SLUICE_TARGET inline void transpose_lanes(__m512d (&v)[2]) {
  const __m512d a = unpack_lo(v[0], v[1]);
  v[1] = unpack_hi(v[0], v[1]), v[0] = a;
}

/// Rows r, r + e, r + 2e, r + 3e meet in one vector, where e is the numbers in 16 bytes; then lanes are transposed.
/// All 64 bytes of a row are read at once, because rows a page apart share a set of the cache. The next rows are
/// prefetched.
template <class T>
SLUICE_TARGET_TILE void transpose(const T* from, int64_t ld, int64_t rows, int64_t k, T* to, int64_t ld_to) {
  constexpr int W = kWidth<T>, e = 16 / sizeof(T);
  for (int64_t j = 0; j < rows; j += W) {
    const int64_t count = rows - j < W ? rows - j : W;
    const unsigned mask = (1u << count) - 1;
    const T* row[W];
    for (int i = 0; i < W; ++i) row[i] = from + (j + (i < count ? i : 0)) * ld;
    int64_t p = 0;
    for (; p + W <= k; p += W) {
      V<T> v[4][e];
      for (int i = 0; i < W; ++i) _mm_prefetch(reinterpret_cast<const char*>(row[i] + W * ld + p), _MM_HINT_T1);
#pragma GCC unroll 4
      for (int r = 0; r < e; ++r)
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q)
          v[q][r] = gather_lanes(row[r] + p + q * e, row[r + e] + p + q * e, row[r + 2 * e] + p + q * e,
                                 row[r + 3 * e] + p + q * e);
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        transpose_lanes(v[q]);
#pragma GCC unroll 4
        for (int r = 0; r < e; ++r) store(mask, to + (p + q * e + r) * ld_to + j, v[q][r]);
      }
    }
    for (; p < k; ++p)
      for (int64_t i = 0; i < count; ++i) to[p * ld_to + j + i] = row[i][p];
  }
}

}  // namespace

const Micro<float> avx512_f32{kTileRows, 32, &choose<float>, &transpose<float>};
const Micro<double> avx512_f64{kTileRows, 16, &choose<double>, &transpose<double>};

}  // namespace sluice::detail
#endif
