// Rung 3, backward: scores and weights are computed again from bf16 operands, as in mma.cuh. One kernel has two roles:
// a block owns 64 queries and adds up their dQ, or 64 keys and adds up their dK and dV. Four warps hold 16 rows each:
//
//   S = X Yᵀ    dP = X' Y'ᵀ    with X, X' the block's rows of q, g (of k, v) and Y, Y' tiles of k, v (of q, g)
//   P = e^{S − lse} or φ(S)    dS = P ⊙ (dP − δ) or φ'(S) ⊙ dP    dX += dS Y, and for keys dV += P Y'
//
// P and dS go from mma to mma in registers, rounded to bf16; sums are f32. Only one block adds to a row, in the order
// of the columns: no atomics, and the same bits always. The next tile is copied while this one is computed.
// D = DV = 64 or 128; operands 16-byte aligned. NaN at hidden pairs does not spread.
// What limits it: shared memory as in mma.cuh; S and dP are computed for dQ and again for dK and dV, 7 products in
// place of 5.
#pragma once

#include <sluice/cuda/attention/general.cuh>
#include <sluice/cuda/attention/mma_tiles.cuh>

namespace sluice::cuda {

/// q, g [batch, heads, m, D], k, v [batch, kv_heads, n, D], lse, delta [batch, heads, m] (softmax only): contiguous.
struct AttentionBackwardProblem {
  const BFloat16 *q, *k, *v, *g;
  const float *lse, *delta;
  HeadRows<float> dq, dk, dv;                          // null if not wanted
  bool narrow = false;                                 // they hold bf16
  int key_columns = 1 << 30, value_columns = 1 << 30;  // columns written of dq and dk, and of dv; even
  int batch, heads, kv_heads, m, n;
  float scale;
  const uint8_t* keys = nullptr;  // [batch, n]: 0 hides a key from all queries
  int64_t cache = kCacheOfKeys;   // bytes; see work_order.h
};

/// Stores factor·x, a warp's sixteen rows, as rows first to first + 15 of a head; if `narrow`, as bf16. Skips rows from
/// `length` on and columns from `columns` on, and all rows if `to` is null.
template <int D>
__device__ void store_rows(const HeadRows<float>& to, bool narrow, int64_t batch, int head, int first, int length,
                           int columns, const float (&x)[D / 8][4], float factor) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  if (!to.base) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first + 8 * r + g;
    if (row >= length) continue;
    const std::ptrdiff_t at = batch * to.batch + head * to.head + row * to.row + 2 * t;
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
      if (8 * d + 2 * t >= columns) continue;
      const float u = x[d][2 * r] * factor, v = x[d][2 * r + 1] * factor;
      if (narrow) store_pair(reinterpret_cast<BFloat16*>(to.base) + at + 8 * d, u, v);
      else store_pair(to.base + at + 8 * d, u, v);
    }
  }
}

template <int D, bool by_keys> struct MmaBackwardTile {
  static constexpr int rows = kMmaRows, cols = by_keys && D > 64 ? 32 : 64;  // fewer if two sums take the registers
  static constexpr int own = 0, other = own + 2 * rows * D, w = other + 4 * cols * D, end = w + rows * cols;
  static constexpr std::size_t statistics = end * sizeof(BFloat16);  // lse and delta of two tiles of queries
  static constexpr std::size_t bytes = statistics + (by_keys ? 4 * cols * sizeof(float) : 0);
};

/// grid (⌈m / 64⌉, heads, batch), by_keys (⌈n / 64⌉, kv_heads, batch); blocks of 128 threads; MmaBackwardTile::bytes.
template <int D, class Weighting, class Mask, bool by_keys>
__global__ void __launch_bounds__(128) attention_mma_backward(AttentionBackwardProblem p, Mask mask) {
  using Tile = MmaBackwardTile<D, by_keys>;
  using Rows = MmaRows<D>;
  constexpr int rows = Tile::rows, cols = Tile::cols;
  const Shared<BFloat16> memory = dynamic_shared<BFloat16>(), own = memory + Tile::own, other = memory + Tile::other;
  const Shared<float> statistics = dynamic_shared<float>() + static_cast<int>(Tile::statistics / sizeof(float));
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp, g = lane / 4,
            t = lane % 4;
  // Of the blocks of a head those with the most columns begin first: with causality, of the last queries or first keys.
  const int length = by_keys ? p.n : p.m, group = p.heads / p.kv_heads;
  const int first = static_cast<int>(by_keys ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * rows;
  const int last = first + rows < length ? first + rows - 1 : length - 1;
  const int head = static_cast<int>(blockIdx.y), first_query_head = by_keys ? head * group : head;
  const std::ptrdiff_t batch = blockIdx.z, kv_row = (batch * p.kv_heads + (by_keys ? head : head / group)) * p.n;
  const std::ptrdiff_t query_row = (batch * p.heads + first_query_head) * p.m;  // of the first query head
  const uint8_t* keys = p.keys ? p.keys + batch * p.n : nullptr;
  const auto seen = [&](int j) { return j < p.n && (!keys || keys[j]); };
  const auto real = [&](int i) { return i < p.m; };
  const auto span_of = [&](int row) {
    if constexpr (by_keys) return mask.queries_of(row - (p.n - p.m), p.m);
    else return mask.of(position_of(p, row), p.n);
  };
  const KeySpan low = span_of(first), high = span_of(last);

  // Steps: tiles of `cols` columns; with by_keys, those of each query head of the group.
  const int begin = low.begin / cols * cols, tiles = high.end > begin ? (high.end - begin + cols - 1) / cols : 0;
  const int steps = by_keys ? tiles * group : tiles;
  const auto copy_step = [&](int step) {
    const int at = begin + step % tiles * cols;
    const Shared<BFloat16> to = other + step % 2 * (2 * cols * D);
    if constexpr (by_keys) {
      const std::ptrdiff_t row = query_row + std::ptrdiff_t{step / tiles} * p.m;
      Rows::template copy<cols>(to, p.q + row * D, at, real);
      Rows::template copy<cols>(to + cols * D, p.g + row * D, at, real);
      if constexpr (Weighting::online) {
        const int i = static_cast<int>(threadIdx.x);
        if (i < cols) {
          const bool there = at + i < p.m;
          statistics[step % 2 * (2 * cols) + i] = there ? p.lse[row + at + i] : 0.0f;
          statistics[step % 2 * (2 * cols) + cols + i] = there ? p.delta[row + at + i] : 0.0f;
        }
      }
    } else {
      Rows::template copy<cols>(to, p.k + kv_row * D, at, seen);
      Rows::template copy<cols>(to + cols * D, p.v + kv_row * D, at, seen);
    }
  };
  if (steps > 0) {
    if constexpr (by_keys) {
      Rows::template copy<rows>(own, p.k + kv_row * D, first, seen);
      Rows::template copy<rows>(own + rows * D, p.v + kv_row * D, first, seen);
    } else {
      Rows::template copy<rows>(own, p.q + query_row * D, first, real);
      Rows::template copy<rows>(own + rows * D, p.g + query_row * D, first, real);
    }
    copy_step(0);
  }
  cp_async_commit();

  float dx[D / 8][4] = {}, dv[by_keys ? D / 8 : 1][4] = {}, own_lse[2] = {}, own_delta[2] = {};
  if constexpr (!by_keys && Weighting::online)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = first + 16 * warp + 8 * r + g;
      if (i < p.m) own_lse[r] = p.lse[query_row + i], own_delta[r] = p.delta[query_row + i];
    }

  for (int step = 0; step < steps; ++step) {
    const int at = begin + step % tiles * cols;
    const Shared<BFloat16> y = other + step % 2 * (2 * cols * D), y2 = y + cols * D;
    cp_async_wait<0>();
    __syncthreads();  // all threads see this tile, and the previous tile's buffer is free
    if (step + 1 < steps) copy_step(step + 1);
    cp_async_commit();

    const auto rows_of = [&](Shared<BFloat16> x) {
      return [=](int d, uint32_t(&f)[4]) { ldmatrix(f, x + Rows::at(16 * warp + lane % 16, 2 * d + lane / 16)); };
    };
    float s[cols / 8][4], ds[cols / 8][4];
    mma_dots<D, cols>(s, rows_of(own), y);
    mma_dots<D, cols>(ds, rows_of(own + rows * D), y2);

    const bool edge = keys || at < high.begin || at + cols > low.end;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + 16 * warp + 8 * r + g;
      const KeySpan span = span_of(row);
      const bool row_seen = by_keys ? seen(row) : true;
#pragma unroll
      for (int c = 0; c < cols / 8; ++c)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = at + 8 * c + 2 * t + e;
          float &weight = s[c][2 * r + e], &slope = ds[c][2 * r + e];
          if (edge && (j < span.begin || j >= span.end || !row_seen || (!by_keys && !seen(j)))) {
            weight = 0, slope = 0;
          } else if constexpr (Weighting::online) {
            const int column = step % 2 * (2 * cols) + j - at;
            const float lse = by_keys ? float(statistics[column]) : own_lse[r];
            const float delta = by_keys ? float(statistics[column + cols]) : own_delta[r];
            weight = exp2_approx((weight * p.scale - (lse == kMinusInfinity ? 0.0f : lse)) * kLog2E);
            slope = weight * (slope - delta);
          } else {
            const Dual<float, 1> y = Weighting::weight_and_slope(weight * p.scale);
            weight = y.v, slope *= y.d[0];
          }
        }
    }

    const Shared<BFloat16> mine = memory + (Tile::w + 16 * cols * warp);
    uint32_t w[cols / 16][4];
    if constexpr (by_keys) {
      pack_fragments<cols>(w, s);
      mma_add<D, cols>(dv, w, y2, edge, mine);
    }
    pack_fragments<cols>(w, ds);
    mma_add<D, cols>(dx, w, y, edge, mine);
  }

  store_rows<D>(by_keys ? p.dk : p.dq, p.narrow, batch, head, first + 16 * warp, length, p.key_columns, dx, p.scale);
  if constexpr (by_keys) store_rows<D>(p.dv, p.narrow, batch, head, first + 16 * warp, length, p.value_columns, dv, 1);
}

/// Runs one role of attention_mma_backward over a whole problem.
template <bool by_keys, int D, class Weighting, class Mask>
void run_attention_mma_backward(const AttentionBackwardProblem& p, Mask mask) {
  launch(attention_mma_backward<D, Weighting, Mask, by_keys>,
         grid_of(ceil_div(by_keys ? p.n : p.m, kMmaRows), by_keys ? p.kv_heads : p.heads, p.batch), dim3(kMmaThreads),
         MmaBackwardTile<D, by_keys>::bytes, p, mask);
}

}  // namespace sluice::cuda
