// Keys chosen in pools: the i-th pool holds the real keys number i·B to (i + 1)·B − 1 of a sequence, so padding moves
// none of them. One row stands for the B keys of a pool in the scores that choose (Qwen4's QSA, GLM-5.3's DSA):
//
//   rows [batch, n, ·] → key_pools() → a row for each whole pool → choose_pools() → attention()
//
// A query attends to the keys of the best of the whole pools before it, and to its own pool if that is not whole.
#pragma once

#include <sluice/ops/attention/key_selection.h>
#include <sluice/ops/rows/rope.h>

#include <functional>

namespace sluice {

/// The whole pools of rows x [batch, n, d], [batch, ⌊n/size⌋, size, d]. Pools behind the last real key hold padding.
/// `keys` (bool [batch or 1, n]; undefined: all) marks the real keys. Differentiable.
Tensor key_pools(const Tensor& x, int64_t size, const Tensor& keys = {});
/// One row for each whole pool, pools [batch, ⌊n/size⌋, d], at each of its keys: [batch, n, d]. Differentiable. Keys
/// without a whole pool have the row of some pool, or 0 if there is none.
Tensor at_keys(const Tensor& pools, int64_t n, int64_t size, const Tensor& keys = {});
/// The rows of pools of n keys, [batch, ⌊n/size⌋, d], turned by RoPE at the position of a pool's first key.
Tensor turned_pools(const Tensor& pools, int64_t n, int64_t size, const RopeOptions& rope, const Tensor& keys = {});
/// How many whole pools end at or before each of the last m of n keys: i64 [batch or 1, 1, m, 1].
Tensor pools_seen(int64_t m, int64_t n, int64_t size, const Tensor& keys, Device device);

/// Which pools a query attends to.
struct PoolChoice {
  int64_t size;   // B, keys of a pool
  int64_t count;  // pools of a query, its own one that is not whole apart
};
/// `mask`, which also asks for a key of the chosen pools: of the best ones by index_scores(), whose index.k has one row
/// for each whole pool of n keys, [batch, ⌊n/size⌋, d]. A pool competes if its last key is not later than the query.
/// Sets mask.blocks; with padding or with blocks of the mask's own, mask.dense. Throws ValueError for sizes below 1,
/// for a mask that is not causal, and for segments: a pool would span documents.
AttentionMask choose_pools(const KeyIndex& index, int64_t n, const PoolChoice& choice, AttentionMask mask);
/// The same where index.k has the rows [batch, n, ·] that `pooled(rows, keys)` makes rows of pools of, and where the
/// sequence may be split over ranks: these rows and the mask are those of this rank's piece, as for
/// sequence_attention().
AttentionMask choose_pools(const KeyIndex& index, const PoolChoice& choice, const AttentionMask& mask,
                           const std::function<Tensor(const Tensor& rows, const Tensor& keys)>& pooled);

}  // namespace sluice
