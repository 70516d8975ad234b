// Rung 6: products of f32 on AMX. A number of f32 is exactly the sum of three of bf16,
//
//   x = x₁ + x₂ + x₃      x₁ = bf16(x)   x₂ = bf16(x − x₁)   x₃ = x − x₁ − x₂      |x₂| ≤ 2⁻⁸|x|   |x₃| ≤ 2⁻¹⁶|x|
//
// and a·b ≈ a₁b₁ + a₁b₂ + a₂b₁ + a₂b₂ + a₁b₃ + a₃b₁: what is left out, a₂b₃ + a₃b₂ + a₃b₃, is below 2⁻²³|ab| (Henry,
// Tang and Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations"). Products of bf16 are exact in f32, and sums are rounded less often than in a chain of multiply-adds,
// so errors are smaller than that chain's. Six instructions replace one, at 16 times the speed.
//
// Unlike in the chain, infinities, and numbers that round to infinity, give NaN. The caller must look for results that
// are not finite and compute them again. AMX also flushes denormals, in operands and in every sum, whatever the
// thread's mode:
//
//   * x, x − x₁ and x − x₁ − x₂ are multiples of x's last bit. For |x| ≥ 2⁻¹⁰³ that bit is 2⁻¹²⁶ or more: no part is
//     denormal, and the parts add up to x exactly. For smaller |x| the first of the three that is denormal becomes 0,
//     and no part follows: less than 2⁻¹²⁶ is lost.
//   * For an element the instruction does 32 multiply-adds and 2 sums. Each loses less than 2⁻¹²⁶ if its result is
//     below 2⁻¹²⁶. Six instructions for 32 of k lose less than 204 · 2⁻¹²⁶, k numbers less than 8k · 2⁻¹²⁶.
//
// So beside errors relative to Σ|ab| a result is off by up to 2⁻¹²³·k, by 2⁻¹²⁶·|b| for each a ≠ 0 below 2⁻¹⁰³, and by
// 2⁻¹²⁶·|a| for each b ≠ 0 below 2⁻¹⁰³. Among ordinary numbers that is far below a rounding, however small some of them
// are; it shows where a whole row is tiny and a column huge. precision.h documents these errors, and
// tests/ops/amx_emulated_test.cpp checks them. If denormals must be kept, products do not come here (plan.cpp).
//
// A tile's three parts lie one after the other. Per 32 of k 16 tiles are loaded for 24 products, so the multiplier sets
// the pace as long as two tiles of a in parts, over kSteps, stay in L1.
#include <sluice/ops/gemm/rungs/amx_tiles.inc>

#if defined(__x86_64__)

namespace sluice::detail {

namespace {

[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::always_inline]] inline __m512 rounded(__m512 x) {
  constexpr __mmask16 all = 0xffff;
  return (__m512)_mm512_maskz_slli_epi32(
      all, _mm512_maskz_cvtepu16_epi32(all, (__m256i)_mm512_maskz_cvtneps_pbh(all, x)), 16);
}

/// Stores the three parts of two vectors, each as 32 numbers of bf16, in one row of that part of a tile.
template <bool pairs>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::always_inline]] inline void store_parts(__m512 low,
                                                                                                    __m512 high,
                                                                                                    char* row) {
  for (int part = 0; part < 3; ++part) {
    const __m512 l = part < 2 ? rounded(low) : low, h = part < 2 ? rounded(high) : high;
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(h, l);
    if constexpr (pairs) both = _mm512_permutexvar_epi16(_mm512_load_si512(kPairs), both);
    _mm512_store_si512(row + part * kAmxPart, both);
    low = low - l, high = high - h;
  }
}

/// pack_tiles of amx.cpp, in three parts.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void split_tiles(const float* x, int64_t ld, bool along,
                                                                         bool turned, int64_t count, int64_t k,
                                                                         char* to) {
  const int64_t steps = ceil_div(k, kAmxStep);
  const auto turn = [&](char* tile) __attribute__((target("avx512f"), always_inline)) {
    for (int part = 0; part < 3; ++part, tile += kAmxPart) {
      Tile t;
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) t[r] = _mm512_load_si512(tile + 64 * r);
      transpose(t);
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) _mm512_store_si512(tile + 64 * r, t[r]);
    }
  };
  each_tile(
      x, ld, along, count, k,
      [&](const float* at, int64_t i, int64_t p)
          __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"), always_inline)) {
            char* const tile = to + (i / kAmxTile * steps + p / kAmxStep) * kSplitTile;
            for (int64_t r = 0; r < 16; ++r) {
              const __mmask16 there = along ? (i + r < count ? 0xffff : 0) : lanes(count - i);
              if (along)
                store_parts<false>(_mm512_maskz_loadu_ps(there & lanes(k - p), at + r * ld),
                                   _mm512_maskz_loadu_ps(there & lanes(k - p - 16), at + r * ld + 16), tile + 64 * r);
              else
                store_parts<true>(_mm512_maskz_loadu_ps(p + 2 * r < k ? there : 0, at + 2 * r * ld),
                                  _mm512_maskz_loadu_ps(p + 2 * r + 1 < k ? there : 0, at + (2 * r + 1) * ld),
                                  tile + 64 * r);
            }
            if (turned) turn(tile);
          });
}

}  // namespace

void amx_split(const float* x, int64_t ld, bool along, bool turned, int64_t count, int64_t k, float* to) {
  split_tiles(x, ld, along, turned, count, k, reinterpret_cast<char*>(to));
}

bool amx_multiply_split(const float* a, const float* b, const Block<float>& c) {
  return multiply_tiles<SplitProducts>(a, b, c);
}

bool amx_split_and_multiply(Trans trans, const float* a, int64_t lda, const float* b, const Block<float>& c) {
  const bool along = trans == Trans::no;
  bool finite = true;
  by_packed_rows(c.n, c.k, 3, [&](int64_t first, int64_t rows, float* tiles) {
    amx_split(a + first * (along ? lda : 1), lda, along, !along, rows, c.k, tiles);
    finite &= multiply_tiles<SplitProducts>(tiles, b, c.rows(first, rows));
  });
  return finite;
}

}  // namespace sluice::detail
#endif
