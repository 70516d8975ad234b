// Rung 5 on x86-64 without AMX: AVX-512 BF16 (Zen 4 and later, Cooper Lake). VDPBF16PS multiplies 16 pairs of bf16 by
// 16 pairs and adds to 16 sums in f32, twice the multiply-adds of a vector of f32. Tiles are those of AMX (amx.cpp). A
// row of a's tile has 16 pairs, of which one is broadcast; a row of b's tile has a pair for each of 16 columns. 8 rows
// of 2 vectors of sums are 16 chains, enough for two instructions of 5 or 6 cycles in flight. A pair of k takes 10
// loads for 16 instructions.
#include <sluice/ops/gemm/bf16.h>

#if defined(__x86_64__)
#include <sluice/ops/gemm/rungs/amx_tiles.inc>

#include <algorithm>
#include <bit>
#include <cstring>

namespace sluice::detail {

namespace {

constexpr int64_t kHeight = 8;  // rows of c in registers: half of a tile

/// Where sums go: c = alpha · sums + beta · c + bias, or, rounded, to the other place if there is one.
struct Place {
  float* c;
  int64_t ld, rows, cols;
  float alpha, beta;
  const float* bias;
  Rounded rounded;
};

/// 8 rows of a times C columns of tiles of b (the second next_b bytes after the first), over `pairs` pairs of k. Not
/// inlined: GCC keeps the caller's integers in vector registers then, and stores the vectors of b for want of room.
template <int C, bool kRounds>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::noinline]] void multiply_rows(int64_t pairs, const char* a,
                                                                                          const char* b, int64_t next_b,
                                                                                          const Place& to) {
  for (int64_t i = 0; i < std::min(kHeight, to.rows); ++i)  // the results' place may be far away
    if (kRounds) __builtin_prefetch(to.rounded.to + i * to.rounded.ld, 1);
    else
      for (int j = 0; j < C; ++j) __builtin_prefetch(to.c + i * to.ld + 16 * j, 1);
  __m512 sum[kHeight][C];
#pragma GCC unroll 8
  for (auto& row : sum)
#pragma GCC unroll 2
    for (__m512& x : row) x = _mm512_setzero_ps();
  const auto add = [&](int64_t pair) __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"), always_inline)) {
    __m512bh right[C];
#pragma GCC unroll 2
    for (int j = 0; j < C; ++j) right[j] = (__m512bh)_mm512_loadu_si512(b + j * next_b + 64 * pair);
#pragma GCC unroll 8
    for (int i = 0; i < kHeight; ++i) {
      int32_t numbers;
      std::memcpy(&numbers, a + 64 * i + 4 * pair, 4);
      const __m512bh left = (__m512bh)_mm512_set1_epi32(numbers);
#pragma GCC unroll 2
      for (int j = 0; j < C; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], left, right[j]);
    }
  };
  constexpr int64_t kInTile = kAmxStep / 2;
  for (; pairs >= kInTile; pairs -= kInTile, a += kAmxPart, b += kAmxPart)
    for (int64_t pair = 0; pair < kInTile; ++pair) add(pair);
  for (int64_t pair = 0; pair < pairs; ++pair) add(pair);
  const __m512 alpha = _mm512_set1_ps(to.alpha), beta = _mm512_set1_ps(to.beta);
#pragma GCC unroll 8
  for (int i = 0; i < kHeight; ++i) {
    if (i >= to.rows) break;  // a masked store to a page that is not there yet takes hundreds of cycles
#pragma GCC unroll 2
    for (int j = 0; j < C; ++j) {
      const __mmask16 mask = lanes(to.cols - 16 * j);
      float* const c = to.c + i * to.ld + 16 * j;
      __m512 x = alpha * sum[i][j];
      if (to.beta != 0) x = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(mask, c), x);
      if (to.bias) x = x + _mm512_maskz_loadu_ps(mask, to.bias + 16 * j);
      if (kRounds)
        _mm256_mask_storeu_epi16(to.rounded.to + i * to.rounded.ld + 16 * j, mask, (__m256i)_mm512_cvtneps_pbh(x));
      else _mm512_mask_storeu_ps(c, mask, x);
    }
  }
}

/// The sums of 16 vectors each, in their order: halves of two vectors at a time become one vector.
[[gnu::target("avx512f"), gnu::always_inline]] inline __m512 sums_of(__m512 (&v)[16]) {
  constexpr __mmask16 all = 0xffff;  // without a mask g++ 12 warns of its own intrinsics
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 x = v[2 * i], y = v[2 * i + 1];
    v[i] = _mm512_maskz_unpacklo_ps(all, x, y) + _mm512_maskz_unpackhi_ps(all, x, y);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d x = (__m512d)v[2 * i], y = (__m512d)v[2 * i + 1];
    v[i] = (__m512)_mm512_maskz_unpacklo_pd(0xff, x, y) + (__m512)_mm512_maskz_unpackhi_pd(0xff, x, y);
  }
  const auto joined = [](__m512 x, __m512 y) __attribute__((target("avx512f"), always_inline)) {
    return _mm512_maskz_shuffle_f32x4(all, x, y, 0x88) + _mm512_maskz_shuffle_f32x4(all, x, y, 0xdd);
  };
  return joined(joined(v[0], v[1]), joined(v[2], v[3]));
}

/// c [rows, cols] = a bᵀ: dots of at most R rows of a with one or two rows of b. Where rows are missing, the last one
/// is read in their place, and its dots are dropped.
template <int R>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::noinline]] void dots(int64_t rows, int64_t k,
                                                                                 const BFloat16* a, int64_t lda,
                                                                                 const BFloat16* b, int64_t ldb,
                                                                                 int64_t cols, float* c, int64_t ldc) {
  __m512 sum[16];
#pragma GCC unroll 16
  for (__m512& x : sum) x = _mm512_setzero_ps();
  const BFloat16 *left[R], *const right = cols > 1 ? b + ldb : b;
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) left[i] = a + std::min<int64_t>(i, rows - 1) * lda;
  // Rows to come are fetched into L2. b often comes from memory, where prefetches into L1 gain nothing.
  const int64_t ahead = std::max<int64_t>(2 * ldb, 8192);
  for (int64_t p = 0; p < k; p += 32) {
    const __mmask32 mask = lanes_of_32(k - p);
    __builtin_prefetch(b + ahead + p, 0, 2), __builtin_prefetch(right + ahead + p, 0, 2);
    const __m512bh first = (__m512bh)_mm512_maskz_loadu_epi16(mask, b + p),
                   second = (__m512bh)_mm512_maskz_loadu_epi16(mask, right + p);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const __m512bh x = (__m512bh)_mm512_maskz_loadu_epi16(mask, left[i] + p);
      sum[2 * i] = _mm512_dpbf16_ps(sum[2 * i], x, first);
      sum[2 * i + 1] = _mm512_dpbf16_ps(sum[2 * i + 1], x, second);
    }
  }
  float each[16];
  _mm512_storeu_ps(each, sums_of(sum));
  for (int64_t i = 0; i < std::min<int64_t>(R, rows); ++i) std::copy_n(each + 2 * i, cols, c + i * ldc);
}

/// c [R, m] += a [R, k] · b, k at most 8: the rows of b are read beside one another, and interleaved in registers.
template <int R>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::noinline]] void add_rows(int64_t m, int64_t k,
                                                                                     const float* a, int64_t lda,
                                                                                     const BFloat16* b, int64_t ldb,
                                                                                     float* c, int64_t ldc) {
  constexpr int kTogether = 4;  // pairs of rows
  __m512bh left[R][kTogether];
#pragma GCC unroll 4
  for (int p = 0; p < kTogether; ++p)
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      const float* const x = a + i * lda + 2 * p;  // bf16, widened
      const auto bits = [](float number) { return std::bit_cast<uint32_t>(number); };
      const uint32_t even = 2 * p < k ? bits(x[0]) >> 16 : 0, odd = 2 * p + 1 < k ? bits(x[1]) & 0xffff0000 : 0;
      left[i][p] = (__m512bh)_mm512_set1_epi32(static_cast<int>(even | odd));
    }
  const __m512i low = _mm512_load_si512(kLowPairs), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t j = 0; j < m; j += 32) {
    const __mmask32 mask = lanes_of_32(m - j);
    const __mmask16 first = lanes(m - j), second = lanes(m - j - 16);
    __m512 sum[R][2];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      sum[i][0] = _mm512_maskz_loadu_ps(first, c + i * ldc + j);
      sum[i][1] = _mm512_maskz_loadu_ps(second, c + i * ldc + j + 16);
    }
#pragma GCC unroll 4
    for (int p = 0; p < kTogether; ++p) {
      const BFloat16* const row = b + 2 * p * ldb + j;
      const __m512i even = _mm512_maskz_loadu_epi16(2 * p < k ? mask : 0, row),
                    odd = _mm512_maskz_loadu_epi16(2 * p + 1 < k ? mask : 0, row + ldb);
      const __m512bh right[2] = {(__m512bh)_mm512_permutex2var_epi16(even, low, odd),
                                 (__m512bh)_mm512_permutex2var_epi16(even, high, odd)};
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        sum[i][0] = _mm512_dpbf16_ps(sum[i][0], left[i][p], right[0]);
        sum[i][1] = _mm512_dpbf16_ps(sum[i][1], left[i][p], right[1]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      _mm512_mask_storeu_ps(c + i * ldc + j, first, sum[i][0]);
      _mm512_mask_storeu_ps(c + i * ldc + j + 16, second, sum[i][1]);
    }
  }
}

}  // namespace

void avx512_bf16_sums(int64_t n, int64_t m, int64_t k, const float* a, int64_t lda, const BFloat16* b, int64_t ldb,
                      float* c, int64_t ldc) {
  static constexpr decltype(&add_rows<1>) add[] = {&add_rows<1>, &add_rows<2>, &add_rows<3>, &add_rows<4>};
  for (int64_t l = 0; l < k; l += 8) add[n - 1](m, std::min<int64_t>(8, k - l), a + l, lda, b + l * ldb, ldb, c, ldc);
}

void avx512_bf16_dots(int64_t n, int64_t m, int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb,
                      float* c, int64_t ldc) {
  const auto some = n > 4 ? &dots<8> : n > 2 ? &dots<4> : &dots<2>;
  for (int64_t j = 0; j < m; j += 2) some(n, k, a, lda, b + j * ldb, ldb, std::min<int64_t>(2, m - j), c + j, ldc);
}

/// 16 rows of a, over all k, stay in L1 while the columns of b that fit in L2 go past.
void avx512_bf16_multiply(const float* a, const float* b, const Block<float>& to_c) {
  const auto [n, m, k, alpha, beta, c, ldc, bias, rounded] = to_c;
  const int64_t pairs = ceil_div(k, 2), bytes = ceil_div(k, kAmxStep) * kAmxPart;  // of 16 rows or columns
  const int64_t width = amx_near_panels(k, 1) * kAmxCols;
  const char *const left = reinterpret_cast<const char*>(a), *const right = reinterpret_cast<const char*>(b);
  const auto two = rounded.to ? &multiply_rows<2, true> : &multiply_rows<2, false>;
  const auto one = rounded.to ? &multiply_rows<1, true> : &multiply_rows<1, false>;
  for (int64_t first = 0; first < m; first += width)
    for (int64_t i = 0; i < n; i += kAmxTile)
      for (int64_t j = first; j < std::min(first + width, m); j += kAmxCols)
        for (int64_t half = i; half < std::min(i + kAmxTile, n); half += kHeight) {
          const Rounded other{rounded.to ? rounded.to + half * rounded.ld + j : nullptr, rounded.ld};
          const Place to{c + half * ldc + j, ldc, n - half, m - j, alpha, beta, bias ? bias + j : nullptr, other};
          const char *const rows = left + i / kAmxTile * bytes + 64 * (half - i), *const cols =
                                                                                      right + j / kAmxTile * bytes;
          (m - j > kAmxTile ? two : one)(pairs, rows, cols, bytes, to);
        }
}

}  // namespace sluice::detail
#endif
