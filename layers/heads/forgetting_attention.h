// Forgetting attention (Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate", §3): softmax
// attention whose scores fade with what was forgotten between key and query.
//
//   f_t = σ(x_t·W_f + b_f), one for each query head         c_t = Σ_{l ≤ t} log f_l
//   y_i = Σ_{j ≤ i} softmax_j(q_i·k_j/√dk + c_i − c_j)·v_j
//
// A softmax does not see c_i, which is one number for its whole row; −c_j belongs to a key: a further column of K,
// which a constant column of Q reads. With kv_heads < heads a key carries one for each query head that reads it. So
// attention() is used as it is, in O(n) memory, and a stream keeps the column in its cache.
#pragma once

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

struct ForgettingAttentionOptions {
  HeadsOptions heads;    // causal; RoPE is possible, the paper does without
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
  /// ValueError for options that do not fit; `causal` follows the layer.
  ForgettingAttention(ForgettingAttentionOptions o, Rng& rng);

  /// x [batch, n, dim] → the same (heads·dv wide without project_out). Padding forgets nothing. A stream keeps
  /// kv_heads·(dk + dv) + heads numbers a token.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  static void visit(auto& self, auto&& f) {
    Heads::visit(self.heads, f);
    f("forget", self.forget);
  }
};

}  // namespace sluice
