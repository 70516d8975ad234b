// Cross attention whose gate is computed by the queries' side: g = σ(Q·Wg + b).
//
// As printed in textbooks, g ⊙ K multiplies a gate of n_q rows by keys of n_kv rows. What can be meant:
//
//   per_query   query i sees keys g_i ⊙ k_j and values g_i ⊙ v_j. Since q_i·(g_i ⊙ k_j) = (g_i ⊙ q_i)·k_j this is
//               g ⊙ Attn(g ⊙ Q, K, V): no n_q × n_kv × d tensor is needed
//   pooled      one gate σ(mean_i(Q)·Wg + b) for all keys and values
//   literal     row j of g gates key j; only for n_q = n_kv
//   flamingo    tanh(α)·Attn(Q, K, V)·Wo with a learned scalar α, initially 0 (Alayrac et al. 2022)
#pragma once

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

enum class CrossGate { per_query, pooled, literal, flamingo };
constexpr const char* choices(CrossGate) { return "per_query pooled literal flamingo"; }

struct GatedCrossAttentionOptions {
  HeadsOptions heads;  // a value_dim other than head_dim needs a second gate, for the values; no kv_heads
  CrossGate reading = CrossGate::per_query;
  double gate_bias = 0;  // initial b
  Init gate_init = Init::lecun();

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("reading", o.reading, "per_query g*Attn(g*Q, K, V); pooled: the gate of mean(Q); literal: row j gates key j, m = "
                            "n; flamingo: tanh(alpha)*Attn(Q, K, V)");
    f.training("gate_bias", o.gate_bias, any_number(), "initial b of the gates");
    f.nested("gate_init_", o.gate_init);
  }
};

struct GatedCrossAttention {
  static constexpr const char* type = "GatedCrossAttention";

  GatedCrossAttentionOptions options;
  Heads heads;
  Linear gate;        // of Q, all heads side by side: heads·head_dim → the same; absent for flamingo
  Linear value_gate;  // → heads·value_dim, when value_dim differs from head_dim
  Tensor alpha;       // [1], flamingo

  GatedCrossAttention() = default;
  GatedCrossAttention(GatedCrossAttentionOptions o, Rng& rng);

  /// x [batch, n, dim] → the same, from the pass's context [batch, k, context_dim]. With a residual flamingo starts as
  /// x. `pooled` averages the rows that key_mask calls real. A stream keeps K and V of the context; ValueError in one
  /// for the readings that mix queries, `pooled` and `literal`.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  static void visit(auto& self, auto&& f) {
    Heads::visit(self.heads, f);
    f("gate", self.gate);
    f("value_gate", self.value_gate);
    f("alpha", self.alpha);
  }
};

}  // namespace sluice
