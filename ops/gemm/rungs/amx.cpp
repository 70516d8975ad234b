// Rung 5: AMX. One instruction multiplies a tile of a, 16 rows of 32 bf16, by a tile of b, 32 rows of 16 columns, and
// adds to 16 × 16 sums in f32: 8,192 multiply-adds in 16 cycles. Of eight tile registers four hold sums (2 × 2, so that
// each loaded tile is used twice), two a and two b. Per 64 cycles of multiplying 4 KB are loaded, which takes 32 cycles
// from L1: two of the four tiles must come from L1 (the loops of amx_tiles.inc). All four are loaded before the first
// is used.
//
// The instruction reads pairs: a's tile has rows of 16 pairs (p, p + 1), b's tile has a row of 16 columns for each
// pair. Packing brings operands into that order, and rounds f32. A vector is read either as 16 pairs of one row (rows)
// or as one pair of each of 16 columns (pairs); the 16 vectors of a tile are stored as they are or transposed:
//
//   a plain: rows         a transposed: pairs, transposed         b plain: pairs         b transposed: rows, transposed
#include <sluice/ops/gemm/bf16.h>

#if defined(__x86_64__)
#include <sluice/ops/gemm/rungs/amx_tiles.inc>

namespace sluice::detail {

namespace {

/// Vector i: k numbers of row i.
[[gnu::target("avx512f,avx512bw,avx512bf16"), gnu::always_inline]] inline void read_rows(const float* x, int64_t ld,
                                                                                         int64_t rows, int64_t k,
                                                                                         Tile& t) {
  const __mmask16 low = lanes(k), high = lanes(k - 16);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const float* row = x + i * ld;
    const __mmask16 l = i < rows ? low : __mmask16(0), h = i < rows ? high : __mmask16(0);
    t[i] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(h, row + 16), _mm512_maskz_loadu_ps(l, row));
  }
}

[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline void read_rows(const BFloat16* x, int64_t ld,
                                                                                       int64_t rows, int64_t k,
                                                                                       Tile& t) {
  const __mmask32 mask = lanes_of_32(k);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) t[i] = _mm512_maskz_loadu_epi16(i < rows ? mask : __mmask32(0), x + i * ld);
}

/// Vector i: of each column, the numbers of rows 2i and 2i + 1.
[[gnu::target("avx512f,avx512bw,avx512bf16"), gnu::always_inline]] inline void read_pairs(const float* x, int64_t ld,
                                                                                          int64_t cols, int64_t k,
                                                                                          Tile& t) {
  const __mmask16 mask = lanes(cols);
  const __m512i order = _mm512_load_si512(kPairs);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const __mmask16 l = 2 * i < k ? mask : __mmask16(0), h = 2 * i + 1 < k ? mask : __mmask16(0);
    const __m512 even = _mm512_maskz_loadu_ps(l, x + 2 * i * ld), odd = _mm512_maskz_loadu_ps(h, x + (2 * i + 1) * ld);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);  // 16 even ones, 16 odd ones
    t[i] = _mm512_permutexvar_epi16(order, both);
  }
}

/// Packs `count` rows of a or columns of b as tiles: all k of the first 16, then of the next 16. along: k runs along
/// the rows of x. turned: the vectors of a tile are transposed. x is read along its rows.
template <class X>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void pack_tiles(const X* x, int64_t ld, bool along, bool turned,
                                                                        int64_t count, int64_t k, char* to) {
  const int64_t steps = ceil_div(k, kAmxStep);
  each_tile(
      x, ld, along, count, k,
      [&](const X* at, int64_t i, int64_t p)
          __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"), always_inline)) {
            Tile t;
            if (along) read_rows(at, ld, count - i, k - p, t);
            else if constexpr (sizeof(X) == 4) read_pairs(at, ld, count - i, k - p, t);
            if (turned) transpose(t);
            char* tile = to + (i / kAmxTile * steps + p / kAmxStep) * 1024;
#pragma GCC unroll 16
            for (int r = 0; r < 16; ++r) _mm512_storeu_si512(tile + 64 * r, t[r]);
          });
}

/// pack_tiles() of columns of bf16, two tiles at a time: each line of 64 bytes is read once. Where ld is a large power
/// of two, the lines of 32 rows share one set of L1, which does not keep them for a second tile.
[[gnu::target("avx512f,avx512bw")]] void pack_columns(const BFloat16* x, int64_t ld, bool turned, int64_t count,
                                                      int64_t k, char* to) {
  constexpr int kNear = 2;                              // prefetches into L2
  const int64_t column = ceil_div(k, kAmxStep) * 1024;  // bytes of the tiles of 16 columns
  const bool far = count * k > 1 << 16;
  const __m512i low = _mm512_load_si512(kLowPairs), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t p = 0; p < k; p += kAmxStep, x += kAmxStep * ld, to += 1024)
    for (int64_t i = 0; i < count; i += 2 * kAmxTile) {
      const __mmask32 mask = lanes_of_32(count - i);
      const bool both = count - i > kAmxTile;
      char* const tile = to + i / kAmxTile * column;
      for (int64_t r = kAmxStep; far && r < std::min(2 * kAmxStep, k - p); ++r)
        __builtin_prefetch(x + r * ld + i, 0, kNear);
      for (int64_t r = 0; r < kAmxStep / 2; ++r) {
        const __mmask32 e = p + 2 * r < k ? mask : 0, o = p + 2 * r + 1 < k ? mask : 0;
        const __m512i even = _mm512_maskz_loadu_epi16(e, x + 2 * r * ld + i),
                      odd = _mm512_maskz_loadu_epi16(o, x + (2 * r + 1) * ld + i);
        _mm512_store_si512(tile + 64 * r, _mm512_permutex2var_epi16(even, low, odd));
        if (both) _mm512_store_si512(tile + column + 64 * r, _mm512_permutex2var_epi16(even, high, odd));
      }
      for (int64_t half = 0; turned && half < (both ? 2 : 1); ++half) {
        Tile t;
        for (int r = 0; r < 16; ++r) t[r] = _mm512_load_si512(tile + half * column + 64 * r);
        transpose(t);
        for (int r = 0; r < 16; ++r) _mm512_store_si512(tile + half * column + 64 * r, t[r]);
      }
    }
}

struct Products {
  static constexpr int64_t kTile = 1024, kSteps = 16;
  template <int A, int B, class F>
  [[gnu::target("amx-tile,amx-bf16,avx512f,avx512dq"), gnu::always_inline]] static inline void chain(
      int64_t steps, const char* a, int64_t next_a, const char* b, int64_t next_b, const F& meanwhile) {
    for (; steps > 0; --steps, a += kTile, b += kTile) {
      meanwhile();
      _tile_stream_loadd(6, b, 64);
      if constexpr (B > 1) _tile_stream_loadd(7, b + next_b, 64);
      _tile_loadd(4, a, 64);
      if constexpr (A > 1) _tile_loadd(5, a + next_a, 64);
      add_products<A, B>();
    }
  }
};

}  // namespace

template <class X>
void bf16_pack(const X* x, int64_t ld, bool along, bool turned, int64_t count, int64_t k, float* to) {
  char* const tiles = reinterpret_cast<char*>(to);
  if constexpr (sizeof(X) == 2)
    if (!along) return pack_columns(x, ld, turned, count, k, tiles);
  pack_tiles(x, ld, along, turned, count, k, tiles);
}
template void bf16_pack(const float*, int64_t, bool, bool, int64_t, int64_t, float*);
template void bf16_pack(const BFloat16*, int64_t, bool, bool, int64_t, int64_t, float*);

void amx_multiply(const float* a, const float* b, const Block<float>& c) { multiply_tiles<Products>(a, b, c); }

}  // namespace sluice::detail
#endif
