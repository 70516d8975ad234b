// The innermost step of every product here: a tile of c, as many rows and columns as the registers hold,
//
//   c [rows, cols] = alpha · Σ_p a_p b_p + beta · c        p = 0 … k − 1 in this order, a_p a column, b_p a row
//
// a and b are read where they lie, by strides: the same kernel serves packed panels and operands left in place. Each
// element is one chain of fused multiply-adds, so its bits depend on its row of a, its column of b, and k alone: not on
// the tile it falls into, on the number of rows and columns, on threads, or on the vector width.
#pragma once

#include <sluice/core/kernel/cpu.h>

#include <cstdint>

namespace sluice::detail {

template <class T> struct TileCall {
  int64_t k;
  const T* a;  // a_p of row i at a[i · a_row + p · a_k]
  int64_t a_row, a_k;
  const T* b;  // b_p of column j at b[p · b_k + j]
  int64_t b_k;
  T* c;
  int64_t ldc;
  int64_t cols;
  T alpha, beta;             // beta 0: c is not read
  const T* bias = nullptr;   // if not null: c_j += bias[j] at the end
  const T* ahead = nullptr;  // prefetched into L2 from here on, one line for every second p
  bool goes_on = false;      // c holds the chains of the p before, which go on; with beta 0
  T* panel = nullptr;  // if not null, the tile has all columns, and also copies b_p to panel[p · cols]. It prefetches
                       // b, some rows before it reads them; behind row k − 1 follow the rows at ahead[i · b_k]
};

/// The tiles of one instruction set.
template <class T> struct Micro {
  int rows, cols;                                // of the largest tile
  void (*tile)(int rows, const TileCall<T>& t);  // for 1 <= rows <= this->rows, 1 <= t.cols <= this->cols
  /// to[p · ld_to + j] = from[j · ld + p] for j < rows, p < k, in ascending order of p. May write up to 64 bytes behind
  /// the last j of each p.
  void (*transpose)(const T* from, int64_t ld, int64_t rows, int64_t k, T* to, int64_t ld_to);
};

/// The tiles of `isa`. Sets with products of bf16 have those of the set below them: avx512 or neon.
template <class T> const Micro<T>& micro(Isa isa);

extern const Micro<float> portable_f32, neon_f32, avx2_f32, avx512_f32;
extern const Micro<double> portable_f64, neon_f64, avx2_f64, avx512_f64;

}  // namespace sluice::detail
