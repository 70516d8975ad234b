// Matrix products for kernels: single-threaded, row-major, operands plain or transposed; and operands that are packed
// once and used many times. (Tensors are multiplied by ops/matmul/matmul.h.)
//
// plan.h says which implementation computes a product. With one row or one column it is OpenBLAS's gemv. On processors
// without NEON or AVX2 OpenBLAS computes all products. Otherwise an element of c is one chain of fused multiply-adds
// for each block of k (PackedB::block_rows()): its bits depend on its row of a, its column of b and k alone, not on n,
// m, threads, or how operands are held.
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/core/shape.h>
#include <sluice/ops/gemm/plan.h>

#include <cstdint>

namespace sluice::detail {

/// Whether an operand is the row-major matrix in memory, or its transpose (BLAS: trans).
enum class Trans : bool { no, yes };

/// c [n, m] = alpha · a [n, k] · b [k, m] + beta · c, row-major with leading dimensions. With beta 0, c is not read.
/// Sizes must fit an int. The precision has no effect on f64.
void gemm(Trans ta, Trans tb, int64_t n, int64_t m, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc, Precision precision = Precision::f32);
void gemm(Trans ta, Trans tb, int64_t n, int64_t m, int64_t k, double alpha, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc, Precision = Precision::f32);
/// gemm() without gemv: an element has the same bits in a product of one row or column as in a larger product. Where
/// OpenBLAS computes all products, this is gemm().
template <class T>
void gemm_chained(Trans ta, Trans tb, int64_t n, int64_t m, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
                  int64_t ldb, T beta, T* c, int64_t ldc, Precision precision = Precision::f32);

/// c [n, m] = a [n, k] · b [k, m] of few rows of bf16, in f32. b goes past, a part at a time that stays in cache. Not
/// for Isa::base.
void pass_by(int64_t n, int64_t m, int64_t k, const BFloat16* a, int64_t lda, Trans tb, const BFloat16* b, int64_t ldb,
             float* c, int64_t ldc);

/// A place for results in bf16.
struct Rounded {
  BFloat16* to = nullptr;
  int64_t ld = 0;
};

/// Destination of a product of one block of k: c [n, m] = alpha · a · b + beta · c; then c += bias [m] unless null.
template <class T> struct Block {
  int64_t n, m, k;
  T alpha, beta;
  T* c;
  int64_t ldc;
  const T* bias = nullptr;
  Rounded rounded = {};  // where results go, rounded, in place of c, if there is such a place
  /// Its rows first … first + count − 1; not of one that rounds.
  Block rows(int64_t first, int64_t count) const { return {count, m, k, alpha, beta, c + first * ldc, ldc, bias}; }
};

/// c [n, m] += bias [m].
template <class T> void add_bias(T* c, int64_t n, int64_t m, int64_t ldc, const T* bias);

/// A packed left operand [n, k] in the caller's memory, to be multiplied by several pieces of a right operand.
template <class T> class PackedA {
 public:
  /// Size of the memory in numbers of T: for any precision, or for one packing. The memory must be 64-byte aligned.
  static int64_t size(int64_t n, int64_t k);
  PackedA(int64_t n, int64_t k, T* memory, Precision precision = Precision::f32)
      : PackedA(n, k, memory, usual_packing(dtype_of<T>(), precision)) {}
  static int64_t size(int64_t n, int64_t k, Packing packing);
  PackedA(int64_t n, int64_t k, T* memory, Packing packing);

  /// Packs rows first … last − 1. Both must be multiples of 32, except that last may be n. Threads may fill
  /// different rows at the same time. X is T, or BFloat16 for a PackedA<float> of Precision::bf16.
  template <class X> void fill(Trans ta, const X* a, int64_t lda, int64_t first, int64_t last);
  void fill(Trans ta, const T* a, int64_t lda) { fill(ta, a, lda, 0, n_); }

 private:
  template <class> friend class PackedB;
  T* block(int64_t l, int64_t k, int64_t row) const;
  int64_t n_, k_, depth_;
  Packing packing_;
  T* data_;
};

/// A packed right operand [k, m] in the caller's memory, for operands that are used many times. The instruction set in
/// use must not change between filling and multiplying.
template <class T> class PackedB {
 public:
  /// Size of the memory in numbers of T: for any precision, or for one packing. The memory must be 64-byte aligned.
  static int64_t size(int64_t k, int64_t m);
  PackedB(int64_t k, int64_t m, T* memory, Precision precision = Precision::f32)
      : PackedB(k, m, memory, usual_packing(dtype_of<T>(), precision)) {}
  static int64_t size(int64_t k, int64_t m, Packing packing);
  PackedB(int64_t k, int64_t m, T* memory, Packing packing);

  /// Number of panels. Each has panel_columns() columns; the last one may have fewer.
  int64_t panels() const { return ceil_div(m_, cols_); }
  int64_t panel_columns() const { return cols_; }
  /// Rows of a block of k; the last block may have fewer. Blocks are summed one after the other: operands of one block
  /// each, multiplied in turn with beta 1, give the same bits.
  int64_t block_rows() const { return depth_; }
  /// Rows of a that multiply() packs at a time; they stay in cache while all panels go past. 0 for tiles: pack a first
  /// (PackedA). near_panels() is then the number of panels that stay in cache while rows of a go past.
  int64_t row_block() const;
  /// Most rows of c that stay in registers while a block of k goes by.
  int64_t tile_rows() const;
  int64_t near_panels() const;

  /// Packs panels first_panel … last_panel − 1. Threads may fill different panels at the same time. X is T, or BFloat16
  /// for a PackedB<float> of Precision::bf16.
  template <class X> void fill(Trans tb, const X* b, int64_t ldb, int64_t first_panel, int64_t last_panel);
  void fill(Trans tb, const T* b, int64_t ldb) { fill(tb, b, ldb, 0, panels()); }

  /// c = alpha · a [n, k] · b + beta · c for the columns of panels first_panel … last_panel − 1; c points to the first
  /// of these columns. With the last block of k, c += bias [m] if bias is not null. Returns false if a split product
  /// (Packing::split) has results that are not finite.
  bool multiply(Trans ta, int64_t n, T alpha, const T* a, int64_t lda, T beta, T* c, int64_t ldc, int64_t first_panel,
                int64_t last_panel, const T* bias = nullptr) const;
  bool multiply(Trans ta, int64_t n, T alpha, const T* a, int64_t lda, T beta, T* c, int64_t ldc) const {
    return multiply(ta, n, alpha, a, lda, beta, c, ldc, 0, panels());
  }
  /// The same for n rows of a from row `first_row` on, which is a multiple of 32.
  bool multiply(const PackedA<T>& a, int64_t first_row, int64_t n, T alpha, T beta, T* c, int64_t ldc,
                int64_t first_panel, int64_t last_panel, const T* bias = nullptr) const;
  /// The same with alpha 1 and beta 0, rounded to bf16. sums: memory for n rows, ld_sums numbers apart.
  void multiply(const PackedA<T>& a, int64_t first_row, int64_t n, T* sums, int64_t ld_sums, BFloat16* c, int64_t ldc,
                int64_t first_panel, int64_t last_panel, const T* bias) const;

 private:
  bool multiply(const PackedA<T>& a, int64_t first_row, Block<T> to, int64_t first_panel, int64_t last_panel) const;
  T* block(int64_t l, int64_t k, int64_t panel) const;
  template <class F> bool each_block(const Block<T>& to, int64_t first, int64_t last, F f) const;
  int64_t k_, m_, cols_, depth_;  // columns of a panel; rows of a block
  Packing packing_;
  T* data_;
};

}  // namespace sluice::detail
