// Gated attention units.
#include "registry.h"

#include <sluice/layers/gau/gau_attention.h>

namespace layer_check {

using namespace sluice;

void add_gau(std::vector<Layer>& all) {
  add(all, "gau", "gau",
      "x^ = norm(x); U = act(x^ Wu), V = act(x^ Wv), Z = act(x^ Wz); Q = gamma_0*Z + beta_0, K = gamma_1*Z + beta_1, "
      "RoPE on both; A = kind(Q K' , b, mask, L); y = [x +] (U * A V) Wo",
      "Hua et al. 2022, Fig. 2; Su 2022 (GAU-alpha)")
      .derive({{"e", "expansion or 2*dim"}, {"s", "key_dim"}})
      .input("x [batch, n, dim]")
      .key_mask()
      .norm("norm", "norm", "dim")
      .dense("in", "dim", "2*e + s", "linear_bias", "columns U | V | Z, that is Wu | Wv | Wz")
      .dense("out", "e", "dim", "linear_bias", "Wo")
      .parameter("gamma [2, s]", "rows: of Q, of K")
      .parameter("beta [2, s]", "rows: of Q, of K")
      .norm("q_norm", "qk_norm_kind", "s // heads", "qk_norm")
      .norm("k_norm", "qk_norm_kind", "s // heads", "qk_norm")
      .parameter("toeplitz_bias [2*max_length - 1]", "b_ij = w[max_length - 1 + j - i]", "bias == 'toeplitz'")
      .parameter("rope_bias [2, s // heads]", "b_ij = <rope_i(row 0), rope_j(row 1)>", "bias == 'rope'")
      .parameter("t5_bias [buckets, 1]", "times sqrt(dim)", "bias == 't5'")
      .output("[batch, n, dim]");
  add(all, "cross_gau", "gau",
      "[U | Q] = act(norm(x) Wuq + b), K = act(c Wk + b), V = act(c Wv + b); y = x + (U * A V) Wo + b, A as in gau",
      "bert4keras, self_attention = False")
      .derive({{"e", "expansion or 2*dim"}, {"s", "key_dim"}, {"c", "context_dim or dim"}})
      .input("x [batch, m, dim]")
      .input("context [batch, n, c]")
      .input(Kind::boolean, "key_mask? [batch, n]", "of the context")
      .norm("norm", "norm", "dim")
      .dense("uq", "dim", "e + s", "True", "columns U | Q")
      .dense("key", "c", "s")
      .dense("value", "c", "e")
      .dense("out", "e", "dim")
      .output("[batch, m, dim]")
      .streams = false;
  add(all, "tutorial_gau", "gau",
      "U = x Wu, V' = x Wv; Q, K halves of U; V, G halves of V'; O = softmax(Q K'/sqrt(e/2)) V; y = gelu(O) sigmoid(G) "
      "+ (1 - sigmoid(G)) (x Wz) [Wout]",
      "a softmax layer that goes by the name of GAU in tutorials")
      .derive({{"e", "expansion or 2*dim"}})
      .input("x [batch, n, dim]")
      .input(Kind::boolean, "key_mask? [batch, n]")
      .parameter("wu [dim, e]", "columns Q | K")
      .parameter("wv [dim, e]", "columns V | G")
      .parameter("wz [dim, e // 2]")
      .parameter("w_out [e // 2, dim]", "", "project_out")
      .output("[batch, n, dim if project_out else e // 2]")
      .streams = false;
  add(all, "gau_attention", "gau", "A V with A = kind(Q K', b, mask, L)",
      "Hua et al. 2022, Su 2022, lucidrains, MEGA (laplace)")
      .input("q [batch, m, s]")
      .input("k [batch, n, s]")
      .input("v [batch, n, e]")
      .input("bias? broadcast [batch, m, n]", "b")
      .input("relative_bias? [1, n + m - 1]", "b by distance: entry n - 1 + p_j - p_i")
      .input(Kind::boolean, "key_mask? [batch, n]")
      .output("[batch, m, e]")
      .samples({{{"kind", "paper_eq"}},
                {{"kind", "paper_code"}, {"length", "constant"}},
                {{"kind", "lucid"}},
                {{"kind", "rownorm"}, {"causal", true}, {"length", "visible"}},
                {{"kind", "softmax"}, {"top_k", 2}},
                {{"kind", "softmax_plus"}},
                {{"kind", "laplace"}}})
      .runs<GauAttentionOptions>([](GauAttentionOptions o, const Inputs& in) {
        o.relative_bias = in["relative_bias"], o.bias = in["bias"], o.mask.keys = in["key_mask"];
        return gau_attention(in["q"], in["k"], in["v"], o);
      });
}

}  // namespace layer_check
