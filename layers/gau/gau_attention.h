// The attention of GAU: one function from queries, keys and values to A·V, for all published normalisers.
// Source: Hua et al. 2022 (FLASH); variants by Su 2022, lucidrains, MEGA.
#pragma once

#include <sluice/core/text/options.h>
#include <sluice/ops/attention/attention.h>

namespace sluice {

/// How A is computed from the scores T = Q·Kᵀ, an additive bias b, the width s of a query, and the length L.
enum class GauKind {
  su,            // relu²(T/√s + b) / L          (default; Su 2022, bert4keras)
  paper_eq,      // relu²(T + b)                 (the paper's formula; no scaling)
  paper_code,    // relu²(T/L + b)               (the paper's appendix)
  lucid,         // relu²((T + b)/L)             (lucidrains)
  rownorm,       // relu²(T/√s + b) / row sum    (0 where the row sum is 0)
  softmax,       // softmax(T/√s + b)
  softmax_plus,  // softmax(κ·(T/√s + b)), κ = ln max(L, min_length) / ln 512   (GAU-α)
  laplace,       // ½(1 + erf(…)) of (T + b)/L   (lucidrains; MEGA adds b after the division)
};
constexpr const char* choices(GauKind) { return "su paper_eq paper_code lucid rownorm softmax softmax_plus laplace"; }

/// The length L. With `visible` and `constant`, causal outputs do not depend on later tokens; only these two can be
/// streamed.
enum class GauLength {
  n,         // number of real keys in the row's document
  visible,   // number of keys the row may see
  constant,  // a fixed number, e.g. 512
};
constexpr const char* choices(GauLength) { return "n visible constant"; }

struct GauAttentionOptions {
  GauKind kind = GauKind::su;
  GauLength length = GauLength::n;
  int64_t constant_length = 512;
  int64_t min_length = 1;  // softmax_plus uses max(L, min_length); 1 (bert4keras): κ is 0 for a row with one key
  AttentionMask mask = {};
  int64_t top_k = 0;          // keep only the k best scores of a row, the first key of equal scores; 0 keeps all
  double dropout = 0;         // on A, inverted; needs rng
  Tensor bias = {};           // b, broadcasts to [..., m, n]
  Tensor relative_bias = {};  // b by distance, [heads or 1, n + m − 1] (ops/attention/relative_bias.h)

  static void describe(auto& o, auto& f) {
    describe_weights(o, f);
    f("causal", o.mask.causal, "query i of m sees keys j <= i + n - m");
    f("window", o.mask.window, at_least(0), "keys seen, a query's own position included; 0: all");
    f.training("dropout", o.dropout, probability(), "on A");
  }
  /// What every attention with kinds has; `o` may be the options of a layer.
  static void describe_kind(auto& o, auto& f) {
    f("kind", o.kind,
      "weights A from T = QK': su relu2(T/sqrt(s) + b)/L; paper_eq relu2(T + b); paper_code relu2(T/L + b); lucid "
      "relu2((T + b)/L); rownorm relu2(T/sqrt(s) + b)/row sum; softmax(T/sqrt(s) + b); softmax_plus "
      "softmax(k(T/sqrt(s) "
      "+ b)), k = ln max(L, min_length)/ln 512; laplace of (T + b)/L");
    f("min_length", o.min_length, at_least(1), "softmax_plus: L counts as at least this");
  }
  /// What self-attention has; `o` may be the options of a layer.
  static void describe_weights(auto& o, auto& f) {
    describe_kind(o, f);
    f("length", o.length,
      "L: n real keys in the row's document, visible keys of the row, or constant; null, of a layer: visible if "
      "causal, else n");
    f("constant_length", o.constant_length, at_least(1), "L with length constant");
    f("top_k", o.top_k, at_least(0), "keep the k best scores of a row, ties to the first key; 0: all");
  }
};

/// Returns A·V; every kind is a weighting of attention(). The operands are those of attention():
/// q [batch, heads, m, s], k [batch, kv_heads, n, s], v [batch, kv_heads, n, e] → [batch, heads, m, e], or of rank 3
/// (one head) or 2. Keys that mask.keys hides are not counted in L and may hold NaN. A row that sees no key gives 0.
/// Takes O(n) memory; with top_k it takes m·n bytes per head.
Tensor gau_attention(const Tensor& q, const Tensor& k, const Tensor& v, const GauAttentionOptions& options,
                     Rng* rng = nullptr);

}  // namespace sluice
