// The attention of GAU: one function from queries, keys and values to A·V, for every normaliser in use.
// Source: Hua et al. 2022 (FLASH); variants by Su 2022, lucidrains, MEGA.
#pragma once

#include <sluice/ops/attention/attention.h>

#include <string_view>

namespace sluice {

/// A from the scores T = Q·Kᵀ, an additive bias b, the width s of a query, and the length L.
enum class GauKind {
  su,            // relu²(T/√s + b) / L          (default; Su 2022, bert4keras)
  paper_eq,      // relu²(T + b)                 (the paper's formula; no scaling)
  paper_code,    // relu²(T/L + b)               (the paper's appendix)
  lucid,         // relu²((T + b)/L)             (lucidrains)
  rownorm,       // relu²(T/√s + b) / Σ_j        (0 where the row sum is 0)
  softmax,       // softmax(T/√s + b)
  softmax_plus,  // softmax(κ·(T/√s + b)), κ = ln max(L,16) / ln 512   (GAU-α)
  laplace,       // ½(1 + erf(…)) of (T + b)/L   (MEGA)
};
std::string_view name_of(GauKind kind);
GauKind gau_kind_from_name(std::string_view name);

/// The length L. Only `visible` and `constant` give causal outputs that do not depend on later tokens,
/// so only they can be streamed.
enum class GauLength {
  n,         // number of un-padded keys
  visible,   // number of keys the row may see
  constant,  // a fixed number, e.g. 512
};

struct GauAttentionOptions {
  GauKind kind = GauKind::su;
  GauLength length = GauLength::n;
  int64_t constant_length = 512;
  AttentionMask mask = {};
  int64_t top_k = 0;          // keep only the k best scores of a row (ties: first key); 0 keeps all
  double dropout = 0;         // on A, inverted; needs rng
  Tensor bias = {};           // b, broadcasts to [..., m, n]
  Tensor relative_bias = {};  // b by distance, [heads or 1, n + m − 1] (ops/attention/relative_bias.h)
};

/// A·V: every kind as a weighting of attention(), whose operands these are: q [batch, heads, m, s],
/// k [batch, kv_heads, n, s], v [batch, kv_heads, n, e] → [batch, heads, m, e], or rank 3 (one head) or 2. Keys that
/// mask.keys hides are not counted in L and may hold NaN. A row that sees no key gives 0. O(n) memory, except for
/// top_k (m·n bytes a head).
Tensor gau_attention(const Tensor& q, const Tensor& k, const Tensor& v, const GauAttentionOptions& options,
                     Rng* rng = nullptr);

}  // namespace sluice
