// Packed operands: one block of k after the other, each with the panels of b or the rows of a, as numbers or as tiles
// of bf16. For OpenBLAS (see plan.cpp) packed operands are plain copies.
#include <sluice/core/kernel/vectorise.h>
#include <sluice/core/tensor.h>
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/ladder.h>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>

namespace sluice::detail {

namespace {

/// Tiles of bf16 for each tile of an operand: 3 for f32 in three parts, 0 for packings without tiles.
int64_t parts(Packing packing) { return packing == Packing::tiles ? 1 : packing == Packing::split ? 3 : 0; }

int64_t tiled(int64_t k) { return round_up(k, kAmxStep); }

int64_t block_depth(Packing packing, int64_t k) {
  if (packing == Packing::plain) return k;
  return parts(packing) ? tiled(Cut(k, kAmxDepth).length) : Cut(k, kDepth).length;
}

}  // namespace

template <class T> int64_t PackedB<T>::size(int64_t k, int64_t m) {
  const int64_t cols = micro<T>(isa()).cols, panels = k * round_up(m, cols);
  if (sizeof(T) == 8 || !has_bf16_tiles()) return panels;
  return std::max(panels, tiled(k) * round_up(m, kAmxCols) / 2);
}
template <class T> int64_t PackedA<T>::size(int64_t n, int64_t k) {
  const Cut depth(k, kDepth);
  const int64_t rows = n * std::max(k, depth.count * copied_row(depth.length));
  if (sizeof(T) == 8 || !has_bf16_tiles()) return rows;
  return std::max(rows, round_up(n, kAmxTile) * tiled(k) / 2);
}

template <class T> int64_t PackedB<T>::size(int64_t k, int64_t m, Packing packing) {
  return packing == Packing::split ? tiled(k) * round_up(m, kAmxCols) * 3 / 2 : size(k, m);
}
template <class T> int64_t PackedA<T>::size(int64_t n, int64_t k, Packing packing) {
  return packing == Packing::split ? round_up(n, kAmxTile) * tiled(k) * 3 / 2 : size(n, k);
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
template <class T> int64_t PackedB<T>::tile_rows() const { return parts(packing_) ? kAmxTile : micro<T>(isa()).rows; }
template <class T> int64_t PackedB<T>::near_panels() const {
  return parts(packing_) ? amx_near_panels(depth_, parts(packing_)) : 0;
}

namespace {

/// Packs one block of k: `count` rows of a left operand or columns of a right one. plain: leading dimension of plain
/// copies. Tiles take numbers of bf16 as they are; for other packings the numbers are widened.
template <class T, class X>
void pack(Packing packing, bool left, Trans trans, const X* x, int64_t ld, int64_t count, int64_t k, T* to,
          int64_t plain) {
  const bool turned = trans == Trans::yes, along = turned != left;
#if defined(SLUICE_BF16_TILES)
  if constexpr (sizeof(T) == 4)
    if (packing == Packing::tiles) return bf16_pack(x, ld, along, turned, count, k, to);
#endif
  if constexpr (sizeof(X) < sizeof(T)) {
    const int64_t rows = along ? count : k, cols = along ? k : count;
    Tensor wide = empty({rows, cols});
    widen_rows(x, ld, rows, cols, wide.mutable_data<float>(), cols);
    pack<T>(Packing::panels, left, trans, wide.data<float>(), cols, count, k, to, plain);
  } else {
    const Micro<T>& u = micro<T>(isa());
#if defined(__x86_64__)
    if constexpr (sizeof(T) == 4)
      if (packing == Packing::split) return amx_split(x, ld, along, turned, count, k, to);
#endif
    if (packing == Packing::plain) return copy_rows(u, trans, x, ld, left ? count : k, left ? k : count, to, plain);
    if (left) copy_rows(u, trans, x, ld, count, k, to, copied_row(k));
    else pack_panels(u, trans, x, ld, k, count, to);
    if constexpr (sizeof(T) == 4)
      if (packing == Packing::rounded) round_to_bf16(to, left ? count * copied_row(k) : k * round_up(count, u.cols));
  }
}

}  // namespace

template <class T>
template <class X>
void PackedB<T>::fill(Trans tb, const X* b, int64_t ldb, int64_t first_panel, int64_t last_panel) {
  const int64_t col = first_panel * cols_, cols = std::min(last_panel * cols_, m_) - col;
  for (int64_t l = 0; l < k_; l += depth_) {
    const int64_t k = std::min(depth_, k_ - l);
    const X* from = tb == Trans::no ? b + l * ldb + col : b + col * ldb + l;
    pack(packing_, false, tb, from, ldb, cols, k, block(l, k, first_panel), m_);
  }
}

template <class T>
template <class X>
void PackedA<T>::fill(Trans ta, const X* a, int64_t lda, int64_t first, int64_t last) {
  for (int64_t l = 0; l < k_; l += depth_) {
    const int64_t k = std::min(depth_, k_ - l);
    const X* from = ta == Trans::no ? a + first * lda + l : a + l * lda + first;
    pack(packing_, true, ta, from, lda, last - first, k, block(l, k, first), k_);
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
  return data_ + (l * round_up(n_, kAmxTile) + row * tiled(k)) * parts(packing_) / 2;
}

/// Calls f(l, right, to) for each block of k, which begins at row l. to: the whole product, but for its columns and k.
template <class T>
template <class F>
bool PackedB<T>::each_block(const Block<T>& whole, int64_t first, int64_t last, F f) const {
  const int64_t col = first * cols_;
  bool finite = true;
  for (int64_t l = 0; l < k_; l += depth_) {
    Block<T> to = whole;
    to.m = std::min(last * cols_, m_) - col, to.k = std::min(depth_, k_ - l);
    if (l > 0) to.beta = T(1);
    if (l + to.k < k_) to.bias = nullptr, to.rounded = {};
    else if (to.bias) to.bias += col;
    finite &= f(l, block(l, to.k, first), to);
  }
  return finite;
}

template <class T>
bool PackedB<T>::multiply(Trans ta, int64_t n, T alpha, const T* a, int64_t lda, T beta, T* c, int64_t ldc,
                          int64_t first_panel, int64_t last_panel, const T* bias) const {
  if (packing_ == Packing::plain || k_ == 0) {
    const int64_t col = first_panel * cols_, m = std::min(last_panel * cols_, m_) - col;
    gemm_blas(Product<T>{ta, Trans::no, n, m, k_, alpha, a, lda, data_ + col, m_, beta, c, ldc});
    if (bias) add_bias(c, n, m, ldc, bias + col);
    return true;
  }
  const Block<T> whole{n, m_, k_, alpha, beta, c, ldc, bias};
  return each_block(whole, first_panel, last_panel, [&](int64_t l, T* right, const Block<T>& to) {
    const T* left = ta == Trans::no ? a + l : a + l * lda;
    if constexpr (sizeof(T) == 4) {
#if defined(SLUICE_BF16_TILES)
      if (packing_ == Packing::tiles) return bf16_pack_and_multiply(ta, left, lda, right, to), true;
#endif
#if defined(__x86_64__)
      if (packing_ == Packing::split) return amx_split_and_multiply(ta, left, lda, right, to);
#endif
    }
    const Micro<T>& u = micro<T>(isa());
    const Right<T> panels{right, to.k * cols_, cols_, true};
    const bool round = packing_ == Packing::rounded;
    if (round || copy_pays(to.m, cols_, n * to.k)) copy_and_multiply(u, ta, left, lda, round, panels, to);
    else multiply_block(u, in_place(ta, left, lda), panels, to);
    return true;
  });
}

template <class T>
bool PackedB<T>::multiply(const PackedA<T>& a, int64_t first_row, int64_t n, T alpha, T beta, T* c, int64_t ldc,
                          int64_t first_panel, int64_t last_panel, const T* bias) const {
  if (packing_ == Packing::plain || k_ == 0)
    return multiply(Trans::no, n, alpha, a.block(0, k_, first_row), k_, beta, c, ldc, first_panel, last_panel, bias);
  return multiply(a, first_row, Block<T>{n, m_, k_, alpha, beta, c, ldc, bias}, first_panel, last_panel);
}

template <class T>
bool PackedB<T>::multiply(const PackedA<T>& a, int64_t first_row, Block<T> whole, int64_t first_panel,
                          int64_t last_panel) const {
  return each_block(whole, first_panel, last_panel, [&](int64_t l, T* right, const Block<T>& to) {
    const T* left = a.block(l, to.k, first_row);
    if constexpr (sizeof(T) == 4) {
#if defined(SLUICE_BF16_TILES)
      if (packing_ == Packing::tiles) return bf16_multiply(left, right, to), true;
#endif
#if defined(__x86_64__)
      if (packing_ == Packing::split) return amx_multiply_split(left, right, to);
#endif
    }
    multiply_block<T>(micro<T>(isa()), {left, copied_row(to.k), 1}, {right, to.k * cols_, cols_, true}, to);
    return true;
  });
}

template <class T>
void PackedB<T>::multiply(const PackedA<T>& a, int64_t first_row, int64_t n, T* sums, int64_t ld_sums, BFloat16* c,
                          int64_t ldc, int64_t first_panel, int64_t last_panel, const T* bias) const {
  if constexpr (sizeof(T) == 4) {
    const bool at_once = packing_ == Packing::tiles && isa() == Isa::avx512_bf16;  // by the instructions that multiply
    Block<T> whole{n, m_, k_, T(1), T(0), sums, ld_sums, bias};
    if (at_once) whole.rounded = {c, ldc};
    multiply(a, first_row, whole, first_panel, last_panel);
    if (!at_once) round_rows(sums, ld_sums, n, std::min(last_panel * cols_, m_) - first_panel * cols_, c, ldc);
  }
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
template void PackedA<float>::fill(Trans, const float*, int64_t, int64_t, int64_t);
template void PackedA<float>::fill(Trans, const BFloat16*, int64_t, int64_t, int64_t);
template void PackedA<double>::fill(Trans, const double*, int64_t, int64_t, int64_t);
template void PackedB<float>::fill(Trans, const float*, int64_t, int64_t, int64_t);
template void PackedB<float>::fill(Trans, const BFloat16*, int64_t, int64_t, int64_t);
template void PackedB<double>::fill(Trans, const double*, int64_t, int64_t, int64_t);

}  // namespace sluice::detail
