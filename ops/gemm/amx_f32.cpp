// Rung 6: products of f32 on AMX. A number of f32 is exactly the sum of three of bf16,
//
//   x = x₁ + x₂ + x₃      x₁ = bf16(x)   x₂ = bf16(x − x₁)   x₃ = x − x₁ − x₂      |x₂| ≤ 2⁻⁸|x|   |x₃| ≤ 2⁻¹⁶|x|
//
// and a·b ≈ a₁b₁ + a₁b₂ + a₂b₁ + a₂b₂ + a₁b₃ + a₃b₁: what is left out, a₂b₃ + a₃b₂ + a₃b₃, is below 2⁻²³|ab| (Henry, Tang
// and Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations"). Products
// of bf16 are exact in f32, and there are fewer roundings of sums than in a chain of multiply-adds: errors are smaller than
// that chain's. Six instructions instead of one, at 16 times the speed.
//
// Not as in the chain: x below 2⁻¹¹⁰ keeps fewer bits (parts below 2⁻¹²⁶ are 0), and infinities, or numbers that round to
// one, give NaN. Whoever calls this looks for results that are not finite and computes those again.
//
// A tile's three parts lie one after the other. Per 32 of k 16 tiles are loaded for 24 products, so the multiplier sets the
// pace; k is not cut below kAmxDepth, because sums that are put down and taken up again cost more than tiles from L2.
#include <sluice/ops/gemm/amx_tiles.inc>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>

#if defined(__x86_64__)

namespace sluice::detail {

namespace {

constexpr int64_t kPart = 1024, kTile = 3 * kPart;  // bytes

[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::always_inline]] inline __m512 rounded(__m512 x) {
  constexpr __mmask16 all = 0xffff;
  return (__m512)_mm512_maskz_slli_epi32(all, _mm512_maskz_cvtepu16_epi32(all, (__m256i)_mm512_maskz_cvtneps_pbh(all, x)), 16);
}

/// The parts of two vectors, together as 32 numbers of bf16, to one row of each part of a tile.
template <bool pairs>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::always_inline]] inline void store_parts(__m512 low, __m512 high, char* row) {
  for (int part = 0; part < 3; ++part) {
    const __m512 l = part < 2 ? rounded(low) : low, h = part < 2 ? rounded(high) : high;
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(h, l);
    if constexpr (pairs) both = _mm512_permutexvar_epi16(_mm512_load_si512(kPairs), both);
    _mm512_store_si512(row + part * kPart, both);
    low = low - l, high = high - h;
  }
}

/// As pack_tiles of amx.cpp, in parts.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void split_tiles(const float* x, int64_t ld, bool along, bool turned, int64_t count, int64_t k, char* to) {
  const int64_t steps = (k + kAmxStep - 1) / kAmxStep;
  const auto turn = [&](char* tile) __attribute__((target("avx512f"), always_inline)) {
    for (int part = 0; part < 3; ++part, tile += kPart) {
      Tile t;
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) t[r] = _mm512_load_si512(tile + 64 * r);
      transpose(t);
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) _mm512_store_si512(tile + 64 * r, t[r]);
    }
  };
  if (along)
    for (int64_t i = 0; i < count; i += kAmxTile)
      for (int64_t p = 0; p < k; p += kAmxStep) {
        char* const tile = to + (i / kAmxTile * steps + p / kAmxStep) * kTile;
        const __mmask16 low = lanes(k - p), high = lanes(k - p - 16);
        for (int r = 0; r < 16; ++r) {
          const float* row = x + (i + r) * ld + p;
          const __mmask16 l = i + r < count ? low : __mmask16(0), h = i + r < count ? high : __mmask16(0);
          store_parts<false>(_mm512_maskz_loadu_ps(l, row), _mm512_maskz_loadu_ps(h, row + 16), tile + 64 * r);
        }
        if (turned) turn(tile);
      }
  else
    for (int64_t p = 0; p < k; p += kAmxStep)
      for (int64_t i = 0; i < count; i += kAmxTile) {
        char* const tile = to + (i / kAmxTile * steps + p / kAmxStep) * kTile;
        const __mmask16 mask = lanes(count - i);
        for (int r = 0; r < 16; ++r) {
          const float* row = x + (p + 2 * r) * ld + i;
          const __mmask16 l = p + 2 * r < k ? mask : __mmask16(0), h = p + 2 * r + 1 < k ? mask : __mmask16(0);
          store_parts<true>(_mm512_maskz_loadu_ps(l, row), _mm512_maskz_loadu_ps(h, row + ld), tile + 64 * r);
        }
        if (turned) turn(tile);
      }
}

/// c, A × B tiles of it, is the product of `steps` tiles one after the other; the second tiles of a and b lie `next` bytes
/// further. The small products of all steps are summed first, when sums are small and so are their roundings; then the large
/// one of all steps, which leaves a number times one exactly that number. Meanwhile `lines` lines a step are fetched into L2
/// from `ahead` on, and 32 rows of c from next_c on into L1.
template <int A, int B>
[[gnu::target("amx-tile,amx-bf16")]]
void multiply_split(int64_t steps, const char* a, const char* b, int64_t next, float* c, int64_t ldc, const char* ahead, int lines,
                    const float* next_c, int64_t next_ldc) {
  const int64_t row = ldc * 4;
  _tile_zero(0);
  if constexpr (B > 1) _tile_zero(1);
  if constexpr (A > 1) _tile_zero(2);
  if constexpr (A > 1 && B > 1) _tile_zero(3);
  const auto load_a = [&](const char* a, int part) __attribute__((target("amx-tile,amx-bf16"), always_inline)) {
    _tile_loadd(4, a + part * kPart, 64);
    if constexpr (A > 1) _tile_loadd(5, a + next + part * kPart, 64);
  };
  const auto load_b = [&](const char* b, int part) __attribute__((target("amx-tile,amx-bf16"), always_inline)) {
    _tile_loadd(6, b + part * kPart, 64);
    if constexpr (B > 1) _tile_loadd(7, b + next + part * kPart, 64);
  };
  const auto products = [&]() __attribute__((target("amx-tile,amx-bf16"), always_inline)) {
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (B > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (A > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (A > 1 && B > 1) _tile_dpbf16ps(3, 5, 7);
  };
  for (int64_t s = 0; s < steps; ++s) {
    const char *left = a + s * kTile, *right = b + s * kTile;
    for (int i = 0; i < lines; ++i, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
    for (int i = 0; i < 4 && s < 8; ++i, next_c += next_ldc) {
      _mm_prefetch(reinterpret_cast<const char*>(next_c), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(next_c + 16), _MM_HINT_T0);
    }
    load_a(left, 2), load_b(right, 0), products();
    load_a(left, 1), products();
    load_b(right, 1), products();
    load_a(left, 0), products();
    load_b(right, 2), products();
  }
  for (int64_t s = steps; s-- > 0;) load_a(a + s * kTile, 0), load_b(b + s * kTile, 0), products();  // the last ones are in L1
  _tile_stored(0, c, row);
  if constexpr (B > 1) _tile_stored(1, c + 16, row);
  if constexpr (A > 1) _tile_stored(2, c + 16 * ldc, row);
  if constexpr (A > 1 && B > 1) _tile_stored(3, c + 16 * ldc + 16, row);
}

}  // namespace

void amx_split_b(Read read, const float* b, int64_t ldb, int64_t k, int64_t cols, float* to) {
  const bool along = read == Read::transposed;
  split_tiles(b, ldb, along, along, cols, k, reinterpret_cast<char*>(to));
}
void amx_split_a(Read read, const float* a, int64_t lda, int64_t n, int64_t k, float* to) {
  const bool along = read == Read::plain;
  split_tiles(a, lda, along, !along, n, k, reinterpret_cast<char*>(to));
}

namespace {

/// Rows of a at a time: 1.2 MB, which stay in L2, in equal blocks of whole pairs of tiles.
int64_t split_rows(int64_t n, int64_t steps) {
  const int64_t most = std::clamp<int64_t>((int64_t{1200} << 10) / (2 * steps * kTile), 2, 12) * 2 * kAmxTile;
  return (Cut(n, most).length + 2 * kAmxTile - 1) / (2 * kAmxTile) * (2 * kAmxTile);
}

}  // namespace

[[gnu::target("amx-tile,amx-bf16")]]
void amx_multiply_split(const float* a, const float* b, int64_t n, int64_t m, int64_t k, float alpha, float beta, float* c, int64_t ldc) {
  const int64_t steps = (k + kAmxStep - 1) / kAmxStep, bytes = steps * kTile, block = split_rows(n, steps);
  alignas(64) float sums[2 * kAmxTile * kAmxCols];
  const TileConfig config;
  asm volatile("" : : : "memory");  // the instructions below read what was just written, and do not say so
  _tile_loadconfig(&config);
  for (int64_t first = 0; first < n; first += block) {
    const int64_t rows = std::min(block, n - first);
    const char* rows_of_a = reinterpret_cast<const char*>(a) + first / kAmxTile * bytes;
    const int lines = static_cast<int>(2 * kTile / 64 * 2 * kAmxTile / block) + 1;  // of the next panel
    for (int64_t col = 0; col < m; col += kAmxCols) {
      const char* panel = reinterpret_cast<const char*>(b) + col / kAmxTile * bytes;
      const int64_t cols = std::min(kAmxCols, m - col);
      for (int64_t i = 0; i < rows; i += 2 * kAmxTile) {
        const int64_t height = std::min(2 * kAmxTile, rows - i);
        float* const to = c + (first + i) * ldc + col;
        const bool whole = alpha == 1 && beta == 0 && height % kAmxTile == 0 && cols % kAmxTile == 0;
        float* const sum = whole ? to : sums;
        const int64_t ld = whole ? ldc : kAmxCols;
        const char *left = rows_of_a + i / kAmxTile * bytes, *ahead = panel + 2 * bytes + i / (2 * kAmxTile) * steps * lines * 64;
        const float* next_c = i + 2 * kAmxTile < rows ? to + 2 * kAmxTile * ldc : c + first * ldc + col + kAmxCols;
        if (height > kAmxTile && cols > kAmxTile) multiply_split<2, 2>(steps, left, panel, bytes, sum, ld, ahead, lines, next_c, ldc);
        else if (height > kAmxTile) multiply_split<2, 1>(steps, left, panel, bytes, sum, ld, ahead, lines, next_c, ldc);
        else if (cols > kAmxTile) multiply_split<1, 2>(steps, left, panel, bytes, sum, ld, ahead, lines, next_c, ldc);
        else multiply_split<1, 1>(steps, left, panel, bytes, sum, ld, ahead, lines, next_c, ldc);
        if (!whole) add_scaled(sums, height, cols, alpha, beta, to, ldc);
      }
    }
  }
  _tile_release();
}

void amx_split_and_multiply(Read read, const float* a, int64_t lda, const float* b, int64_t n, int64_t m, int64_t k, float alpha,
                            float beta, float* c, int64_t ldc) {
  const int64_t steps = (k + kAmxStep - 1) / kAmxStep, block = split_rows(n, steps);
  float* const tiles = pack_memory<float>(0, block * steps * kAmxStep * 3 / 2);
  for (int64_t first = 0; first < n; first += block) {
    const int64_t rows = std::min(block, n - first);
    amx_split_a(read, a + first * (read == Read::plain ? lda : 1), lda, rows, k, tiles);
    amx_multiply_split(tiles, b, rows, m, k, alpha, beta, c + first * ldc, ldc);
  }
}

}  // namespace sluice::detail
#endif
