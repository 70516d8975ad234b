// Products of operands rounded to bf16, summed in f32. The operands are tiles, for AMX, AVX-512 BF16 or BFMMLA, or
// f32 numbers that hold the rounded values.
#pragma once

#include <sluice/core/kernel/cpu.h>
#include <sluice/ops/gemm/gemm.h>

#include <algorithm>

#if defined(__x86_64__) || defined(__aarch64__)
#define SLUICE_BF16_TILES  // rungs/amx.cpp, rungs/avx512_bf16.cpp, rungs/bfmmla.cpp
#endif

namespace sluice::detail {

/// Rounds to the nearest bf16, ties to even, as AMX does: NaN stays NaN, denormals become 0.
void round_to_bf16(float* x, int64_t n);
/// to [rows, cols] = from, rounded to bf16; denormals are kept.
void round_rows(const float* from, int64_t ld, int64_t rows, int64_t cols, BFloat16* to, int64_t ld_to);
/// to [rows, cols] = from, in f32.
void widen_rows(const BFloat16* from, int64_t ld, int64_t rows, int64_t cols, float* to, int64_t ld_to);

/// Whether an instruction set multiplies tiles of bf16.
inline bool has_bf16_tiles(Isa isa = sluice::isa()) { return isa >= Isa::avx512_bf16 || isa == Isa::neon_bf16; }

// A tile of AMX has 16 rows of 64 bytes. Packed operands consist of whole tiles, padded with zeros. AVX-512 BF16 reads
// the same tiles. For BFMMLA each tile holds the same numbers in another order.
constexpr int64_t kAmxTile = 16;                               // rows and columns of c
constexpr int64_t kAmxStep = 32;                               // of k in one instruction
constexpr int64_t kAmxCols = 32;                               // columns of a panel of b: two tiles
constexpr int64_t kAmxDepth = 1024;                            // of k at a time, at most
constexpr int64_t kAmxPart = 1024, kSplitTile = 3 * kAmxPart;  // bytes of a tile; of the three parts of a tile of f32

/// Panels of b (depth k, tiles in `parts` parts) that fit into half of L2, which has 2 MiB with AMX, else 1 MiB.
inline int64_t amx_near_panels(int64_t k, int64_t parts) {
  const int64_t bytes = int64_t{1} << (isa() == Isa::amx ? 20 : 19);
  return std::clamp<int64_t>(bytes / (ceil_div(k, kAmxStep) * parts * 2048), 4, 16);
}

/// Packs one block of k as tiles: `count` columns of b as panels, with 16 · kAmxCols floats for each kAmxStep of k; or
/// `count` rows of a. along: k runs along the rows of x. turned: x is a transposed operand. X is float or BFloat16.
template <class X> void bf16_pack(const X* x, int64_t ld, bool along, bool turned, int64_t count, int64_t k, float* to);
/// One block of k, both operands in tiles.
void bf16_multiply(const float* a, const float* b, const Block<float>& c);
// bf16_multiply() is one of these, by the instruction set in use.
void amx_multiply(const float* a, const float* b, const Block<float>& c);
void avx512_bf16_multiply(const float* a, const float* b, const Block<float>& c);
void bfmmla_multiply(const float* a, const float* b, const Block<float>& c);
/// c [n, m] = a [n, k] · bᵀ, b [m, k], of few rows of a, in AVX-512.
void avx512_dots(int64_t n, int64_t m, int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb,
                 float* c, int64_t ldc);
/// c [n, m] = a · b of few rows, as b lies, by AVX-512 BF16.
void avx512_bf16_pass_by(int64_t n, int64_t m, int64_t k, const BFloat16* a, int64_t lda, Trans tb, const BFloat16* b,
                         int64_t ldb, float* c, int64_t ldc);
/// bf16_multiply() for an unpacked a: packs some of its rows at a time.
void bf16_pack_and_multiply(Trans trans, const float* a, int64_t lda, const float* b, const Block<float>& c);

// -- Each f32 as three parts of bf16 (rungs/amx_f32.cpp), in tiles three times as large. Products return true if all of
// c is finite. --
void amx_split(const float* x, int64_t ld, bool along, bool turned, int64_t count, int64_t k, float* to);
bool amx_multiply_split(const float* a, const float* b, const Block<float>& c);
bool amx_split_and_multiply(Trans trans, const float* a, int64_t lda, const float* b, const Block<float>& c);

}  // namespace sluice::detail
