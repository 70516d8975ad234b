// Gated attention units.
#include "shared.h"
#include "registry.h"

#include <sluice/layers/gau/gau.h>
#include <sluice/layers/gau/tutorial_gau.h>

namespace layer_check {

using namespace sluice;

namespace {

std::vector<ParameterInfo> qk_norm_parameters(const std::string& path) {
  std::vector<ParameterInfo> all = norm_parameters(path, "qk_norm_kind", "s // heads");
  for (ParameterInfo& i : all) i.when = "qk_norm and " + i.when;
  return all;
}

void add_layer(std::vector<Layer>& all) {
  all.push_back({
      .name = "gau",
      .family = "gau",
      .formula = "x^ = norm(x); U = act(x^ Wu), V = act(x^ Wv), Z = act(x^ Wz); Q = gamma_0*Z + beta_0, K = gamma_1*Z "
                 "+ beta_1, RoPE on both; A = kind(Q K' , b, mask, L); y = [x +] (U * A V) Wo",
      .source = "Hua et al. 2022, Fig. 2; Su 2022 (GAU-alpha)",
      .derived = {{"e", "expansion or 2*dim"}, {"s", "key_dim"}},
      .inputs = {{.name = "x", .shape = "[batch, n, dim]"}, key_mask_input()},
      .parameters = joined(
          {norm_parameters("norm", "norm", "dim"),
           linear_parameters("in", "dim", "2*e + s", "linear_bias", "columns U | V | Z, that is Wu | Wv | Wz"),
           linear_parameters("out", "e", "dim", "linear_bias", "Wo"),
           {{.name = "gamma", .shape = "[2, s]", .meaning = "rows: of Q, of K"},
            {.name = "beta", .shape = "[2, s]", .meaning = "rows: of Q, of K"}},
           qk_norm_parameters("q_norm"), qk_norm_parameters("k_norm"),
           {{.name = "toeplitz_bias", .shape = "[2*max_length - 1]", .meaning = "b_ij = w[max_length - 1 + j - i]",
             .when = "bias == 'toeplitz'"},
            {.name = "rope_bias", .shape = "[2, s // heads]", .meaning = "b_ij = <rope_i(row 0), rope_j(row 1)>",
             .when = "bias == 'rope'"},
            {.name = "t5_bias", .shape = "[buckets, 1]", .meaning = "times sqrt(dim)", .when = "bias == 't5'"}}}),
      .outputs = {{"", "[batch, n, dim]"}},
  });
}

}  // namespace

void add_gau(std::vector<Layer>& all) {
  add_layer(all);
  all.push_back({
      .name = "cross_gau",
      .family = "gau",
      .formula = "[U | Q] = act(norm(x) Wuq + b), K = act(c Wk + b), V = act(c Wv + b); y = x + (U * A V) Wo + b, A "
                 "as in gau",
      .source = "bert4keras, self_attention = False",
      .derived = {{"e", "expansion or 2*dim"}, {"s", "key_dim"}, {"c", "context_dim or dim"}},
      .inputs = {{.name = "x", .shape = "[batch, m, dim]"},
                 {.name = "context", .shape = "[batch, n, c]"},
                 {.name = "key_mask", .shape = "[batch, n]", .meaning = "of the context", .kind = Kind::boolean,
                  .optional = true}},
      .parameters = joined({norm_parameters("norm", "norm", "dim"),
                            linear_parameters("uq", "dim", "e + s", "True", "columns U | Q"),
                            linear_parameters("key", "c", "s", "True"), linear_parameters("value", "c", "e", "True"),
                            linear_parameters("out", "e", "dim", "True")}),
      .outputs = {{"", "[batch, m, dim]"}},
      .sizes = {{"m", 4}},
      .streams = false,
  });
  all.push_back({
      .name = "tutorial_gau",
      .family = "gau",
      .formula = "U = x Wu, V' = x Wv; Q, K halves of U; V, G halves of V'; O = softmax(Q K'/sqrt(e/2)) V; y = "
                 "gelu(O) sigmoid(G) + (1 - sigmoid(G)) (x Wz) [Wout]",
      .source = "a softmax layer that goes by the name of GAU in tutorials",
      .derived = {{"e", "expansion or 2*dim"}},
      .inputs = {{.name = "x", .shape = "[batch, n, dim]"},
                 {.name = "key_mask", .shape = "[batch, n]", .kind = Kind::boolean, .optional = true}},
      .parameters = {{.name = "wu", .shape = "[dim, e]", .meaning = "columns Q | K"},
                     {.name = "wv", .shape = "[dim, e]", .meaning = "columns V | G"},
                     {.name = "wz", .shape = "[dim, e // 2]"},
                     {.name = "w_out", .shape = "[e // 2, dim]", .when = "project_out"}},
      .outputs = {{"", "[batch, n, dim if project_out else e // 2]"}},
      .streams = false,
  });
  all.push_back({
      .name = "gau_attention",
      .family = "gau",
      .formula = "A V with A = kind(Q K', b, mask, L)",
      .source = "Hua et al. 2022, Su 2022, lucidrains, MEGA (laplace)",
      .inputs = {{.name = "q", .shape = "[batch, m, s]"},
                 {.name = "k", .shape = "[batch, n, s]"},
                 {.name = "v", .shape = "[batch, n, e]"},
                 {.name = "bias", .shape = "broadcast [batch, m, n]", .meaning = "b", .optional = true},
                 {.name = "relative_bias", .shape = "[1, n + m - 1]",
                  .meaning = "b by distance: entry n - 1 + p_j - p_i",
                  .optional = true},
                 {.name = "key_mask", .shape = "[batch, n]", .kind = Kind::boolean, .optional = true}},
      .outputs = {{"", "[batch, m, e]"}},
      .examples = {{{"kind", "paper_eq"}}, {{"kind", "paper_code"}, {"length", "constant"}}, {{"kind", "lucid"}},
                   {{"kind", "rownorm"}, {"causal", true}, {"length", "visible"}}, {{"kind", "softmax"}, {"top_k", 2}},
                   {{"kind", "softmax_plus"}}, {{"kind", "laplace"}}},
      .sizes = {{"s", 4}, {"e", 5}, {"m", 4}},
      .draft = function_layer<GauAttentionOptions>(
          [](const GauAttentionOptions& given, const Inputs& in) {
            GauAttentionOptions o = given;
            o.relative_bias = in["relative_bias"], o.bias = in["bias"], o.mask.keys = in["key_mask"];
            return gau_attention(in["q"], in["k"], in["v"], o);
          }),
  });
}

}  // namespace layer_check
