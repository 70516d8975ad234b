// The ladder: one product, c = alpha · a · b + beta · c, in ever faster versions. Each rung is a file of its own that
// says what it adds. Tests hold all rungs to the same results, and tests/bench/bench_gemm times them side by side.
// Kernels call the top (gemm.h).
//
//   rungs/naive.cpp      three loops
//   rungs/blocked.cpp    loops over blocks that stay in cache
//   packed.cpp           blocks copied into panels, a tile of c in registers (portable)
//   rungs/neon.cpp, avx2.cpp, avx512.cpp   that tile, for an instruction set
//   rungs/amx.cpp, avx512_bf16.cpp, bfmmla.cpp   products of bf16
//   rungs/amx_f32.cpp                      products of f32 made of products of bf16
//   plan.cpp             which of these for which size and processor
#pragma once

#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/gemm/micro.h>

namespace sluice::detail {

/// Operands of a product: a [n, k], b [k, m], c [n, m].
template <class T> struct Product {
  Trans ta, tb;
  int64_t n, m, k;
  T alpha;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  T beta;
  T* c;
  int64_t ldc;
};

template <class T> void gemm_naive(const Product<T>& p);
template <class T> void gemm_blocked(const Product<T>& p);
/// pack_a, pack_b: false leaves a small operand in place. A transposed b is always packed.
template <class T> void gemm_packed(const Micro<T>& micro, const Product<T>& p, bool pack_a = true, bool pack_b = true);

/// OpenBLAS; with one row or one column, its gemv.
void gemm_blas(const Product<float>& p);
void gemm_blas(const Product<double>& p);

}  // namespace sluice::detail
