// The delta rule on tensor cores, forward, without decay or with a scalar one: what is multiplied in bf16, sums, the
// state, the inverses and the decays in f32 (delta_prepare.cuh and delta_sweep.cuh have every option).
//
// prepare: a block for each tile; four warps have the rows of A, four those of P.
// sweep: a block for 64 columns of S. In registers a warp has 16 steps of a tile and M/4 rows of S; products with S
// read a copy of it rounded to bf16. A buffer is filled for the next tile as soon as all have read it, so cp.async
// brings three groups in turn: e and q; (I + A)⁻¹ and P; k. Five barriers a tile. What limits it: the barriers, with
// two blocks on a multiprocessor at most; the number of heads; and, of prepare, the inverse, which runs on ordinary
// cores.
#pragma once

#include <sluice/cuda/scan/delta_prepare.cuh>
#include <sluice/cuda/scan/mma.cuh>

namespace sluice::cuda {

/// A call on tensor cores, with operands and outputs in f32 or bf16.
template <class In> using DeltaMmaView = DeltaView<float, BFloat16, In>;

/// Neither kernel here steps by gridDim: heads_at_once() and memory keep the blocks below 2^31.
template <bool decays, class In>
__global__ void __launch_bounds__(256, 2) delta_prepare_mma_kernel(DeltaMmaView<In> s) {
  using Tile = DeltaTile<kScanMmaSteps, ScanDecay::scalar>;
  using Rows = MmaRows<kScanMmaSteps>;
  constexpr int N = Tile::steps;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, g = lane / 4, t = lane % 4;
  const int rows = thread / kWarp % 4, side = thread / kWarp / 4;
  const Shared<float> a = dynamic_shared<float>(), p = a + Tile::size;
  const Shared<uint32_t> pairs = dynamic_shared<uint32_t>() + 2 * Tile::size;
  const Shared<BFloat16> operands = dynamic_shared<BFloat16>() + 4 * Tile::size;  // e, q, k
  const ScanMmaDecays decay = ScanMmaDecays::of<Tile>(0);
  const int64_t tile = blockIdx.x % s.cut.tiles, first = s.cut.first(tile);
  const DeltaHead at = s.at(blockIdx.x / s.cut.tiles);
  const int count = s.cut.count(tile);
  if (decays && thread < kWarp) {
    const auto of = [&](int i) { return i < count ? s.log_decay(at.head, first + i, 0) : 0.0f; };
    decay.fill(of(lane), of(lane + kWarp));
  }
  __syncthreads();  // the decays are complete
  float acc[8][4] = {};
  for (int piece = 0; piece < s.key_tiles; ++piece) {
    // Each thread takes pairs of neighbouring channels.
    const auto load = [&](HeadRows<const In> from, int head, int operand, BFloat16* to, Shared<float> factor) {
      for (int e = thread; e < N * N / 2; e += Tile::threads) {
        const int i = e / (N / 2), c = e % (N / 2) * 2;
        const int64_t channel = int64_t{piece} * N + c;
        float x[2] = {};
        if (i < count) {
          const In* const row = from.at(at.b, head, first + i) + channel;
#pragma unroll
          for (int d = 0; d < 2; ++d) x[d] = channel + d < s.dk ? to_float(row[d]) : 0.0f;
          const float w = decays ? float(factor[i]) : 1.0f;
          *reinterpret_cast<uint32_t*>(to + s.row(at, first + i) * s.wide + channel) = pack_bf16(x[0] * w, x[1] * w);
        }
        pairs[(operand * N * N + Rows::at(i, c / 8) + c % 8) / 2] = pack_bf16(x[0], x[1]);
      }
    };
    load(s.erase, at.h, 0, s.far_erase, decay.up), load(s.q, at.key, 1, s.far_q, decay.up);
    load(s.k, at.key, 2, s.carried, decay.down);
    __syncthreads();  // the piece is complete
#pragma unroll
    for (int c = 0; c < N / 16; ++c) {
      uint32_t x[4], f[4];
      ldmatrix(x, operands + (side * N * N + Rows::at(16 * rows + lane % 16, 2 * c + lane / 16)));
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (j <= rows) {  // this warp's steps see these 16
          ldmatrix(f, operands + (2 * N * N + Rows::at(16 * j + lane / 16 * 8 + lane % 8, 2 * c + lane / 8 % 2)));
          mma_m16n8k16(acc[2 * j], x, f[0], f[1]), mma_m16n8k16(acc[2 * j + 1], x, f[2], f[3]);
        }
    }
    __syncthreads();  // all threads have used the piece
  }
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int step = 16 * rows + e / 2 * 8 + g, other = 8 * j + 2 * t + e % 2;
      if (other > step || step >= count) continue;
      float x = acc[j][e];
      if (decays) x *= math::exp(static_cast<float>(double(decay.sums[step]) - double(decay.sums[other])));
      (side == 0 ? a : p)[step * Tile::ld + other] = x;
    }
  if (decays && thread < s.dk) {
    const int64_t to = s.of_tile(at, tile) * s.dk + thread;
    s.whole[to] = decay.end[0], s.rest[to] = decay.end[1];
  }
  invert_unit_lower<Tile>(a, count);
  store_matrices<Tile>(s, at, first, count, a, p);
}

/// Offsets in shared memory, for M channels of keys. They count bf16 numbers.
template <int M> struct DeltaMmaTile {
  static constexpr int steps = kScanMmaSteps, columns = 64, threads = 4 * kWarp;
  static constexpr int erase = 0, q = erase + steps * M, k = q + steps * M, solve = k + steps * M,
                       solve_rest = solve + steps * steps, pairs = solve_rest + steps * steps,
                       u = pairs + steps * steps, u_rest = u + steps * columns, state = u_rest + steps * columns;
  static constexpr int by_numbers = state + M * columns, end = by_numbers + 4 * 256;
  static constexpr std::size_t bytes = end * sizeof(BFloat16);
};

/// `pairs`: rows of out begin at even places.
template <int M, bool decays, class In>
__global__ void __launch_bounds__(DeltaMmaTile<M>::threads, 2)
    delta_sweep_mma_kernel(DeltaMmaView<In> s, HeadRows<In> out, DeltaStates<float> states, bool pairs) {
  using Tile = DeltaMmaTile<M>;
  constexpr int steps = Tile::steps, columns = Tile::columns;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp, g = lane / 4,
            t = lane % 4, channel = M / 4 * warp + g;  // of S: channel + 16 i + 8 r
  const Shared<BFloat16> memory = dynamic_shared<BFloat16>(), u = memory + Tile::u, copy = memory + Tile::state;
  const Shared<uint32_t> pairs_of = dynamic_shared<uint32_t>();
  // Places of this lane's rows for ldmatrix: steps of rows of M and of 64, keys transposed, columns.
  const int of_row = MmaRows<M>::at(16 * warp + lane % 16, lane / 16),
            of_pairs = MmaRows<steps>::at(16 * warp + lane % 16, lane / 16),
            of_keys = MmaRows<M>::at(lane / 16 * 8 + lane % 8, M / 32 * warp + lane / 8 % 2),
            of_columns = MmaRows<columns>::at(lane % 16, lane / 16);
  const Shared<BFloat16> mine = memory + (Tile::by_numbers + 256 * warp);
  const int col_tile = static_cast<int>(blockIdx.x % s.col_tiles), tiles = static_cast<int>(s.cut.tiles);
  const DeltaHead at = s.at(blockIdx.x / s.col_tiles);
  const int64_t size = s.dk * s.dv, col = int64_t{col_tile} * columns + 2 * t;
  const int cols = static_cast<int>(s.dv - col < columns ? s.dv - col : columns);  // from this lane's first column on

  const auto start_reads = [&](int tile) {
    if (tile < tiles) {
      const int64_t row = s.row(at, s.cut.first(tile));
      const int count = s.cut.count(tile);
      scan_copy<M, Tile::threads>(memory + Tile::erase, s.far_erase + row * M, M, count, M);
      scan_copy<M, Tile::threads>(memory + Tile::q, s.far_q + row * M, M, count, M);
    }
    cp_async_commit();
  };
  const auto start_rest = [&](int tile) {
    const int64_t row = tile < tiles ? s.row(at, s.cut.first(tile)) : 0;
    const int count = tile < tiles ? s.cut.count(tile) : 0;
    if (count > 0) {
      scan_copy<steps, Tile::threads>(memory + Tile::solve, s.solve + row * steps, steps, count, steps);
      scan_copy<steps, Tile::threads>(memory + Tile::solve_rest, s.solve_rest + row * steps, steps, count, steps);
      scan_copy<steps, Tile::threads>(memory + Tile::pairs, s.pairs + row * steps, steps, count, steps);
    }
    cp_async_commit();
    if (count > 0) scan_copy<M, Tile::threads>(memory + Tile::k, s.carried + row * M, M, count, M);
    cp_async_commit();
  };

  float state[M / 64][8][4];
  /// f(number, its place in a state) for this lane's numbers of S that are inside.
  const auto each_number = [&](auto f) {
    scan_each_pair(state, [&](float& x, float& y, int row, int column) {
      const int64_t place = (channel + row) * s.dv + col + column;
      f(x, place, channel + row < s.dk && column < cols);
      f(y, place + 1, channel + row < s.dk && column + 1 < cols);
    });
  };
  const auto round_state = [&] {
    scan_round_state<columns>(pairs_of + Tile::state / 2, state, MmaRows<columns>::at(channel, 0) + 2 * t);
  };
  /// Stores this warp's 16 rows of u, rounded; x becomes what rounding took from them.
  const auto round_u = [&](float(&x)[8][4], int to) {
#pragma unroll
    for (int d = 0; d < 8; ++d)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t pair = pack_bf16(x[d][2 * r], x[d][2 * r + 1]);
        pairs_of[(to + MmaRows<columns>::at(16 * warp + 8 * r + g, d)) / 2 + t] = pair;
        x[d][2 * r] -= first_of(pair), x[d][2 * r + 1] -= second_of(pair);
      }
  };
  /// acc += the rows of this warp's steps of a triangular matrix, times the rows at `of`.
  const auto add_pairs = [&](float(&acc)[8][4], int matrix, int of) {
    uint32_t w[1][4];
#pragma unroll 1
    for (int j = 0; j < warp; ++j) {
      ldmatrix(w[0], memory + (matrix + pieces_on(of_pairs, 2 * j)));
      scan_add_weighted<columns, false>(acc, w, memory + of, of_columns, 16 * j, 0, mine);
    }
    ldmatrix(w[0], memory + (matrix + pieces_on(of_pairs, 2 * warp)));
    scan_add_weighted<columns, true>(acc, w, memory + of, of_columns, 16 * warp, 0, mine);
  };
  float* const home = states.state + at.local * size;
  each_number([&](float& x, int64_t place, bool inside) { x = inside ? home[place] : 0.0f; });
  round_state();
  start_reads(0), start_rest(0);

  for (int tile = 0; tile < tiles; ++tile) {
    const int count = s.cut.count(tile);
    const int64_t first = s.cut.first(tile);
    cp_async_wait<2>();
    __syncthreads();  // e, q and the copy of S are complete
    if (states.kept && tile % states.every == 0) {
      float* const kept = states.kept + (at.local * s.cut.chunks + tile / states.every) * size;
      each_number([&](float x, int64_t place, bool inside) {
        if (inside) kept[place] = x;
      });
    }
    float said[8][4] = {}, read[8][4] = {}, solved[8][4] = {};
#pragma unroll 1
    for (int c = 0; c < M / 16; ++c) {
      uint32_t e[4], q[4], f[4];
      ldmatrix(e, memory + (Tile::erase + pieces_on(of_row, 2 * c)));
      ldmatrix(q, memory + (Tile::q + pieces_on(of_row, 2 * c)));
#pragma unroll
      for (int d = 0; d < 8; d += 2) {
        ldmatrix<true>(f, copy + (pieces_on(of_columns, d) + 16 * c * columns));
        mma_m16n8k16(said[d], e, f[0], f[1]), mma_m16n8k16(said[d + 1], e, f[2], f[3]);
        mma_m16n8k16(read[d], q, f[0], f[1]), mma_m16n8k16(read[d + 1], q, f[2], f[3]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int step = 16 * warp + 8 * r + g;
      const In* const written = s.write.at(at.b, at.h, first + (step < count ? step : 0)) + col;
#pragma unroll
      for (int d = 0; d < 8; ++d)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = said[d][2 * r + e];
          x = step < count && 8 * d + e < cols ? to_float(written[8 * d + e]) - x : 0.0f;
        }
    }
    round_u(said, Tile::u), round_u(said, Tile::u_rest);
    cp_async_wait<1>();
    __syncthreads();  // w − r and the matrices are complete; all threads have read e and q
    start_reads(tile + 1);
    // u must not drift, for later steps build on it: a product in three parts.
#pragma unroll 1
    for (int part = 0; part < 3; ++part)
      add_pairs(solved, part == 2 ? Tile::solve_rest : Tile::solve, part == 1 ? Tile::u_rest : Tile::u);
    __syncthreads();  // all threads have read w − r
    round_u(solved, Tile::u);
    cp_async_wait<1>();
    __syncthreads();  // u and k are complete
    add_pairs(read, Tile::pairs, Tile::u);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int step = 16 * warp + 8 * r + g;
      if (step >= count) continue;
      scan_store_row(out.at(at.b, at.h, first + step), col_tile * columns, static_cast<int>(s.dv), read, r, pairs);
    }
    if constexpr (decays) {
      const int64_t end = s.of_tile(at, tile) * s.dk;  // one decay for all channels
      scan_shrink(state, s.whole[end], s.rest[end]);
    }
    scan_add_to_state<M, columns, false>(state, memory + Tile::k, u, of_keys, of_columns, Shared<float>(nullptr),
                                         count);
    __syncthreads();  // all threads have read the tile and the copy
    start_rest(tile + 1);
    round_state();
  }
  each_number([&](float x, int64_t place, bool inside) {
    if (inside) home[place] = x;
  });
}

template <class In> void delta_prepare_mma(const DeltaMmaView<In>& s) {
  using Tile = DeltaTile<kScanMmaSteps, ScanDecay::scalar>;
  launch(s.g ? delta_prepare_mma_kernel<true, In> : delta_prepare_mma_kernel<false, In>, grid_of(s.span * s.cut.tiles),
         dim3(Tile::threads), 2 * Tile::size * sizeof(float) + 3 * Tile::steps * Tile::steps * sizeof(BFloat16), s);
}

template <int M, class In>
void delta_sweep_mma(const DeltaMmaView<In>& s, HeadRows<In> out, const DeltaStates<float>& states) {
  using Tile = DeltaMmaTile<M>;
  launch(s.g ? delta_sweep_mma_kernel<M, true, In> : delta_sweep_mma_kernel<M, false, In>,
         grid_of(s.span * s.col_tiles), dim3(Tile::threads), Tile::bytes, s, out, states, in_pairs(out));
}

}  // namespace sluice::cuda
