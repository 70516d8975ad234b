#include <sluice/ops/blas.h>

#include <cblas.h>

#include <mutex>

extern "C" void openblas_set_num_threads(int);

namespace sluice::detail {

namespace {

CBLAS_TRANSPOSE trans(Read r) {
  static std::once_flag once;  // TBB owns the threads
  std::call_once(once, [] { openblas_set_num_threads(1); });
  return r == Read::plain ? CblasNoTrans : CblasTrans;
}

/// What BLAS refuses: an empty c, and an empty sum. True when nothing is left to do.
template <class T>
bool trivial(int64_t n, int64_t m, int64_t k, T beta, T* c, int64_t ldc) {
  if (n == 0 || m == 0) return true;
  if (k > 0) return false;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
  return true;
}

}  // namespace

void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc) {
  if (trivial(n, m, k, beta, c, ldc)) return;
  cblas_sgemm(CblasRowMajor, trans(ra), trans(rb), int(n), int(m), int(k), alpha, a, int(lda), b, int(ldb), beta, c, int(ldc));
}
void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, double alpha, const double* a, int64_t lda, const double* b,
          int64_t ldb, double beta, double* c, int64_t ldc) {
  if (trivial(n, m, k, beta, c, ldc)) return;
  cblas_dgemm(CblasRowMajor, trans(ra), trans(rb), int(n), int(m), int(k), alpha, a, int(lda), b, int(ldb), beta, c, int(ldc));
}

}  // namespace sluice::detail
