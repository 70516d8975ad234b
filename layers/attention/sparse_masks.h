// The patterns of sparse attention, N_i = keys that query i may see (Child et al. 2019; Beltagy et al. 2020,
// "Longformer"; Zaheer et al. 2020, "Big Bird"). A pattern is an AttentionMask, which attention() evaluates tile by
// tile, or a list of neighbours, which neighbour_attention() gathers. dense_mask() and mask_of_neighbours() return them
// as matrices of bool.
//
//   sliding       |i − j| <= w                              2w + 1 keys (causal: w + 1)
//   dilated       |i − j| <= w·δ, i − j a multiple of δ     2w + 1 keys, receptive field 2wδ + 1
//   residue class i − j a multiple of δ                     n/δ keys
//   global-local  |i − j| <= w, or i or j global
//   random        k distinct keys, and j = i
//   blocks        (⌊i/B⌋, ⌊j/B⌋) is true in a matrix of blocks; BigBird: window, global and random blocks
//
// i is the position of the query. With m queries and n keys, the last query has the position of the last key.
#pragma once

#include <sluice/ops/attention/attention_mask.h>

#include <cstdint>
#include <vector>

namespace sluice {

/// w is one-sided, as in Longformer: the window of the AttentionMask is w + 1. Throws ValueError for a negative w.
AttentionMask sliding_mask(int64_t w, bool causal = false);
AttentionMask dilated_mask(int64_t w, int64_t dilation, bool causal = false);
AttentionMask residue_mask(int64_t dilation, bool causal = false);
/// Global positions see all positions and are seen by all positions; if causal, queries see keys j <= i only.
AttentionMask global_local_mask(int64_t w, std::vector<int64_t> global, bool causal = false);
/// `blocks` must be bool [rows, cols] or [heads, rows, cols], one entry for each block of `block` queries × keys.
AttentionMask block_mask(const Tensor& blocks, int64_t block);

struct BigBirdOptions {
  int64_t block = 64;  // B
  int64_t window = 3;  // number of blocks, odd; the query's own block is in the middle
  int64_t random = 3;  // random blocks of each row, never among the row's window and global blocks
  bool first_global = true, last_global = true;  // first and last block are global, as rows and as columns
  bool causal = false;                           // if true, random blocks precede the query's block
  int64_t heads = 1;                             // number of patterns, one drawn for each head
  uint64_t seed = 0;                             // of the random blocks
};
/// The blocks of BigBird for n tokens: bool [heads, ⌈n/B⌉, ⌈n/B⌉]. The draw of a row depends only on the seed, the
/// head, the row and the blocks that it may draw from, so that causal draws do not change when n grows.
Tensor bigbird_blocks(int64_t n, BigBirdOptions options = {});
AttentionMask bigbird_mask(int64_t n, BigBirdOptions options = {});

/// blocks [..., rows, cols] → [..., m, n]: each entry is repeated over its B×B pairs. Throws ShapeError unless
/// rows = ⌈m/B⌉ and cols = ⌈n/B⌉.
Tensor expand_blocks(const Tensor& blocks, int64_t block, int64_t m, int64_t n);
/// The pairs that a mask without a batch dim allows: bool [heads or 1, m, n].
Tensor dense_mask(const AttentionMask& mask, int64_t m, int64_t n, int64_t heads = 1);

// -- neighbour lists: i64 [heads or 1, m, K], each row ascending, then padded with −1 -------------------------

/// The keys of each row; K is the number of keys of the longest row. O(m·K) memory.
Tensor neighbours_of(const AttentionMask& mask, int64_t m, int64_t n, int64_t heads = 1);
/// Which keys random_neighbours() draws.
struct RandomNeighbours {
  int64_t k;            // keys drawn for each row
  bool causal = false;  // draw from keys j <= i only
  bool self = true;     // add key j = i
  int64_t heads = 1;    // number of lists, one drawn for each head
  uint64_t seed = 0;    // equal seeds give equal lists
};
/// k distinct uniform keys of n for each of m queries; all keys if there are fewer than k. K = min(k, n), and one more
/// with self if k < n. A row depends only on the seed, the head, its position and n; if causal, not on n.
Tensor random_neighbours(int64_t m, int64_t n, RandomNeighbours options);
/// bool [heads or 1, m, n], true at the listed pairs. As AttentionMask::dense it gives the attention of
/// neighbour_attention(), unless a key is listed twice.
Tensor mask_of_neighbours(const Tensor& neighbours, int64_t n);

}  // namespace sluice
