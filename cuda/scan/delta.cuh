// Shared by the kernels of the delta rule, whose formulae ops/scan/delta_chunk.h has. A sequence is cut into tiles of
// up to N steps:
//
//   prepare    a block for each tile: (I + A)⁻¹, P and the rows that tiles exchange with S: e ∘ e^L, q ∘ e^L,
//              k ∘ e^{L_end − L}
//   sweep      a block for N columns of each head: through the tiles with S, by products alone
//   backwards  the same, from the last tile to the first with dL/dS: dw
//   gradients  a block for each tile and key head: all other gradients
//
// Only the two sweeps wait for one another's tiles. A tile is a chunk of the call, or an equal part of a longer one.
// (Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule over Sequence Length, section 3.)
#pragma once

#include <sluice/cuda/scan/simt.cuh>

namespace sluice::cuda {

/// The tile of N steps and N channels or columns, for N²/16 threads. With decays of keys it consists of blocks of 16
/// steps.
template <int N, ScanDecay decay> struct DeltaTile {
  static constexpr bool by_channel = decay == ScanDecay::keys;
  static constexpr int across = N / 4, threads = across * across, steps = N, rows = 4, ld = N + 4, ld_a = ld,
                       size = N * ld;
  static constexpr int block = 16, blocks = N / block, parts = threads / block, part = N / parts;
  static constexpr int between = by_channel ? (blocks + 1) * (blocks + 1) * N : 0;  // numbers of fill_between()
};

/// The tiles of n steps.
struct DeltaCut {
  int64_t n, chunk, parts, length, chunks, tiles;  // parts: tiles of a chunk; length: steps of a tile

  DeltaCut(int64_t n, int64_t given, int64_t most)
      : n(n), chunk(std::min(given, n)), parts(ceil_div(chunk, most)), length(ceil_div(chunk, parts)),
        chunks(ceil_div(n, chunk)), tiles((chunks - 1) * parts + ceil_div(n - (chunks - 1) * chunk, length)) {}
  /// The first step of a tile, and its number of steps.
  __device__ int64_t first(int64_t tile) const { return tile / parts * chunk + tile % parts * length; }
  __device__ int count(int64_t tile) const {
    const int64_t end = (tile / parts + 1) * chunk, left = (end < n ? end : n) - first(tile);
    return static_cast<int>(left < length ? left : length);
  }
};

/// A value head: among those of the launch, of the call, and its batch, head and key head.
struct DeltaHead {
  int local, head, b, h, key;
};

/// A call for `span` value heads from `first_head` on, and what delta_prepare() makes for them, in `Stored`.
/// T: of the arithmetic; In: of the operands.
template <class T, class Stored = T, class In = T> struct DeltaView {
  static constexpr bool in_parts = !std::is_same_v<T, Stored>;
  HeadRows<const In> q, k, erase, write;  // q null: only u is wanted
  const T* g;                             // [batch, heads, n, channels]
  int64_t n, dk, dv, channels;
  int heads, group, col_tiles, key_tiles;  // group: value heads of a key head; tiles of dv and of dk
  DeltaCut cut;
  int64_t wide;  // numbers of a prepared row: dk, or, filled up with zeros, key_tiles · N
  int first_head = 0, span = 0;
  Stored *solve = nullptr, *pairs = nullptr;  // [span, n, N]: rows of (I + A)⁻¹ and of P
  Stored* solve_rest = nullptr;               // in bf16: what rounding takes from `solve`
  Stored *far_erase = nullptr, *far_q = nullptr,
         *carried = nullptr;            // [span, n, wide]: e ∘ e^L, q ∘ e^L, k ∘ e^{L_end − L}
  T *whole = nullptr, *rest = nullptr;  // [span, tiles, dk]: e^{L_end} (ScanFactor)

  /// For tiles of N steps.
  DeltaView(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& g, int64_t chunk,
            int N)
      : q(q), k(k), erase(erase), write(write), g(data_or_null<T>(g)), n(k.dim(2)), dk(k.dim(3)), dv(write.dim(3)),
        channels(g.defined() && g.rank() == 4 ? dk : 1), heads(static_cast<int>(erase.dim(1))),
        group(heads / static_cast<int>(k.dim(1))), col_tiles(static_cast<int>(ceil_div(dv, N))),
        key_tiles(static_cast<int>(ceil_div(dk, N))), cut(n, chunk, N), wide(in_parts ? int64_t{key_tiles} * N : dk) {}

  __device__ DeltaHead at(int64_t local) const {
    const int head = first_head + static_cast<int>(local), h = head % heads;
    return {static_cast<int>(local), head, head / heads, h, h / group};
  }
  __device__ int64_t row(const DeltaHead& at, int64_t step) const { return at.local * n + step; }
  __device__ int64_t of_tile(const DeltaHead& at, int64_t tile) const { return at.local * cut.tiles + tile; }
  /// Channels of keys in a piece, columns of values in a tile: up to N.
  template <int N> __device__ int channels_of(int piece) const {
    const int64_t left = dk - int64_t{piece} * N;
    return static_cast<int>(left < N ? left : N);
  }
  template <int N> __device__ int columns_of(int tile) const {
    const int64_t left = dv - int64_t{tile} * N;
    return static_cast<int>(left < N ? left : N);
  }
  __device__ T log_decay(int head, int64_t step, int64_t channel) const {
    return finite_decay(g[(head * n + step) * channels + channel]);
  }
  /// Scratch memory that delta_prepare() fills for each head, in numbers of type T.
  template <int N> int64_t prepared() const {
    return n * ((in_parts ? 3 : 2) * N + 3 * wide) * int64_t{sizeof(Stored)} / int64_t{sizeof(T)} + 2 * cut.tiles * dk;
  }
  template <int N> void set_prepared(T* memory) {
    const int64_t rows = span * n;
    solve = reinterpret_cast<Stored*>(memory), pairs = solve + rows * N, far_erase = pairs + rows * N;
    far_q = far_erase + rows * wide, carried = far_q + rows * wide;
    solve_rest = carried + rows * wide;
    whole = reinterpret_cast<T*>(solve_rest + in_parts * rows * N), rest = whole + span * cut.tiles * dk;
  }
};

/// Where the states of a sweep are. `kept`: those before each tile with a number that `every` divides; null: none.
template <class T> struct DeltaStates {
  T *state, *kept;  // [span, dk, dv], [span, ⌈tiles/every⌉, dk, dv]
  int64_t every = 1;
  T* u = nullptr;                 // [span, n, dv]: only u is wanted, here
  bool one_tile_a_block = false;  // the state before each tile is there: a block has one tile, and computes its u
  int slots = 1;                  // pieces of N channels of S in shared memory; 1: others wait in `state`
};

/// e^{L_i − L_J}, from the end of block J = before − 1 to the start of block i, at (i · (blocks + 1) + before) · N for
/// each channel; before = 0 is the start of the tile, i = blocks its end.
template <class Tile, class T> __device__ void fill_between(Shared<T> to, Shared<T> factor, int count, int channels) {
  constexpr int N = Tile::steps, wide = Tile::blocks + 1;
  for (int e = static_cast<int>(threadIdx.x); e < wide * N; e += Tile::threads) {
    const int before = e / N, c = e % N;
    if (c >= up_to_4(channels)) continue;
    T w = 1;
    for (int i = before; i < wide; ++i) {
      to[(i * wide + before) * N + c] = w;
      for (int t = i * Tile::block; t < (i + 1) * Tile::block && t < count; ++t)
        w = forget(w, T(factor[t * Tile::ld + c]));
    }
  }
}
template <class Tile> __device__ int between_at(int block, int before) {
  return (block * (Tile::blocks + 1) + before) * Tile::steps;
}

/// Steps of block b in a tile of `count`.
template <class Tile> __device__ int steps_of_block(int b, int count) {
  const int left = count - b * Tile::block;
  return left < Tile::block ? left : Tile::block;
}

/// to[c][i] = number(i, c) for i < count, c < columns; zeros beyond, up to multiples of 4.
template <class Tile, class T, class Number>
__device__ void fill_turned(Shared<T> to, int count, int columns, Number number) {
  constexpr int wide = Tile::ld - 4;
  const int c = static_cast<int>(threadIdx.x) % wide;
  if (c < up_to_4(columns)) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) / wide; i < up_to_4(count); i += Tile::threads / wide)
      to[c * Tile::ld + i] = i < count && c < columns ? number(i, c) : T(0);
  }
}

/// acc[r] += Σ_{t < count} a_tj x_t, j from `a` on: the product with the columns of a.
template <class Tile, class T>
__device__ void multiply_columns(T (&acc)[Tile::rows][4], Shared<T> a, Shared<T> x, int count) {
#pragma unroll 2
  for (int t = 0; t < count; ++t) {
    T weight[4], y[4];
    load_4(weight, a + t * Tile::ld_a), load_4(y, x + t * Tile::ld);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int d = 0; d < 4; ++d) acc[r][d] += weight[r] * y[d];
  }
}

/// The part of A below its diagonal becomes that of (I + A)⁻¹. Inverses of diagonal blocks grow from 1 to N steps:
/// below two of them, T and U, stands −U A T. All threads call it; it begins and ends with a barrier.
template <class Tile, class T> __device__ void invert_unit_lower(Shared<T> a, int count) {
  constexpr int ld = Tile::ld_a;
#pragma unroll 1
  for (int size = 1; size < Tile::steps; size *= 2)
#pragma unroll 1
    for (int side = 0; side < 2; ++side) {
      const bool left = side == 1;
      T sum[4];
      const auto each = [&](auto f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int e = static_cast<int>(threadIdx.x) + i * Tile::threads, base = e / (size * size) * 2 * size;
          const int r = base + size + e / size % size, c = base + e % size;
          if (r < count) f(sum[i], r, c, base + size);
        }
      };
      __syncthreads();
      each([&](T& x, int r, int c, int middle) {
        x = a[r * ld + c];
        for (int j = left ? middle : c + 1; j < (left ? r : middle); ++j) x += a[r * ld + j] * a[j * ld + c];
      });
      __syncthreads();
      each([&](T x, int r, int c, int) { a[r * ld + c] = left ? -x : x; });
    }
  __syncthreads();
}

#ifdef __CUDACC__
constexpr int64_t kDeltaMemory = int64_t{1} << 28;               // numbers of scratch memory: 1 GiB of f32
constexpr int64_t kDeltaBlocks = ScanCut::kMultiprocessors / 2;  // but so many blocks, or the device would be idle
#else
constexpr int64_t kDeltaMemory = 1 << 14, kDeltaBlocks = 2;  // so that tests see several launches
#endif
/// Heads of a launch that needs `numbers` of scratch memory for each.
template <class View> int heads_at_once(const View& s, int64_t batch, int64_t numbers) {
  const int64_t heads = std::max(kDeltaMemory / numbers, kDeltaBlocks / s.col_tiles);
  return static_cast<int>(std::min(std::max<int64_t>(1, heads / s.group) * s.group, batch * s.heads));
}

template <class T, int N, ScanDecay decay> void delta_prepare(const DeltaView<T>& s);
/// Goes through the tiles: outputs, or u, and states.
template <class T, int N, ScanDecay decay>
void delta_sweep(const DeltaView<T>& s, HeadRows<T> out, DeltaStates<T> states);

/// Calls f.operator()<T, N, decay>() with the tile of a call.
template <class F> void with_delta_tile(const Tensor& k, const Tensor& write, const Tensor& g, F f) {
  const auto with_decay = [&]<class T, int N>() {
    if (!g.defined()) f.template operator()<T, N, ScanDecay::none>();
    else if (g.rank() == 3) f.template operator()<T, N, ScanDecay::scalar>();
    else f.template operator()<T, N, ScanDecay::keys>();
  };
  with_scan_tile(k, write, with_decay);
}

}  // namespace sluice::cuda
