#include <sluice/ops/blas.h>

#include <cblas.h>

#include <algorithm>
#include <mutex>

extern "C" void openblas_set_num_threads(int);

namespace sluice::detail {

namespace {

CBLAS_TRANSPOSE trans(Read r) {
  return r == Read::plain ? CblasNoTrans : CblasTrans;
}

/// What BLAS refuses: an empty c, and an empty sum. True when nothing is left to do.
template <class T>
bool trivial(int64_t n, int64_t m, int64_t k, T beta, T* c, int64_t ldc) {
  static std::once_flag once;  // TBB owns the threads
  std::call_once(once, [] { openblas_set_num_threads(1); });
  if (n == 0 || m == 0) return true;
  if (k > 0) return false;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
  return true;
}

/// c = alpha · a · b + beta · c by the two BLAS routines of one type. A product with one row or one column reads a
/// matrix once, and is memory-bound: gemv does that without the packing of gemm.
template <class T, class Gemm, class Gemv>
void product(Gemm gemm, Gemv gemv, Read ra, Read rb, int64_t n, int64_t m, int64_t k, T alpha, const T* a, int64_t lda,
             const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  if (trivial(n, m, k, beta, c, ldc)) return;
  if (beta == T(0) && (n == 1 || m == 1))  // some versions of gemv scale c by 0, and keep a NaN
    for (int64_t i = 0; i < n; ++i) std::fill_n(c + i * ldc, m, T(0));
  if (n == 1) {  // cᵀ = bᵀ aᵀ
    const bool plain = rb == Read::plain;
    gemv(CblasRowMajor, plain ? CblasTrans : CblasNoTrans, int(plain ? k : m), int(plain ? m : k), alpha, b, int(ldb), a,
         int(ra == Read::plain ? 1 : lda), beta, c, 1);
  } else if (m == 1) {
    const bool plain = ra == Read::plain;
    gemv(CblasRowMajor, plain ? CblasNoTrans : CblasTrans, int(plain ? n : k), int(plain ? k : n), alpha, a, int(lda), b,
         int(rb == Read::plain ? ldb : 1), beta, c, int(ldc));
  } else {
    gemm(CblasRowMajor, trans(ra), trans(rb), int(n), int(m), int(k), alpha, a, int(lda), b, int(ldb), beta, c, int(ldc));
  }
}

}  // namespace

void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc) {
  product<float>(cblas_sgemm, cblas_sgemv, ra, rb, n, m, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, double alpha, const double* a, int64_t lda, const double* b,
          int64_t ldb, double beta, double* c, int64_t ldc) {
  product<double>(cblas_dgemm, cblas_dgemv, ra, rb, n, m, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

}  // namespace sluice::detail
