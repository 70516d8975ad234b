// Products of matrices as kernels need them: single-threaded, row-major, operands plain or transposed; and operands that
// are packed once and used many times. (Tensors are multiplied by ops/matmul.h.)
//
// For NEON, AVX2 and better these are Sluice's own (the ladder of ops/gemm/ladder.h); elsewhere OpenBLAS. Except for products
// with one row or one column, which are memory-bound and go to gemv, an element of c is one chain of fused multiply-adds
// for every 512 of k or less: its bits depend on its row of a, its column of b and k alone, not on n, m, threads, or how
// operands are held. (A single product of up to four rows, too, has its own way: ops/few_rows.h; and on
// AMX a large one, from 112 rows on, is computed in three parts: amx_f32.cpp.)
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/ops/gemm/precision.h>

#include <cstdint>

namespace sluice::detail {

/// How a row-major matrix with leading dimension ld is read.
enum class Read : bool { plain, transposed };

/// c [n, m] = alpha · a [n, k] · b [k, m] + beta · c, row-major with leading dimensions. With beta 0, c is not read.
/// Sizes must fit an int. Of f64, the precision changes nothing.
void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc, Precision precision = Precision::f32);
void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, double alpha, const double* a, int64_t lda, const double* b,
          int64_t ldb, double beta, double* c, int64_t ldc, Precision = Precision::f32);

/// What computes such a product of f32 or f64, in words.
const char* gemm_means(bool f64, int64_t n, int64_t m, Precision precision);

/// c [n, m] += bias [m].
template <class T>
void add_bias(T* c, int64_t n, int64_t m, int64_t ldc, const T* bias);

/// How packed operands lie: as plain copies (for OpenBLAS), rows or panels of numbers, those rounded to bf16, tiles of
/// bf16 (AMX, BFMMLA), and of f32 in three parts (AMX).
enum class Packing : uint8_t { plain, panels, rounded, tiles, split };
/// For many small products of the same kind, and for one large one, which is split where that is faster.
template <class T>
Packing usual_packing(Precision precision);
template <class T>
Packing large_packing(Precision precision, int64_t k);

/// A left operand [n, k] in packed form, in memory of the caller: for one that meets several pieces of a right one.
template <class T>
class PackedA {
 public:
  /// How many numbers of memory, 64-byte aligned, it takes in any precision; or in one way.
  static int64_t size(int64_t n, int64_t k);
  PackedA(int64_t n, int64_t k, T* memory, Precision precision = Precision::f32) : PackedA(n, k, memory, usual_packing<T>(precision)) {}
  static int64_t size(int64_t n, int64_t k, Packing packing);
  PackedA(int64_t n, int64_t k, T* memory, Packing packing);

  /// Rows first … last − 1, where both are multiples of 32, or last is n: different ones at the same time, if need be.
  void fill(Read ra, const T* a, int64_t lda, int64_t first, int64_t last);
  void fill(Read ra, const T* a, int64_t lda) { fill(ra, a, lda, 0, n_); }
  /// Numbers that are bf16 already, for a PackedA<float> of Precision::bf16.
  void fill(Read ra, const BFloat16* a, int64_t lda, int64_t first, int64_t last);

 private:
  template <class>
  friend class PackedB;
  T* block(int64_t l, int64_t k, int64_t row) const;
  int64_t n_, k_, depth_;
  Packing packing_;
  T* data_;
};

/// A right operand [k, m] in packed form, in memory of the caller: for operands that are used many times. The
/// instruction set in use must not change in between.
template <class T>
class PackedB {
 public:
  /// How many numbers of memory, 64-byte aligned, it takes in any precision; or in one way.
  static int64_t size(int64_t k, int64_t m);
  PackedB(int64_t k, int64_t m, T* memory, Precision precision = Precision::f32) : PackedB(k, m, memory, usual_packing<T>(precision)) {}
  static int64_t size(int64_t k, int64_t m, Packing packing);
  PackedB(int64_t k, int64_t m, T* memory, Packing packing);

  /// It consists of panels of so many columns (the last one of fewer).
  int64_t panels() const { return (m_ + cols_ - 1) / cols_; }
  int64_t panel_columns() const { return cols_; }
  /// And of blocks of so many rows (the last one of fewer), one chain of sums each: operands of single blocks, multiplied
  /// one after the other with beta 1, give the same bits.
  int64_t block_rows() const { return depth_; }
  /// So many rows of a are packed, and stay in cache, while all panels go past. 0: as tiles, better packed before;
  /// then so many panels stay in cache while rows of a go past.
  int64_t row_block() const;
  int64_t near_panels() const;

  /// Different panels may be filled at the same time.
  void fill(Read rb, const T* b, int64_t ldb, int64_t first_panel, int64_t last_panel);
  void fill(Read rb, const T* b, int64_t ldb) { fill(rb, b, ldb, 0, panels()); }
  /// Numbers that are bf16 already, for a PackedB<float> of Precision::bf16.
  void fill(Read rb, const BFloat16* b, int64_t ldb, int64_t first_panel, int64_t last_panel);

  /// c = alpha · a [n, k] · b + beta · c for the columns of some panels: c begins at the first one's first column. With
  /// the last block of k goes c += bias [m]. False: a split product (Packing::split) has results that are not finite.
  bool multiply(Read ra, int64_t n, T alpha, const T* a, int64_t lda, T beta, T* c, int64_t ldc, int64_t first_panel,
                int64_t last_panel, const T* bias = nullptr) const;
  bool multiply(Read ra, int64_t n, T alpha, const T* a, int64_t lda, T beta, T* c, int64_t ldc) const {
    return multiply(ra, n, alpha, a, lda, beta, c, ldc, 0, panels());
  }
  /// The same for n rows of a from row `first_row` on, which is a multiple of 32.
  bool multiply(const PackedA<T>& a, int64_t first_row, int64_t n, T alpha, T beta, T* c, int64_t ldc, int64_t first_panel,
                int64_t last_panel, const T* bias = nullptr) const;

 private:
  T* block(int64_t l, int64_t k, int64_t panel) const;
  int64_t k_, m_, cols_, depth_;  // columns of a panel; rows of a block
  Packing packing_;
  T* data_;
};

template <>
void PackedA<float>::fill(Read ra, const BFloat16* a, int64_t lda, int64_t first, int64_t last);
template <>
void PackedB<float>::fill(Read rb, const BFloat16* b, int64_t ldb, int64_t first_panel, int64_t last_panel);

}  // namespace sluice::detail
