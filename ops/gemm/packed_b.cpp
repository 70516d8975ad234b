// A right operand in packed form: for each block of k, its panels one after the other, of numbers or of AMX tiles. Where
// OpenBLAS computes (see gemm.cpp) it is a plain copy.
#include <sluice/core/vectorise.h>
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/ladder.h>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>

namespace sluice::detail {

template <class T>
int64_t PackedB<T>::size(int64_t k, int64_t m) {
  const int64_t cols = micro<T>(isa()).cols, panels = k * ((m + cols - 1) / cols * cols);
  if (sizeof(T) == 8 || isa() < Isa::amx) return panels;
  return std::max(panels, (k + kAmxStep - 1) / kAmxStep * kAmxStep * ((m + kAmxCols - 1) / kAmxCols * kAmxCols) / 2);
}

template <class T>
PackedB<T>::PackedB(int64_t k, int64_t m, T* memory, Precision precision)
    : k_(k), m_(m), cols_(micro<T>(isa()).cols), depth_(Cut(k, kDepth).length), form_(Form::panels), data_(memory) {
  if (sizeof(T) == 4 && precision == Precision::bf16) {
    form_ = Form::rounded_panels;
    if (isa() >= Isa::amx)
      form_ = Form::tiles, cols_ = kAmxCols, depth_ = (Cut(k, kAmxDepth).length + kAmxStep - 1) / kAmxStep * kAmxStep;
  } else if (isa() == Isa::base) {
    form_ = Form::copy, depth_ = k;
  }
}

template <class T>
void PackedB<T>::fill(Read rb, const T* b, int64_t ldb, int64_t first_panel, int64_t last_panel) {
  const Micro<T>& u = micro<T>(isa());
  const int64_t col = first_panel * cols_, cols = std::min(last_panel * cols_, m_) - col;
  for (int64_t l = 0; l < k_; l += depth_) {
    const int64_t k = std::min(depth_, k_ - l);
    const T* from = rb == Read::plain ? b + l * ldb + col : b + col * ldb + l;
    T* const to = block(l, k, first_panel);
    switch (form_) {
      case Form::copy:
        if (rb == Read::transposed) u.transpose(from, ldb, cols, k, to, m_);
        else
          for (int64_t p = 0; p < k; ++p) std::copy_n(from + p * ldb, cols, to + p * m_);
        break;
      case Form::tiles:
#if defined(__x86_64__)
        if constexpr (sizeof(T) == 4) amx_pack(rb, from, ldb, k, cols, to);
#endif
        break;
      default:
        pack_panels(u, rb, from, ldb, k, cols, to);
        if constexpr (sizeof(T) == 4)
          if (form_ == Form::rounded_panels) round_to_bf16(to, k * (last_panel - first_panel) * cols_);
    }
  }
}

/// Where a panel of the block of k rows from row l on lies.
template <class T>
T* PackedB<T>::block(int64_t l, int64_t k, int64_t panel) const {
  if (form_ == Form::copy) return data_ + l * m_ + panel * cols_;
  if (form_ != Form::tiles) return data_ + (l * panels() + panel * k) * cols_;
  return data_ + (l * panels() + panel * ((k + kAmxStep - 1) / kAmxStep * kAmxStep)) * cols_ / 2;
}

template <class T>
void PackedB<T>::multiply(Read ra, int64_t n, T alpha, const T* a, int64_t lda, T beta, T* c, int64_t ldc, int64_t first_panel,
                          int64_t last_panel, const Epilogue<T>& epilogue, int64_t first_row) const {
  const int64_t col = first_panel * cols_, m = std::min(last_panel * cols_, m_) - col;
  if (form_ == Form::copy || k_ == 0)
    gemm_blas(Product<T>{ra, Read::plain, n, m, k_, alpha, a, lda, data_ + col, m_, beta, c, ldc});
  else
    for (int64_t l = 0; l < k_; l += depth_) {
      const int64_t k = std::min(depth_, k_ - l);
      const T *left = ra == Read::plain ? a + l : a + l * lda, *right = block(l, k, first_panel);
      const T keep = l == 0 ? beta : T(1);
      const bool round = form_ == Form::rounded_panels;
      if (form_ != Form::tiles)
        multiply_block<T>(micro<T>(isa()), {ra, left, lda, round || (m > 4 * cols_ && n * k > 4096), round},
                          {right, k * cols_, cols_, true}, n, m, k, alpha, keep, c, ldc);
#if defined(__x86_64__)
      else if constexpr (sizeof(T) == 4) amx_multiply(ra, left, lda, right, n, m, k, alpha, keep, c, ldc);
#endif
    }
  if (epilogue.bias) add_bias(c, n, m, ldc, epilogue.bias + col);
  if (epilogue.row_map)
    for (int64_t i = 0; i < n; ++i) epilogue.row_map(c + i * ldc, m, first_row + i, col, epilogue.context);
}

template <class T>
void add_bias(T* c, int64_t n, int64_t m, int64_t ldc, const T* bias) {
  vectorised([=](int64_t count) {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < count; ++j) c[i * ldc + j] += bias[j];
  }, m);
}

template void add_bias(float*, int64_t, int64_t, int64_t, const float*);
template void add_bias(double*, int64_t, int64_t, int64_t, const double*);
template class PackedB<float>;
template class PackedB<double>;

}  // namespace sluice::detail
