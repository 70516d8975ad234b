// A right operand in packed form: for each block of k, its panels one after the other. Where OpenBLAS computes (see
// gemm.cpp) it is a plain copy.
#include <sluice/ops/gemm/ladder.h>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>

namespace sluice::detail {

template <class T>
int64_t PackedB<T>::size(int64_t k, int64_t m) {
  const int64_t cols = micro<T>(isa()).cols;
  return k * ((m + cols - 1) / cols * cols);
}

template <class T>
PackedB<T>::PackedB(int64_t k, int64_t m, T* memory)
    : k_(k), m_(m), cols_(micro<T>(isa()).cols), plain_(isa() == Isa::base), data_(memory) {}

template <class T>
void PackedB<T>::fill(Read rb, const T* b, int64_t ldb, int64_t first_panel, int64_t last_panel) {
  const Micro<T>& u = micro<T>(isa());
  const Cut depth(k_, plain_ ? k_ : kDepth);
  const int64_t col = first_panel * cols_, cols = std::min(last_panel * cols_, m_) - col;
  for (int64_t l = 0; l < k_; l += depth.length) {
    const int64_t k = std::min(depth.length, k_ - l);
    const T* from = rb == Read::plain ? b + l * ldb + col : b + col * ldb + l;
    if (!plain_) pack_panels(u, rb, from, ldb, k, cols, data_ + (l * panels() + first_panel * k) * cols_);
    else if (rb == Read::transposed) u.transpose(from, ldb, cols, k, data_ + col, m_);
    else
      for (int64_t p = 0; p < k; ++p) std::copy_n(from + p * ldb, cols, data_ + p * m_ + col);
  }
}

template <class T>
void PackedB<T>::multiply(Read ra, int64_t n, T alpha, const T* a, int64_t lda, T beta, T* c, int64_t ldc, int64_t first_panel,
                          int64_t last_panel, const Epilogue<T>& epilogue, int64_t first_row) const {
  const int64_t col = first_panel * cols_, m = std::min(last_panel * cols_, m_) - col;
  if (plain_ || k_ == 0) gemm_blas(Product<T>{ra, Read::plain, n, m, k_, alpha, a, lda, data_ + col, m_, beta, c, ldc});
  else {
    const Micro<T>& u = micro<T>(isa());
    const Cut depth(k_, kDepth);
    for (int64_t l = 0; l < k_; l += depth.length) {
      const int64_t k = std::min(depth.length, k_ - l);
      multiply_block<T>(u, {ra, ra == Read::plain ? a + l : a + l * lda, lda, m > 4 * cols_ && n * k > 4096},
                        {data_ + (l * panels() + first_panel * k) * cols_, k * cols_, cols_, true}, n, m, k, alpha,
                        l == 0 ? beta : T(1), c, ldc);
    }
  }
  if (epilogue.bias)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j) c[i * ldc + j] += epilogue.bias[col + j];
  if (epilogue.row_map)
    for (int64_t i = 0; i < n; ++i) epilogue.row_map(c + i * ldc, m, first_row + i, col, epilogue.context);
}

template class PackedB<float>;
template class PackedB<double>;

}  // namespace sluice::detail
