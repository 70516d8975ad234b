// Products of few rows, past which the right operand goes: pass_by(), at the end. A packed copy of all of b would take
// longer than the product, and columns of a b in memory lie on as many pages as they have numbers. A part of b is in L1
// or L2 while all rows of a meet it.
#include <sluice/ops/gemm/gemm.h>

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>
#include <type_traits>

namespace sluice::detail {

namespace {

/// Sums `k` products, for `cols` columns of b, which a tile has at most; a and c lie row by row. goes_on: c holds the
/// sums of the rows of b before.
template <class T>
void multiply_columns(const Micro<T>& u, int64_t n, int64_t cols, int64_t k, const T* a, int64_t lda, const T* b,
                      int64_t ldb, bool goes_on, T* c, int64_t ldc) {
  const int64_t height = Cut(n, u.rows).length;
  for (int64_t i = 0; i < n; i += height)
    u.tile(static_cast<int>(std::min(height, n - i)),
           {k, a + i * lda, lda, 1, b, ldb, c + i * ldc, ldc, cols, T(1), T(0), nullptr, a + i * lda, goes_on});
}

template <class T, class B> void widen(const B* from, int64_t ld, int64_t rows, int64_t cols, T* to, int64_t ld_to) {
  vectorised([=] {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) to[i * ld_to + j] = static_cast<T>(from[i * ld + j]);
  });
}

/// Rows of b pass, kStep at a time: sums are loaded and stored once for these.
template <class T, class B>
void pass_rows(const Micro<T>& u, int64_t n, int64_t m, int64_t k, const T* a, int64_t lda, const B* b, int64_t ldb,
               bool far, T* c, int64_t ldc) {
  constexpr int64_t kStep = 32, kLine = 64 / sizeof(B);
  // What comes from memory is fetched ahead, which processors do not do over the end of a page of 4 KB. What is in a
  // cache comes faster without it.
  const auto fetch = [=](const B* row, int64_t cols) {
    for (int64_t j = 0; far && j < cols; j += kLine) __builtin_prefetch(row + kStep * ldb + j, 0, 2);
  };
  const int64_t wide = round_up(m, 16);
  for (int64_t l = 0; l < k; l += kStep, b += kStep * ldb) {
    const int64_t rows = std::min(kStep, k - l);
    const T* from = nullptr;
    if constexpr (std::is_same_v<T, B>) {
      from = b;
    } else {
      T* const widened = pack_memory<T>(1, kStep * wide);
      for (int64_t p = 0; p < rows; ++p) fetch(b + p * ldb, m);
      widen(b, ldb, rows, m, widened, wide);
      from = widened;
    }
    for (int64_t col = 0; col < m; col += u.cols) {
      const int64_t cols = std::min<int64_t>(u.cols, m - col);
      for (int64_t p = 0; std::is_same_v<T, B> && p < rows; ++p) fetch(b + p * ldb + col, cols);
      multiply_columns(u, n, cols, rows, a + l, lda, from + col, std::is_same_v<T, B> ? ldb : wide, l > 0, c + col,
                       ldc);
    }
  }
}

/// Columns of b, which lie as rows, pass as panels of kStep numbers each.
template <class T, class B>
void pass_columns(const Micro<T>& u, int64_t n, int64_t m, int64_t k, const T* a, int64_t lda, const B* b, int64_t ldb,
                  T* c, int64_t ldc) {
  constexpr int64_t kStep = 256, kRow = kStep + 16;
  T* const panel = pack_memory<T>(1, kStep * u.cols + 16 + u.cols * kRow);
  for (int64_t col = 0; col < m; col += u.cols)
    for (int64_t l = 0; l < k; l += kStep) {
      const int64_t cols = std::min<int64_t>(u.cols, m - col), depth = std::min(kStep, k - l);
      const B* const from = b + col * ldb + l;
      if constexpr (std::is_same_v<T, B>) {
        u.transpose(from, ldb, cols, depth, panel, u.cols);
      } else {
        T* const widened = panel + kStep * u.cols + 16;
        widen(from, ldb, cols, depth, widened, kRow);
        u.transpose(widened, kRow, cols, depth, panel, u.cols);
      }
      multiply_columns(u, n, cols, depth, a + l, lda, panel, u.cols, l > 0, c + col, ldc);
    }
}

template <class T, class B>
void pass_blocks(int64_t n, int64_t m, int64_t k, const T* a, int64_t lda, Trans tb, const B* b, int64_t ldb, T* c,
                 int64_t ldc) {
  const Micro<T>& u = micro<T>(isa());
  const bool plain = tb == Trans::no, far = k * ldb * int64_t{sizeof(B)} > int64_t{8} << 20;
  // Blocks of k are those of larger products, and so are the bits: each block is a chain, and their sums are added.
  const Cut blocks(k, kDepth);
  T* const block = pack_memory<T>(0, blocks.count > 1 ? n * ldc : 0);
  for (int64_t l = 0; l < k; l += blocks.length) {
    const int64_t depth = std::min(blocks.length, k - l);
    T* const to = l == 0 ? c : block;
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

template <class T, class X>
void pass_by(int64_t n, int64_t m, int64_t k, const X* a, int64_t lda, Trans tb, const X* b, int64_t ldb, T* c,
             int64_t ldc) {
  if constexpr (std::is_same_v<T, X>) {
    pass_blocks(n, m, k, a, lda, tb, b, ldb, c, ldc);
  } else {
#if defined(__x86_64__)
    const Isa in_use = isa();
    if (in_use == Isa::avx512_bf16 && flush_denormals())
      return avx512_bf16_pass_by(n, m, k, a, lda, tb, b, ldb, c, ldc);
    if (in_use >= Isa::avx512 && tb == Trans::yes && dots_pay(n, k, 24))
      return avx512_dots(n, m, k, a, lda, b, ldb, c, ldc);
#endif
    T* const wide = pack_memory<T>(2, n * k);
    widen(a, lda, n, k, wide, k);
    pass_blocks(n, m, k, wide, k, tb, b, ldb, c, ldc);
  }
}

template void pass_by(int64_t, int64_t, int64_t, const float*, int64_t, Trans, const float*, int64_t, float*, int64_t);
template void pass_by(int64_t, int64_t, int64_t, const double*, int64_t, Trans, const double*, int64_t, double*,
                      int64_t);
template void pass_by(int64_t, int64_t, int64_t, const BFloat16*, int64_t, Trans, const BFloat16*, int64_t, float*,
                      int64_t);

}  // namespace sluice::detail
