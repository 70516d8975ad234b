// Rung 4, backward: the two roles of mma_backward.cuh in the form of wgmma.cuh. A block is three warpgroups and owns
// 128 rows: queries (dQ) or keys (dK and dV).
//
//   Warpgroup 0 computes nothing and gives most of its registers away. One thread of it copies the block's rows by TMA,
//     and then tiles of the other side into a ring of two. For keys a second warp copies lse and δ of a tile's queries.
//   Warpgroups 1 and 2 have 64 rows each: X of q (of k), X' of g (of v). For each tile, Y of k (of q), Y' of v (of g):
//
//     start S = X Yᵀ and dP = X' Y'ᵀ      both operands in shared memory
//     wait for S: P and φ' from S         while dP is computed
//     start dV += P Y'                    keys only; wgmma takes P from registers, where S left it
//     wait for dP: dS = φ' ⊙ (dP − δ)     while dV is added up
//     start dX += dS Y, wait
//
// For keys S is transposed. Neither P nor dS is ever in shared memory. The elementwise work of one of the two
// warpgroups runs beside the products of the other. Only one block adds to a row, in the order of the tiles: no
// atomics, and the same bits always. FlashAttention-3 (Shah et al. 2024) computes S and dP once for all three gradients
// but adds dQ with atomics.
// D = DV = 64 or 128; operands 16-byte aligned, m and n at least 1. NaN at hidden pairs does not spread.
// What limits it: 7 products in place of 5. S and dP read both operands from shared memory, 64 rows for a tile of 64 or
// 128 columns, which takes all of its bandwidth. For keys at D = 128, two sums of D columns leave registers for only 64
// queries a tile. Nothing of the next tile begins before this tile's sums are done.
#pragma once

#include <sluice/cuda/attention/mma_backward.cuh>
#include <sluice/cuda/attention/wgmma.cuh>

namespace sluice::cuda {

template <int D, bool by_keys> struct WgmmaBackwardTile {
  static constexpr int rows = 64 * kConsumers, cols = by_keys || D > 64 ? 64 : 128, stages = 2, size = cols * D;
  static constexpr int own = 0, other = own + 2 * rows * D, w = other + stages * 2 * size, end = w + rows * cols;
  static constexpr int statistics = static_cast<int>(end * sizeof(BFloat16) / sizeof(float)),
                       of_stage = by_keys ? 2 * cols : 0;
  static constexpr int barriers = (statistics + stages * of_stage) / 2;
  static constexpr unsigned own_bytes = 2 * rows * D * sizeof(BFloat16), tile_bytes = 2 * size * sizeof(BFloat16);
  // mbarriers: the block's rows have arrived; for each stage: its tiles have arrived, have been read
  static constexpr int has_own = 0, has = 1, read = has + stages;
  // registers of each thread of warpgroup 0, and of the other warpgroups: 168 on average
  static constexpr int few_registers = by_keys && D == 64 ? 40 : 24, many_registers = by_keys && D == 64 ? 232 : 240;
  static_assert(registers_suffice(few_registers, many_registers, kConsumers));
  static constexpr std::size_t bytes = (barriers + read + stages) * sizeof(uint64_t);
};

/// A grid of order.works() blocks of 384 threads; WgmmaBackwardTile::bytes. The maps are of X, X', Y, Y', with boxes of
/// Tile::rows and Tile::cols rows.
template <int D, class Weighting, class Mask, bool by_keys>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    attention_wgmma_backward(AttentionBackwardProblem p, Mask mask, WorkOrder order, SLUICE_TENSOR_MAP own_map,
                             SLUICE_TENSOR_MAP own2_map, SLUICE_TENSOR_MAP other_map, SLUICE_TENSOR_MAP other2_map) {
  using Tile = WgmmaBackwardTile<D, by_keys>;
  constexpr int rows = Tile::rows, cols = Tile::cols, stages = Tile::stages, size = Tile::size;
  constexpr bool statistics_come = by_keys && Weighting::online, listed = kListed<Mask>;
  const Shared<BFloat16> memory = dynamic_shared<BFloat16>();
  const Shared<float> statistics = dynamic_shared<float>() + Tile::statistics;
  const Shared<uint64_t> barrier = dynamic_shared<uint64_t>() + Tile::barriers;
  const int thread = static_cast<int>(threadIdx.x), warpgroup = warpgroup_of(thread);
  const int lane = thread % kWarp, warp = thread % kWarpgroup / kWarp, g = lane / 4, t = lane % 4;
  const int length = by_keys ? p.n : p.m, group = p.heads / p.kv_heads;
  const WorkPlace place = order(static_cast<int>(blockIdx.x));
  const int head = place.head, batch = place.batch;
  // With causality the longest blocks are those of the last queries or of the first keys.
  const int first = (by_keys ? place.block : order.blocks - 1 - place.block) * rows;
  const int last = first + rows < length ? first + rows - 1 : length - 1;
  const int query_head = by_keys ? head * group : head, kv_head = by_keys ? head : head / group;  // the first one
  const int query_slab = batch * p.heads + query_head;  // counted over all heads
  const uint8_t* keys = p.keys ? p.keys + std::ptrdiff_t{batch} * p.n : nullptr;
  const auto span_of = [&](int row) {
    if constexpr (by_keys) return mask.queries_of(row - (p.n - p.m), p.m);
    else return mask.of(position_of(p, row), p.n);
  };
  const KeySpan low = span_of(first), high = span_of(last);
  // Steps: tiles of `cols` columns from `begin` to high.end; with by_keys, those of each query head of the group. Or
  // those of a list.
  const int begin = low.begin / cols * cols;
  [[maybe_unused]] const int* list = nullptr;
  if constexpr (listed) list = mask.lists + mask.list_of(batch, head, first / rows);
  const auto any = [&] { return listed ? list[0] > 0 : begin < high.end; };

  if (thread == 0) {
    mbarrier_init(barrier + Tile::has_own, 1);
    for (int stage = 0; stage < stages; ++stage) {
      mbarrier_init(barrier + Tile::has + stage, statistics_come ? 1 + kWarp : 1);
      mbarrier_init(barrier + Tile::read + stage, kConsumers);
    }
    mbarriers_ready();
  }
  __syncthreads();

  if (warpgroup == 0) {
    fewer_registers<Tile::few_registers>();
    if (thread == 0 && any()) {
      mbarrier_arrive_expecting(barrier + Tile::has_own, Tile::own_bytes);
      tma_rows<D, rows>(memory + Tile::own, own_map, barrier + Tile::has_own, first, head, batch);
      tma_rows<D, rows>(memory + (Tile::own + rows * D), own2_map, barrier + Tile::has_own, first, head, batch);
    }
    if (thread == 0 || (statistics_come && warp == 1)) {
      const auto copy = [&](int step, int other, int at) {
        const int stage = step % stages;
        const Shared<uint64_t> come = barrier + Tile::has + stage;
        mbarrier_wait(barrier + Tile::read + stage, static_cast<unsigned>(step / stages % 2) ^ 1);  // it is free
        if (warp == 0) {
          const Shared<BFloat16> to = memory + (Tile::other + stage * (2 * size));
          mbarrier_arrive_expecting(come, Tile::tile_bytes);
          tma_rows<D, cols>(to, other_map, come, at, other, batch);
          tma_rows<D, cols>(to + size, other2_map, come, at, other, batch);
        } else if constexpr (statistics_come) {  // lse · log2 e of all columns, then δ
          const std::ptrdiff_t row = (std::ptrdiff_t{batch} * p.heads + other) * p.m + (at + lane);
          const Shared<float> to = statistics + (stage * Tile::of_stage + lane);
#pragma unroll 1
          for (int i = 0; i < cols; i += kWarp) {
            const bool there = at + lane + i < p.m;
            const float lse = there ? p.lse[row + i] : 0.0f;
            to[i] = lse == kMinusInfinity ? 0.0f : lse * kLog2E;
            to[cols + i] = there ? p.delta[row + i] : 0.0f;
          }
          mbarrier_arrive(come);
        }
      };
      int step = 0;
      if constexpr (listed) {
        for (; step < list[0]; ++step)
          copy(step, by_keys ? query_head + Mask::member_of(list[1 + step]) : kv_head, Mask::first_of(list[1 + step]));
      } else {
        for (int other = by_keys ? query_head : kv_head, end = other + (by_keys ? group : 1); other < end; ++other)
          for (int at = begin; at < high.end; at += cols, ++step) copy(step, other, at);
      }
    }
    return;
  }
  more_registers<Tile::many_registers>();

  const int own_row = 64 * (warpgroup - 1);  // this warpgroup's first row in the block
  const int warp_row = first + own_row + 16 * warp;
  const Shared<BFloat16> x = memory + (Tile::own + own_row * kBoxColumns), x2 = x + rows * D;
  const Shared<BFloat16> mine = memory + (Tile::w + (own_row + 16 * warp) * cols);
  float dx[D / 8][4] = {}, dv[by_keys ? D / 8 : 1][4] = {}, own_lse[2] = {}, own_delta[2] = {};
  if constexpr (!by_keys && Weighting::online)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = warp_row + 8 * r + g;
      if (i >= p.m) continue;
      const float lse = p.lse[std::ptrdiff_t{query_slab} * p.m + i];
      own_lse[r] = lse == kMinusInfinity ? 0.0f : lse * kLog2E;
      own_delta[r] = p.delta[std::ptrdiff_t{query_slab} * p.m + i];
    }

  float s[cols / 8][4], ds[cols / 8][4];
  uint32_t w[by_keys ? cols / 16 : 1][4], dw[cols / 16][4];
  uint32_t hidden[cols / 64] = {};  // a bit for each number of s, in a tile that the mask cuts
  TileMask<cols> mask_of_tile;
  const bool own_masked = [&] {  // by_keys: the key mask hides some of the warpgroup's rows
    if (!by_keys || !keys) return false;
    TileMask<64> own;
    own.look(false, keys, first + own_row, p.n);
    return own.masked;
  }();
  // Of number i of s[c]: lse · log2 e for which = 0, δ for which = 1.
  const auto statistic = [&](int which, int stage, int c, int i) -> float {
    if constexpr (statistics_come) return statistics[stage * Tile::of_stage + which * cols + 8 * c + 2 * t + i % 2];
    else return which == 0 ? own_lse[i / 2] : own_delta[i / 2];
  };
  // Hides columns 32i + … of both rows whose bits in `seen` are 0.
  const auto hide_columns = [&](int i, uint32_t seen) {
    const uint32_t own = ~seen >> (2 * t);
#pragma unroll
    for (int c = 0; c < 4; ++c) hidden[i / 2] |= (own >> (8 * c) & 3) * 5 << (i % 2 * 16 + 4 * c);
  };
  // Sets `hidden` from the interval of columns that each row sees, and from the key mask. `tile`: of a list.
  const auto look = [&](int at, [[maybe_unused]] int tile) {
#pragma unroll
    for (int word = 0; word < cols / 64; ++word) hidden[word] = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + 8 * r + g;
      KeySpan span = span_of(row);
      if constexpr (listed && !by_keys)
        span = common(span, Mask::template seen<cols>(mask.chosen(mask.bits_of(batch, head), row, at), at));
      if (by_keys && keys && (row >= p.n || !keys[row])) span.end = span.begin;
      const int from = span.begin - at - 2 * t, to = span.end - at - 2 * t;
#pragma unroll
      for (int c = 0; c < cols / 8; ++c)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * c + e < from || 8 * c + e >= to) hidden[c / 8] |= 1u << (c % 8 * 4 + 2 * r + e);
    }
    if constexpr (!by_keys)
      if (mask_of_tile.masked) {
#pragma unroll
        for (int i = 0; i < cols / kWarp; ++i) hide_columns(i, mask_of_tile.keys[i]);
      }
    if constexpr (listed && by_keys) {  // the warpgroup's keys have one bit of each query
      const int bits = mask.bits_of(batch, query_head + Mask::member_of(tile));
#pragma unroll
      for (int i = 0; i < cols / kWarp; ++i)
        hide_columns(i, __ballot_sync(kAllLanes, mask.chosen(bits, at + kWarp * i + lane, first + own_row) & 1));
    }
  };
  // Sets hidden numbers to 0, also NaN.
  const auto hide = [&](uint32_t(&x)[cols / 16][4]) {
#pragma unroll
    for (int c = 0; c < cols / 8; ++c)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t pair = hidden[c / 8] >> (c % 8 * 4 + 2 * r);
        x[c / 2][c % 2 * 2 + r] &= (pair & 1 ? 0u : 0xffffu) | (pair & 2 ? 0u : 0xffff0000u);
      }
  };
  // s becomes φ'(S), which is P for softmax; w becomes P, rounded.
  const auto weigh = [&](int stage, bool edge) {
    if constexpr (Weighting::online) {
#pragma unroll
      for (int c = 0; c < cols / 8; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[c][i] = exp2_approx(s[c][i] * (p.scale * kLog2E) - statistic(0, stage, c, i));
      if constexpr (by_keys) pack_fragments<cols>(w, s);
    } else {
#pragma unroll
      for (int c = 0; c < cols / 8; ++c)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float weight[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const Dual<float, 1> y = Weighting::weight_and_slope(s[c][2 * r + e] * p.scale);
            weight[e] = y.v, s[c][2 * r + e] = y.d[0];
          }
          if constexpr (by_keys) w[c / 2][c % 2 * 2 + r] = pack_bf16(weight[0], weight[1]);
        }
    }
    if constexpr (by_keys)
      if (edge) hide(w);
  };
  const auto differentiate = [&](int stage, bool edge) {  // dw becomes dS, rounded, from dP in ds
#pragma unroll
    for (int c = 0; c < cols / 8; ++c)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float x[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 2 * r + e;
          x[e] = s[c][i] * (Weighting::online ? ds[c][i] - statistic(1, stage, c, i) : ds[c][i]);
        }
        dw[c / 2][c % 2 * 2 + r] = pack_bf16(x[0], x[1]);
      }
    if (edge) hide(dw);
  };
  const auto add_by_numbers = [&](float(&acc)[D / 8][4], const uint32_t(&weights)[cols / 16][4], Shared<BFloat16> y) {
    mma_add_by_numbers<D, cols>(acc, weights, number_in<cols>(y), mine);
  };

  if (any()) mbarrier_wait(barrier + Tile::has_own, 0);
  const int tiles = begin < high.end ? (high.end - begin + cols - 1) / cols : 0, steps = listed    ? list[0]
                                                                                         : by_keys ? tiles * group
                                                                                                   : tiles;
  for (int step = 0, at = begin; step < steps; ++step, at = at + cols < high.end ? at + cols : begin) {
    const int stage = step % stages;
    const Shared<BFloat16> y = memory + (Tile::other + stage * (2 * size)), y2 = y + size;
    mbarrier_wait(barrier + Tile::has + stage, static_cast<unsigned>(step / stages % 2));
    [[maybe_unused]] int tile = 0;
    bool cut = at < high.begin || at + cols > low.end;
    if constexpr (listed) tile = list[1 + step], at = Mask::first_of(tile), cut = Mask::is_cut(tile);
    mask_of_tile.look(cut, by_keys ? nullptr : keys, at, p.n);
    const bool edge = mask_of_tile.any() || own_masked;
    const bool by_numbers =
        edge && !known_finite(mask) && !all_finite<(by_keys ? 2 : 1) * size>(y, kConsumers + warpgroup);
    const Descriptor of_x = rows_of(x), of_y = rows_of(y), of_x2 = rows_of(x2), of_y2 = rows_of(y2);
    wgmma_hold(s), wgmma_hold(ds);
    wgmma_fence();
    start_scores<D, rows, cols>(s, of_x, of_y);
    start_scores<D, rows, cols>(ds, of_x2, of_y2);
    if (edge) look(at, tile);
    wgmma_wait<1>();
    wgmma_hold(s);
    weigh(stage, edge);
    if (by_numbers) {  // hidden pairs have weight 0, but 0·NaN is NaN
      wgmma_wait<0>();
      wgmma_hold(ds);
      differentiate(stage, edge);
      if constexpr (by_keys) add_by_numbers(dv, w, y2);
      add_by_numbers(dx, dw, y);
    } else {
      if constexpr (by_keys) {
        wgmma_hold(dv), wgmma_hold(w);
        wgmma_fence();
        start_sums<D, cols>(dv, w, columns_of(y2, cols));
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      wgmma_hold(ds);
      differentiate(stage, edge);
      wgmma_hold(dx), wgmma_hold(dw);
      wgmma_fence();
      start_sums<D, cols>(dx, dw, columns_of(y, cols));
      wgmma_wait<0>();
      wgmma_hold(dx);
      if constexpr (by_keys) wgmma_hold(dv);
    }
    named_barrier_sync(warpgroup, kWarpgroup);  // one thread arrives for the warpgroup; its products have ended
    if (thread % kWarpgroup == 0) mbarrier_arrive(barrier + Tile::read + stage);
  }

  store_rows<D>(by_keys ? p.dk : p.dq, p.narrow, batch, head, warp_row, length, p.key_columns, dx, p.scale);
  if constexpr (by_keys) store_rows<D>(p.dv, p.narrow, batch, head, warp_row, length, p.value_columns, dv, 1);
}

/// False if the compiler runs out of registers, with a costly formula beside two sums.
template <class Weighting> constexpr bool wgmma_backward_has_keys = !std::is_same_v<Weighting, Laplace>;

/// The operands of a backward pass in strided rows, as tensor_map() wants them.
struct BackwardRows {
  HeadRows<const BFloat16> q, k, v, g;
};

/// Runs one role over a whole problem.
template <bool by_keys, int D, class Weighting, class Mask>
void run_attention_wgmma_backward(const AttentionBackwardProblem& p, Mask mask, const BackwardRows& x) {
  using Tile = WgmmaBackwardTile<D, by_keys>;
  const auto map = [&](const HeadRows<const BFloat16>& at, bool of_keys) {
    return tensor_map(at, p.batch, of_keys ? p.kv_heads : p.heads, of_keys ? p.n : p.m, D,
                      of_keys == by_keys ? Tile::rows : Tile::cols);
  };
  const WorkOrder order = work_order<by_keys, Tile::rows, D>(p, mask);
  launch(attention_wgmma_backward<D, Weighting, Mask, by_keys>, grid_of(order.works()), dim3(kWgmmaThreads),
         Tile::bytes, p, mask, order, map(by_keys ? x.k : x.q, by_keys), map(by_keys ? x.v : x.g, by_keys),
         map(by_keys ? x.q : x.k, !by_keys), map(by_keys ? x.g : x.v, !by_keys));
}
template <bool by_keys, int D, class Weighting, class Mask>
void run_attention_wgmma_backward(const AttentionBackwardProblem& p, Mask mask) {
  run_attention_wgmma_backward<by_keys, D, Weighting, Mask>(
      p, mask,
      {packed_heads(p.q, p.heads, p.m, D), packed_heads(p.k, p.kv_heads, p.n, D), packed_heads(p.v, p.kv_heads, p.n, D),
       packed_heads(p.g, p.heads, p.m, D)});
}

}  // namespace sluice::cuda
