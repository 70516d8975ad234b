// Forgetting attention (Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate", §3): softmax
// attention whose scores decrease by the forget gates between key and query.
//
//   f_t = σ(x_t·W_f + b_f), one f_t for each query head     c_t = Σ_{l ≤ t} log f_l
//   y_i = Σ_{j ≤ i} softmax_j(q_i·k_j/√dk + c_i − c_j)·v_j
//
// The softmax does not depend on c_i, which is constant in a row of scores. −c_j depends on the key alone: it is an
// additional column of K, and Q has a constant in that column. With kv_heads < heads a key has one additional column
// for each query head that reads it. attention() therefore needs no change and O(n) memory, and a stream keeps the
// columns in its cache of keys.
#pragma once

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

struct ForgettingAttentionOptions {
  using Layer = struct ForgettingAttention;
  HeadsOptions heads;    // the layer sets causal = true; RoPE is optional, the paper uses none
  double gate_bias = 0;  // initial b_f

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f.training("gate_bias", o.gate_bias, any_number(), "initial b_f");
  }
};

struct ForgettingAttention {
  static constexpr const char* type = "ForgettingAttention";

  ForgettingAttentionOptions options;
  Heads heads;
  Linear forget;  // dim → heads: W_f, b_f

  ForgettingAttention() = default;
  /// Throws ValueError for options that do not fit.
  ForgettingAttention(ForgettingAttentionOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape (width heads·dv without project_out). Padding forgets nothing: its f_t is 1. A
  /// stream keeps kv_heads·(dk + dv) + heads numbers per token.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  static void visit(auto& self, auto&& f) {
    Heads::visit(self.heads, f);
    f("forget", self.forget);
  }
};

}  // namespace sluice
