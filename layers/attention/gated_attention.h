// Attention with textbook gates. Each gate is σ(x·W + b), and each is optional:
//
//   Q' = g_Q ⊙ Q, K' = g_K ⊙ K, V' = g_V ⊙ V          inputs of attention
//   y  = (g ⊙ Attn(Q', K', V'))·Wo                      output of attention; g from X or from Q
//
// With b = 0 and W = 0 a gate is ½. With a large b a gate is initially open. Doubling W_V (and its bias) cancels an
// output gate of ½, so gated attention contains the ungated layer exactly.
//
// The layer is MultiHeadAttention with gates at G1 (output), G4 (Q), G3 (K) and G2 (V).
#pragma once

#include <sluice/layers/attention/multi_head_attention.h>

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

/// The same as options of MultiHeadAttention. Its gates are those of output, query, key and value that are on, in this
/// order. Throws ValueError for options that do not fit.
MultiHeadAttentionOptions gated_attention_options(const GatedAttentionOptions& options);

struct GatedAttention : MultiHeadAttention {
  static constexpr const char* type = "GatedAttention";
  GatedAttentionOptions options{};

  GatedAttention() = default;
  GatedAttention(GatedAttentionOptions o, Rng& rng);
  GatedAttention(HeadsOptions o, Rng& rng) : GatedAttention(GatedAttentionOptions{.heads = o}, rng) {}

  static void visit(auto& self, auto&& f) {
    Heads::visit(self.heads, f);
    for (auto& gate : self.gates) f(name_of_gate(gate.options.position), gate);
  }

 private:
  /// "output_gate" of G1, "query_gate" of G4, "key_gate" of G3, "value_gate" of G2.
  static const char* name_of_gate(GatePosition position);
};

}  // namespace sluice
