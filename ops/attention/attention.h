// Attention in O(n) memory: O = w(Q·Kᵀ) V, computed tile by tile, forward and backward, so that the m×n
// weights never exist as a whole. Sources: FlashAttention and FlashAttention-2 (Dao et al. 2022, 2023) for
// softmax. The elementwise weightings of GAU (Hua et al. 2022) need no row statistics: their tiles simply add.
#pragma once

#include <sluice/core/number/random.h>
#include <sluice/ops/attention/attention_mask.h>
#include <sluice/ops/gemm/precision.h>

#include <optional>

namespace sluice {

/// How scores become weights. Masked pairs get weight 0; a row that sees no key gives output 0.
enum class Weighting {
  softmax,  // e^s / (Σ e^s [+ e^sink])
  relu2,    // relu(s)²
  laplace,  // ½(1 + erf(…)), MEGA
  sigmoid,  // σ(s)
  linear,   // s itself: quadratic linear attention
};
constexpr const char* choices(Weighting) { return "softmax relu2 laplace sigmoid linear"; }

struct AttentionOptions {
  Weighting weighting = Weighting::softmax;  // of the scores
  /// Factor of q·k; default 1/√d. Scores are s_ij = ρ_i · (scale · q_i·k_j + bias_ij).
  std::optional<double> scale = std::nullopt;
  /// c > 0 replaces x = scale · q_i·k_j by c·tanh(x/c), before biases and mask (Gemma 2). 0: no cap.
  double softcap = 0;
  AttentionMask mask = {};  // which queries see which keys
  /// Added to scores; broadcasts to [batch, heads, m, n]. A gradient for it takes m·n memory.
  Tensor bias = {};
  /// Added to scores by distance: [heads or 1, n + m − 1], entry n − 1 + p_j − p_i (ops/attention/relative_bias.h).
  Tensor relative_bias = {};
  /// softmax only: one more score per head, whose value is 0: [heads or 1]. Zeros give softmax-off-by-one,
  /// e^s/(1 + Σ e^s).
  Tensor sink = {};
  /// ρ, broadcasts to [batch, heads, m]; 1 if undefined. Beside operands of bf16 it may be f32. No gradient.
  Tensor row_scale = {};
  /// Probability that a weight is dropped (the others grow by 1/(1 − p)). Without a generator nothing is dropped.
  double dropout = 0;
  /// Precision of the products of f32 in attention() and in its first gradient, recorded (create_graph) or not; if not
  /// given, and in gradients of a recorded gradient, the precision in force when they run.
  std::optional<Precision> precision = std::nullopt;
  /// Rows and columns of a tile; 0 lets the engine choose. Results differ in rounding only.
  int64_t tile_rows = 0, tile_cols = 0;

  void each_tensor(auto f) const { f(mask), f(bias), f(relative_bias), f(sink), f(row_scale); }
};

/// q [batch, heads, m, d], k [batch, kv_heads, n, d], v [batch, kv_heads, n, dv] → [batch, heads, m, dv].
/// kv_heads divides heads; query head h reads head ⌊h / (heads/kv_heads)⌋ of k and v. Operands of rank 3 have one head,
/// operands of rank 2 also one batch. f32, f64 and bf16. Gradients of any order: the first in O(n) memory, higher ones
/// through the definition. NaN behind the mask does not leak. Exception: the NaN of a key leaks into recorded gradients
/// (create_graph) if any query sees the key. Throws ShapeError or DTypeError for operands, biases, sinks and masks that
/// do not fit. Throws ValueError unless 0 <= dropout < 1, softcap >= 0 and scale is finite, for a sink without softmax,
/// and for impossible masks and tiles.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {},
                 Rng* rng = nullptr);

/// The result of attention(), [batch, heads, m, dv], and the log of each row's divisor.
struct AttentionAndLse {
  Tensor out, lse;  // lse = log(Σ e^s [+ e^sink]), [batch, heads, m]; −∞ for a row that sees nothing, sink included
};
/// attention() with the log of each row's divisor; both are differentiable. softmax only.
AttentionAndLse attention_with_lse(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options = {}, Rng* rng = nullptr);
/// Merges the attention over two disjoint sets of keys into the attention over both: split-KV decoding.
AttentionAndLse merge_attention(const AttentionAndLse& a, const AttentionAndLse& b);

}  // namespace sluice
