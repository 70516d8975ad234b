// Attention of few queries to many keys, as in a step of decoding, on tensor cores. Query heads that share keys are
// rows of one tile, so keys and values are read once for up to 16 rows. A block takes a part of the keys of a key head
// (parts.cuh). Each of its eight warps takes 16 keys at a time for all rows, by cp.async into a ring of three of its
// own, and waits for no other warp; it has statistics and sums of its own, which the block joins at the end.
// D = 64 or 128; operands of up to D columns, in rows of whole pieces of 16 bytes. NaN at hidden keys does not spread.
// What limits it: memory, one read of keys and values; 128 KiB of copies are under way in a multiprocessor.
#pragma once

#include <sluice/cuda/attention/mma_tiles.cuh>
#include <sluice/cuda/attention/parts.cuh>

namespace sluice::cuda {

constexpr int kFewRows = 16;  // of a tile

template <int D> struct FewTile {
  static constexpr int rows = kFewRows, own = 16, warps = 8, threads = warps * kWarp, stages = 3;
  static constexpr int cols = warps * own;  // keys of a block's warps at a time
  // Of a warp: keys and values of each stage, weights. The queries are those of all warps.
  static constexpr int q = 0, ring = q + rows * D, stage = 2 * own * D, w = stages * stage, of_warp = w + rows * own,
                       end = ring + warps * of_warp;
  static constexpr std::size_t bytes = end * sizeof(BFloat16);
  static constexpr PartSizes parts{.step = cols, .least = 2 * cols, .cost = cols};
  static constexpr int at_once = D == 64 ? 2 : 1;  // blocks of a multiprocessor
  static constexpr int left = D + 2;               // numbers that a warp leaves of a row
  static_assert(warps * rows * left * sizeof(float) <= bytes);
};

/// A call; `n` keys, of which a part has part_cols. Widths are multiples of 8.
struct FewProblem {
  HeadRows<const BFloat16> q, k, v;
  int group, m, n, d, dv, part_cols;  // group: query heads of a key head
  float scale;
  const uint8_t* keys;  // [batch, n] as in AttentionProblem
  PartsOfKeys<float> out;

  SLUICE_FN int tiles() const { return (group * m + kFewRows - 1) / kFewRows; }
};

/// grid (parts, key heads · tiles of 16 rows, batch), blocks of FewTile<D>::threads, FewTile<D>::bytes of shared
/// memory.
template <int D, class Weighting, class Mask>
__global__ void __launch_bounds__(FewTile<D>::threads, FewTile<D>::at_once) attention_few(FewProblem p, Mask mask) {
  using Tile = FewTile<D>;
  using Rows = MmaRows<D>;
  constexpr int own = Tile::own, stages = Tile::stages;
  const Shared<BFloat16> memory = dynamic_shared<BFloat16>(), q = memory + Tile::q;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp, g = lane / 4;
  const Shared<BFloat16> mine = memory + (Tile::ring + warp * Tile::of_warp);
  const int part = static_cast<int>(blockIdx.x), batch = static_cast<int>(blockIdx.z), tiles = p.tiles();
  const int kv = static_cast<int>(blockIdx.y) / tiles, first = static_cast<int>(blockIdx.y) % tiles * Tile::rows;
  const int count = p.group * p.m - first;  // rows of the tile that exist, if fewer than 16
  // Row r is query (first + r) mod m of head (first + r) / m of the group.
  const auto query_of = [&](int row) { return (first + row) % p.m; };
  const auto head_of = [&](int row) { return kv * p.group + (first + row) / p.m; };

  const KeySpan low = mask.of(position_of(p, 0), p.n), high = mask.of(position_of(p, p.m - 1), p.n);
  const int part_end = part == p.out.parts - 1 ? p.n : (part + 1) * p.part_cols;
  const int from = low.begin / own * own, begin = from > part * p.part_cols ? from : part * p.part_cols;
  const int end = high.end < part_end ? high.end : part_end;  // a part ends where a warp's keys do
  const uint8_t* const seen = p.keys ? p.keys + std::ptrdiff_t{batch} * p.n : nullptr;

  // A lane copies one piece of 16 bytes of every second or fourth row.
  constexpr int pieces = D / 8, rows_at_once = kWarp / pieces;
  const int piece = lane % pieces, row = lane / pieces;
  const auto copy = [&](Shared<BFloat16> to, const HeadRows<const BFloat16>& x, int j0, int width) {
    const BFloat16* at = x.at(batch, kv, j0 + row) + 8 * piece;
#pragma unroll
    for (int r = 0; r < own; r += rows_at_once, at += rows_at_once * x.row) {
      const int j = j0 + r + row;
      const bool there = 8 * piece < width && j < end && (!seen || seen[j]);
      cp_async_16(to + Rows::at(r + row, piece), there ? at : x.base, there);
    }
  };
  const auto copy_keys = [&](int j0) {
    const Shared<BFloat16> to = mine + (j0 - begin) / Tile::cols % stages * Tile::stage;
    if (j0 < end) copy(to, p.k, j0, p.d), copy(to + own * D, p.v, j0, p.dv);
    cp_async_commit();
  };
  for (int e = thread; e < Tile::rows * pieces; e += Tile::threads) {
    const int r = e / pieces, c = e % pieces;
    const bool there = r < count && 8 * c < p.d;
    cp_async_16(q + Rows::at(r, c), there ? p.q.at(batch, head_of(r), query_of(r)) + 8 * c : p.q.base, there);
  }
  cp_async_commit();
  const int own_begin = begin + own * warp;
#pragma unroll
  for (int stage = 0; stage < stages - 1; ++stage) copy_keys(own_begin + stage * Tile::cols);
  cp_async_wait<stages - 1>();
  __syncthreads();  // all warps see the queries
  uint32_t qf[D / 16][4];
#pragma unroll
  for (int d = 0; d < D / 16; ++d) ldmatrix(qf[d], q + Rows::at(lane % 16, 2 * d + lane / 16));

  float acc[D / 8][4] = {};
  MmaStatistics found{{kMinusInfinity, kMinusInfinity}, {0, 0}};
  for (int j0 = own_begin; j0 < end; j0 += Tile::cols) {
    const Shared<BFloat16> k = mine + (j0 - begin) / Tile::cols % stages * Tile::stage;
    cp_async_wait<stages - 2>();
    __syncwarp();  // all lanes see these keys, and the previous ones' memory is free
    copy_keys(j0 + (stages - 1) * Tile::cols);
    float s[own / 8][4], keep[2];
    mma_dots<D, own>(
        s,
        [&](int d, uint32_t(&f)[4]) {
#pragma unroll
          for (int i = 0; i < 4; ++i) f[i] = qf[d][i];
        },
        k);
    TileMask<own> hidden;
    hidden.look(j0 < high.begin || j0 + own > low.end, seen, j0, p.n);
    mma_weigh<Weighting, own>(s, p.scale, found, keep, hidden, [&](int r) {
      const KeySpan span = mask.of(position_of(p, query_of(8 * r + g)), p.n);
      return KeySpan{span.begin - j0, span.end - j0};
    });
    mma_shrink<Weighting, D>(acc, keep);
    uint32_t w[own / 16][4];
    pack_fragments<own>(w, s);
    mma_add<D, own>(acc, w, k + own * D, hidden.cut, mine + Tile::w);
  }
  cp_async_wait<0>();
  __syncthreads();  // all warps have used their keys, whose memory now takes what they found

  const Shared<float> left = dynamic_shared<float>();
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
  // A thread has a column of every second row, or of every fourth.
  for (int r = thread / D; r < (count < Tile::rows ? count : Tile::rows); r += Tile::threads / D) {
    const int column = thread % D;
    float top = kMinusInfinity, total = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < Tile::warps; ++w) top = fmaxf(top, left[of_warp(w, r)]);
#pragma unroll
    for (int w = 0; w < Tile::warps; ++w) {
      const float shift = top == kMinusInfinity ? 0.0f : top;
      const float factor = Weighting::online ? exp2_approx(left[of_warp(w, r)] - shift) : 1.0f;
      total += left[of_warp(w, r) + 1] * factor, sum += left[of_warp(w, r) + 2 + column] * factor;
    }
    const int64_t index = (int64_t{batch} * p.out.heads + head_of(r)) * p.m + query_of(r);
    float* const to = p.out.at(index, part);
    if (column == 0) to[0] = top * kLn2, to[1] = total;
    if (column < p.out.dv) to[2 + column] = sum;
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
         dim3(Tile::threads), Tile::bytes, p, mask);
  run_join_parts(p.out, to);
}

}  // namespace sluice::cuda
