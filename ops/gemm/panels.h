// Panels: the layout of the blocks of a product, and the loops over the tiles of one block of k. After Goto and van
// de Geijn (Anatomy of High-Performance Matrix Multiplication, 2008) and BLIS (Van Zee and van de Geijn, 2015): a panel
// of b, the columns of a tile in one block of k, stays in the L1 cache while the rows of a go past it from L2.
#pragma once

#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/gemm/micro.h>

namespace sluice::detail {

/// k is summed in blocks of equal length, at most this.
constexpr int64_t kDepth = 512;
/// Rows of a that are copied at a time, for one block of k; the copy stays in L2 (168 KiB in f32). The more rows, the
/// more often each panel of b is used, which may come from far away.
constexpr int64_t kRows = 84;

/// Bytes of a row of b that are packed at a time: kDepth rows are 2 MiB.
constexpr int64_t kWidth = 4096;

/// Splits `size` into the fewest equal pieces of at most `most`. length: of each piece, the last may be shorter.
struct Cut {
  int64_t count, length;
  Cut(int64_t size, int64_t most)
      : count(size > 0 ? ceil_div(size, most) : 0), length(count ? ceil_div(size, count) : 0) {}
};

/// Rows of the left operand in one block of k: a_p of row i at data[i · row + p · k]. grouped: in groups of a tile's
/// height h, one after the other, each as k rows of h.
template <class T> struct Left {
  const T* data;
  int64_t row, k;
  bool grouped = false;
};

/// Where a right operand lies that is packed panel by panel, each just before rows first meet it.
template <class T> struct Source {
  Trans trans;
  const T* b;
  int64_t ld;
  T* to;  // the panels
};

/// Panels of the right operand in one block of k: packed, or in place.
template <class T> struct Right {
  const T* data;
  int64_t panel;  // from one panel to the next; 0: each takes the place of the one before
  int64_t step;   // from one p to the next
  bool packed;
  const Source<T>* source = nullptr;  // if not null, data is yet to be packed from there
};

/// Copies k rows of `cols` columns, panel after panel, the last one padded with zeros.
template <class T>
void pack_panels(const Micro<T>& micro, Trans trans, const T* b, int64_t ldb, int64_t k, int64_t cols, T* to);

/// Numbers from one copied row of a to the next, padded so that rows of 2ⁿ numbers do not share a set of the cache.
inline int64_t copied_row(int64_t k) { return round_up(k, 16) + 16; }
/// Copies n rows of k, `ld` numbers from one to the next.
template <class T>
void copy_rows(const Micro<T>& micro, Trans trans, const T* a, int64_t lda, int64_t n, int64_t k, T* to, int64_t ld);

/// One block of k.
template <class T> void multiply_block(const Micro<T>& micro, const Left<T>& a, const Right<T>& b, const Block<T>& to);
/// The same, but first copies some rows of a at a time, and rounds them to bf16 if `round`.
template <class T>
void copy_and_multiply(const Micro<T>& micro, Trans trans, const T* a, int64_t lda, bool round, const Right<T>& b,
                       const Block<T>& to);
/// The left operand where it lies, not copied.
template <class T> Left<T> in_place(Trans trans, const T* a, int64_t lda) {
  return trans == Trans::no ? Left<T>{a, lda, 1} : Left<T>{a, 1, lda};
}

/// Returns 64-byte aligned memory of this thread, which is kept for the next product. which: 0 for rows of a, 1 for
/// panels of b, 2 for widened rows of a.
template <class T> T* pack_memory(int which, int64_t numbers);

/// Calls f(first, rows, tiles) for some rows of a left operand at a time, with memory for their tiles of bf16: k
/// numbers a row in `parts` parts. The tiles fit beside the panels of b in L2: 768 KiB of 2 MiB with AMX, else 256 KiB
/// of 1 MiB.
template <class F> void by_packed_rows(int64_t n, int64_t k, int64_t parts, F f) {
  constexpr int64_t kSide = 2 * kAmxTile;
  const int64_t row = round_up(k, kAmxStep) * parts / 2;          // of floats
  const int64_t near = int64_t{isa() == Isa::amx ? 3 : 1} << 16;  // floats
  const int64_t block = round_up(Cut(n, std::max(kSide, near / row / kSide * kSide)).length, kSide);
  float* const tiles = pack_memory<float>(0, block * row);
  for (int64_t first = 0; first < n; first += block) f(first, std::min(block, n - first), tiles);
}

}  // namespace sluice::detail
