// Attention of few queries to many keys, as in a step of decoding, on tensor cores. Query heads that share keys are
// rows of one tile, so keys and values are read once for up to 16 rows. A block takes a part of the keys of a key head
// (parts.cuh). cp.async copies tiles of 128 keys and values into a ring of three, and each of the four warps takes 32
// of a tile's keys for all rows, with statistics and sums of its own, which the block joins at the end. D = 64 or 128;
// operands of up to D columns, in rows of whole pieces of 16 bytes. NaN at hidden keys does not spread. What limits it:
// memory, one read of keys and values; two tiles are under way in a multiprocessor, 64 or 128 KiB.
#pragma once

#include <sluice/cuda/attention/mma_tiles.cuh>
#include <sluice/cuda/attention/parts.cuh>

namespace sluice::cuda {

template <int D> struct FewTile {
  static constexpr int rows = 16, own = kWarp, cols = own * kMmaWarps, stages = 3;  // own: keys of a warp
  static constexpr int q = 0, k = q + rows * D, v = k + stages * cols * D, w = v + stages * cols * D,
                       end = w + kMmaWarps * rows * own;
  static constexpr std::size_t bytes = end * sizeof(BFloat16);
  static constexpr PartSizes parts{.step = cols, .least = 2 * cols, .cost = cols};
  static constexpr int at_once = D == 64 ? 2 : 1;  // blocks of a multiprocessor
  static constexpr int left = D + 2;               // numbers that a warp leaves of a row
  static_assert(kMmaWarps * rows * left * sizeof(float) <= cols * D * stages * sizeof(BFloat16));
};

/// A call; `n` keys, of which a part has part_cols. Widths are multiples of 8.
struct FewProblem {
  HeadRows<const BFloat16> q, k, v;
  int group, m, n, d, dv, part_cols;  // group: query heads of a key head
  float scale;
  const uint8_t* keys;  // [batch, n] as in AttentionProblem
  PartsOfKeys<float> out;

  SLUICE_FN int tiles() const { return (group * m + 15) / 16; }
};

/// grid (parts, key heads · tiles of 16 rows, batch), blocks of 128 threads, FewTile<D>::bytes of shared memory.
template <int D, class Weighting, class Mask>
__global__ void __launch_bounds__(kMmaThreads, FewTile<D>::at_once) attention_few(FewProblem p, Mask mask) {
  using Tile = FewTile<D>;
  using Rows = MmaRows<D>;
  constexpr int cols = Tile::cols, own = Tile::own, stages = Tile::stages;
  const Shared<BFloat16> memory = dynamic_shared<BFloat16>();
  const Shared<BFloat16> q = memory + Tile::q, k = memory + Tile::k, v = memory + Tile::v;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp, g = lane / 4;
  const int part = static_cast<int>(blockIdx.x), batch = static_cast<int>(blockIdx.z), tiles = p.tiles();
  const int kv = static_cast<int>(blockIdx.y) / tiles, first = static_cast<int>(blockIdx.y) % tiles * Tile::rows;
  const int count = p.group * p.m - first;  // rows of the tile that exist, if fewer than 16
  // Row r is query (first + r) mod m of head (first + r) / m of the group.
  const auto query_of = [&](int row) { return (first + row) % p.m; };
  const auto head_of = [&](int row) { return kv * p.group + (first + row) / p.m; };

  const KeySpan low = mask.of(position_of(p, 0), p.n), high = mask.of(position_of(p, p.m - 1), p.n);
  const int part_end = part == p.out.parts - 1 ? p.n : (part + 1) * p.part_cols;
  const int from = low.begin / cols * cols, begin = from > part * p.part_cols ? from : part * p.part_cols;
  const int end = high.end < part_end ? high.end : part_end;
  const uint8_t* const seen = p.keys ? p.keys + std::ptrdiff_t{batch} * p.n : nullptr;

  const auto copy = [&](Shared<BFloat16> to, const HeadRows<const BFloat16>& x, int at, int rows, int width,
                        auto row_at, auto there) {
#pragma unroll 8
    for (int e = thread; e < rows * (D / 8); e += kMmaThreads) {
      const int r = e / (D / 8), piece = e % (D / 8);
      const bool valid = 8 * piece < width && there(at + r);
      cp_async_16(to + Rows::at(r, piece), valid ? row_at(at + r) + 8 * piece : x.base, valid);
    }
  };
  const auto copy_tile = [&](int j0) {
    const int buffer = (j0 - begin) / cols % stages * cols * D;
    const auto there = [&](int j) { return j < end && (!seen || seen[j]); };
    copy(
        k + buffer, p.k, j0, cols, p.d, [&](int j) { return p.k.at(batch, kv, j); }, there);
    copy(
        v + buffer, p.v, j0, cols, p.dv, [&](int j) { return p.v.at(batch, kv, j); }, there);
  };
  if (begin < end)
    copy(
        q, p.q, 0, Tile::rows, p.d, [&](int r) { return p.q.at(batch, head_of(r), query_of(r)); },
        [&](int r) { return r < count; });
#pragma unroll
  for (int stage = 0; stage < stages - 1; ++stage) {
    if (begin + stage * cols < end) copy_tile(begin + stage * cols);
    cp_async_commit();
  }

  uint32_t qf[D / 16][4];
  float acc[D / 8][4] = {};
  MmaStatistics found{{kMinusInfinity, kMinusInfinity}, {0, 0}};
  for (int j0 = begin; j0 < end; j0 += cols) {
    const int buffer = (j0 - begin) / cols % stages * cols * D + own * warp * D, mine = j0 + own * warp;
    cp_async_wait<stages - 2>();
    __syncthreads();  // all threads see this tile, and the previous tile's buffer is free
    if (j0 + (stages - 1) * cols < end) copy_tile(j0 + (stages - 1) * cols);
    cp_async_commit();
    if (j0 == begin) {
#pragma unroll
      for (int d = 0; d < D / 16; ++d) ldmatrix(qf[d], q + Rows::at(lane % 16, 2 * d + lane / 16));
    }
    float s[own / 8][4], keep[2];
    mma_dots<D, own>(
        s,
        [&](int d, uint32_t(&f)[4]) {
#pragma unroll
          for (int i = 0; i < 4; ++i) f[i] = qf[d][i];
        },
        k + buffer);
    TileMask<own> hidden;
    hidden.look(mine < high.begin || mine + own > low.end || mine + own > end, seen, mine, p.n);
    mma_weigh<Weighting, own>(s, p.scale, found, keep, hidden, [&](int r) {
      const KeySpan span = mask.of(position_of(p, query_of(8 * r + g)), p.n);
      return KeySpan{span.begin - mine, (span.end < end ? span.end : end) - mine};
    });
    mma_shrink<Weighting, D>(acc, keep);
    uint32_t w[own / 16][4];
    pack_fragments<own>(w, s);
    mma_add<D, own>(acc, w, v + buffer, hidden.cut, memory + (Tile::w + Tile::rows * own * warp));
  }
  cp_async_wait<0>();
  __syncthreads();  // all warps have used the tiles, whose memory now takes what they found

  const Shared<float> left = dynamic_shared<float>() + Tile::k / 2;
  const auto of_warp = [&](int w, int row) { return (w * Tile::rows + row) * Tile::left; };
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = of_warp(warp, 8 * r + g), t = lane % 4;
    const float sum = sum_over_lanes<4>(found.sum[r]);
    if (t == 0) left[at] = found.largest[r], left[at + 1] = sum;
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
#pragma unroll
      for (int e = 0; e < 2; ++e) left[at + 2 + 8 * d + 2 * t + e] = acc[d][2 * r + e];
  }
  __syncthreads();
  for (int row = 0; row < (count < Tile::rows ? count : Tile::rows); ++row) {
    float top = kMinusInfinity, factor[kMmaWarps], total = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kMmaWarps; ++w) top = fmaxf(top, left[of_warp(w, row)]);
#pragma unroll
    for (int w = 0; w < kMmaWarps; ++w) {
      factor[w] = Weighting::online ? exp2_approx(left[of_warp(w, row)] - (top == kMinusInfinity ? 0.0f : top)) : 1.0f;
      total += left[of_warp(w, row) + 1] * factor[w];
      if (thread < D) sum += left[of_warp(w, row) + 2 + thread] * factor[w];
    }
    const int64_t index = (int64_t{batch} * p.out.heads + head_of(row)) * p.m + query_of(row);
    float* const to = p.out.at(index, part);
    if (thread == 0) to[0] = top * kLn2, to[1] = total;
    if (thread < p.out.dv) to[2 + thread] = sum;
  }
}

/// Runs attention_few over a whole problem and joins its parts into `to`. Of p the callers leave part_cols and out's
/// parts and memory unset.
template <int D, class Weighting, class Mask, class Out>
void run_attention_few(FewProblem p, Mask mask, int kv_heads, HeadRows<Out> to) {
  using Tile = FewTile<D>;
  const int rows = kv_heads * p.tiles();
  const int64_t parts = Tile::parts.parts_of(p.n, p.out.batch * rows, multiprocessors() * Tile::at_once);
  p.part_cols = static_cast<int>(round_up(ceil_div(p.n, parts), Tile::cols)), p.out.parts = ceil_div(p.n, p.part_cols);
  const Scratch<float> found(p.out.size());
  p.out.found = found.get();
  launch(attention_few<D, Weighting, Mask>,
         dim3(static_cast<unsigned>(p.out.parts), static_cast<unsigned>(rows), static_cast<unsigned>(p.out.batch)),
         dim3(kMmaThreads), Tile::bytes, p, mask);
  run_join_parts(p.out, to);
}

}  // namespace sluice::cuda
