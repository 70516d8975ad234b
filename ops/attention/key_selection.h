// Which keys a query attends to, chosen by scores that cost less than attention. Query i of m stands at position
// p_i = i + n − m, as in AttentionMask. A choice has no gradient. Of equal scores the first one wins. A row that sees
// fewer keys or blocks than it may choose keeps them all.
//
//   blocks   scores of ⌈n/B⌉ blocks of B keys → choose_blocks() → AttentionMask::blocks
//   tokens   index_scores() → index_mask() → AttentionMask::dense, or index_keys(): their numbers
#pragma once

#include <sluice/ops/attention/attention_mask.h>

#include <functional>

namespace sluice {

// -- blocks of keys ------------------------------------------------------------------------------------------------

struct BlockChoice {
  int64_t block;        // B
  int64_t count;        // blocks of a query, initial and local ones included
  int64_t initial = 0;  // number of first blocks that are always chosen
  int64_t local = 1;    // number of last blocks, up to the query's own, that are always chosen
};

/// The chosen blocks of m queries from position `first` on, bool of the scores' shape [batch, heads, m, blocks]. A
/// block competes if it begins at or before its query. `keys` (bool [batch or 1, n]; undefined: all) marks real keys:
/// blocks without any are never chosen. Throws ShapeError for scores that do not fit the blocks of n = first + m keys,
/// and ValueError for sizes that do not fit.
Tensor choose_blocks(const Tensor& scores, int64_t first, const BlockChoice& choice, const Tensor& keys = {});

/// One row for each block of rows.
struct BlockRows {
  Tensor rows;  // [batch, heads, blocks, d]
  Tensor real;  // bool [batch or 1, blocks]: blocks with a real row; undefined: all
};
/// The means of rows [i·stride, i·stride + block) of x [batch, heads, n, d], whole blocks only. Only the rows that
/// `keys` (bool [batch or 1, n]; undefined: all) marks as real count. Differentiable. Throws ValueError unless stride
/// divides block.
BlockRows block_means(const Tensor& x, int64_t block, int64_t stride, const Tensor& keys = {});

/// The largest q·k of each block over its real keys up to the query; −∞ if there are none. q [batch, heads, m, d], k
/// [batch, 1 or heads, n, d] → [batch, heads, m, ⌈n/block⌉] (MiniMax-M3). No gradient.
Tensor block_maxima(const Tensor& q, const Tensor& k, int64_t block, const Tensor& keys = {});

// -- single keys (DeepSeek-AI 2025, "DeepSeek-V3.2", §2.1) ---------------------------------------------------------

/// The operands of the lightning indexer, whose heads share one key.
struct KeyIndex {
  Tensor q;  // [batch, heads, m, d]
  Tensor k;  // [batch, n, d]
  Tensor w;  // [batch, m, heads]
};
/// I_ts = Σ_j w_tj relu(q_tj·k_s), [batch, m, n]. Differentiable. Throws ShapeError for operands that do not fit.
Tensor index_scores(const KeyIndex& index);
/// The `top` best keys of each row of index_scores() among those that `mask` allows, bool [batch, 1, m, n]. `mask` must
/// be the same for all heads. Computes some rows of scores at a time.
Tensor index_mask(const KeyIndex& index, int64_t top, const AttentionMask& mask);
/// The numbers of the same keys, best first: i64 [batch, 1, m, min(top, n)]. A row with fewer keys ends with −1.
Tensor index_keys(const KeyIndex& index, int64_t top, const AttentionMask& mask);

namespace detail {
/// Joins f(row, rows), tensors with `rows` rows in dim 2, over pieces of at most `size` of m rows. Without history.
Tensor by_rows(int64_t m, int64_t size, const std::function<Tensor(int64_t row, int64_t rows)>& f);
}  // namespace detail

}  // namespace sluice
