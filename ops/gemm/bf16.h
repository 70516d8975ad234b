// Products of operands rounded to bf16 and summed in f32: on AMX tiles; or as f32 numbers that hold the rounded values.
#pragma once

#include <sluice/ops/gemm/gemm.h>

namespace sluice::detail {

/// To the nearest bf16, ties to even, as AMX does it: NaN stays NaN, denormals become 0.
void round_to_bf16(float* x, int64_t n);

// A tile of AMX has 16 rows of 64 bytes. Packed operands consist of whole ones, filled up with zeros.
constexpr int64_t kAmxTile = 16;    // rows and columns of c
constexpr int64_t kAmxStep = 32;    // of k in one instruction
constexpr int64_t kAmxCols = 32;    // columns of a panel of b: two tiles
constexpr int64_t kAmxDepth = 1024;  // of k at a time, at most

/// `cols` columns of one block of k as panels, 16 · kAmxCols floats for each tile's depth.
void amx_pack(Read read, const float* b, int64_t ldb, int64_t k, int64_t cols, float* to);
/// c [n, m] = alpha · a · b + beta · c for one block of k, b in panels.
void amx_multiply(Read read, const float* a, int64_t lda, const float* b, int64_t n, int64_t m, int64_t k, float alpha,
                  float beta, float* c, int64_t ldc);

}  // namespace sluice::detail
