// Forgetting attention (Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate", §3): softmax
// attention whose scores decrease by the forget gates between key and query.
//
//   f_t = σ(x_t·W_f + b_f), one f_t for each query head     c_t = Σ_{l ≤ t} log f_l
//   y_i = Σ_{j ≤ i} softmax_j(q_i·k_j/√dk + c_i − c_j)·v_j
//
// The softmax does not depend on c_i, which is constant in a row of scores. −c_j depends on the key alone: it is an
// additional column of K, and Q has a constant in that column. With kv_heads < heads a key has one additional column
// for each query head that reads it. attention() therefore needs no change and O(n) memory, and a stream keeps the
// columns in its cache of keys. c grows along the text, and near tokens differ in it by little: where products round
// their operands to bf16, three columns hold the parts of its 24 bits.
//
// The gates that the paper compares with: f = σ(b_f) for all tokens, where b_f is trained or fixed and begins with
// decay times that differ by head; and none, which is softmax attention.
//
// The paper's Pro block adds four options. kv_shift: k_t ← α_t k_{t−1} + (1 − α_t) k_t with α = σ(x·W) for each KV
// head, and v likewise. qk_norm: RMSNorm of each head of q and k. output_norm: RMSNorm of each head of y. output_gate:
// y ⊙ σ(x·W_g).
#pragma once

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

/// What f_t is made of.
enum class ForgetGate {
  input,    // σ(x_t·W_f + b_f)
  learned,  // σ(b_f)
  fixed,    // σ(b_f), not trained
  none,     // 1
};
constexpr const char* choices(ForgetGate) { return "input learned fixed none"; }

struct ForgettingAttentionOptions {
  using Layer = struct ForgettingAttention;
  HeadsOptions heads;  // the layer sets causal = true; RoPE is optional, the paper uses none
  ForgetGate gate = ForgetGate::input;
  double gate_bias = 0;                    // initial b_f
  double decay_first = 0, decay_last = 0;  // tokens in which a weight of the first and the last head falls to 1/e
  bool kv_shift = false;
  bool qk_norm = false;
  bool shared_qk_norm = false;  // one weight [dk] for all heads
  double qk_norm_eps = 1e-5;
  bool output_norm = false;
  double output_norm_eps = 1e-6;
  bool output_gate = false;

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("gate", o.gate, "f: sigmoid(x Wf + bf), sigmoid(bf), the same not trained, or 1");
    f.training("gate_bias", o.gate_bias, any_number(), "initial b_f");
    f.training(
        "decay_first", o.decay_first, at_least(0),
        "tokens in which weights of the first head fall to 1/e at x = 0; others grow geometrically; 0: gate_bias");
    f.training("decay_last", o.decay_last, at_least(0), "of the last head");
    f("kv_shift", o.kv_shift, "k and v of each head mixed with those of the token before, by a gate");
    f("qk_norm", o.qk_norm, "RMSNorm of each head of q and k, after the shift, before RoPE");
    f("shared_qk_norm", o.shared_qk_norm, "its weights are [dk], not [heads*dk]");
    f("qk_norm_eps", o.qk_norm_eps, at_least(0), "its eps");
    f("output_norm", o.output_norm, "RMSNorm of each head's output, weights [heads*dv]");
    f("output_norm_eps", o.output_norm_eps, at_least(0), "its eps");
    f("output_gate", o.output_gate, "then times sigmoid(x Wg)");
  }
};
/// The options of the Pro block: all of the above, but for shared_qk_norm.
ForgettingAttentionOptions forgetting_pro_options(HeadsOptions heads);

struct ForgettingAttention {
  static constexpr const char* type = "ForgettingAttention";

  ForgettingAttentionOptions options;
  Heads heads;
  Linear forget;            // dim → heads: W_f, b_f; b_f alone where the gate does not read x
  Linear k_shift, v_shift;  // dim → kv_heads, without bias
  Norm q_norm, k_norm, output_norm;
  Linear output_gate;  // dim → heads·dv, without bias

  ForgettingAttention() = default;
  /// Throws ValueError for options that do not fit.
  ForgettingAttention(ForgettingAttentionOptions o, Rng& rng);
  /// All other options have their defaults.
  ForgettingAttention(HeadsOptions o, Rng& rng) : ForgettingAttention(ForgettingAttentionOptions{.heads = o}, rng) {}

  /// x [batch, n, dim] → the same shape (width heads·dv without project_out). Padding forgets nothing: its f_t is 1. A
  /// document is a run of equal segments. A stream keeps kv_heads·(dk + dv) + heads numbers per token, in bf16
  /// 2·heads more, and with kv_shift k and v of the last one.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  static void visit(auto& self, auto&& f) {
    Heads::visit(self.heads, f);
    f("forget", self.forget);
    f("k_shift", self.k_shift);
    f("v_shift", self.v_shift);
    f("q_norm", self.q_norm);
    f("k_norm", self.k_norm);
    f("output_norm", self.output_norm);
    f("output_gate", self.output_gate);
  }

 private:
  Tensor decays(Call& call) const;  // c of the call's tokens, [batch, heads, n]; f32 for bf16
};

}  // namespace sluice
