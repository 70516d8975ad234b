// Packed operands: one block of k after the other, each with the panels of b or the rows of a, as numbers or as tiles
// of bf16. For OpenBLAS (see plan.cpp) packed operands are plain copies.
#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/ladder.h>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>

namespace sluice::detail {

namespace {

/// Tiles of bf16 for each tile of an operand: 3 for f32 in three parts, 0 for packings without tiles.
int64_t parts(Packing packing) { return packing == Packing::tiles ? 1 : packing == Packing::split ? 3 : 0; }

int64_t tiled(int64_t k) { return (k + kAmxStep - 1) / kAmxStep * kAmxStep; }

int64_t block_depth(Packing packing, int64_t k) {
  if (packing == Packing::plain) return k;
  return parts(packing) ? tiled(Cut(k, kAmxDepth).length) : Cut(k, kDepth).length;
}

}  // namespace

template <class T> int64_t PackedB<T>::size(int64_t k, int64_t m) {
  const int64_t cols = micro<T>(isa()).cols, panels = k * ((m + cols - 1) / cols * cols);
  if (sizeof(T) == 8 || !has_bf16_tiles()) return panels;
  return std::max(panels, tiled(k) * ((m + kAmxCols - 1) / kAmxCols * kAmxCols) / 2);
}
template <class T> int64_t PackedA<T>::size(int64_t n, int64_t k) {
  const Cut depth(k, kDepth);
  const int64_t rows = n * std::max(k, depth.count * copied_row(depth.length));
  if (sizeof(T) == 8 || !has_bf16_tiles()) return rows;
  return std::max(rows, (n + kAmxTile - 1) / kAmxTile * kAmxTile * tiled(k) / 2);
}

template <class T> int64_t PackedB<T>::size(int64_t k, int64_t m, Packing packing) {
  return packing == Packing::split ? tiled(k) * ((m + kAmxCols - 1) / kAmxCols * kAmxCols) * 3 / 2 : size(k, m);
}
template <class T> int64_t PackedA<T>::size(int64_t n, int64_t k, Packing packing) {
  return packing == Packing::split ? (n + kAmxTile - 1) / kAmxTile * kAmxTile * tiled(k) * 3 / 2 : size(n, k);
}

template <class T>
PackedB<T>::PackedB(int64_t k, int64_t m, T* memory, Packing packing) : k_(k), m_(m), packing_(packing), data_(memory) {
  cols_ = parts(packing_) ? kAmxCols : micro<T>(isa()).cols, depth_ = block_depth(packing_, k);
}
template <class T>
PackedA<T>::PackedA(int64_t n, int64_t k, T* memory, Packing packing) : n_(n), k_(k), packing_(packing), data_(memory) {
  depth_ = block_depth(packing_, k);
}

template <class T> int64_t PackedB<T>::row_block() const { return parts(packing_) ? 0 : kRows; }
template <class T> int64_t PackedB<T>::near_panels() const {
  return parts(packing_) ? amx_near_panels(depth_, parts(packing_)) : 0;
}

template <class T> void PackedB<T>::fill(Trans tb, const T* b, int64_t ldb, int64_t first_panel, int64_t last_panel) {
  const Micro<T>& u = micro<T>(isa());
  const int64_t col = first_panel * cols_, cols = std::min(last_panel * cols_, m_) - col;
  for (int64_t l = 0; l < k_; l += depth_) {
    const int64_t k = std::min(depth_, k_ - l);
    const T* from = tb == Trans::no ? b + l * ldb + col : b + col * ldb + l;
    T* const to = block(l, k, first_panel);
    switch (packing_) {
      case Packing::plain:
        if (tb == Trans::yes) u.transpose(from, ldb, cols, k, to, m_);
        else
          for (int64_t p = 0; p < k; ++p) std::copy_n(from + p * ldb, cols, to + p * m_);
        break;
      case Packing::tiles:
#if defined(SLUICE_BF16_TILES)
        if constexpr (sizeof(T) == 4) bf16_pack_b(tb, from, ldb, k, cols, to);
#endif
        break;
      case Packing::split:
#if defined(__x86_64__)
        if constexpr (sizeof(T) == 4) amx_split_b(tb, from, ldb, k, cols, to);
#endif
        break;
      default:
        pack_panels(u, tb, from, ldb, k, cols, to);
        if constexpr (sizeof(T) == 4)
          if (packing_ == Packing::rounded) round_to_bf16(to, k * (last_panel - first_panel) * cols_);
    }
  }
}

template <class T> void PackedA<T>::fill(Trans ta, const T* a, int64_t lda, int64_t first, int64_t last) {
  const Micro<T>& u = micro<T>(isa());
  const int64_t rows = last - first;
  for (int64_t l = 0; l < k_; l += depth_) {
    const int64_t k = std::min(depth_, k_ - l);
    const T* from = ta == Trans::no ? a + first * lda + l : a + l * lda + first;
    T* const to = block(l, k, first);
    switch (packing_) {
      case Packing::plain:
        if (ta == Trans::yes) u.transpose(from, lda, k, rows, to, k_);
        else
          for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * lda, k, to + i * k_);
        break;
      case Packing::tiles:
#if defined(SLUICE_BF16_TILES)
        if constexpr (sizeof(T) == 4) bf16_pack_a(ta, from, lda, rows, k, to);
#endif
        break;
      case Packing::split:
#if defined(__x86_64__)
        if constexpr (sizeof(T) == 4) amx_split_a(ta, from, lda, rows, k, to);
#endif
        break;
      default:
        copy_rows(u, ta, from, lda, rows, k, to);
        if constexpr (sizeof(T) == 4)
          if (packing_ == Packing::rounded) round_to_bf16(to, rows * copied_row(k));
    }
  }
}

/// Address of `panel` in the block of k rows that begins at row l.
template <class T> T* PackedB<T>::block(int64_t l, int64_t k, int64_t panel) const {
  if (packing_ == Packing::plain) return data_ + l * m_ + panel * cols_;
  if (!parts(packing_)) return data_ + (l * panels() + panel * k) * cols_;
  return data_ + (l * panels() + panel * tiled(k)) * cols_ * parts(packing_) / 2;
}
/// Address of `row`, or of the tile that begins with it, in the block of k columns that begins at column l.
template <class T> T* PackedA<T>::block(int64_t l, int64_t k, int64_t row) const {
  if (packing_ == Packing::plain) return data_ + row * k_ + l;
  if (!parts(packing_)) return data_ + (l > 0 ? l / depth_ : 0) * n_ * copied_row(depth_) + row * copied_row(k);
  return data_ + (l * ((n_ + kAmxTile - 1) / kAmxTile * kAmxTile) + row * tiled(k)) * parts(packing_) / 2;
}

template <class T>
bool PackedB<T>::multiply(Trans ta, int64_t n, T alpha, const T* a, int64_t lda, T beta, T* c, int64_t ldc,
                          int64_t first_panel, int64_t last_panel, const T* bias) const {
  const int64_t col = first_panel * cols_, m = std::min(last_panel * cols_, m_) - col;
  if (packing_ == Packing::plain || k_ == 0) {
    gemm_blas(Product<T>{ta, Trans::no, n, m, k_, alpha, a, lda, data_ + col, m_, beta, c, ldc});
    if (bias) add_bias(c, n, m, ldc, bias + col);
    return true;
  }
  bool finite = true;
  for (int64_t l = 0; l < k_; l += depth_) {
    const int64_t k = std::min(depth_, k_ - l);
    const T* const last = bias && l + k == k_ ? bias + col : nullptr;
    const T *left = ta == Trans::no ? a + l : a + l * lda, *right = block(l, k, first_panel);
    const T keep = l == 0 ? beta : T(1);
    if (parts(packing_)) {
#if defined(SLUICE_BF16_TILES)
      if constexpr (sizeof(T) == 4)
        if (packing_ == Packing::tiles)
          bf16_pack_and_multiply(ta, left, lda, right, n, m, k, alpha, keep, c, ldc, last);
#endif
#if defined(__x86_64__)
      if constexpr (sizeof(T) == 4)
        if (packing_ == Packing::split)
          finite &= amx_split_and_multiply(ta, left, lda, right, n, m, k, alpha, keep, c, ldc, last);
#endif
      continue;
    }
    const Micro<T>& u = micro<T>(isa());
    const Right<T> panels{right, k * cols_, cols_, true};
    const bool round = packing_ == Packing::rounded;
    if (round || copy_pays(m, cols_, n * k))
      copy_and_multiply(u, ta, left, lda, round, panels, n, m, k, alpha, keep, c, ldc, last);
    else multiply_block(u, in_place(ta, left, lda), panels, n, m, k, alpha, keep, c, ldc, last);
  }
  return finite;
}

template <class T>
bool PackedB<T>::multiply(const PackedA<T>& a, int64_t first_row, int64_t n, T alpha, T beta, T* c, int64_t ldc,
                          int64_t first_panel, int64_t last_panel, const T* bias) const {
  if (packing_ == Packing::plain || k_ == 0)
    return multiply(Trans::no, n, alpha, a.block(0, k_, first_row), k_, beta, c, ldc, first_panel, last_panel, bias);
  const int64_t col = first_panel * cols_, m = std::min(last_panel * cols_, m_) - col;
  bool finite = true;
  for (int64_t l = 0; l < k_; l += depth_) {
    const int64_t k = std::min(depth_, k_ - l);
    const T *left = a.block(l, k, first_row), *right = block(l, k, first_panel);
    const T* const last = bias && l + k == k_ ? bias + col : nullptr;
    const T keep = l == 0 ? beta : T(1);
    if (!parts(packing_))
      multiply_block<T>(micro<T>(isa()), {left, copied_row(k), 1}, {right, k * cols_, cols_, true}, n, m, k, alpha,
                        keep, c, ldc, last);
#if defined(SLUICE_BF16_TILES)
    if constexpr (sizeof(T) == 4)
      if (packing_ == Packing::tiles) bf16_multiply(left, right, n, m, k, alpha, keep, c, ldc, last);
#endif
#if defined(__x86_64__)
    if constexpr (sizeof(T) == 4)
      if (packing_ == Packing::split) finite &= amx_multiply_split(left, right, n, m, k, alpha, keep, c, ldc, last);
#endif
  }
  return finite;
}

template <class T> void add_bias(T* c, int64_t n, int64_t m, int64_t ldc, const T* bias) {
  vectorised(
      [=](int64_t count) {
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < count; ++j) c[i * ldc + j] += bias[j];
      },
      m);
}

template void add_bias(float*, int64_t, int64_t, int64_t, const float*);
template void add_bias(double*, int64_t, int64_t, int64_t, const double*);
template class PackedA<float>;
template class PackedA<double>;
template class PackedB<float>;
template class PackedB<double>;

}  // namespace sluice::detail
