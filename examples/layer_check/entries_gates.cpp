// Textbook gates: output, query, key and value gates, gated cross attention, gated residuals, fused attention.
#include "registry.h"

#include <sluice/layers/attention/fused_attention.h>

namespace layer_check {

using namespace sluice;

namespace {

struct FormCase : FusedAttentionForm {
  static void describe(auto& o, auto& f) {
    f("causal", o.causal, "token i sees tokens j <= i");
    f("eps", o.eps, at_least(0), "of the linear part's denominator");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
  }
};

constexpr const char* kWidth = "heads*(head_dim or dim // heads)";

/// Q, K and V of `context` numbers, and the map behind `values` of them.
void attention_maps(Layer& l, const char* context, const char* values) {
  l.dense("q", "dim", "width", "qkv_bias")
      .dense("k", context, "width", "qkv_bias")
      .dense("v", context, values, "qkv_bias")
      .dense("out", values, "dim", "out_bias", "", "project_out");
}

}  // namespace

void add_gates(std::vector<Layer>& all) {
  add(all, "gated_attention", "gates",
      "Q' = g_Q*Q, K' = g_K*K, V' = g_V*V; y = (g * Attn(Q', K', V')) Wo; every gate sigmoid(X W + b)",
      "textbook gates")
      .note("No residual.")
      .derive({{"width", kWidth}, {"scores", "width if granularity == 'elementwise' else heads"}})
      .input("x [batch, n, dim]")
      .key_mask()
      .also([](Layer& l) { attention_maps(l, "dim", "width"); })
      .dense("output_gate.map", "dim if output == 'from_input' else width", "scores", "True", "", "output != 'none'")
      .dense("query_gate.map", "dim", "scores", "True", "", "gate_query")
      .dense("key_gate.map", "dim", "scores", "True", "", "gate_key")
      .dense("value_gate.map", "dim", "scores", "True", "", "gate_value")
      .output("[batch, n, dim if project_out else width]");
  add(all, "gated_cross_attention", "gates", "g = sigmoid(Q Wg + b); per_query y = (g * Attn(g*Q, K, V)) Wo",
      "flamingo: Alayrac et al. 2022")
      .note("No residual.")
      .derive({{"c", "context_dim or dim"},
               {"width", kWidth},
               {"value_width", "heads*value_dim or width"},
               {"gated", "reading != 'flamingo'"}})
      .input("x [batch, n, dim]", "as many rows as the context", "reading == 'literal'")
      .input("x [batch, m, dim]", "", "reading != 'literal'")
      .input("context [batch, n, c]")
      .input(Kind::boolean, "key_mask? [batch, n]", "of the context")
      .input(Kind::boolean, "query_mask? [batch, n if reading == 'literal' else m]", "the rows that pooled averages")
      .also([](Layer& l) { attention_maps(l, "c", "value_width"); })
      .dense("gate", "width", "width", "True", "", "gated")
      .dense("value_gate", "width", "value_width", "True", "", "gated and value_width != width")
      .parameter("alpha [1]", "", "not gated")
      .output("[batch, n if reading == 'literal' else m, dim if project_out else value_width]");
  add(all, "gated_residual", "gates", "y = x + g * f",
      "ReZero (Bachlechner et al. 2021), LayerScale (Touvron et al. 2021)")
      .derive({{"learned", "kind in ('scalar', 'per_channel')"}})
      .input("x [..., dim]")
      .input("f [..., dim]", "the branch F(x)")
      .parameter("weight [1 if kind == 'scalar' else dim]", "", "learned")
      .dense("map", "dim", "dim if kind == 'input' else 1", "True", "", "not learned")
      .output("[..., dim]");
  add(all, "hyper_connection", "gates",
      "x = sum_i pre_i * h_i; h_i = post_i * x + sum_j M_ji h_j, for the streams h_i: the branch is the identity",
      "doubly_stochastic: Xie et al. 2025 (mHC); gated: M = 1 (Qwen4)")
      .derive(
          {{"width", "streams*dim"}, {"mixed", "kind == 'doubly_stochastic'"}, {"between", "rank or max(1, dim//4)"}})
      .input("x [..., width]", "the streams, one behind another")
      .dense("map", "width", "streams*(streams + 2) if mixed else streams", "False")
      .parameter("base [streams*(streams + 2)]", "b", "mixed")
      .parameter("scale [3]", "a", "mixed")
      .parameter("weight [width]", "of the norm", "not mixed")
      .dense("down", "width", "between", "False", "", "not mixed")
      .dense("up", "between", "width", "False", "", "not mixed")
      .output("[..., width]");
  add(all, "fused_attention", "gates",
      "y = (g * softmax(Q K'/sqrt d) V + (1 - g) * phi(Q) sum phi(k)'v / (phi(Q) sum phi(k) + eps)) Wo, phi = elu + 1, "
      "g = sigmoid(X Wg + b)",
      "textbook: softmax and linear attention mixed by a gate")
      .note("No residual.")
      .derive({{"width", kWidth}, {"scores", "width if gate == 'per_channel' else heads if gate == 'per_head' else 1"}})
      .input("x [batch, n, dim]")
      .key_mask()
      .also([](Layer& l) { attention_maps(l, "dim", "width"); })
      .dense("gate", "dim", "scores", "True", "Wg")
      .output("[batch, n, dim if project_out else width]");
  add(all, "fused_attention_form", "gates", "the mixture of fused_attention, of given q, k, v and gate",
      "as fused_attention")
      .input("q [batch, heads, n, d]")
      .input("k [batch, heads, n, d]")
      .input("v [batch, heads, n, dv]")
      .input("gate broadcast [batch, heads, n, dv]", "g")
      .input(Kind::boolean, "key_mask? [batch, n]")
      .output("[batch, heads, n, dv]")
      .samples({{{"causal", true}, {"chunk", 4}}})
      .runs<FormCase>([](const FusedAttentionForm& o, const Inputs& in) {
        return fused_attention(in["q"], in["k"], in["v"], in["gate"], o, in["key_mask"]);
      });
}

}  // namespace layer_check
