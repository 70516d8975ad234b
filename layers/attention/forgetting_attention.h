// Forgetting attention (Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate", §3): causal
// multi-head attention whose scores decrease by the forget gates between key and query (forget_gate.h).
//
// The paper's Pro block adds four options. kv_shift: k_t ← α_t k_{t−1} + (1 − α_t) k_t with α = σ(x·W) for each KV
// head, and v likewise. qk_norm: RMSNorm of each head of q and k. output_norm: RMSNorm of each head of y. output_gate:
// y ⊙ σ(x·W_g).
//
// The layer is MultiHeadAttention with these options. Windows, biases and other gates combine with them there.
#pragma once

#include <sluice/layers/attention/multi_head_attention.h>

namespace sluice {

struct ForgettingAttentionOptions {
  using Layer = struct ForgettingAttention;
  HeadsOptions heads;                      // the layer sets causal = true; RoPE is optional, the paper uses none
  ForgetGate gate = ForgetGate::input;     // what f is made of
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
    detail::describe_forget_gate(o, f);
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
/// The same as options of MultiHeadAttention. Throws ValueError for options that do not fit.
MultiHeadAttentionOptions forgetting_attention_options(const ForgettingAttentionOptions& options);

struct ForgettingAttention : MultiHeadAttention {
  static constexpr const char* type = "ForgettingAttention";
  ForgettingAttentionOptions options{};

  ForgettingAttention() = default;
  ForgettingAttention(ForgettingAttentionOptions o, Rng& rng);
  ForgettingAttention(HeadsOptions o, Rng& rng) : ForgettingAttention(ForgettingAttentionOptions{.heads = o}, rng) {}

  static void visit(auto& self, auto&& f) {
    Heads::visit(self.heads, f);
    f("forget", self.forget);
    f("k_shift", self.k_shift);
    f("v_shift", self.v_shift);
    f("q_norm", self.q_norm);
    f("k_norm", self.k_norm);
    f("output_norm", self.ablation);
    for (auto& gate : self.gates) f("output_gate", gate.map);
  }
};

}  // namespace sluice
