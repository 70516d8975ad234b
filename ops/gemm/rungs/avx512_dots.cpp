// Few rows of bf16 times a transposed b without VDPBF16PS, in AVX-512: a number of bf16 is the upper half of one of
// f32, so of 32 numbers the odd ones are ready where they lie, but for a mask, and the even ones after a shift. Neither
// moves, so no number of b is written to be multiplied.
#include <sluice/ops/gemm/bf16.h>

#if defined(__x86_64__)
#include <sluice/ops/gemm/rungs/amx_tiles.inc>

namespace sluice::detail {

namespace {

#define SLUICE_TARGET_DOTS gnu::target("avx512f,avx512bw")
struct Pairs {
  __m512 even, odd;
};
[[SLUICE_TARGET_DOTS, gnu::always_inline]] inline Pairs pairs_of(__m512i numbers) {
  constexpr __mmask16 all = 0xffff;  // without a mask g++ 12 warns of its own intrinsics
  return {(__m512)_mm512_maskz_slli_epi32(all, numbers, 16),
          (__m512)_mm512_and_si512(numbers, _mm512_set1_epi32(static_cast<int>(0xffff0000)))};
}
[[SLUICE_TARGET_DOTS, gnu::always_inline]] inline __m512 add_products(__m512 sum, const Pairs& x, const Pairs& y) {
  return _mm512_fmadd_ps(x.odd, y.odd, _mm512_fmadd_ps(x.even, y.even, sum));
}
#include <sluice/ops/gemm/rungs/few_dots.inc>

}  // namespace

void avx512_dots(int64_t n, int64_t m, int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb,
                 float* c, int64_t ldc) {
  dots(n, m, k, a, lda, b, ldb, c, ldc);
}

}  // namespace sluice::detail
#endif
