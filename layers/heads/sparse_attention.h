// Sparse attention as functions:
//
//   a_ij = e^{s_ij} / Σ_{j' ∈ N_i} e^{s_ij'} for j in N_i, else 0        o_i = Σ_j a_ij v_j
//
// for neighbours N_i that are listed, chosen by score (top-k), or by a second score f (threshold). Operands are
// those of attention(): q [batch, heads, m, d], k [batch, kv_heads, n, d], v [batch, kv_heads, n, dv] →
// [batch, heads, m, dv], or rank 3 (one head) or 2; f32, f64 and bf16, gradients of any order.
#pragma once

#include <sluice/ops/attention/top_k.h>

#include <optional>
#include <vector>

namespace sluice {

struct NeighbourOptions {
  std::optional<double> scale = std::nullopt;  // 1/√d
  Tensor keys = {};                            // bool [batch or 1, n]: false marks padding
  double dropout = 0;                          // on the weights
};
/// Attention over listed keys, composed by gather: `neighbours` i64 [heads or 1, m, K] (or [m, K]), −1 for none
/// (layers/heads/sparse_masks.h makes such lists). A key listed twice counts twice. O(m·K·(d + dv)) time and memory.
/// ValueError for an entry outside [−1, n).
Tensor neighbour_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& neighbours,
                           const NeighbourOptions& options = {}, Rng* rng = nullptr);

// -- top-k (Zhao et al. 2019, "Explicit Sparse Transformer") -------------------------------------------------

struct TopKOptions {
  int64_t k;                         // keys that a query keeps
  TopKTies ties = TopKTies::index;   // which of equal scores
  /// Mask, scale, bias, weighting, dropout: scores are those of attention(), and a key must be allowed to be kept.
  AttentionOptions attention = {};
};
/// Attention to the k best keys of each row. Gradients flow through kept scores only. All m·n scores are
/// computed, 128 rows at a time; the choice takes m·n bytes a head.
Tensor topk_attention(const Tensor& q, const Tensor& k, const Tensor& v, const TopKOptions& options,
                      Rng* rng = nullptr);

// -- learned threshold -------------------------------------------------------------------------------------

enum class ThresholdMode {
  hard,              // N_i = {j : f_ij > τ}: no gradient to f
  soft,              // log σ((f − τ)/T) added to the scores
  straight_through,  // the values of hard, the gradients of soft
};
constexpr const char* choices(ThresholdMode) { return "hard soft straight_through"; }
struct ThresholdOptions {
  ThresholdMode mode = ThresholdMode::hard;  // what f > τ does to weights
  double tau = 0;          // −∞: dense
  double temperature = 1;  // T > 0; as T → 0 soft tends to hard where a row has f > τ, or with include_self
  /// j = i is visible whatever f says, so that N_i is never empty. Default: true, but false for soft, where no
  /// weight is 0. The mask still binds.
  std::optional<bool> include_self = std::nullopt;
  AttentionOptions attention = {};  // softmax; scale, mask, bias, dropout
};
/// Attention to the keys with f_ij > τ; f broadcasts to [batch, heads, m, n], of q's dtype. A learned τ belongs
/// into f: pass f − τ. Of a piece of a sequence (SequenceScope) f has a column for each key of the whole.
Tensor threshold_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& f,
                           const ThresholdOptions& options = {}, Rng* rng = nullptr);

// -- global rows (Longformer) ------------------------------------------------------------------------------

struct GlobalLocalOptions {
  int64_t w;                    // |i − j| <= w
  std::vector<int64_t> global = {};  // distinct positions in [0, n)
  std::optional<double> scale = std::nullopt;  // of q·k; 1/√d
  Tensor keys = {};    // bool [batch or 1, n]
  double dropout = 0;  // of weights; needs the generator
};
/// Projections of their own for what global queries read: q [batch, heads, |global|, d] of the global positions
/// in their order, k [batch, kv_heads, n, d], v [batch, kv_heads, n, dv].
struct GlobalRows {
  Tensor q, k, v;  // q in the order of the global positions
};
/// global_local_mask's attention, m = n; with `rows`, the outputs at global positions are recomputed from those
/// (their keys seen by other queries stay k and v).
Tensor global_local_attention(const Tensor& q, const Tensor& k, const Tensor& v, const GlobalLocalOptions& options,
                              const GlobalRows& rows = {}, Rng* rng = nullptr);

}  // namespace sluice
