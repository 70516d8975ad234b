// Products of f32 in three parts (see rungs/amx_f32.cpp) for kernels that pack their operands themselves, tile by tile,
// and keep them in cache: attention. Only where plan.h says splits().
#pragma once

#include <sluice/ops/gemm/gemm.h>

#include <type_traits>

namespace sluice::detail {

/// Rows of a left operand, or columns of a right one, in the caller's memory, which must be 64-byte aligned. fill_a and
/// fill_b return whether all |x| < 2⁵⁶: sums of 2¹⁵ products of such numbers are finite. Other numbers may give NaN in
/// their own rows and columns of c.
class Bf16x3 {
 public:
  /// Size of the memory in floats.
  static int64_t size(int64_t count, int64_t k);
  Bf16x3(int64_t count, int64_t k, void* memory) : count_(count), k_(k), data_(static_cast<char*>(memory)) {}

  /// a [count, k].
  template <class T> bool fill_a(Trans trans, const T* a, int64_t lda) const {
    return fill(a, lda, trans == Trans::no, trans == Trans::yes);
  }
  /// b [k, count].
  template <class T> bool fill_b(Trans trans, const T* b, int64_t ldb) const {
    return fill(b, ldb, trans == Trans::yes, trans == Trans::yes);
  }

  /// c = alpha · a · b [first_k …, first_column …] + beta · c for all rows and all k of a, and m columns of this b.
  /// first_k must be a multiple of 32, first_column of 16.
  template <class T>
  void multiply(const Bf16x3& a, int64_t first_k, int64_t first_column, int64_t m, T alpha, T beta, T* c,
                int64_t ldc) const {
    if constexpr (std::is_same_v<T, float>) multiply_parts(a, first_k, first_column, m, alpha, beta, c, ldc);
  }

 private:
  template <class T> bool fill(const T* x, int64_t ld, bool along, bool turned) const {
    if constexpr (std::is_same_v<T, float>) return fill_parts(x, ld, along, turned);
    return true;
  }
  bool fill_parts(const float* x, int64_t ld, bool along, bool turned) const;
  void multiply_parts(const Bf16x3& a, int64_t first_k, int64_t first_column, int64_t m, float alpha, float beta,
                      float* c, int64_t ldc) const;
  int64_t count_, k_;
  char* data_;
};

}  // namespace sluice::detail
