// Rung 5 on x86-64 without AMX: AVX-512 BF16 (AMD from Zen 4 on). VDPBF16PS multiplies 16 pairs of bf16 by 16 pairs and
// adds to 16 sums in f32, twice the multiply-adds of a vector of f32. Intel's cores begin one every second cycle, so
// there f32 is faster (best_isa()). Tiles are those of AMX (amx.cpp). A row of a's tile has 16 pairs, of which one is
// broadcast; a row of b's tile has a pair for each of 16 columns. 8 rows of 2 vectors of sums are 16 chains, enough for
// two instructions of 5 or 6 cycles in flight. A pair of k takes 10 loads for 16 instructions.
#include <sluice/ops/gemm/bf16.h>

#if defined(__x86_64__)
#include <sluice/ops/gemm/rungs/amx_tiles.inc>

#include <algorithm>
#include <cstring>
#include <iterator>

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

#define SLUICE_TARGET_DOTS gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")
using Pairs = __m512bh;
[[SLUICE_TARGET_DOTS, gnu::always_inline]] inline Pairs pairs_of(__m512i numbers) { return (__m512bh)numbers; }
[[SLUICE_TARGET_DOTS, gnu::always_inline]] inline __m512 add_products(__m512 sum, Pairs x, Pairs y) {
  return _mm512_dpbf16_ps(sum, x, y);
}
#include <sluice/ops/gemm/rungs/few_dots.inc>

/// Goes on to the next row. Else g++ would compute the addresses of all rows first, and keep them in vector registers.
template <class T> [[gnu::always_inline]] inline void go_on(T*& row, int64_t ld) {
  row += ld;
  asm("" : "+r"(row));
}

/// Adds left · b to at most 32 columns of c; b has at most P pairs of rows. whole: b has all these rows, c 32 columns.
template <int R, int P, bool whole>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::always_inline]] inline void add_columns(
    int64_t m, int64_t k, const int32_t (&left)[R][P], const BFloat16* b, int64_t ldb, int64_t ahead, float* c,
    int64_t ldc) {
  const __m512i low = _mm512_load_si512(kLowPairs), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const __mmask32 mask = lanes_of_32(m);
  const __mmask16 first = lanes(m), second = lanes(m - 16);
  __m512 sum[R][2];
  float* to = c;
#pragma GCC unroll 8
  for (auto& [x, y] : sum) {
    x = whole ? _mm512_loadu_ps(to) : _mm512_maskz_loadu_ps(first, to);
    y = whole ? _mm512_loadu_ps(to + 16) : _mm512_maskz_loadu_ps(second, to + 16);
    go_on(to, ldc);
  }
  const auto next_row = [&](int64_t l) __attribute__((target("avx512f,avx512bw"), always_inline)) {
    __builtin_prefetch(b + ahead, 0, 2);
    const __m512i row = whole ? _mm512_loadu_si512(b) : _mm512_maskz_loadu_epi16(l < k ? mask : 0, b);
    go_on(b, ldb);
    return row;
  };
  const int32_t* numbers = left[0];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    const __m512i even = next_row(2 * p), odd = next_row(2 * p + 1);
    const __m512bh right[2] = {(__m512bh)_mm512_permutex2var_epi16(even, low, odd),
                               (__m512bh)_mm512_permutex2var_epi16(even, high, odd)};
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const __m512bh x = (__m512bh)_mm512_set1_epi32(numbers[i * P]);
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, right[0]);
      sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, right[1]);
    }
    go_on(numbers, 1);  // else g++ keeps vectors of them, and loads 64 bytes for 4
  }
#pragma GCC unroll 8
  for (const auto& [x, y] : sum) {
    if (whole) {
      _mm512_storeu_ps(c, x), _mm512_storeu_ps(c + 16, y);
    } else {
      _mm512_mask_storeu_ps(c, first, x);
      _mm512_mask_storeu_ps(c + 16, second, y);
    }
    go_on(c, ldc);
  }
}

/// c [R, m] += a [R, k] · b, k at most 2 · P: the rows of b are read beside one another, and interleaved in
/// registers. The rows of b `ahead` numbers later are fetched into L2.
template <int R, int P>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::noinline]] void add_rows(int64_t m, int64_t k,
                                                                                     const BFloat16* a, int64_t lda,
                                                                                     const BFloat16* b, int64_t ldb,
                                                                                     int64_t ahead, float* c,
                                                                                     int64_t ldc) {
  int32_t left[R][P] = {};  // pairs of a's numbers
  for (int i = 0; i < R; ++i)
    if (k == 2 * P) std::memcpy(left[i], a + i * lda, sizeof left[i]);
    else std::memcpy(left[i], a + i * lda, static_cast<std::size_t>(k) * sizeof(BFloat16));
  int64_t j = 0;
  if (k == 2 * P)
    for (; j + 32 <= m; j += 32) add_columns<R, P, true>(32, k, left, b + j, ldb, ahead, c + j, ldc);
  for (; j < m; j += 32) add_columns<R, P, false>(m - j, k, left, b + j, ldb, ahead, c + j, ldc);
}

/// c [n, m] += a [n, k] · b [k, m].
void sums(int64_t n, int64_t m, int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb, float* c,
          int64_t ldc) {
  // The sums of many rows are loaded and stored for 16 rows of b, those of few for 8: then b comes faster.
  static constexpr decltype(&add_rows<1, 4>) few[] = {&add_rows<1, 4>, &add_rows<2, 4>, &add_rows<3, 4>,
                                                      &add_rows<4, 4>},
                                             many[] = {&add_rows<1, 8>, &add_rows<2, 8>, &add_rows<3, 8>,
                                                       &add_rows<4, 8>, &add_rows<5, 8>, &add_rows<6, 8>};
  constexpr int64_t kDepth = 64;  // rows of b that stay in L2 for all rows of a
  const Cut groups(n, std::size(many));
  const bool tall = groups.length > int64_t{std::size(few)};
  const auto* const add = tall ? &many[0] : &few[0];
  const int64_t step = tall ? 16 : 8;
  for (int64_t top = 0; top < k; top += kDepth)
    for (int64_t i = 0; i < n; i += groups.length)
      for (int64_t l = top; l < std::min(top + kDepth, k); l += step)
        add[std::min(groups.length, n - i) - 1](m, std::min(step, k - l), a + i * lda + l, lda, b + l * ldb, ldb,
                                                i == 0 ? 32 * ldb : 0, c + i * ldc, ldc);
}

}  // namespace

void avx512_bf16_pass_by(int64_t n, int64_t m, int64_t k, const BFloat16* a, int64_t lda, Trans tb, const BFloat16* b,
                         int64_t ldb, float* c, int64_t ldc) {
  if (tb == Trans::yes) return dots(n, m, k, a, lda, b, ldb, c, ldc);
  for (int64_t i = 0; i < n; ++i) std::fill_n(c + i * ldc, m, 0.f);
  sums(n, m, k, a, lda, b, ldb, c, ldc);
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
