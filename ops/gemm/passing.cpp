// Products of few rows of bf16, past which the right operand goes: a widened copy of all of it would go to memory and
// back. A widened part of b is in L1 while all rows of a meet it.
#include <sluice/ops/gemm/gemm.h>

#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/panels.h>
#include <sluice/ops/gemm/plan.h>

#include <algorithm>

namespace sluice::detail {

namespace {
void pass_blocks(int64_t n, int64_t m, int64_t k, const float* a, int64_t lda, Trans tb, const BFloat16* b, int64_t ldb,
                 float* c, int64_t ldc);
}  // namespace

void pass_by(int64_t n, int64_t m, int64_t k, const BFloat16* a, int64_t lda, Trans tb, const BFloat16* b, int64_t ldb,
             float* c, int64_t ldc) {
#if defined(__x86_64__)
  const Isa in_use = isa();
  if (in_use == Isa::avx512_bf16 && flush_denormals()) return avx512_bf16_pass_by(n, m, k, a, lda, tb, b, ldb, c, ldc);
  if (in_use >= Isa::avx512 && tb == Trans::yes && dots_pay(n, k, 24))
    return avx512_dots(n, m, k, a, lda, b, ldb, c, ldc);
#endif
  float* const wide = pack_memory<float>(2, n * k);
  widen_rows(a, lda, n, k, wide, k);
  pass_blocks(n, m, k, wide, k, tb, b, ldb, c, ldc);
}

namespace {

/// Sums k products for the columns of one tile. goes_on: c holds the sums of the rows of b before.
void multiply_columns(const Micro<float>& u, int64_t n, int64_t cols, int64_t k, const float* a, int64_t lda,
                      const float* b, int64_t ldb, bool goes_on, float* c, int64_t ldc) {
  const int64_t height = Cut(n, u.rows).length;
  for (int64_t i = 0; i < n; i += height) {
    const float* rows = a + i * lda;
    const TileCall<float> t{.k = k,
                            .a = rows,
                            .a_row = lda,
                            .a_k = 1,
                            .b = b,
                            .b_k = ldb,
                            .c = c + i * ldc,
                            .ldc = ldc,
                            .cols = cols,
                            .alpha = 1,
                            .beta = 0,
                            .ahead = rows,
                            .goes_on = goes_on};
    u.tile(static_cast<int>(std::min(height, n - i)), t);
  }
}

/// Rows of b pass, some at a time: sums are loaded and stored once for these.
void pass_rows(const Micro<float>& u, int64_t n, int64_t m, int64_t k, const float* a, int64_t lda, const BFloat16* b,
               int64_t ldb, bool far, float* c, int64_t ldc) {
  constexpr int64_t kStep = 32, kLine = 64 / sizeof(BFloat16);
  const int64_t wide = round_up(m, 16);
  float* const widened = pack_memory<float>(1, kStep * wide);
  for (int64_t l = 0; l < k; l += kStep, b += kStep * ldb) {
    const int64_t rows = std::min(kStep, k - l);
    // What comes from memory is fetched ahead, which processors do not do over the end of a page of 4 KB. What is in a
    // cache comes faster without it.
    for (int64_t p = 0; far && p < rows; ++p)
      for (int64_t j = 0; j < m; j += kLine) __builtin_prefetch(b + (kStep + p) * ldb + j, 0, 2);
    widen_rows(b, ldb, rows, m, widened, wide);
    for (int64_t col = 0; col < m; col += u.cols)
      multiply_columns(u, n, std::min<int64_t>(u.cols, m - col), rows, a + l, lda, widened + col, wide, l > 0, c + col,
                       ldc);
  }
}

/// Columns of b, which lie as rows, pass as panels of some numbers each.
void pass_columns(const Micro<float>& u, int64_t n, int64_t m, int64_t k, const float* a, int64_t lda,
                  const BFloat16* b, int64_t ldb, float* c, int64_t ldc) {
  constexpr int64_t kStep = 128, kRow = kStep + 16;  // no two rows lie in the same sets of the cache
  float* const panel = pack_memory<float>(1, kStep * u.cols + 16 + u.cols * kRow);
  float* const widened = panel + kStep * u.cols + 16;
  for (int64_t col = 0; col < m; col += u.cols)
    for (int64_t l = 0; l < k; l += kStep) {
      const int64_t cols = std::min<int64_t>(u.cols, m - col), depth = std::min(kStep, k - l);
      widen_rows(b + col * ldb + l, ldb, cols, depth, widened, kRow);
      u.transpose(widened, kRow, cols, depth, panel, u.cols);
      multiply_columns(u, n, cols, depth, a + l, lda, panel, u.cols, l > 0, c + col, ldc);
    }
}

void pass_blocks(int64_t n, int64_t m, int64_t k, const float* a, int64_t lda, Trans tb, const BFloat16* b, int64_t ldb,
                 float* c, int64_t ldc) {
  const Micro<float>& u = micro<float>(isa());
  const bool plain = tb == Trans::no, far = k * ldb * int64_t{sizeof(BFloat16)} > int64_t{8} << 20;
  // Blocks of k are those of products of more rows, and so are the bits: each is a chain, and their sums are added.
  const Cut blocks(k, kDepth);
  float* const block = pack_memory<float>(0, blocks.count > 1 ? n * ldc : 0);
  for (int64_t l = 0; l < k; l += blocks.length) {
    const int64_t depth = std::min(blocks.length, k - l);
    float* const to = l == 0 ? c : block;
    if (plain) pass_rows(u, n, m, depth, a + l, lda, b + l * ldb, ldb, far, to, ldc);
    else pass_columns(u, n, m, depth, a + l, lda, b + l, ldb, to, ldc);
    if (l > 0)
      vectorised([=] {
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < m; ++j) c[i * ldc + j] += block[i * ldc + j];
      });
  }
}

}  // namespace

}  // namespace sluice::detail
