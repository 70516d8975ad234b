// The k best scores of a row as a mask (Zhao et al. 2019, "Explicit Sparse Transformer").
#pragma once

#include <sluice/ops/attention/attention.h>

namespace sluice {

enum class TopKTies {
  index,      // exactly k: of equal scores the first key
  threshold,  // all scores >= the k-th best
};
constexpr const char* choices(TopKTies) { return "index threshold"; }
/// The k best entries of each row of scores [..., n], among those `allowed` (bool, broadcasts; undefined: all).
/// A row with fewer than k allowed entries keeps them all. Returns bool of the scores' shape, without gradient.
Tensor topk_mask(const Tensor& scores, int64_t k, TopKTies ties = TopKTies::index, const Tensor& allowed = {});

namespace detail {

/// The scores as they are ranked: all `allowed` entries before the rest. An allowed −∞ or NaN counts as the lowest
/// number.
Tensor ranked_scores(const Tensor& scores, const Tensor& allowed);
/// The pairs of attention(q, k, ·, options) with the `top` best scores of their rows, as AttentionMask::dense. Operands
/// of rank 4, options checked. Undefined if all pairs are kept. Computes 128 rows of scores at a time; the result
/// takes m·n bytes a head.
Tensor best_pairs(const Tensor& q, const Tensor& k, const AttentionOptions& options, int64_t top,
                  TopKTies ties = TopKTies::index);

}  // namespace detail

}  // namespace sluice
