// Attention with textbook gates. Each gate is σ(x·W + b), and each is optional:
//
//   Q' = g_Q ⊙ Q, K' = g_K ⊙ K, V' = g_V ⊙ V          inputs of attention
//   y  = (g ⊙ Attn(Q', K', V'))·Wo                      output of attention; g from X or from Q
//
// With b = 0 and W = 0 a gate is ½. With a large b a gate is initially open. Doubling W_V (and its bias) cancels an
// output gate of ½, so gated attention contains the ungated layer exactly.
#pragma once

#include <sluice/layers/heads/attention_gate.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/pass.h>

#include <optional>

namespace sluice {

enum class OutputGate {
  none,
  from_input,  // g = σ(X·Wg + b)
  from_query,  // g = σ(Q·Wg + b); Q is all heads side by side, before the gate of Q and RoPE
};
constexpr const char* choices(OutputGate) { return "none from_input from_query"; }

struct GatedAttentionOptions {
  using Layer = struct GatedAttention;
  HeadsOptions heads;
  OutputGate output = OutputGate::from_input;
  bool gate_query = false, gate_key = false, gate_value = false;
  /// A score for every channel or a score for every head, in all gates.
  GateGranularity granularity = GateGranularity::elementwise;
  double gate_bias = 0;  // initial b
  Init gate_init = Init::lecun();

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("output", o.output, "output gate from X, or from Q (before its gate and RoPE)");
    f("gate_query", o.gate_query, "gate Q");
    f("gate_key", o.gate_key, "gate K");
    f("gate_value", o.gate_value, "gate V");
    f("granularity", o.granularity, "a score per channel or per head, in all gates");
    f.training("gate_bias", o.gate_bias, any_number(), "initial b of the gates");
    f.nested("gate_init_", o.gate_init);
  }
};

struct GatedAttention {
  static constexpr const char* type = "GatedAttention";
  GatedAttentionOptions options;
  Heads heads;
  std::optional<AttentionGate> output_gate, query_gate, key_gate, value_gate;

  GatedAttention() = default;
  GatedAttention(GatedAttentionOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape (width heads·dv without project_out). A stream keeps kv_heads·(dk + dv) numbers
  /// per token. Throws ValueError in a stream unless causal.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  static void visit(auto& self, auto&& f) {
    Heads::visit(self.heads, f);
    f("output_gate", self.output_gate);
    f("query_gate", self.query_gate);
    f("key_gate", self.key_gate);
    f("value_gate", self.value_gate);
  }

 private:
  struct Projected {
    Tensor q, k, v;      // [batch, heads, n, ·], gated and rotated
    Tensor gate_source;  // input of the output gate, [batch, n, ·]
  };
  Projected project(const Tensor& x, int64_t position) const;
};

}  // namespace sluice
