// The order in which rung 4 takes its blocks of rows; rung 3 serves so few rows that a head has one or two. Under
// causality blocks differ in length, and a long one that begins last keeps all multiprocessors waiting. So heads come
// in sets. Within a set the longest block of each head comes first, then the second longest of each: what begins last
// is short. A set is as large as the L2 cache allows, for blocks that run at once read the keys and values of all heads
// of the set (the order and the size of FlashAttention-3; Shah et al. 2024).
#pragma once

#include <sluice/cuda/device.h>

namespace sluice::cuda {

/// A block of rows of a head; blocks of a head count from the longest.
struct WorkPlace {
  int block, head, batch;
};

/// The works of sets of `together` heads: work i of a set of `size` heads is block ⌊i / size⌋ of its head i mod size.
/// If the sets do not divide the heads, the first set is smaller: at the end there is a whole one. Counts are int:
/// memory ends before 2^31 blocks of 128 rows.
struct WorkOrder {
  int blocks, heads, slabs, together;  // blocks of a head; heads of a batch, of all; heads of a set

  WorkOrder(int64_t blocks_of_head, int heads_of_batch, int batch, int64_t most)
      : blocks(static_cast<int>(blocks_of_head)), heads(heads_of_batch), slabs(heads * batch),
        together(static_cast<int>(std::clamp<int64_t>(most, 1, slabs))) {}
  SLUICE_FN int works() const { return blocks * slabs; }
  SLUICE_FN WorkPlace operator()(int index) const {  // counts sets and works from the end
    const int back = works() - 1 - index, set = back / (blocks * together), at = back - set * (blocks * together),
              left = slabs - set * together, size = left < together ? left : together, slab = left - 1 - at % size;
    return {blocks - 1 - at / size, slab % heads, slab / heads};
  }
};

/// For blocks of `rows` queries, or with by_keys of keys. A set's blocks read at most p.cache bytes: two operands of
/// the other side in bf16. Without causality all blocks are equally long, and heads come one by one.
template <bool by_keys, int rows, int D, class Problem, class Mask>
WorkOrder work_order(const Problem& p, const Mask& mask) {
  const int heads = by_keys ? p.kv_heads : p.heads, others = by_keys ? p.heads : p.kv_heads;
  const int64_t bytes = int64_t{by_keys ? p.m : p.n} * (2 * D * sizeof(BFloat16)) * others / heads;
  return {ceil_div(by_keys ? p.n : p.m, rows), heads, p.batch, mask.causal ? p.cache / std::max<int64_t>(1, bytes) : 1};
}

}  // namespace sluice::cuda
