// Splitting must be cheap here: an operand meets only 64 or 128 rows or columns, not thousands. A pair of bf16 that AMX
// multiplies consists of p and p + 16, the same lane of two vectors, so that no number changes its lane. Halves are
// rounded away from 0, by an addition to the bits. 22 instructions split 32 numbers and search them for huge ones. The
// three parts are exact, and denormals are flushed, as in amx_f32.cpp.
#include <sluice/ops/gemm/bf16x3.h>

#include <sluice/ops/gemm/rungs/amx_tiles.inc>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>
#include <bit>

namespace sluice::detail {

static int64_t steps_of(int64_t k) { return ceil_div(k, kAmxStep); }

int64_t Bf16x3::size(int64_t count, int64_t k) { return ceil_div(count, kAmxTile) * steps_of(k) * kSplitTile / 4; }

#if defined(__x86_64__)
namespace {

constexpr int64_t kNear = 4;  // steps of k at a time: 24 KB of a, which stay in L1

/// Stores 16 pairs in one row of each part of a tile. most: the bits of the largest |x| so far.
[[gnu::target("avx512f"), gnu::always_inline]] inline void store_pairs(__m512i low, __m512i high, char* row,
                                                                       __m512i& most) {
  constexpr __mmask16 all = 0xffff;  // without masks g++ 12 warns of its own intrinsics
  const __m512i upper = _mm512_set1_epi32(int(0xffff0000)), half = _mm512_set1_epi32(0x8000),
                size = _mm512_set1_epi32(0x7fffffff);
  most = _mm512_maskz_max_epu32(all, most, _mm512_maskz_max_epu32(all, low & size, high & size));
#pragma GCC unroll 3
  for (int part = 0; part < 3; ++part) {
    const __m512i l = part < 2 ? _mm512_maskz_add_epi32(all, low, half) : low,
                  h = part < 2 ? _mm512_maskz_add_epi32(all, high, half) : high;
    // (l >> 16) | (h & upper)
    _mm512_store_si512(row + part * kAmxPart,
                       _mm512_maskz_ternarylogic_epi32(all, _mm512_maskz_srli_epi32(all, l, 16), h, upper, 0xf8));
    if (part == 2) break;
    low = (__m512i)((__m512)low - (__m512)(l & upper)), high = (__m512i)((__m512)high - (__m512)(h & upper));
  }
}

/// Packs `count` rows of a or columns of b as tiles: all k of the first 16, then of the next 16. along: k runs along
/// the rows of x. turned: the vectors of a tile are transposed. Returns whether all |x| < 2⁵⁶.
template <bool along, bool turned>
[[gnu::target("avx512f")]] bool split(const float* x, int64_t ld, int64_t count, int64_t k, char* to) {
  const int64_t steps = steps_of(k);
  __m512i most = _mm512_setzero_si512();
  const int64_t tiles = ceil_div(count, kAmxTile);
  for (int64_t n = 0; n < tiles * steps; ++n) {  // in the order in which x lies in memory
    const int64_t i = (along ? n / steps : n % tiles) * kAmxTile, p = (along ? n % steps : n / tiles) * kAmxStep;
    char* const tile = to + (i / kAmxTile * steps + p / kAmxStep) * kSplitTile;
    const float* const from = along ? x + i * ld + p : x + p * ld + i;
    const int64_t rows = along ? count - i : k - p;
    const __mmask16 left = lanes(along ? k - p : count - i), right = along ? lanes(k - p - 16) : left;
    const int64_t second = along ? 16 : 16 * ld, below = along ? rows : rows - 16;  // offset and rows of the other half
    Tile low, high;
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      const __m512i l = (__m512i)_mm512_maskz_loadu_ps(r < rows ? left : __mmask16(0), from + r * ld);
      const __m512i h = (__m512i)_mm512_maskz_loadu_ps(r < below ? right : __mmask16(0), from + second + r * ld);
      if constexpr (turned) low[r] = l, high[r] = h;
      else store_pairs(l, h, tile + 64 * r, most);
    }
    if constexpr (turned) {
      transpose(low), transpose(high);
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) store_pairs(low[r], high[r], tile + 64 * r, most);
    }
  }
  alignas(64) uint32_t sizes[16];
  _mm512_store_si512(sizes, most);
  return *std::max_element(sizes, sizes + 16) < std::bit_cast<uint32_t>(0x1p56f);
}

}  // namespace

bool Bf16x3::fill_parts(const float* x, int64_t ld, bool along, bool turned) const {
  if (along) return turned ? split<true, true>(x, ld, count_, k_, data_) : split<true, false>(x, ld, count_, k_, data_);
  return turned ? split<false, true>(x, ld, count_, k_, data_) : split<false, false>(x, ld, count_, k_, data_);
}

[[gnu::target("amx-tile,amx-bf16,avx512f,avx512dq")]] void Bf16x3::multiply_parts(const Bf16x3& a, int64_t first_k,
                                                                                  int64_t first_column, int64_t m,
                                                                                  float alpha, float beta, float* c,
                                                                                  int64_t ldc) const {
  constexpr int64_t kSide = Sums::kSide;
  const int64_t n = a.count_, steps = steps_of(a.k_), next_a = steps * kSplitTile, next_b = steps_of(k_) * kSplitTile,
                near = Cut(steps, kNear).length;
  const char* const b = data_ + first_column / kAmxTile * next_b + first_k / kAmxStep * kSplitTile;
  alignas(64) float memory[2][kSide * kSide];
  int place = 0;
  Sums sums;
  const TileConfig config;
  asm volatile("" : : : "memory");  // _tile_loadconfig reads config, unknown to the compiler
  _tile_loadconfig(&config);
  for (int64_t i = 0; i < n; i += kSide)
    for (int64_t step = 0; step < steps; step += near)
      for (int64_t j = 0; j < m; j += kSide) {
        const int64_t count = std::min(near, steps - step), share = ceil_div(kSide, count);
        const char *const left = a.data_ + i / kAmxTile * next_a + step * kSplitTile, *const right =
                                                                                          b + j / kAmxTile * next_b +
                                                                                          step * kSplitTile;
        const auto meanwhile = [&]() __attribute__((target("avx512f,avx512dq"), always_inline)) { sums.put(share); };
        const int64_t rows = std::min(kSide, n - i), cols = std::min(kSide, m - j);
        float* const to = memory[place ^= 1];
        zero_sums();
        by_tiles<SplitProducts>(rows, cols, count, left, next_a, right, next_b, meanwhile);
        store_sums(to, kSide, cols > kAmxTile, rows > kAmxTile);
        sums = {to, c + i * ldc + j, ldc, cols, nullptr, alpha, step == 0 ? beta : 1, rows, 0};
      }
  sums.put(kSide);
  _tile_release();
}
#else
bool Bf16x3::fill_parts(const float*, int64_t, bool, bool) const { return true; }
void Bf16x3::multiply_parts(const Bf16x3&, int64_t, int64_t, int64_t, float, float, float*, int64_t) const {}
#endif

}  // namespace sluice::detail
