// The tiles of each instruction set, and a product of one thread, by the packing that plan.cpp chooses.
#include <sluice/ops/gemm/gemm.h>

#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/ladder.h>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>

namespace sluice::detail {

template <> const Micro<float>& micro([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return avx512_f32;
  if (isa >= Isa::avx2) return avx2_f32;
#elif defined(__aarch64__)
  if (isa >= Isa::neon) return neon_f32;
#endif
  return portable_f32;
}
template <> const Micro<double>& micro([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return avx512_f64;
  if (isa >= Isa::avx2) return avx2_f64;
#elif defined(__aarch64__)
  if (isa >= Isa::neon) return neon_f64;
#endif
  return portable_f64;
}

namespace {

/// A product of operands rounded to bf16, by packed operands, some columns at a time.
void rounded_product(const Product<float>& p, Packing packing) {
  const int64_t width = std::max<int64_t>(kAmxCols, (int64_t{1} << 20) / p.k / kAmxCols * kAmxCols);
  for (int64_t col = 0; col < p.m; col += width) {
    const int64_t m = std::min(width, p.m - col);
    PackedB<float> b(p.k, m, pack_memory<float>(1, PackedB<float>::size(p.k, m)), packing);
    b.fill(p.tb, p.tb == Trans::no ? p.b + col : p.b + col * p.ldb, p.ldb);
    b.multiply(p.ta, p.n, p.alpha, p.a, p.lda, p.beta, p.c + col, p.ldc);
  }
}

template <class T> void product(const Product<T>& p, Precision precision, bool may_gemv = true) {
  if (p.n == 0 || p.m == 0) return;
  const GemmShape shape{.n = p.n, .m = p.m, .k = p.k, .dtype = dtype_of<T>(), .precision = precision};
  const Packing packing = p.k == 0   ? Packing::plain
                          : may_gemv ? packing_of(shape)
                                     : usual_packing(shape.dtype, precision);
  if (packing == Packing::plain) return gemm_blas(p);
  if constexpr (sizeof(T) == 4)
    if (packing != Packing::panels) return rounded_product(p, packing);
  const Micro<T>& u = micro<T>(shape.isa);
  // The first tile that meets a panel of b copies it, and fetches ahead. Rows of one tile alone have no use for the
  // copy: fetching pays for them if b is beyond L2.
  const bool far = p.k * p.ldb > (1 << 20) / int64_t{sizeof(T)};
  gemm_packed(u, p, copy_pays(p.m, u.cols, p.n * p.k), p.m * p.k > 4096 && (p.n > u.rows || far));
}

}  // namespace

void gemm(Trans ta, Trans tb, int64_t n, int64_t m, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc, Precision precision) {
  product<float>({ta, tb, n, m, k, alpha, a, lda, b, ldb, beta, c, ldc}, precision);
}
void gemm(Trans ta, Trans tb, int64_t n, int64_t m, int64_t k, double alpha, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc, Precision) {
  product<double>({ta, tb, n, m, k, alpha, a, lda, b, ldb, beta, c, ldc}, Precision::f32);
}
template <class T>
void gemm_chained(Trans ta, Trans tb, int64_t n, int64_t m, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
                  int64_t ldb, T beta, T* c, int64_t ldc, Precision precision) {
  product<T>({ta, tb, n, m, k, alpha, a, lda, b, ldb, beta, c, ldc}, precision, false);
}
template void gemm_chained(Trans, Trans, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t,
                           float, float*, int64_t, Precision);
template void gemm_chained(Trans, Trans, int64_t, int64_t, int64_t, double, const double*, int64_t, const double*,
                           int64_t, double, double*, int64_t, Precision);

}  // namespace sluice::detail
