// The delta rule through the tiles of a head, forwards with the state S and backwards with X = dL/dS. A block has N
// columns, and as many pieces of N rows of S as shared memory holds; the others wait in the cache. What limits it: as
// simt.cuh, and the number of heads, for one tile waits for another.
#pragma once

#include <sluice/cuda/scan/delta.cuh>

namespace sluice::cuda {

/// Pieces of S in shared memory: all, or 1. Three or four further tiles are there.
template <class T, class Tile> int delta_slots(int64_t pieces, int others) {
  constexpr int64_t most = 227 * 1024 / (Tile::size * sizeof(T)) - 1;  // the decays need the rest
  return static_cast<int>(pieces + others <= most ? pieces : 1);
}
template <class T, class Tile> std::size_t delta_bytes(int slots, int others) {
  return ((slots + others) * Tile::size + 2 * Tile::steps) * sizeof(T);
}

/// The pieces of S in shared memory, for columns from `col` on. Where they are not all there, load() brings one and
/// store() puts it back.
template <class T, class Tile> struct DeltaPieces {
  static constexpr int N = Tile::steps, ld = Tile::ld;
  Shared<T> memory;
  T* home;  // [dk, dv]
  int64_t dk, dv, col;
  int cols, slots, pieces;

  __device__ bool all_there() const { return slots == pieces; }
  __device__ Shared<T> at(int piece) const { return memory + (all_there() ? piece : 0) * Tile::size; }
  __device__ int rows(int piece) const {
    const int64_t left = dk - int64_t{piece} * N;
    return static_cast<int>(left < N ? left : N);
  }
  __device__ void load(int piece) const {
    const T* const from = home + int64_t{piece} * N * dv + col;
    const int64_t width = dv;
    fill_rows<Tile>(at(piece), rows(piece), cols, [from, width](int r, int c) { return from[r * width + c]; });
  }
  /// Each thread stores its 4×4 numbers.
  __device__ void store(int piece, T* to) const {
    const int row = static_cast<int>(threadIdx.x) / Tile::across * 4,
              c = static_cast<int>(threadIdx.x) % Tile::across * 4;
    const Shared<T> from = at(piece);
    to += (int64_t{piece} * N + row) * dv + col + c;
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int d = 0; d < 4; ++d)
        if (row + r < rows(piece) && c + d < cols) to[r * dv + d] = from[(row + r) * ld + c + d];
  }
};

/// numbers(i, c) of rows [count, width] from `from` on.
template <class T> __device__ auto rows_from(const T* from, int64_t width) {
  return [from, width](int i, int c) { return from[i * width + c]; };
}

template <class Tile, class T> __device__ void store_tile(Shared<T> to, const T (&x)[4][4], int first, int count) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    T row[4];
#pragma unroll
    for (int d = 0; d < 4; ++d) row[d] = first + r < count ? x[r][d] : T(0);
    store_4(to + (first + r) * Tile::ld, row);
  }
}
/// Stores up to `count` rows and `columns` columns of 4×4 numbers.
template <class T> __device__ void store_rows(T* to, int64_t stride, const T (&x)[4][4], int count, int columns) {
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int d = 0; d < 4; ++d)
      if (r < count && d < columns) to[r * stride + d] = x[r][d];
}

/// e^{L_end} of the channels of a piece.
template <class T>
__device__ void load_ends(const DeltaView<T>& s, int64_t from, int channels, Shared<T> whole, Shared<T> rest) {
  if (const int c = static_cast<int>(threadIdx.x); c < up_to_4(channels))
    whole[c] = c < channels ? s.whole[from + c] : T(0), rest[c] = c < channels ? s.rest[from + c] : T(0);
}

/// u and o of each tile, and S behind it: ops/scan/delta_scan_forward.cpp. Does not step by gridDim: heads_at_once()
/// and memory keep the blocks below 2^31.
template <class T, int N, ScanDecay decay>
__global__ void __launch_bounds__(DeltaTile<N, decay>::threads, N == 64 ? 2 : 4)
    delta_sweep_kernel(DeltaView<T> s, HeadRows<T> out, DeltaStates<T> states) {
  using Tile = DeltaTile<N, decay>;
  const int thread = static_cast<int>(threadIdx.x), tx = thread % Tile::across, t0 = thread / Tile::across * 4;
  const Shared<T> memory = dynamic_shared<T>(), x = memory, y = x + Tile::size, u = y + Tile::size;
  const Shared<T> whole = u + (1 + states.slots) * Tile::size, rest = whole + N;
  const int64_t job = blockIdx.x / s.col_tiles, jobs_of_head = states.one_tile_a_block ? s.cut.tiles : 1;
  const int col_tile = static_cast<int>(blockIdx.x % s.col_tiles);
  const DeltaHead at = s.at(job / jobs_of_head);
  const int64_t size = s.dk * s.dv, begin = states.one_tile_a_block ? job % jobs_of_head : 0,
                end = states.one_tile_a_block ? begin + 1 : s.cut.tiles, col = int64_t{col_tile} * N;
  const int cols = s.template columns_of<N>(col_tile);
  const bool own = 4 * tx < cols, reads = s.q.base && !states.u;
  T* const kept = states.kept ? states.kept + at.local * ceil_div(s.cut.tiles, states.every) * size : nullptr;
  const DeltaPieces<T, Tile> state{
      .memory = u + Tile::size,
      .home = states.one_tile_a_block ? kept + begin * size : states.state + at.local * size,
      .dk = s.dk,
      .dv = s.dv,
      .col = col,
      .cols = cols,
      .slots = states.slots,
      .pieces = s.key_tiles};
  if (state.all_there())
    for (int p = 0; p < s.key_tiles; ++p) state.load(p);
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = s.cut.first(tile);
    const int count = s.cut.count(tile);
    const bool busy = t0 < count && own, keeps = kept && !states.one_tile_a_block && tile % states.every == 0;
    T said[4][4] = {}, read[4][4] = {};
    for (int p = 0; p < s.key_tiles; ++p) {
      const int channels = state.rows(p);
      const int64_t from = s.row(at, first) * s.dk + int64_t{p} * N;
      fill_rows<Tile>(x, count, channels, rows_from(s.far_erase + from, s.dk));
      if (reads) fill_rows<Tile>(y, count, channels, rows_from(s.far_q + from, s.dk));
      if (!state.all_there()) state.load(p);
      __syncthreads();  // the piece is complete
      if (keeps) state.store(p, kept + tile / states.every * size);
      if (busy) multiply_state<Tile>(said, x, state.at(p) + 4 * tx, t0, channels);
      if (busy && reads) multiply_state<Tile>(read, y, state.at(p) + 4 * tx, t0, channels);
      __syncthreads();  // all threads have used it
    }
    fill_rows<Tile>(x, count, count, rows_from(s.solve + s.row(at, first) * N, int64_t{N}));
    if (reads) fill_rows<Tile>(y, count, count, rows_from(s.pairs + s.row(at, first) * N, int64_t{N}));
    if (busy) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int d = 0; d < 4; ++d)
          if (t0 + r < count && 4 * tx + d < cols)
            said[r][d] = s.write.at(at.b, at.h, first + t0 + r)[col + 4 * tx + d] - said[r][d];
      store_tile<Tile>(u + 4 * tx, said, t0, count);
    }
    __syncthreads();  // w − r is complete
    T solved[4][4] = {};
    if (busy) add_weighted<Tile>(solved, x, u + 4 * tx, t0);
    __syncthreads();  // all threads have read it
    if (busy) store_tile<Tile>(u + 4 * tx, solved, t0, count);
    __syncthreads();  // u is complete
    if (busy && reads) add_weighted<Tile>(read, y, u + 4 * tx, t0);
    if (busy) {
      if (!reads) {
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int d = 0; d < 4; ++d) read[r][d] = solved[r][d];
      }
      T* const to = states.u ? states.u + s.row(at, first + t0) * s.dv : out.at(at.b, at.h, first + t0);
      store_rows(to + col + 4 * tx, states.u ? s.dv : out.row, read, count - t0, cols - 4 * tx);
    }
    if (states.one_tile_a_block) return;
    for (int p = 0; p < s.key_tiles; ++p) {
      const int channels = state.rows(p);
      fill_rows<Tile>(x, count, channels, rows_from(s.carried + s.row(at, first) * s.dk + int64_t{p} * N, s.dk));
      if (decay != ScanDecay::none) load_ends(s, s.of_tile(at, tile) * s.dk + int64_t{p} * N, channels, whole, rest);
      if (!state.all_there()) state.load(p);
      __syncthreads();  // the piece is complete
      if (t0 < channels && own) add_to_state<Tile, decay>(state.at(p), x, u, whole, whole, rest, count, t0, 4 * tx);
      if (!state.all_there()) state.store(p, state.home);
      __syncthreads();  // all threads have used it
    }
  }
  if (state.all_there())
    for (int p = 0; p < s.key_tiles; ++p) state.store(p, state.home);
}

/// dw of each tile, from the last to the first, with X = dL/dS behind it: ops/scan/scan_backward.cpp.
/// `states.kept` receives X behind each tile. Does not step by gridDim: heads_at_once() and memory keep the blocks
/// below 2^31.
template <class T, int N, ScanDecay decay>
__global__ void __launch_bounds__(DeltaTile<N, decay>::threads, N == 64 ? 2 : 4)
    delta_backwards_kernel(DeltaView<T> s, HeadRows<const T> dout, HeadRows<T> dwrite, DeltaStates<T> states) {
  using Tile = DeltaTile<N, decay>;
  const int thread = static_cast<int>(threadIdx.x), tx = thread % Tile::across, t0 = thread / Tile::across * 4;
  const Shared<T> memory = dynamic_shared<T>(), x = memory, a = x + Tile::size, g = a + Tile::size, u = g + Tile::size;
  const Shared<T> whole = u + (1 + states.slots) * Tile::size, rest = whole + N;
  const int col_tile = static_cast<int>(blockIdx.x % s.col_tiles);
  const DeltaHead at = s.at(blockIdx.x / s.col_tiles);
  const int64_t size = s.dk * s.dv, col = int64_t{col_tile} * N;
  const int cols = s.template columns_of<N>(col_tile);
  const bool own = 4 * tx < cols;
  const DeltaPieces<T, Tile> after{.memory = u + Tile::size,
                                   .home = states.state + at.local * size,
                                   .dk = s.dk,
                                   .dv = s.dv,
                                   .col = col,
                                   .cols = cols,
                                   .slots = states.slots,
                                   .pieces = s.key_tiles};
  if (after.all_there())
    for (int p = 0; p < s.key_tiles; ++p) after.load(p);
  for (int64_t tile = s.cut.tiles - 1; tile >= 0; --tile) {
    const int64_t first = s.cut.first(tile), pairs = s.row(at, first) * N;
    const int count = s.cut.count(tile);
    const bool busy = t0 < count && own;
    T du[4][4] = {}, dw[4][4] = {};
    for (int p = 0; p < s.key_tiles; ++p) {
      fill_rows<Tile>(x, count, after.rows(p), rows_from(s.carried + s.row(at, first) * s.dk + int64_t{p} * N, s.dk));
      if (!after.all_there()) after.load(p);
      __syncthreads();  // the piece is complete
      after.store(p, states.kept + s.of_tile(at, tile) * size);
      if (busy) multiply_state<Tile>(du, x, after.at(p) + 4 * tx, t0, after.rows(p));
      __syncthreads();  // all threads have used it
    }
    fill_turned<Tile>(a, count, count, rows_from(s.pairs + pairs, int64_t{N}));
    fill_rows<Tile>(g, count, cols, rows_from(dout.at(at.b, at.h, first) + col, dout.row));
    __syncthreads();  // Pᵀ and do are complete
    if (busy) multiply_state<Tile>(du, a, g + 4 * tx, t0, count);
    if (busy) store_tile<Tile>(u + 4 * tx, du, t0, count);
    __syncthreads();  // all threads have read Pᵀ
    fill_turned<Tile>(a, count, count, rows_from(s.solve + pairs, int64_t{N}));
    __syncthreads();  // its inverse, turned, and du are complete
    if (busy) multiply_state<Tile>(dw, a, u + 4 * tx, t0, count);
    __syncthreads();  // all threads have read them
    if (busy) {
      store_rows(dwrite.at(at.b, at.h, first + t0) + col + 4 * tx, dwrite.row, dw, count - t0, cols - 4 * tx);
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int d = 0; d < 4; ++d) dw[r][d] = -dw[r][d];
      store_tile<Tile>(u + 4 * tx, dw, t0, count);
    }
    for (int p = 0; p < s.key_tiles; ++p) {
      const int channels = after.rows(p);
      const int64_t from = s.row(at, first) * s.dk + int64_t{p} * N;
      fill_rows<Tile>(x, count, channels, rows_from(s.far_erase + from, s.dk));
      fill_rows<Tile>(a, count, channels, rows_from(s.far_q + from, s.dk));
      if (decay != ScanDecay::none) load_ends(s, s.of_tile(at, tile) * s.dk + int64_t{p} * N, channels, whole, rest);
      if (!after.all_there()) after.load(p);
      __syncthreads();  // the piece is complete
      if (t0 < channels && own) {
        add_to_state<Tile, decay>(after.at(p), x, u, whole, whole, rest, count, t0, 4 * tx);
        add_to_state<Tile, ScanDecay::none>(after.at(p), a, g, whole, whole, rest, count, t0, 4 * tx);
      }
      if (!after.all_there()) after.store(p, after.home);
      __syncthreads();  // all threads have used it
    }
  }
  if (after.all_there())
    for (int p = 0; p < s.key_tiles; ++p) after.store(p, after.home);
}

template <class T, int N, ScanDecay decay>
void delta_sweep(const DeltaView<T>& s, HeadRows<T> out, DeltaStates<T> states) {
  constexpr ScanDecay ends = decay == ScanDecay::none ? ScanDecay::none : ScanDecay::keys;
  using Tile = DeltaTile<N, ends>;
  states.slots = states.one_tile_a_block ? 1 : delta_slots<T, Tile>(s.key_tiles, 3);
  const int64_t jobs = s.span * (states.one_tile_a_block ? s.cut.tiles : 1);
  launch(delta_sweep_kernel<T, N, ends>, grid_of(jobs * s.col_tiles), dim3(Tile::threads),
         delta_bytes<T, Tile>(states.slots, 3), s, out, states);
}

template <class T, int N, ScanDecay decay>
void delta_backwards(const DeltaView<T>& s, HeadRows<const T> dout, HeadRows<T> dwrite, DeltaStates<T> states) {
  constexpr ScanDecay ends = decay == ScanDecay::none ? ScanDecay::none : ScanDecay::keys;
  using Tile = DeltaTile<N, ends>;
  states.slots = delta_slots<T, Tile>(s.key_tiles, 4);
  launch(delta_backwards_kernel<T, N, ends>, grid_of(s.span * s.col_tiles), dim3(Tile::threads),
         delta_bytes<T, Tile>(states.slots, 4), s, dout, dwrite, states);
}

}  // namespace sluice::cuda
