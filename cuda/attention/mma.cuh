// Rung 3: tensor cores, with bf16 inputs, f32 sums, and bf16 or f32 outputs. Four warps hold 16 queries each as
// fragments in registers. mma gives the scores of 64 keys in the layout of the next mma's left operand, so the weights
// never leave the registers. cp.async copies the next tile while this one is computed: two buffers, one barrier a tile.
// The gate's factor is applied in the epilogue.
// D = DV = 64 or 128; operands 16-byte aligned. NaN at hidden keys does not spread.
// What limits it: each warp reads all keys and values of a tile from shared memory for only 16 queries, 64 operations a
// byte; and mma.sync itself reaches less than two thirds of what wgmma does on Hopper.
#pragma once

#include <sluice/cuda/attention/mma_tiles.cuh>

namespace sluice::cuda {

template <int D> struct MmaTile {
  static constexpr int rows = kMmaRows, cols = 64;
  static constexpr int q = 0, k = q + rows * D, v = k + 2 * cols * D, w = v + 2 * cols * D, end = w + rows * cols;
  static constexpr std::size_t bytes = end * sizeof(BFloat16);
};

/// grid (⌈m / 64⌉, heads, batch), blocks of 128 threads, MmaTile<D>::bytes of shared memory.
template <int D, class Weighting, class Mask, class Gate, class Out>
__global__ void __launch_bounds__(kMmaThreads, 2) attention_mma(AttentionProblem<BFloat16, Out> p, Mask mask) {
  using Tile = MmaTile<D>;
  using Rows = MmaRows<D>;
  constexpr int rows = Tile::rows, cols = Tile::cols;
  const Shared<BFloat16> memory = dynamic_shared<BFloat16>();
  const Shared<BFloat16> q = memory + Tile::q, k = memory + Tile::k, v = memory + Tile::v;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp, g = lane / 4;
  // Of the blocks of a head those with the most keys begin first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * rows,
            last = first + rows < p.m ? first + rows - 1 : p.m - 1;
  const int head = static_cast<int>(blockIdx.y);
  const AttentionHead<BFloat16, D, D, Out> h(p, static_cast<int>(blockIdx.z), head);

  const KeySpan low = mask.of(position_of(p, first), p.n), high = mask.of(position_of(p, last), p.n);
  const int begin = low.begin / cols * cols;
  const auto seen = [&](int j) { return j < p.n && (!h.keys || h.keys[j]); };
  const auto copy_tile = [&](int j0) {
    const int buffer = (j0 - begin) / cols % 2 * cols * D;
    Rows::template copy<cols>(k + buffer, h.k, j0, seen);
    Rows::template copy<cols>(v + buffer, h.v, j0, seen);
  };
  if (begin < high.end) {
    Rows::template copy<rows>(q, h.q, first, [&](int i) { return i < p.m; });
    copy_tile(begin);
  }
  cp_async_commit();

  uint32_t qf[D / 16][4];
  float acc[D / 8][4] = {};
  MmaStatistics rows_found;
  rows_found.begin<Weighting>(p, head);

  for (int j0 = begin; j0 < high.end; j0 += cols) {
    const int buffer = (j0 - begin) / cols % 2 * cols * D;
    cp_async_wait<0>();
    __syncthreads();  // all threads see this tile, and the previous tile's buffer is free
    if (j0 + cols < high.end) copy_tile(j0 + cols);
    cp_async_commit();
    if (j0 == begin) {
#pragma unroll
      for (int d = 0; d < D / 16; ++d) ldmatrix(qf[d], q + Rows::at(16 * warp + lane % 16, 2 * d + lane / 16));
    }

    float s[cols / 8][4];
    mma_dots<D, cols>(
        s,
        [&](int d, uint32_t(&f)[4]) {
#pragma unroll
          for (int i = 0; i < 4; ++i) f[i] = qf[d][i];
        },
        k + buffer);

    TileMask<cols> hidden;
    hidden.look(j0 < high.begin || j0 + cols > low.end, h.keys, j0, p.n);
    float keep[2];
    mma_weigh<Weighting, cols>(s, p.scale, rows_found, keep, hidden, [&](int r) {
      const KeySpan span = mask.of(position_of(p, first + 16 * warp + 8 * r + g), p.n);
      return KeySpan{span.begin - j0, span.end - j0};
    });
    mma_shrink<Weighting, D>(acc, keep);

    uint32_t w[cols / 16][4];
    pack_fragments<cols>(w, s);
    mma_add<D, cols>(acc, w, v + buffer, hidden.cut, memory + (Tile::w + 16 * cols * warp));
  }

  mma_finish<Weighting, Gate>(p, h, first + 16 * warp, acc, rows_found);
}

/// Runs attention_mma over a whole problem.
template <int D, class Weighting, class Mask, class Gate, class Out>
void run_attention_mma(const AttentionProblem<BFloat16, Out>& p, Mask mask) {
  using Tile = MmaTile<D>;
  launch(attention_mma<D, Weighting, Mask, Gate, Out>, grid_of(ceil_div(p.m, Tile::rows), p.heads, p.batch),
         dim3(kMmaThreads), Tile::bytes, p, mask);
}

}  // namespace sluice::cuda
