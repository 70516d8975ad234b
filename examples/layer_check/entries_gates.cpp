// Textbook gates: output, query, key and value gates, gated cross attention, gated residuals, fused attention.
#include "registry.h"
#include "shared.h"

#include <sluice/layers/heads/fused_attention.h>
#include <sluice/layers/heads/gated_attention.h>
#include <sluice/layers/heads/gated_cross_attention.h>
#include <sluice/layers/nn/gated_residual.h>

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

/// query, key, value and, with project_out, out.
std::vector<ParameterInfo> projections(const std::string& dim, const std::string& context, const std::string& width,
                                       const std::string& value_width) {
  return joined({linear_parameters("q", dim, width, "qkv_bias"),
                 linear_parameters("k", context, width, "qkv_bias"),
                 linear_parameters("v", context, value_width, "qkv_bias"),
                 linear_parameters("out", value_width, dim, "out_bias", "", "project_out")});
}

void add_attentions(std::vector<Layer>& all) {
  auto gate = [](const std::string& path, const std::string& in, const std::string& when) {
    return linear_parameters(path + ".map", in, "scores", "True", "", when);
  };
  all.push_back({
      .name = "gated_attention",
      .family = "gates",
      .formula = "Q' = g_Q*Q, K' = g_K*K, V' = g_V*V; y = (g * Attn(Q', K', V')) Wo; every gate sigmoid(X W + b)",
      .source = "textbook gates",
      .notes = "No residual.",
      .derived = {{"width", "heads*(head_dim or dim // heads)"},
                  {"scores", "width if granularity == 'elementwise' else heads"}},
      .inputs = {{.name = "x", .shape = "[batch, n, dim]"}, key_mask_input()},
      .parameters = joined({projections("dim", "dim", "width", "width"),
                            gate("output_gate", "dim if output == 'from_input' else width", "output != 'none'"),
                            gate("query_gate", "dim", "gate_query"), gate("key_gate", "dim", "gate_key"),
                            gate("value_gate", "dim", "gate_value")}),
      .outputs = {{"", "[batch, n, dim if project_out else width]"}},
  });
  all.push_back({
      .name = "gated_cross_attention",
      .family = "gates",
      .formula = "g = sigmoid(Q Wg + b); per_query y = (g * Attn(g*Q, K, V)) Wo",
      .source = "flamingo: Alayrac et al. 2022",
      .notes = "No residual.",
      .derived = {{"c", "context_dim or dim"},
                  {"width", "heads*(head_dim or dim // heads)"},
                  {"value_width", "heads*value_dim or width"},
                  {"gated", "reading != 'flamingo'"}},
      .inputs = {{.name = "x", .shape = "[batch, n, dim]", .meaning = "as many rows as the context", .when =
                  "reading == 'literal'"},
                 {.name = "x", .shape = "[batch, m, dim]", .when = "reading != 'literal'"},
                 {.name = "context", .shape = "[batch, n, c]"},
                 {.name = "key_mask", .shape = "[batch, n]", .meaning = "of the context", .kind = Kind::boolean,
                  .optional = true},
                 {.name = "query_mask", .shape = "[batch, n if reading == 'literal' else m]",
                  .meaning = "the rows that pooled averages", .kind = Kind::boolean, .optional = true}},
      .parameters = joined({projections("dim", "c", "width", "value_width"),
                            linear_parameters("gate", "width", "width", "True", "", "gated"),
                            linear_parameters("value_gate", "width", "value_width", "True", "",
                                              "gated and value_width != width"),
                            {{.name = "alpha", .shape = "[1]", .when = "not gated"}}}),
      .outputs = {{"", "[batch, n if reading == 'literal' else m, dim if project_out else value_width]"}},
      .sizes = {{"m", 4}},
  });
}

}  // namespace

void add_gates(std::vector<Layer>& all) {
  add_attentions(all);
  all.push_back({
      .name = "gated_residual",
      .family = "gates",
      .formula = "y = x + g * f",
      .source = "ReZero (Bachlechner et al. 2021), LayerScale (Touvron et al. 2021)",
      .derived = {{"learned", "kind in ('scalar', 'per_channel')"}},
      .inputs = {{.name = "x", .shape = "[..., dim]"}, {.name = "f", .shape = "[..., dim]", .meaning =
                                                        "the branch F(x)"}},
      .parameters = joined({{{.name = "weight", .shape = "[1 if kind == 'scalar' else dim]", .when = "learned"}},
                            linear_parameters("map", "dim", "dim if kind == 'input' else 1", "True", "",
                                              "not learned")}),
      .outputs = {{"", "[..., dim]"}},
  });
  all.push_back({
      .name = "fused_attention",
      .family = "gates",
      .formula = "y = (g * softmax(Q K'/sqrt d) V + (1 - g) * phi(Q) sum phi(k)'v / (phi(Q) sum phi(k) + eps)) Wo, "
                 "phi = elu + 1, g = sigmoid(X Wg + b)",
      .source = "textbook: softmax and linear attention mixed by a gate",
      .notes = "No residual.",
      .derived = {{"width", "heads*(head_dim or dim // heads)"},
                  {"scores", "width if gate == 'per_channel' else heads if gate == 'per_head' else 1"}},
      .inputs = {{.name = "x", .shape = "[batch, n, dim]"}, key_mask_input()},
      .parameters = joined({projections("dim", "dim", "width", "width"),
                            linear_parameters("gate", "dim", "scores", "True", "Wg")}),
      .outputs = {{"", "[batch, n, dim if project_out else width]"}},
  });
  all.push_back({
      .name = "fused_attention_form",
      .family = "gates",
      .formula = "the mixture of fused_attention, of given q, k, v and gate",
      .source = "as fused_attention",
      .inputs = {{.name = "q", .shape = "[batch, heads, n, d]"},
                 {.name = "k", .shape = "[batch, heads, n, d]"},
                 {.name = "v", .shape = "[batch, heads, n, dv]"},
                 {.name = "gate", .shape = "broadcast [batch, heads, n, dv]", .meaning = "g", .sample = Sample::unit},
                 {.name = "key_mask", .shape = "[batch, n]", .kind = Kind::boolean, .optional = true}},
      .outputs = {{"", "[batch, heads, n, dv]"}},
      .examples = {{{"causal", true}, {"chunk", 4}}},
      .draft = function_layer<FormCase>(
          [](const FusedAttentionForm& o, const Inputs& in) {
            return fused_attention(in["q"], in["k"], in["v"], in["gate"], o, in["key_mask"]);
          }),
  });
}

}  // namespace layer_check
