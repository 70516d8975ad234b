// The table: which rung for which size and processor.
#include <sluice/ops/gemm/gemm.h>

#include <sluice/core/parallel.h>
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/ladder.h>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>

namespace sluice::detail {

template <>
const Micro<float>& micro([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return avx512_f32;
  if (isa >= Isa::avx2) return avx2_f32;
#elif defined(__aarch64__)
  if (isa >= Isa::neon) return neon_f32;
#endif
  return portable_f32;
}
template <>
const Micro<double>& micro([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return avx512_f64;
  if (isa >= Isa::avx2) return avx2_f64;
#elif defined(__aarch64__)
  if (isa >= Isa::neon) return neon_f64;
#endif
  return portable_f64;
}

bool amx_computes() { return isa() >= Isa::amx && flush_denormals(); }
bool bf16_tiles_compute() { return has_bf16_tiles() && flush_denormals(); }

const char* gemm_means(bool f64, int64_t n, int64_t m, Precision precision) {
  if (n == 1 || m == 1) return "OpenBLAS gemv";
  static constexpr const char* rounded[] = {"portable, bf16", "NEON, bf16",    "BFMMLA, bf16",
                                            "AVX2, bf16",     "AVX-512, bf16", "AMX, bf16"};
  static constexpr const char* exact[] = {"OpenBLAS", "NEON", "NEON", "AVX2", "AVX-512", "AVX-512"};
  const Isa without_tiles = isa() == Isa::amx ? Isa::avx512 : isa() == Isa::neon_bf16 ? Isa::neon : isa();
  const Isa used = bf16_tiles_compute() ? isa() : without_tiles;
  return (!f64 && precision == Precision::bf16 ? rounded : exact)[static_cast<int>(used)];
}

namespace {

/// A copy pays if it is used often enough: rows of a by many panels, panels of b by many rows.
template <class T>
void product(const Product<T>& p) {
  if (p.n == 0 || p.m == 0) return;
  if (p.n == 1 || p.m == 1 || p.k == 0 || isa() == Isa::base) return gemm_blas(p);
  const Micro<T>& u = micro<T>(isa());
  gemm_packed(u, p, p.m > 4 * u.cols && p.n * p.k > 4096, p.n > 4 * u.rows && p.m * p.k > 4096);
}

/// A product of operands rounded to bf16, by packed operands, some columns at a time.
void rounded_product(const Product<float>& p) {
  const int64_t width = std::max<int64_t>(kAmxCols, (int64_t{1} << 20) / p.k / kAmxCols * kAmxCols);
  for (int64_t col = 0; col < p.m; col += width) {
    const int64_t m = std::min(width, p.m - col);
    PackedB<float> b(p.k, m, pack_memory<float>(1, PackedB<float>::size(p.k, m)), Precision::bf16);
    b.fill(p.rb, p.rb == Read::plain ? p.b + col : p.b + col * p.ldb, p.ldb);
    b.multiply(p.ra, p.n, p.alpha, p.a, p.lda, p.beta, p.c + col, p.ldc);
  }
}

}  // namespace

void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc, Precision precision) {
  const Product<float> p{ra, rb, n, m, k, alpha, a, lda, b, ldb, beta, c, ldc};
  if (precision == Precision::bf16 && n > 1 && m > 1 && k > 0) rounded_product(p);
  else product(p);
}
void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, double alpha, const double* a, int64_t lda, const double* b,
          int64_t ldb, double beta, double* c, int64_t ldc, Precision) {
  product<double>({ra, rb, n, m, k, alpha, a, lda, b, ldb, beta, c, ldc});
}

}  // namespace sluice::detail
