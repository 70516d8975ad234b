// Panels: how the blocks of a product lie in memory, and the loops over the tiles of one block of k. After Goto and van
// de Geijn (Anatomy of High-Performance Matrix Multiplication, 2008) and BLIS (Van Zee and van de Geijn, 2015): a panel
// of b, the columns of a tile in one block of k, stays in the L1 cache while the rows of a go past it from L2.
#pragma once

#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/gemm/micro.h>

namespace sluice::detail {

/// k is summed in blocks of equal length, at most this.
constexpr int64_t kDepth = 512;
/// Rows of a whose block of k is copied at a time, and stays in L2.
constexpr int64_t kRows = 84;

/// Bytes of a row of b's panels that are packed at a time: with kDepth of them, 2 MiB.
constexpr int64_t kWidth = 4096;

/// `size` cut into the fewest equal pieces of at most `most`: how many, and how long all but perhaps the last are.
struct Cut {
  int64_t count, length;
  Cut(int64_t size, int64_t most) : count(size > 0 ? (size + most - 1) / most : 0), length(count ? (size + count - 1) / count : 0) {}
};

/// Rows of the left operand in one block of k.
template <class T>
struct Left {
  Read read;
  const T* data;
  int64_t ld;
  bool pack;           // copy them first
  bool round = false;  // and round the copies to bf16
};

/// Panels of the right operand in one block of k: packed, or in place.
template <class T>
struct Right {
  const T* data;
  int64_t panel;  // from one panel to the next
  int64_t step;   // from one p to the next
  bool padded;    // columns beyond the last are there, and 0
};

/// Copies k rows of `cols` columns, panel after panel, the last one padded with zeros.
template <class T>
void pack_panels(const Micro<T>& micro, Read read, const T* b, int64_t ldb, int64_t k, int64_t cols, T* to);

/// c [n, m] = alpha · a · b + beta · c for one block of k.
template <class T>
void multiply_block(const Micro<T>& micro, const Left<T>& a, const Right<T>& b, int64_t n, int64_t m, int64_t k, T alpha,
                    T beta, T* c, int64_t ldc);

/// 64-byte aligned memory of this thread, kept for the next product: for rows of a (0) or panels of b (1).
template <class T>
T* pack_memory(int which, int64_t numbers);

}  // namespace sluice::detail
