// Copies of transposed tensors. Tiles go through shared memory, so that a warp reads and writes neighbours.
#pragma once

#include <sluice/cuda/vectors.cuh>

#include <optional>

namespace sluice::cuda {

/// A copy into contiguous memory whose rows are columns of the source, as of transposed matrices: neighbours along dim
/// `along` in the source, along the last one in the result.
struct TransposedCopy {
  sluice::detail::StridedRange in;
  int64_t strides[kMaxRank];  // of the result
  int along;

  SLUICE_FN int64_t rows() const { return in.shape[along]; }
  SLUICE_FN int64_t columns() const { return in.shape[in.rank - 1]; }
  int64_t tiles(int64_t numel, int64_t side) const {
    return numel / (rows() * columns()) * ceil_div(rows(), side) * ceil_div(columns(), side);
  }
};
inline std::optional<TransposedCopy> transposed(const sluice::detail::StridedRange& from,
                                                const sluice::detail::StridedRange& to) {
  const int last = from.rank - 1;
  if (!to.contiguous || last < 1 || from.strides[last] == 1 || from.shape[last] < 8) return std::nullopt;
  std::optional<TransposedCopy> found;
  for (int d = 0; d < last; ++d)
    if (from.strides[d] == 1 && from.shape[d] >= 8) found = TransposedCopy{from, {}, d};
  int64_t size = 1;
  for (int d = last; found && d >= 0; size *= from.shape[d--]) found->strides[d] = size;
  return found;
}

/// Where a tile begins: its row and column of the result, and their places in memory.
struct TilePlace {
  int64_t row, column, from, to;
};
__device__ inline TilePlace place_of(const TransposedCopy& c, int64_t tile, int64_t side) {
  const Divided across = divided(tile, ceil_div(c.columns(), side));
  Divided rest = divided(across.quotient, ceil_div(c.rows(), side));
  const int last = c.in.rank - 1;
  TilePlace p{rest.rest * side, across.rest * side, 0, 0};
  p.from = p.row + p.column * c.in.strides[last], p.to = p.row * c.strides[c.along] + p.column;
  for (int d = last - 1; d >= 0; --d)
    if (d != c.along) {
      rest = divided(rest.quotient, c.in.shape[d]);
      p.from += rest.rest * c.in.strides[d], p.to += rest.rest * c.strides[d];
    }
  return p;
}

/// Tiles of 32 × 32, number by number. Limited by memory and by the instructions for each number.
constexpr int kSide = 32;
template <class S, class T>
__global__ void __launch_bounds__(kThreads)
    copy_transposed(const S* source, T* target, TransposedCopy c, int64_t tiles) {
  const Shared<T> tile = static_shared<T, kSide*(kSide + 1), TransposedCopy>();
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  const int64_t line = c.in.strides[c.in.rank - 1];
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const TilePlace p = place_of(c, index, kSide);
    for (int i = y; i < kSide; i += kThreads / kSide)
      if (p.row + x < c.rows() && p.column + i < c.columns())
        tile[i * (kSide + 1) + x] = sluice::detail::convert<T>(source[p.from + x + i * line]);
    __syncthreads();
    for (int i = y; i < kSide; i += kThreads / kSide)
      if (p.row + i < c.rows() && p.column + x < c.columns())
        target[p.to + i * c.strides[c.along] + x] = tile[x * (kSide + 1) + i];
    __syncthreads();  // only a grid of 2^31 blocks comes here twice
  }
}

/// A square of `kVector` pieces of 16 bytes, which a thread transposes in registers. Numbers are W, and keep their
/// bits.
template <class W> struct Square {
  static constexpr int kVector = 16 / sizeof(W);
  Bytes16<uint32_t> x[kVector];
  __device__ Square transposed() const {
    Square y;
#pragma unroll
    for (int row = 0; row < kVector; ++row)
#pragma unroll
      for (int word = 0; word < 4; ++word) y.x[row].x[word] = word_of(row, word);
    return y;
  }

 private:
  /// Word `word` of column `column`.
  __device__ uint32_t word_of(int column, int word) const {
    if constexpr (sizeof(W) == 8) {
      return x[word / 2].x[2 * column + word % 2];
    } else if constexpr (sizeof(W) == 4) {
      return x[word].x[column];
    } else {
      const uint32_t low = x[2 * word].x[column / 2], high = x[2 * word + 1].x[column / 2];
      return column % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
    }
  }
};

/// Tiles of 16 × 16 squares, a square for each thread, in reads and writes of 16 bytes. Shared memory has the pieces of
/// a row of the result in another order in every square, so that no two threads meet in a bank. Limited by memory.
template <class W>
__global__ void __launch_bounds__(kThreads)
    transpose_squares(const W* source, W* target, TransposedCopy c, int64_t tiles) {
  constexpr int vector = Square<W>::kVector, squares = 16, side = squares * vector;
  static_assert(squares * squares == kThreads);
  const Shared<Bytes16<uint32_t>> tile = static_shared<Bytes16<uint32_t>, side * squares, Square<W>>();
  const auto place = [](int row, int piece) { return row * squares + (piece ^ row / vector); };
  const int x = static_cast<int>(threadIdx.x) % squares, y = static_cast<int>(threadIdx.x) / squares;
  const int64_t line = c.in.strides[c.in.rank - 1], row_of_result = c.strides[c.along];
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const TilePlace p = place_of(c, index, side);
    if (p.row + x * vector < c.rows() && p.column + y * vector < c.columns()) {
      Square<W> square;
#pragma unroll
      for (int i = 0; i < vector; ++i)
        square.x[i] =
            *reinterpret_cast<const Bytes16<uint32_t>*>(source + p.from + x * vector + (y * vector + i) * line);
      square = square.transposed();
#pragma unroll
      for (int i = 0; i < vector; ++i) tile[place(x * vector + i, y)] = square.x[i];
    }
    __syncthreads();
    if (p.row + y * vector < c.rows() && p.column + x * vector < c.columns())
#pragma unroll
      for (int i = 0; i < vector; ++i) {
        const int row = y * vector + i;
        const Bytes16<uint32_t> piece = tile[place(row, x)];
        store_words(target + p.to + row * row_of_result + x * vector, piece.x);
      }
    __syncthreads();  // only a grid of 2^31 blocks comes here twice
  }
}

/// True if the copy consists of whole squares whose rows begin at multiples of 16 bytes.
template <class W> bool has_squares(const TransposedCopy& c, const void* source, const void* target) {
  constexpr int64_t vector = Square<W>::kVector;
  bool whole = is_aligned_16(source) && is_aligned_16(target) && c.rows() % vector == 0 && c.columns() % vector == 0;
  for (int d = 0; d < c.in.rank; ++d) whole &= d == c.along || c.in.strides[d] % vector == 0;
  return whole;
}

/// Copies `numel` numbers.
template <class S, class T> void copy(const S* source, T* target, const TransposedCopy& c, int64_t numel) {
  if constexpr (std::is_same_v<S, T>) {
    using W = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
    if (has_squares<W>(c, source, target)) {
      const int64_t tiles = c.tiles(numel, 16 * Square<W>::kVector);
      return launch(transpose_squares<W>, grid_of(tiles), dim3(kThreads), 0, reinterpret_cast<const W*>(source),
                    reinterpret_cast<W*>(target), c, tiles);
    }
  }
  const int64_t tiles = c.tiles(numel, kSide);
  launch(copy_transposed<S, T>, grid_of(tiles), dim3(kThreads), 0, source, target, c, tiles);
}

}  // namespace sluice::cuda
