// Products of tiles of bf16 by the instruction set in use. Packs operands that are tensors of bf16: tiles take the
// numbers as they are; for other packings the numbers are widened to f32, a block at a time.
#include <sluice/core/tensor.h>
#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/ladder.h>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>

namespace sluice::detail {

namespace {

/// A copy of x [rows, cols] in f32, row-major as in memory.
class Wide {
 public:
  Wide(const BFloat16* x, int64_t ld, int64_t rows, int64_t cols) : memory_(empty({rows * cols})) {
    vectorised([=, to = memory_.mutable_data<float>()] {
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) to[i * cols + j] = static_cast<float>(x[i * ld + j]);
    });
  }
  const float* data() const { return memory_.data<float>(); }

 private:
  Tensor memory_;
};

}  // namespace

#if defined(SLUICE_BF16_TILES)
void bf16_multiply(const float* a, const float* b, int64_t n, int64_t m, int64_t k, float alpha, float beta, float* c,
                   int64_t ldc, const float* bias) {
#if defined(__x86_64__)
  const auto multiply = isa() == Isa::amx ? &amx_multiply : &avx512_bf16_multiply;
#else
  const auto multiply = &bfmmla_multiply;
#endif
  multiply(a, b, n, m, k, alpha, beta, c, ldc, bias);
}

void bf16_pack_and_multiply(Trans trans, const float* a, int64_t lda, const float* b, int64_t n, int64_t m, int64_t k,
                            float alpha, float beta, float* c, int64_t ldc, const float* bias) {
  by_packed_rows(n, k, 1, [&](int64_t first, int64_t rows, float* tiles) {
    bf16_pack_a(trans, a + first * (trans == Trans::no ? lda : 1), lda, rows, k, tiles);
    bf16_multiply(tiles, b, rows, m, k, alpha, beta, c + first * ldc, ldc, bias);
  });
}
#endif

template <>
void PackedB<float>::fill(Trans tb, const BFloat16* b, int64_t ldb, int64_t first_panel, int64_t last_panel) {
  const int64_t col = first_panel * cols_, cols = std::min(last_panel * cols_, m_) - col;
  for (int64_t l = 0; l < k_; l += depth_) {
    const int64_t k = std::min(depth_, k_ - l);
    const BFloat16* from = tb == Trans::no ? b + l * ldb + col : b + col * ldb + l;
    float* const to = block(l, k, first_panel);
#if defined(SLUICE_BF16_TILES)
    if (packing_ == Packing::tiles) {
      bf16_pack_b(tb, from, ldb, k, cols, to);
      continue;
    }
#endif
    const bool plain = tb == Trans::no;
    const Wide wide(from, ldb, plain ? k : cols, plain ? cols : k);
    pack_panels(micro<float>(isa()), tb, wide.data(), plain ? cols : k, k, cols, to);
  }
}

template <> void PackedA<float>::fill(Trans ta, const BFloat16* a, int64_t lda, int64_t first, int64_t last) {
  const int64_t rows = last - first;
  for (int64_t l = 0; l < k_; l += depth_) {
    const int64_t k = std::min(depth_, k_ - l);
    const BFloat16* from = ta == Trans::no ? a + first * lda + l : a + l * lda + first;
    float* const to = block(l, k, first);
#if defined(SLUICE_BF16_TILES)
    if (packing_ == Packing::tiles) {
      bf16_pack_a(ta, from, lda, rows, k, to);
      continue;
    }
#endif
    const bool plain = ta == Trans::no;
    const Wide wide(from, lda, plain ? rows : k, plain ? k : rows);
    copy_rows(micro<float>(isa()), ta, wide.data(), plain ? k : rows, rows, k, to);
  }
}

}  // namespace sluice::detail
