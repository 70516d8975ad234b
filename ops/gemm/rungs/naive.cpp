// Rung 1: the definition. Each multiply-add waits for the sum of the one before, and b is read down its columns.
#include <sluice/ops/gemm/ladder.h>

namespace sluice::detail {

template <class T> void gemm_naive(const Product<T>& p) {
  for (int64_t i = 0; i < p.n; ++i)
    for (int64_t j = 0; j < p.m; ++j) {
      T sum = 0;
      for (int64_t l = 0; l < p.k; ++l) {
        const T a = p.ta == Trans::no ? p.a[i * p.lda + l] : p.a[l * p.lda + i];
        const T b = p.tb == Trans::no ? p.b[l * p.ldb + j] : p.b[j * p.ldb + l];
        sum += a * b;
      }
      T& c = p.c[i * p.ldc + j];
      c = p.beta == T(0) ? p.alpha * sum : p.alpha * sum + p.beta * c;
    }
}

template void gemm_naive(const Product<float>&);
template void gemm_naive(const Product<double>&);

}  // namespace sluice::detail
