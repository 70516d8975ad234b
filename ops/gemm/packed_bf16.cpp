// Products of tiles of bf16 by the instruction set in use.
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/panels.h>

namespace sluice::detail {

#if defined(SLUICE_BF16_TILES)
void bf16_multiply(const float* a, const float* b, const Block<float>& c) {
#if defined(__x86_64__)
  const auto multiply = isa() == Isa::amx ? &amx_multiply : &avx512_bf16_multiply;
#else
  const auto multiply = &bfmmla_multiply;
#endif
  multiply(a, b, c);
}

void bf16_pack_and_multiply(Trans trans, const float* a, int64_t lda, const float* b, const Block<float>& c) {
  by_packed_rows(c.n, c.k, 1, [&](int64_t first, int64_t rows, float* tiles) {
    const bool plain = trans == Trans::no;
    bf16_pack(a + first * (plain ? lda : 1), lda, plain, !plain, rows, c.k, tiles);
    bf16_multiply(tiles, b, c.rows(first, rows));
  });
}
#endif

}  // namespace sluice::detail
