// Sparse attention as functions:
//
//   a_ij = e^{s_ij} / Σ_{j' ∈ N_i} e^{s_ij'} for j in N_i, else 0        o_i = Σ_j a_ij v_j
//
// The neighbours N_i are listed, or chosen by score (top-k), or by a second score f (threshold). The operands are those
// of attention(): q [batch, heads, m, d], k [batch, kv_heads, n, d], v [batch, kv_heads, n, dv]
// → [batch, heads, m, dv], or of rank 3 (one head) or 2; f32, f64 and bf16; gradients of any order.
#pragma once

#include <sluice/ops/attention/top_k.h>

#include <optional>
#include <vector>

namespace sluice {

struct NeighbourOptions {
  std::optional<double> scale = std::nullopt;  // of q·k; default 1/√d
  Tensor keys = {};                            // bool [batch or 1, n]: false marks padding
  double dropout = 0;                          // on the weights
};
/// Attention over listed keys, by gather. `neighbours` must be i64 [heads or 1, m, K] or [m, K]; −1 stands for no key.
/// layers/attention/sparse_masks.h creates these lists. A key that is listed twice counts twice. O(m·K·(d + dv)) time
/// and memory. Throws ValueError for an entry outside [−1, n).
Tensor neighbour_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& neighbours,
                           const NeighbourOptions& options = {}, Rng* rng = nullptr);

// -- top-k (Zhao et al. 2019, "Explicit Sparse Transformer") -------------------------------------------------

struct TopKOptions {
  int64_t k;                        // keys that a query keeps
  TopKTies ties = TopKTies::index;  // which keys of equal scores are kept
  /// Mask, scale, bias, weighting, dropout. Scores are those of attention(); only keys that the mask allows are kept.
  AttentionOptions attention = {};
};
/// Attention to the k best keys of each row. Gradients flow through kept scores only. All m·n scores are computed, 128
/// rows at a time. The mask of kept keys takes m·n bytes per head.
Tensor topk_attention(const Tensor& q, const Tensor& k, const Tensor& v, const TopKOptions& options,
                      Rng* rng = nullptr);

// -- learned threshold -------------------------------------------------------------------------------------

enum class ThresholdMode {
  hard,              // N_i = {j : f_ij > τ}: no gradient to f
  soft,              // log σ((f − τ)/T) is added to the scores
  straight_through,  // values of hard, gradients of soft
};
constexpr const char* choices(ThresholdMode) { return "hard soft straight_through"; }
struct ThresholdOptions {
  ThresholdMode mode = ThresholdMode::hard;  // effect of f > τ on the weights
  double tau = 0;                            // −∞: all pairs
  double temperature = 1;  // T > 0; as T → 0 soft tends to hard where a row has f > τ, or with include_self
  /// If true, key j = i is visible for every f, so that N_i is not empty. The mask still applies. Default: true, but
  /// false for soft, where no weight is 0.
  std::optional<bool> include_self = std::nullopt;
  AttentionOptions attention = {};  // softmax; scale, mask, bias, dropout
};
/// Attention to the keys with f_ij > τ. f must have q's dtype and broadcast to [batch, heads, m, n]. For a learned τ
/// pass f − τ as f. For a piece of a sequence (SequenceScope), f must have a column for each key of the whole sequence.
Tensor threshold_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& f,
                           const ThresholdOptions& options = {}, Rng* rng = nullptr);

// -- global rows (Longformer) ------------------------------------------------------------------------------

/// Separate projections for the rows of global positions: q [batch, heads, |global|, d], k [batch, kv_heads, n, d], v
/// [batch, kv_heads, n, dv].
struct GlobalRows {
  Tensor q, k, v;  // q in the order of mask.global
};
/// attention() of m = n queries. With `rows`, the outputs at the positions of mask.global are computed from `rows`,
/// over all keys, or over keys j <= i if causal; all other queries still see k and v at global positions. `mask` is
/// for example global_local_mask(). Throws ValueError for positions that are not distinct or outside [0, n), and for
/// rows beside a block mask.
Tensor global_local_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                              const GlobalRows& rows = {}, Rng* rng = nullptr);
namespace detail {
/// global_local_attention() of operands that fit, with rows.
Tensor attention_with_rows(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionOptions& options, const GlobalRows& rows, Rng* rng);
/// The options of the rows of mask.global, as queries of an attention of their own, among n tokens.
AttentionOptions options_of_rows(const char* op, const AttentionOptions& options, int64_t n, Device device);
/// y [batch, heads, n, ·] with its rows `rows` replaced by `fresh` [batch, heads, |rows|, ·].
Tensor with_rows(const Tensor& y, const std::vector<int64_t>& rows, const Tensor& fresh);
}  // namespace detail

}  // namespace sluice
