// Sinkhorn attention: weights that are doubly stochastic (Tay et al. 2020, "Sparse Sinkhorn Attention"; Sinkhorn 1964).
// S⁰ = e^{λA}, S^{t+1} = T_row(T_col(S^t)). T_row divides each row by its sum, T_col each column. In logarithms:
// L ← L − lse_col(L), L ← L − lse_row(L).
//
// λ is an inverse temperature: λ → 0 gives 1/n everywhere, and λ → ∞ gives the permutation that maximises Σ A_{i,π(i)}.
// No entry becomes exactly 0. Sparsity comes from sorting blocks, or from a top-k after the iterations. There is no
// causal form: the only lower triangular matrix with unit row and column sums is the identity.
#pragma once

#include <sluice/core/text/options.h>
#include <sluice/core/number/random.h>
#include <sluice/core/tensor.h>

#include <optional>

namespace sluice {

enum class SinkhornVariant {
  correct,
  literal,  // A^{t+1} = T_row(T_col(e^{λA^t})): forgets A at small λ
};
constexpr const char* choices(SinkhornVariant) { return "correct literal"; }
enum class SinkhornLast {
  rows,     // columns, then rows: rows sum to 1 exactly
  columns,  // rows, then columns (lucidrains)
};
constexpr const char* choices(SinkhornLast) { return "rows columns"; }

struct SinkhornOptions {
  double lambda = 1;
  int64_t iterations = 20;  // usually 5 to 20; 0 returns e^{λA} (literal: A)
  SinkhornVariant variant = SinkhornVariant::correct;
  SinkhornLast last = SinkhornLast::rows;
  /// Factor of Gumbel noise −log(−log u) on A, drawn when a generator is given (Mena et al. 2018).
  double gumbel = 0;
  /// bool, broadcasts to the scores: false for pairs whose weight must be 0. Undefined: all pairs are allowed.
  Tensor allowed = {};

  static void describe(auto& o, auto& f) {
    f("lambda", o.lambda, above(0), "inverse temperature");
    f("iterations", o.iterations, between(0, 100000), "of both steps");
    f("variant", o.variant, "literal: A <- T_row(T_col(e^(lambda A))), as printed");
    f("last", o.last, "which sums are exactly 1");
    f.training("gumbel", o.gumbel, at_least(0), "factor of the noise on A");
  }
};
namespace detail {
/// Throws ValueError, naming `op`, if causal.
void refuse_causal(const char* op, bool causal);
}  // namespace detail
/// scores A [..., n, n] → the same shape. A row or column without an allowed pair gives 0. Throws ShapeError unless the
/// scores are square.
Tensor sinkhorn(const Tensor& scores, const SinkhornOptions& options = {}, Rng* rng = nullptr);

struct SinkhornAttentionOptions {
  SinkhornOptions sinkhorn = {};               // how scores become doubly stochastic
  std::optional<double> scale = std::nullopt;  // of q·k; default 1/√d
  /// bool [batch or 1, n], false for padding: rows and columns of padding are left out, and their outputs are 0.
  Tensor keys = {};
  int64_t top_k = 0;    // > 0: keep the k largest weights of each row, scaled to the sum 1
  double dropout = 0;   // on the weights
  bool causal = false;  // true throws ValueError
};
/// sinkhorn(scale·q kᵀ)·v. The operands are those of attention() with m = n. O(n²) memory.
Tensor sinkhorn_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const SinkhornAttentionOptions& options = {}, Rng* rng = nullptr);

struct SinkhornBlockOptions {
  int64_t block = 64;                                                // B
  SinkhornOptions sinkhorn = {.lambda = 1 / 0.75, .iterations = 8};  // of blocks
  std::optional<double> scale = std::nullopt;                        // of q·k; default 1/√d
  Tensor keys = {};                                                  // bool [batch or 1, n]
  double dropout = 0;                                                // on the weights
  bool causal = false;                                               // true throws ValueError
};
namespace detail {
/// Throws ValueError, naming `op`, for options that do not go together.
void check_sinkhorn_block(const char* op, const SinkhornBlockOptions& options);
}  // namespace detail
/// The soft permutation P of blocks, [batch, heads, G, G], G = ⌈n/B⌉: P = sinkhorn(A), A_gh = scale·(mean of q's block
/// g)·(mean of k's block h). Means are over real tokens.
Tensor block_permutation(const Tensor& q, const Tensor& k, const SinkhornBlockOptions& options = {},
                         Rng* rng = nullptr);
/// Query block g attends to its own block of keys and to a sorted block, whose slots are Σ_h P_gh·(slot of block h).
/// Padding in a slot is left out: share = Σ P_gh over the blocks h with a real token in this slot, divided by the row
/// sum of P. The remaining weights are divided by share, so that they keep the row sum, and log(share) is added to the
/// scores of the slot. m = n. O(n·B) memory for scores, O((n/B)²) for P.
Tensor sinkhorn_block_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const SinkhornBlockOptions& options = {}, Rng* rng = nullptr);

}  // namespace sluice
