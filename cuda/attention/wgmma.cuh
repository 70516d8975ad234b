// Rung 4: Hopper's instructions. A block is three warpgroups of 128 threads. In the first, one thread starts copies and
// the others do nothing, so it gives most of its registers to the two other warpgroups, which have 64 queries each. TMA
// copies tiles of 128 keys and values into a ring of two, swizzled as wgmma reads them. Barriers in shared memory count
// the bytes that arrive, and the warpgroups that have read a tile. wgmma takes Q, K and V from shared memory and
// weights from registers. The scores of the next tile are computed while this tile's values are added up, so that the
// exponentials of one run beside the products of the other (FlashAttention-3; Shah et al. 2024).
// D = DV = 64 or 128; operands 16-byte aligned, m and n at least 1. NaN at hidden keys does not spread.
// What limits it: a work's first scores and last sums have no other products beside them but those of the second
// warpgroup; all keys and values come through the L2 cache once for 128 queries.
#pragma once

#include <sluice/cuda/attention/chosen_blocks.cuh>
#include <sluice/cuda/attention/mma_tiles.cuh>
#include <sluice/cuda/attention/work_order.h>
#include <sluice/cuda/warpgroup.h>

namespace sluice::cuda {

constexpr int kConsumers = 2;
constexpr int kWgmmaThreads = (1 + kConsumers) * kWarpgroup;

template <int D> struct WgmmaTile {
  static constexpr int rows = 64 * kConsumers, cols = 128, stages = 2, boxes = D / kBoxColumns;
  static constexpr int q = 0, k = q + rows * D, v = k + stages * cols * D, w = v + stages * cols * D,
                       end = w + rows * cols;
  static constexpr unsigned tile_bytes = cols * D * sizeof(BFloat16), query_bytes = rows * D * sizeof(BFloat16);
  // mbarriers: Q has arrived, has been read; for each stage: K and V have arrived, K and V have been read. For what has
  // come, one arrival of the producer and the bytes; for what has been read, one of each warpgroup (have_read).
  static constexpr int has_q = 0, read_q = 1, has_k = 2, has_v = has_k + stages, read_k = has_v + stages,
                       read_v = read_k + stages, barriers = read_v + stages;
  static constexpr std::size_t taken = end * sizeof(BFloat16) + barriers * sizeof(uint64_t);  // of two works, ints
  static constexpr std::size_t bytes = taken + 16 * sizeof(int);
  static constexpr int turn = 2 * kConsumers;  // named barriers: turn + 1 and turn + 2 are those of the two's turns
  static constexpr int few_registers = 40, many_registers = 232;
  static_assert(registers_suffice(few_registers, many_registers, kConsumers));
};

/// Starts to copy rows [first, first + `rows`) of a head, box after box.
template <int D, int rows>
__device__ void tma_rows(Shared<BFloat16> to, const TensorMap& map, Shared<uint64_t> arrived, int first, int head,
                         int batch) {
#pragma unroll
  for (int box = 0; box < D / kBoxColumns; ++box)
    tma_load(to + box * rows * kBoxColumns, map, arrived, box * kBoxColumns, first, head, batch);
}

/// Starts s [64, cols] = q · kᵀ; q: 64 rows of a tile of `rows`. Make the descriptors of all products before the first
/// of them: nothing else shall stand between two.
template <int D, int rows, int cols> __device__ void start_scores(float (&s)[cols / 8][4], Descriptor q, Descriptor k) {
#pragma unroll
  for (int d = 0; d < D; d += 16) wgmma_rows(s, q + slice_of_rows(rows, d), k + slice_of_rows(cols, d), d > 0);
  wgmma_commit();
}

/// Starts acc [64, D] += w · v.
template <int D, int cols>
__device__ void start_sums(float (&acc)[D / 8][4], const uint32_t (&w)[cols / 16][4], Descriptor v) {
#pragma unroll
  for (int j = 0; j < cols / 16; ++j) wgmma_columns(acc, w[j], v + slice_of_columns(16 * j));
  wgmma_commit();
}

/// True if none of `count` numbers is a NaN or an infinity: a question of a whole warpgroup, at named barrier
/// `barrier`.
template <int count> __device__ bool all_finite(Shared<BFloat16> x, int barrier) {
  static_assert(count % (8 * kWarpgroup) == 0);
  uint32_t bad = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % kWarpgroup * 8; i < count; i += kWarpgroup * 8) {
    struct Numbers {
      BFloat16 x[8];
    } y;
    struct Pairs {
      uint32_t x[4];
    };
    load_16(y.x, x + i);
    const Pairs pairs = __builtin_bit_cast(Pairs, y);
#pragma unroll
    for (const uint32_t pair : pairs.x) bad |= has_exponent_of_ones(pair);
  }
  return !named_barrier_any(barrier, kWarpgroup, bad != 0);
}

/// Number 8d + e of row j of a swizzled tile of `cols` rows, as a function of (j, d, e).
template <int cols> __device__ auto number_in(Shared<BFloat16> tile) {
  return [tile](int j, int d, int e) {
    return to_float(tile[8 * d / kBoxColumns * (cols * kBoxColumns) + swizzled(j, 8 * d % kBoxColumns) + e]);
  };
}

/// 128 queries of a head, and the tiles of keys that they see: ints in shared memory, which the warpgroups read again
/// where they need one, instead of keeping them in registers.
struct WgmmaWork {
  static constexpr int first = 0, head = 1, batch = 2, begin = 3, tiles = 4, count = 7;
  static constexpr int whole_from = 5, whole_to = 6;     // all queries see keys [whole_from, whole_to)
  static constexpr int list = begin, bits = whole_from;  // of ChosenBlocks, in place of these
};

/// A grid of at most as many blocks of 384 threads as there are multiprocessors, WgmmaTile<D>::bytes of shared memory.
/// A block takes work until there is none. Its first work has the block's number, further ones come from `next`, which
/// is 0 between launches. Copies for the next work begin while this one's results are written. The maps have boxes of
/// Tile::rows and Tile::cols rows.
template <int D, class Weighting, class Mask, class Gate, class Out>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    attention_wgmma(AttentionProblem<BFloat16, Out> p, Mask mask, WorkOrder order, int* next, SLUICE_TENSOR_MAP queries,
                    SLUICE_TENSOR_MAP keys, SLUICE_TENSOR_MAP values) {
  using Tile = WgmmaTile<D>;
  using Work = WgmmaWork;
  constexpr int rows = Tile::rows, cols = Tile::cols, stages = Tile::stages, size = cols * D;
  constexpr bool listed = kListed<Mask>;
  const Shared<BFloat16> memory = dynamic_shared<BFloat16>();
  const Shared<BFloat16> q = memory + Tile::q, k = memory + Tile::k, v = memory + Tile::v;
  const Shared<uint64_t> barrier =
      dynamic_shared<uint64_t>() + static_cast<int>(Tile::end * sizeof(BFloat16) / sizeof(uint64_t));
  // Of even turns, of odd. The ints of a work are overwritten two turns later. Before that both warpgroups have arrived
  // at read_q of the turn between, so no warp still reads them.
  const Shared<int> taken = dynamic_shared<int>() + static_cast<int>(Tile::taken / sizeof(int));
  const int thread = static_cast<int>(threadIdx.x), group = warpgroup_of(thread);
  const int total = order.works();
  const auto tile_of = [&](int begin, int tile) {
    if constexpr (listed) return mask.lists[begin + tile];
    else return begin + tile * cols;
  };
  const auto first_of = [](int tile) {
    if constexpr (listed) return Mask::first_of(tile);
    else return tile;
  };

  if (thread == 0) {
    mbarrier_init(barrier + Tile::has_q, 1), mbarrier_init(barrier + Tile::read_q, kConsumers);
    for (int stage = 0; stage < stages; ++stage) {
      mbarrier_init(barrier + Tile::has_k + stage, 1), mbarrier_init(barrier + Tile::has_v + stage, 1);
      mbarrier_init(barrier + Tile::read_k + stage, kConsumers),
          mbarrier_init(barrier + Tile::read_v + stage, kConsumers);
    }
    mbarriers_ready();
  }
  __syncthreads();

  if (group == 0) {
    fewer_registers<Tile::few_registers>();
    if (thread != 0) return;
    int step = 0, index = static_cast<int>(blockIdx.x);  // step counts tiles
    for (unsigned turn = 0;; ++turn) {
      mbarrier_wait(barrier + Tile::read_q, turn % 2 ^ 1);
      const Shared<int> work = taken + turn % 2 * Work::count;
      if (index >= total) {
        work[Work::tiles] = -1;
        return mbarrier_arrive(barrier + Tile::has_q);
      }
      const auto [block, head, batch] = order(index);
      const int first = (order.blocks - 1 - block) * rows, last = first + rows < p.m ? first + rows - 1 : p.m - 1;
      const KeySpan low = mask.of(position_of(p, first), p.n), high = mask.of(position_of(p, last), p.n);
      int begin = low.begin / cols * cols, tiles = high.end > begin ? (high.end - begin + cols - 1) / cols : 0;
      if constexpr (listed) begin = mask.list_of(batch, head, first / rows), tiles = mask.lists[begin++];
      const int kv_head = head / (p.heads / p.kv_heads);
      work[Work::first] = first, work[Work::head] = head, work[Work::batch] = batch, work[Work::begin] = begin;
      work[Work::tiles] = tiles, work[Work::whole_from] = high.begin, work[Work::whole_to] = low.end;
      if constexpr (listed) work[Work::bits] = mask.bits_of(batch, head);
      if (tiles == 0) {
        mbarrier_arrive(barrier + Tile::has_q);
      } else {
        mbarrier_arrive_expecting(barrier + Tile::has_q, Tile::query_bytes);
        tma_rows<D, rows>(q, queries, barrier + Tile::has_q, first, head, batch);
      }
      for (int tile = 0; tile < tiles; ++tile, ++step) {
        const int stage = step % stages, at = first_of(tile_of(begin, tile));
        const unsigned parity = static_cast<unsigned>(step / stages % 2) ^ 1;  // of the previous reading, if any
        mbarrier_wait(barrier + Tile::read_k + stage, parity);
        mbarrier_arrive_expecting(barrier + Tile::has_k + stage, Tile::tile_bytes);
        tma_rows<D, cols>(k + stage * size, keys, barrier + Tile::has_k + stage, at, kv_head, batch);
        mbarrier_wait(barrier + Tile::read_v + stage, parity);
        mbarrier_arrive_expecting(barrier + Tile::has_v + stage, Tile::tile_bytes);
        tma_rows<D, cols>(v + stage * size, values, barrier + Tile::has_v + stage, at, kv_head, batch);
      }
      // Only now: a block that took its next work earlier would keep it waiting while another block has none.
      const int earlier = atomicAdd(next, 1);
      index = earlier + static_cast<int>(gridDim.x);
      // Each of the `total` works ends in one atomicAdd; the last puts the counter back for the next launch.
      if (earlier == total - 1) *next = 0;
    }
  }
  more_registers<Tile::many_registers>();

  const int lane = thread % kWarp, warp = thread % kWarpgroup / kWarp, g = lane / 4;
  const int own = 64 * (group - 1);  // this warpgroup's first query in the tile
  const Shared<BFloat16> mine = memory + (Tile::w + (own + 16 * warp) * cols);
  int done = 0;  // tiles of earlier work
  const auto come = [&](int what, int tile) {
    mbarrier_wait(barrier + what + (done + tile) % stages, static_cast<unsigned>((done + tile) / stages % 2));
  };
  const auto have_read = [&](int what) {  // one thread arrives for all, when their products have ended
    named_barrier_sync(group, kWarpgroup);
    if (thread % kWarpgroup == 0) mbarrier_arrive(barrier + what);
  };
  // The warpgroups take turns to start products, so that the exponentials of one run beside the products of the other.
  // At barrier turn + g warpgroup g waits and the other arrives. Each calls start_next() once a tile. An arrival before
  // the first tile gives warpgroup 1 the first turn, and one is left over at the end.
  const auto await_turn = [&] { named_barrier_sync(Tile::turn + group, kConsumers * kWarpgroup); };
  const auto pass_turn = [&] { named_barrier_arrive(Tile::turn + 3 - group, kConsumers * kWarpgroup); };
  static_assert(kConsumers == 2);
  if (group == 2) pass_turn();

  for (unsigned turn = 0;; ++turn) {
    mbarrier_wait(barrier + Tile::has_q, turn % 2);
    const Shared<int> work = taken + turn % 2 * Work::count;
    const auto of_work = [&](int field) { return __shfl_sync(kAllLanes, load_again(work + field), 0); };
    const int tiles = of_work(Work::tiles);
    if (tiles < 0) return;
    const int row = of_work(Work::first) + own + 16 * warp;
    float acc[D / 8][4] = {}, s[cols / 8][4], keep[2];
    uint32_t w[cols / 16][4];
    MmaStatistics found;
    found.begin<Weighting>(p, of_work(Work::head));
    TileMask<cols> hidden;
    [[maybe_unused]] int listed_tile = 0;
    [[maybe_unused]] uint32_t chosen[2] = {};  // of both rows, in a listed tile that the mask cuts

    const auto weigh = [&](int tile) {
      const int j0 = listed ? first_of(listed_tile) : of_work(Work::begin) + tile * cols;
      mma_weigh<Weighting, cols>(s, p.scale, found, keep, hidden, [&](int r) {
        KeySpan span = mask.of(position_of(p, row + 8 * r + g), p.n);
        if constexpr (listed) span = common(span, Mask::template seen<cols>(chosen[r], j0));
        return KeySpan{span.begin - j0, span.end - j0};
      });
    };
    // True if the tile is cut by the mask and has values that are not finite. Its sums are then added here, number by
    // number, because 0·NaN is NaN. No product of the warpgroup may be under way.
    const auto add_if_not_finite = [&](int tile) {
      const Shared<BFloat16> x = v + (done + tile) % stages * size;
      come(Tile::has_v, tile);
      if (!hidden.any() || known_finite(mask) || all_finite<size>(x, kConsumers + group)) return false;
      mma_add_by_numbers<D, cols>(acc, w, number_in<cols>(x), mine);
      return true;
    };
    static_assert(stages == 2);  // a choice: as a product ptxas would put it between two products of the sums
    const auto values_of = [&](int tile) { return columns_of(v + ((done + tile) % stages == 0 ? 0 : size), cols); };
    const auto start_next = [&](int tile) {
      bool cut;
      int j0;
      if constexpr (listed) {
        listed_tile = tile_of(of_work(Work::list), tile), j0 = first_of(listed_tile), cut = Mask::is_cut(listed_tile);
        if (cut)
#pragma unroll
          for (int r = 0; r < 2; ++r) chosen[r] = mask.chosen(of_work(Work::bits), row + 8 * r + g, j0);
      } else {
        j0 = of_work(Work::begin) + tile * cols;
        cut = j0 < of_work(Work::whole_from) || j0 + cols > of_work(Work::whole_to);
      }
      hidden.look(cut, p.keys ? p.keys + std::ptrdiff_t{of_work(Work::batch)} * p.n : nullptr, j0, p.n);
      const Descriptor ours = rows_of(q + own * kBoxColumns), theirs = rows_of(k + (done + tile) % stages * size);
      come(Tile::has_k, tile);
      await_turn();
      wgmma_hold(s), wgmma_hold(acc), wgmma_hold(w);
      wgmma_fence();
      start_scores<D, rows, cols>(s, ours, theirs);
    };
    const auto scores_are_there = [&](int tile) {
      wgmma_hold(s);
      have_read(Tile::read_k + (done + tile) % stages);
      if (tile == tiles - 1) have_read(Tile::read_q);
    };

    bool added = true;  // no sums are due before the first tile
    if (tiles == 0) have_read(Tile::read_q);
    for (int tile = 0; tile < tiles; ++tile) {  // turns its scores into weights, adds up the previous tile's values
      if (added) {
        start_next(tile);
        pass_turn();
        wgmma_wait<0>();
        scores_are_there(tile);
        weigh(tile);
      } else {
        const Descriptor values = values_of(tile - 1);
        start_next(tile);
        start_sums<D, cols>(acc, w, values);
        pass_turn();
        wgmma_wait<1>();  // for the scores; the sums may be under way
        scores_are_there(tile);
        weigh(tile);
        if constexpr (Weighting::online) finish_before_wait(found.sum[0] + found.sum[1]);
        wgmma_wait<0>();
        wgmma_hold(acc);
      }
      if (tile > 0) have_read(Tile::read_v + (done + tile - 1) % stages);
      mma_shrink<Weighting, D>(acc, keep);
      pack_fragments<cols>(w, s);
      added = add_if_not_finite(tile);
    }
    if (!added) {
      wgmma_hold(acc), wgmma_hold(w);
      wgmma_fence();
      start_sums<D, cols>(acc, w, values_of(tiles - 1));
      wgmma_wait<0>();
      wgmma_hold(acc);
    }
    if (tiles > 0) have_read(Tile::read_v + (done + tiles - 1) % stages);
    done += tiles;
    const AttentionHead<BFloat16, D, D, Out> h(p, of_work(Work::batch), of_work(Work::head));
    mma_finish<Weighting, Gate>(p, h, row, acc, found);
  }
}

/// Runs attention_wgmma over a whole problem whose q, k and v may lie in strided rows, as tensor_map() wants them.
template <int D, class Weighting, class Mask, class Gate, class Out>
void run_attention_wgmma(const AttentionProblem<BFloat16, Out>& p, Mask mask, const HeadRows<const BFloat16>& q,
                         const HeadRows<const BFloat16>& k, const HeadRows<const BFloat16>& v) {
  using Tile = WgmmaTile<D>;
  const WorkOrder order = work_order<false, Tile::rows, D>(p, mask);
  launch(attention_wgmma<D, Weighting, Mask, Gate, Out>, grid_of(std::min(order.works(), multiprocessors())),
         dim3(kWgmmaThreads), Tile::bytes, p, mask, order, work_counter(),
         tensor_map(q, p.batch, p.heads, p.m, D, Tile::rows), tensor_map(k, p.batch, p.kv_heads, p.n, D, Tile::cols),
         tensor_map(v, p.batch, p.kv_heads, p.n, D, Tile::cols));
}
template <int D, class Weighting, class Mask, class Gate, class Out>
void run_attention_wgmma(const AttentionProblem<BFloat16, Out>& p, Mask mask) {
  run_attention_wgmma<D, Weighting, Mask, Gate, Out>(p, mask, packed_heads(p.q, p.heads, p.m, D),
                                                     packed_heads(p.k, p.kv_heads, p.n, D),
                                                     packed_heads(p.v, p.kv_heads, p.n, D));
}

}  // namespace sluice::cuda
