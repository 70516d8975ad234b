// The BLAS products that kernels use on their tiles, single-threaded. (Tensors are multiplied by ops/matmul.h.)
#pragma once

#include <cstdint>

namespace sluice::detail {

/// How a row-major matrix with leading dimension ld is read.
enum class Read : bool { plain, transposed };

/// c [n, m] = alpha · a [n, k] · b [k, m] + beta · c, row-major with leading dimensions. Sizes must fit an int.
void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc);
void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, double alpha, const double* a, int64_t lda, const double* b,
          int64_t ldb, double beta, double* c, int64_t ldc);

}  // namespace sluice::detail
