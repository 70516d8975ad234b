// Rung 5 on arm64: BFMMLA. One instruction multiplies 2 rows of a by 2 columns of b over 4 of k, and adds to 2 × 2 sums
// in f32: 16 multiply-adds, four times those of a vector of f32. 4 × 4 such sums are 16 of the 32 registers; per 4 of k
// they take 8 loads for 16 products.
//
// A tile (bf16.h) holds four numbers of k for each of 16 rows of a or columns of b, then the next four. Two rows fill
// one register, and 4 of k of the whole tile fill two cache lines.
#include <sluice/ops/gemm/bf16.h>

#if defined(__aarch64__)
#include <sluice/ops/gemm/panels.h>

#include <arm_neon.h>

namespace sluice::detail {

namespace {

constexpr int64_t kQuad = 4, kSide = 8;        // of k in one instruction; rows and columns of c in registers
constexpr int64_t kOfQuad = kQuad * kAmxTile;  // numbers of a tile that belong to one quad of k

/// Four numbers as bf16, rounded as by round_to_bf16.
[[gnu::always_inline]] inline uint16x4_t four(const float* x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x)), size = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t nearest = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t zero = vbicq_u32(bits, vdupq_n_u32(0x7fffffff)), nan = vorrq_u32(bits, vdupq_n_u32(0x00400000));
  const uint32x4_t finite = vbslq_u32(vcltq_u32(size, vdupq_n_u32(0x00800000)), zero, nearest);
  return vshrn_n_u32(vbslq_u32(vcgtq_u32(size, vdupq_n_u32(0x7f800000)), nan, finite), 16);
}
[[gnu::always_inline]] inline uint16x4_t four(const BFloat16* x) {
  return vld1_u16(reinterpret_cast<const uint16_t*>(x));
}

/// Packs one tile: 16 rows of a or columns of b, 32 of k. along: k runs along the rows of x.
template <class X> void pack_tile(const X* x, int64_t ld, bool along, uint16_t* to) {
  for (int64_t p = 0; p < kAmxStep; p += kQuad, to += kOfQuad)
    if (along)
      for (int64_t i = 0; i < kAmxTile; ++i) vst1_u16(to + i * kQuad, four(x + i * ld + p));
    else
      for (int64_t i = 0; i < kAmxTile; i += 4) {
        const X* const at = x + p * ld + i;
        const uint16x4x4_t quad{{four(at), four(at + ld), four(at + 2 * ld), four(at + 3 * ld)}};
        vst4_u16(to + i * kQuad, quad);  // a macro in clang, which would split braces at their commas
      }
}

/// Packs `count` rows of a or columns of b as tiles, padded with zeros: all k of the first 16, then of the next 16.
template <class X> void pack_tiles(const X* x, int64_t ld, bool along, int64_t count, int64_t k, float* to) {
  constexpr int64_t kNumbers = kAmxTile * kAmxStep;
  const int64_t steps = ceil_div(k, kAmxStep);
  for (int64_t i = 0; i < count; i += kAmxTile)
    for (int64_t p = 0; p < k; p += kAmxStep) {
      uint16_t* const tile = reinterpret_cast<uint16_t*>(to) + (i / kAmxTile * steps + p / kAmxStep) * kNumbers;
      const X* from = x + (along ? i * ld + p : p * ld + i);
      if (count - i >= kAmxTile && k - p >= kAmxStep) {
        pack_tile(from, ld, along, tile);
        continue;
      }
      X part[kNumbers] = {};  // a partial tile, padded
      const int64_t numbers = std::min(kAmxTile, count - i), deep = std::min(kAmxStep, k - p);
      const int64_t rows = along ? numbers : deep, columns = along ? deep : numbers, row = along ? kAmxStep : kAmxTile;
      for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * ld, columns, part + r * row);
      pack_tile(part, row, along, tile);
    }
}

/// sum [2, 2] + a [2, 4] · b [4, 2]. Assembly, because the intrinsic exists only if the whole file may use BFMMLA.
[[gnu::always_inline]] inline float32x4_t add_products(float32x4_t sum, uint16x8_t a, uint16x8_t b) {
  asm(".arch_extension bf16\n\tbfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
  return sum;
}

/// to [8, 8] = 8 rows of a · 8 columns of b over `quads` quads of k; a and b point into the first quad of a tile.
void multiply_side(const uint16_t* a, const uint16_t* b, int64_t quads, float* to) {
  float32x4_t sum[4][4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[i][j] = vdupq_n_f32(0);
  for (; quads > 0; --quads, a += kOfQuad, b += kOfQuad) {
    uint16x8_t right[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) right[j] = vld1q_u16(b + 2 * kQuad * j);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const uint16x8_t left = vld1q_u16(a + 2 * kQuad * i);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sum[i][j] = add_products(sum[i][j], left, right[j]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      vst1_f32(to + 2 * i * kSide + 2 * j, vget_low_f32(sum[i][j]));
      vst1_f32(to + (2 * i + 1) * kSide + 2 * j, vget_high_f32(sum[i][j]));
    }
}

}  // namespace

template <class X> void bf16_pack(const X* x, int64_t ld, bool along, bool, int64_t count, int64_t k, float* to) {
  pack_tiles(x, ld, along, count, k, to);
}
template void bf16_pack(const float*, int64_t, bool, bool, int64_t, int64_t, float*);
template void bf16_pack(const BFloat16*, int64_t, bool, bool, int64_t, int64_t, float*);

/// 16 columns of b, over all k, stay in L1 while the rows of a go past from L2.
void bfmmla_multiply(const float* a, const float* b, const Block<float>& to_c) {
  const auto [n, m, k, alpha, beta, c, ldc, bias, rounded] = to_c;
  const int64_t row = round_up(k, kAmxStep);  // numbers of a row in tiles
  const int64_t quads = ceil_div(k, kQuad);
  const auto *left = reinterpret_cast<const uint16_t*>(a), *right = reinterpret_cast<const uint16_t*>(b);
  // Where row i of a or column i of b begins.
  const auto at = [row](int64_t i) { return i / kAmxTile * kAmxTile * row + i % kAmxTile * kQuad; };
  alignas(64) float sums[kSide * kSide];
  for (int64_t group = 0; group < m; group += kAmxTile)
    for (int64_t i = 0; i < n; i += kSide)
      for (int64_t j = group; j < std::min(group + kAmxTile, m); j += kSide) {
        multiply_side(left + at(i), right + at(j), quads, sums);
        const int64_t rows = std::min(kSide, n - i), cols = std::min(kSide, m - j);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t q = 0; q < cols; ++q) {
            float& to = c[(i + r) * ldc + j + q];
            float x = alpha * sums[r * kSide + q];
            if (beta != 0) x += beta * to;
            to = bias ? x + bias[j + q] : x;
          }
      }
}

}  // namespace sluice::detail
#endif
