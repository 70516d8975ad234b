// What a tile of the delta rule is without the state S: (I + A)⁻¹, P and the rows that read and write S. A block for
// each tile. What limits it: as simt.cuh; the inverse, 24 short steps between barriers.
#pragma once

#include <sluice/cuda/scan/delta.cuh>

namespace sluice::cuda {

/// Offsets in shared memory.
template <int N, ScanDecay decay> struct DeltaPrepareTile : DeltaTile<N, decay> {
  static constexpr int size = DeltaTile<N, decay>::size;
  static constexpr int erase = 0, q = size, k = 2 * size, a = 3 * size, p = 4 * size, factor = 5 * size;
  static constexpr int whole = factor + (decay == ScanDecay::keys ? size : 2 * N), rest = whole + N, between = rest + N,
                       end = between + DeltaTile<N, decay>::between;
};

/// (I + A)⁻¹ and P of a tile, from what lies below the diagonal of a and of p with it. In bf16 all N numbers of a row
/// are read.
template <class Tile, class T, class Stored, class In>
__device__ void store_matrices(const DeltaView<T, Stored, In>& s, const DeltaHead& at, int64_t first, int count,
                               Shared<T> a, Shared<T> p) {
  constexpr int N = Tile::steps;
  const int j = static_cast<int>(threadIdx.x) % N;
  if (j >= count && std::is_same_v<T, Stored>) return;
  for (int t = static_cast<int>(threadIdx.x) / N; t < count; t += Tile::threads / N) {
    const int64_t to = s.row(at, first + t) * N + j;
    const T x = j < t ? T(a[t * Tile::ld + j]) : T(j == t);
    s.solve[to] = Stored(x);
    if constexpr (!std::is_same_v<T, Stored>) s.solve_rest[to] = Stored(x - to_float(s.solve[to]));
    if (s.q.base) s.pairs[to] = Stored(j <= t ? T(p[t * Tile::ld + j]) : T(0));
  }
}

/// Does not step by gridDim: heads_at_once() and memory keep the blocks below 2^31.
template <class T, int N, ScanDecay decay>
__global__ void __launch_bounds__(DeltaTile<N, decay>::threads, N == 64 ? 2 : 4) delta_prepare_kernel(DeltaView<T> s) {
  using Tile = DeltaPrepareTile<N, decay>;
  constexpr int ld = Tile::ld, rows = Tile::rows, block = Tile::block;
  const int thread = static_cast<int>(threadIdx.x), tx = thread % Tile::across, t0 = thread / Tile::across * rows;
  const Shared<T> memory = dynamic_shared<T>();
  const Shared<T> erase = memory + Tile::erase, q = memory + Tile::q, k = memory + Tile::k, a = memory + Tile::a,
                  p = memory + Tile::p;
  const Shared<T> factor = memory + Tile::factor, whole = memory + Tile::whole, rest = memory + Tile::rest,
                  between = memory + Tile::between;
  const Shared<double> sums = static_shared<double, Tile::steps + N, Tile>(), total = sums + Tile::steps;
  const int64_t tile = blockIdx.x % s.cut.tiles;
  const DeltaHead at = s.at(blockIdx.x / s.cut.tiles);
  const int64_t first = s.cut.first(tile);
  const int count = s.cut.count(tile), here = t0 / block;  // here: this thread's block of steps
  const bool reads = s.q.base != nullptr;
  if (thread < N) total[thread] = 0;
  T said[rows][rows] = {}, read[rows][rows] = {};
  for (int piece = 0; piece < s.key_tiles; ++piece) {
    const int channels = s.template channels_of<N>(piece);
    const int64_t channel = int64_t{piece} * N;
    const auto of = [&](HeadRows<const T> x, int head) {
      return [&s, &at, x, head, first, channel](int i, int c) { return x.at(at.b, head, first + i)[channel + c]; };
    };
    fill_rows<Tile>(erase, count, channels, of(s.erase, at.h));
    fill_rows<Tile>(k, count, channels, of(s.k, at.key));
    if (reads) fill_rows<Tile>(q, count, channels, of(s.q, at.key));
    load_decays<Tile, decay>(s, at.head, first, count, Tile::by_channel ? channel : 0, Tile::by_channel ? channels : 1,
                             factor, whole, rest, sums, total);
    __syncthreads();  // the piece is complete
    if constexpr (Tile::by_channel) {
      for (int b = 0; b * block < count; ++b) {
        const int steps = steps_of_block<Tile>(b, count), row = b * block * ld, corner = row + b * block;
        weigh_by_keys<Tile>(erase + row, k + row, factor + row, a + corner, steps, channels, piece > 0);
        if (reads) weigh_by_keys<Tile>(q + row, k + row, factor + row, p + corner, steps, channels, piece > 0);
      }
      fill_between<Tile>(between, factor, count, channels);
      __syncthreads();  // all threads have read k
      for (int b = 0; b * block < count; ++b)
        carry_to_end<Tile>(k + b * block * ld, factor + b * block * ld, steps_of_block<Tile>(b, count), channels);
      __syncthreads();
    }
    if (t0 < count) {
      const int end = Tile::by_channel ? here * block : t0 + rows;
      const auto scaled = [&](T(&y)[4], int j, int c) {
        if constexpr (Tile::by_channel) {
          T w[4];
          load_4(w, between + between_at<Tile>(here, j / block + 1) + c);
#pragma unroll
          for (int i = 0; i < 4; ++i) y[i] *= w[i];
        }
      };
      add_dots<Tile>(said, erase, k, t0, end, channels, scaled);
      if (reads) add_dots<Tile>(read, q, k, t0, end, channels, scaled);
    }
    const int c = thread % N;
    if (c < channels) {
      for (int t = thread / N; t < count; t += Tile::threads / N) {
        T up = 1, down = 1;
        if constexpr (decay == ScanDecay::scalar) up = factor[t], down = factor[Tile::steps + t];
        if constexpr (decay == ScanDecay::keys)
          up = between[between_at<Tile>(t / block, 0) + c],
          down = between[between_at<Tile>(Tile::blocks, t / block + 1) + c];
        const int64_t to = s.row(at, first + t) * s.dk + channel + c;
        s.far_erase[to] = erase[t * ld + c] * up, s.carried[to] = k[t * ld + c] * down;
        if (reads) s.far_q[to] = q[t * ld + c] * up;
      }
      if (decay != ScanDecay::none && thread < N) {
        const int64_t to = s.of_tile(at, tile) * s.dk + channel + c;
        s.whole[to] = whole[Tile::by_channel ? c : 0], s.rest[to] = rest[Tile::by_channel ? c : 0];
      }
    }
    if (piece + 1 < s.key_tiles) __syncthreads();  // all threads have used the piece
  }
  if (t0 < count) {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const int t = t0 + r, j = tx + i * Tile::across;
        if (t >= count || j > t || (Tile::by_channel && j / block == here))
          continue;  // weigh_by_keys() has its own block's
        T weight = 1;
        if constexpr (decay == ScanDecay::scalar) weight = math::exp(static_cast<T>(double(sums[t]) - double(sums[j])));
        a[t * ld + j] = said[r][i] * weight;
        if (reads) p[t * ld + j] = read[r][i] * weight;
      }
  }
  invert_unit_lower<Tile>(a, count);
  store_matrices<Tile>(s, at, first, count, a, p);
}

template <class T, int N, ScanDecay decay> void delta_prepare(const DeltaView<T>& s) {
  using Tile = DeltaPrepareTile<N, decay>;
  launch(delta_prepare_kernel<T, N, decay>, grid_of(s.span * s.cut.tiles), dim3(Tile::threads), Tile::end * sizeof(T),
         s);
}

}  // namespace sluice::cuda
