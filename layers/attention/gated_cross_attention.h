// Cross attention with a gate computed from the queries: g = σ(Q·Wg + b).
//
// The textbook formula g ⊙ K multiplies a gate of n_q rows by keys of n_kv rows. It has these readings:
//
//   per_query   query i sees keys g_i ⊙ k_j and values g_i ⊙ v_j. Since q_i·(g_i ⊙ k_j) = (g_i ⊙ q_i)·k_j, this is
//               g ⊙ Attn(g ⊙ Q, K, V): no n_q × n_kv × d tensor is needed
//   pooled      one gate σ(mean_i(Q)·Wg + b) for all keys and values
//   literal     row j of g gates key j and value j; needs n_q = n_kv
//   flamingo    tanh(α)·Attn(Q, K, V)·Wo with a learned scalar α, initially 0 (Alayrac et al. 2022)
#pragma once

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

enum class CrossGate { per_query, pooled, literal, flamingo };
constexpr const char* choices(CrossGate) { return "per_query pooled literal flamingo"; }

struct GatedCrossAttentionOptions {
  using Layer = struct GatedCrossAttention;
  HeadsOptions heads;  // value_dim != head_dim adds a second gate for the values; kv_heads must equal heads
  CrossGate reading = CrossGate::per_query;
  double gate_bias = 0;  // initial b
  Init gate_init = Init::lecun();

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("reading", o.reading,
      "per_query g*Attn(g*Q, K, V); pooled: the gate of mean(Q); literal: row j gates key j, m = "
      "n; flamingo: tanh(alpha)*Attn(Q, K, V)");
    f.training("gate_bias", o.gate_bias, any_number(), "initial b of the gates");
    f.nested("gate_init_", o.gate_init);
  }
};

struct GatedCrossAttention {
  static constexpr const char* type = "GatedCrossAttention";

  GatedCrossAttentionOptions options{};
  Heads heads;
  Linear gate;        // heads·head_dim → heads·head_dim, from Q with all heads side by side; absent for flamingo
  Linear value_gate;  // heads·head_dim → heads·value_dim, when value_dim differs from head_dim; absent for flamingo
  Tensor alpha;       // [1], for flamingo

  GatedCrossAttention() = default;
  GatedCrossAttention(GatedCrossAttentionOptions o, Rng& rng);
  GatedCrossAttention(HeadsOptions o, Rng& rng) : GatedCrossAttention(GatedCrossAttentionOptions{.heads = o}, rng) {}

  /// x [batch, n, dim] → the same shape (width heads·dv without project_out), with the pass's context
  /// [batch, k, context_dim]. With a residual, `flamingo` initially returns x. `pooled` averages the real rows of
  /// key_mask. A stream keeps K and V of the context. Throws ValueError in a stream for `pooled` and `literal`, which
  /// mix queries.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  SLUICE_PARTS(heads, gate, value_gate, alpha);
};

}  // namespace sluice
