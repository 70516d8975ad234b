// The patterns of sparse attention, N_i = keys that query i may see (Child et al. 2019; Beltagy et al. 2020,
// "Longformer"; Zaheer et al. 2020, "Big Bird"). A pattern is an AttentionMask, which attention() asks tile by
// tile, or a list of neighbours, which neighbour_attention() gathers; dense_mask() shows either.
//
//   sliding       |i − j| <= w                              2w + 1 keys (causal: w + 1)
//   dilated       |i − j| <= w·δ, i − j a multiple of δ     2w + 1 keys, receptive field 2wδ + 1
//   residue class i − j a multiple of δ                     n/δ keys
//   global-local  |i − j| <= w, or i or j global
//   random        k distinct keys, and j = i
//   blocks        (⌊i/B⌋, ⌊j/B⌋) in a matrix of blocks; BigBird's: window, global and random blocks
//
// i stands for the query's position: with m queries and n keys, the last query sits on the last key.
#pragma once

#include <sluice/ops/attention/attention_mask.h>

#include <cstdint>
#include <vector>

namespace sluice {

/// w is one-sided, as Longformer's: AttentionMask's window is w + 1. ValueError for a negative w.
AttentionMask sliding_mask(int64_t w, bool causal = false);
AttentionMask dilated_mask(int64_t w, int64_t dilation, bool causal = false);
AttentionMask residue_mask(int64_t dilation, bool causal = false);
/// Global positions see and are seen by everything (by everything later, if causal).
AttentionMask global_local_mask(int64_t w, std::vector<int64_t> global, bool causal = false);
/// bool [rows, cols] or [heads, rows, cols] of blocks of `block` queries × keys.
AttentionMask block_mask(const Tensor& blocks, int64_t block);

struct BigBirdOptions {
  int64_t block = 64;     // B
  int64_t window = 3;     // blocks, odd: the query's own in the middle
  int64_t random = 3;     // blocks a row draws, never among its window and global ones
  bool first_global = true, last_global = true;  // as rows and as columns
  bool causal = false;    // and then random blocks lie before the query's
  int64_t heads = 1;      // patterns, one drawn for each head
  uint64_t seed = 0;      // of the random blocks
};
/// The blocks of BigBird for n tokens: bool [heads, ⌈n/B⌉, ⌈n/B⌉]. A row's draw depends on the seed, the head, the
/// row and what it may draw from only, so that causal draws do not change when n grows.
Tensor bigbird_blocks(int64_t n, BigBirdOptions options = {});
AttentionMask bigbird_mask(int64_t n, BigBirdOptions options = {});

/// blocks [..., rows, cols] → [..., m, n], each entry repeated over its B×B pairs. ShapeError unless
/// rows = ⌈m/B⌉ and cols = ⌈n/B⌉.
Tensor expand_blocks(const Tensor& blocks, int64_t block, int64_t m, int64_t n);
/// The pairs that a mask without batch allows: bool [heads or 1, m, n].
Tensor dense_mask(const AttentionMask& mask, int64_t m, int64_t n, int64_t heads = 1);

// -- neighbour lists: i64 [heads or 1, m, K], each row ascending and filled up with −1 ------------------------

/// The keys of each row, K the largest number of any row. O(m·K) memory.
Tensor neighbours_of(const AttentionMask& mask, int64_t m, int64_t n, int64_t heads = 1);
/// Which keys random_neighbours() draws.
struct RandomNeighbours {
  int64_t k;            // drawn for each row
  bool causal = false;  // drawn from j <= i
  bool self = true;     // j = i besides
  int64_t heads = 1;    // lists, one drawn for each head
  uint64_t seed = 0;    // equal seeds, equal lists
};
/// k distinct uniform keys of n for each of m queries (all keys when there are fewer): K = k + 1 with self. A row
/// depends on the seed, the head, its position and n (causal: not on n) only.
Tensor random_neighbours(int64_t m, int64_t n, RandomNeighbours options);
/// bool [heads or 1, m, n], true at the listed pairs: as AttentionMask::dense it gives the same attention.
Tensor mask_of_neighbours(const Tensor& neighbours, int64_t n);

}  // namespace sluice
