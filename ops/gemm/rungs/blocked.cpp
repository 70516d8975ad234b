// Rung 2: loops are interchanged and blocked. The innermost loop runs along a row of b and of c, which the compiler
// vectorises. A block of b (64 KiB) is used for all rows of c before the next is read, so it comes from memory once.
#include <sluice/ops/gemm/ladder.h>

#include <algorithm>

namespace sluice::detail {

template <class T> void gemm_blocked(const Product<T>& p) {
  constexpr int64_t kDepth = 64, kWidth = 1024 / sizeof(T);
  for (int64_t i = 0; i < p.n; ++i)
    for (int64_t j = 0; j < p.m; ++j) p.c[i * p.ldc + j] = p.beta == T(0) ? T(0) : p.beta * p.c[i * p.ldc + j];
  for (int64_t col = 0; col < p.m; col += kWidth)
    for (int64_t first = 0; first < p.k; first += kDepth)
      for (int64_t i = 0; i < p.n; ++i)
        for (int64_t l = first; l < std::min(first + kDepth, p.k); ++l) {
          const T a = p.alpha * (p.ta == Trans::no ? p.a[i * p.lda + l] : p.a[l * p.lda + i]);
          const int64_t count = std::min(kWidth, p.m - col);
          T* c = p.c + i * p.ldc + col;
          if (p.tb == Trans::no)
            for (int64_t j = 0; j < count; ++j) c[j] += a * p.b[l * p.ldb + col + j];
          else
            for (int64_t j = 0; j < count; ++j) c[j] += a * p.b[(col + j) * p.ldb + l];
        }
}

template void gemm_blocked(const Product<float>&);
template void gemm_blocked(const Product<double>&);

}  // namespace sluice::detail
