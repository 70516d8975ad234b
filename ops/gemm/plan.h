// Which way a product takes. plan_gemm() decides it once, from sizes, numbers, instruction set and mode alone; kernels
// obey it. tests/ops/gemm_plan_test.cpp holds a table of its answers.
#pragma once

#include <sluice/core/kernel/cpu.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/gemm/precision.h>

#include <cstdint>

namespace sluice::detail {

/// Layout of packed operands. plain: a copy, for OpenBLAS. panels: rows of a, panels of b. rounded: the same, rounded
/// to bf16. tiles: tiles of bf16 (AMX, AVX-512 BF16, BFMMLA). split: tiles of f32 in three parts of bf16 (AMX).
enum class Packing : uint8_t { plain, panels, rounded, tiles, split };

/// What decides the way of a product c [n, m] = a [n, k] · b [k, m], or of a batch of products.
struct GemmShape {
  int64_t batch = 1, n, m, k;
  DType dtype = f32;                     // of a, b and c
  Precision precision = Precision::f32;  // of products of f32
  bool plain_rows = false;               // a lies row by row
  bool plain_b = false;                  // b does
  bool plain_column = false;             // b, one column, is contiguous, and no bias is added
  Isa isa = sluice::isa();
  bool flush = flush_denormals();  // instructions for products of bf16 always flush denormals, so they serve only
                                   // where this is true
};

struct Plan {
  /// rows: few rows, as in a decoding step; memory-bound. column: one column, as one row of the transposed product.
  /// separate: each task has a tile of c, and packs its own operands where packing pays. own: the same, of a large
  /// product of few rows. passing: b, of bf16, goes past few rows, a part at a time that stays in cache
  /// (gemm/passing.cpp, for VDPBF16PS gemm/rungs/avx512_bf16.cpp). shared: all threads pack the operands of one matrix,
  /// a part at a time, and share it.
  enum Way : uint8_t { rows, column, separate, own, passing, shared };
  Way way;
  Packing packing;
  const char* means;  // name of the implementation, e.g. "AVX-512"
};

/// The way of a product of tensors. Neither c nor k is empty.
Plan plan_gemm(const GemmShape& p);

/// The packing of a product of one thread. plain also for one row or column, which is memory-bound and goes to gemv.
Packing packing_of(const GemmShape& p);
/// The packing for many small products of one kind.
Packing usual_packing(DType dtype, Precision precision);
/// True if a product that is large enough is computed in three parts of bf16 (rungs/amx_f32.cpp).
bool splits(const GemmShape& p);

/// True if copying an operand pays: more than four tiles use it, and it is not small. size: rows or columns of the
/// other operand. tile: rows or columns of a tile. numbers: size of the operand.
inline bool copy_pays(int64_t size, int64_t tile, int64_t numbers) { return size > 4 * tile && numbers > 4096; }

/// True if n rows of bf16, at most `most`, are faster as dots with the rows of a transposed b than as tiles. Dots add
/// up their lanes, which pays for long rows. most: 24 for multiply-adds of f32, 47 for VDPBF16PS.
inline bool dots_pay(int64_t n, int64_t k, int64_t most) { return n <= most && n <= k / 16 && k >= 64; }

/// Products of more rows go to gemm.
inline constexpr int64_t kSkinnyRows = 4;

}  // namespace sluice::detail
