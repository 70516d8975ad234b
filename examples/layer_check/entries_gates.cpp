// Textbook gates: output, query, key and value gates, gated cross attention, gated residuals, fused attention.
#include "choices.h"
#include "option_lists.h"
#include "registry.h"

namespace layer_check {

using namespace sluice;

namespace {

const Choices<GateGranularity>& granularities() {
  static const Choices<GateGranularity> all{{"elementwise", GateGranularity::elementwise},
                                            {"headwise", GateGranularity::headwise}};
  return all;
}

}  // namespace

void gated_attention_options(Options& v, GatedAttentionOptions& o) {
  static const Choices<OutputGate> outputs{
      {"none", OutputGate::none}, {"from_input", OutputGate::from_input}, {"from_query", OutputGate::from_query}};
  v.required("dim", o.heads.dim, 8, "width d");
  v("heads", o.heads.heads, "number of heads");
  v("head_dim", o.heads.head_dim, "width of a head; 0: dim/heads");
  v("causal", o.heads.causal, "token i sees tokens j <= i");
  v("output", o.output, outputs, "output gate from X, or from Q (before its gate and RoPE)");
  v("gate_query", o.gate_query, "gate Q");
  v("gate_key", o.gate_key, "gate K");
  v("gate_value", o.gate_value, "gate V");
  v("granularity", o.granularity, granularities(), "a score per channel or per head, in all gates");
  v("use_rope", o.heads.use_rope, "rotate Q and K");
  rope_options(v, o.heads.rope);
  v("project_out", o.heads.project_out, "false: y is [batch, n, heads*head_dim]");
  v("qkv_bias", o.heads.qkv_bias, "biases of Wq, Wk, Wv");
  v("out_bias", o.heads.out_bias, "bias of Wo");
}

void gated_cross_attention_options(Options& v, GatedCrossAttentionOptions& o) {
  using enum CrossGate;
  static const Choices<CrossGate> readings{
      {"per_query", per_query}, {"pooled", pooled}, {"literal", literal}, {"flamingo", flamingo}};
  v.required("dim", o.heads.dim, 8, "width of x");
  v("context_dim", o.heads.context_dim, "width of the context; 0: dim");
  v("heads", o.heads.heads, "number of heads");
  v("head_dim", o.heads.head_dim, "width of a head's queries and keys; 0: dim/heads");
  v("value_dim", o.heads.value_dim, "width of a head's values; 0: head_dim; another one has a second gate");
  v("reading", o.reading, readings, "per_query g*Attn(g*Q, K, V); pooled: the gate of mean(Q); literal: row j gates "
                                    "key j, m = n; flamingo: tanh(alpha)*Attn(Q, K, V)");
  v("project_out", o.heads.project_out, "false: y is [batch, m, heads*value_dim]");
  v("qkv_bias", o.heads.qkv_bias, "biases of Wq, Wk, Wv");
  v("out_bias", o.heads.out_bias, "bias of Wo");
}

void gated_residual_options(Options& v, GatedResidualOptions& o) {
  using enum ResidualGate;
  static const Choices<ResidualGate> kinds{
      {"scalar", scalar}, {"per_channel", per_channel}, {"input", input}, {"input_token", input_token}};
  v.required("dim", o.dim, 8, "width");
  v("kind", o.kind, kinds, "g: a number, a vector, sigmoid(x W + b), sigmoid(x w + b) one number a token");
}

void fused_attention_options(Options& v, FusedAttentionOptions& o) {
  using enum FusedGate;
  static const Choices<FusedGate> gates{{"per_channel", per_channel}, {"per_head", per_head}, {"per_token", per_token}};
  v.required("dim", o.heads.dim, 8, "width d");
  v("heads", o.heads.heads, "number of heads");
  v("head_dim", o.heads.head_dim, "width of a head; 0: dim/heads");
  v("causal", o.heads.causal, "token i sees tokens j <= i");
  v("gate", o.gate, gates, "how many scores a token has");
  v("use_rope", o.heads.use_rope, "rotate q and k, before phi");
  rope_options(v, o.heads.rope);
  v("eps", o.eps, "of the linear part's denominator");
  v("chunk", o.chunk, "steps at once; changes rounding only");
  v("project_out", o.heads.project_out, "false: y is [batch, n, heads*head_dim]");
  v("qkv_bias", o.heads.qkv_bias, "biases of Wq, Wk, Wv");
  v("out_bias", o.heads.out_bias, "bias of Wo");
}

namespace {

const std::vector<double> pieces{3, 1, 2};

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
      .examples = {{{"heads", 2}, {"gate_query", true}, {"gate_key", true}, {"gate_value", true}, {"causal", true}},
                   {{"heads", 2}, {"output", "from_query"}, {"granularity", "headwise"}, {"qkv_bias", true},
                    {"out_bias", true}},
                   {{"heads", 2}, {"head_dim", 6}, {"output", "none"}, {"project_out", false}},
                   {{"heads", 2}, {"causal", true}, {"use_rope", true}, {"stream", pieces}}},
      .prepare = module_layer<GatedAttention, GatedAttentionOptions>(
          gated_attention_options,
          [](const GatedAttention& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
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
      .examples = {{{"reading", "pooled"}, {"heads", 2}, {"value_dim", 3}, {"context_dim", 5}},
                   {{"reading", "literal"}, {"project_out", false}}, {{"reading", "flamingo"}, {"qkv_bias", true},
                                                                      {"out_bias", true}}},
      .sizes = {{"m", 4}},
      .prepare = module_layer<GatedCrossAttention, GatedCrossAttentionOptions>(
          gated_cross_attention_options,
          [](const GatedCrossAttention& l, const Inputs& in) {
            return l(in["x"], in["context"], in["key_mask"], in["query_mask"]);
          }),
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
      .examples = {{{"kind", "per_channel"}}, {{"kind", "input"}}, {{"kind", "input_token"}}},
      .prepare = module_layer<GatedResidual, GatedResidualOptions>(
          gated_residual_options, [](const GatedResidual& l, const Inputs& in) { return l(in["x"], in["f"]); }),
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
      .examples = {{{"heads", 2}, {"gate", "per_head"}, {"causal", true}, {"use_rope", true}},
                   {{"heads", 2}, {"gate", "per_token"}, {"project_out", false}, {"qkv_bias", true}, {"out_bias",
                    true}},
                   {{"heads", 2}, {"causal", true}, {"stream", pieces}}},
      .prepare = module_layer<FusedAttention, FusedAttentionOptions>(
          fused_attention_options,
          [](const FusedAttention& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
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
      .prepare = function_layer<FusedAttentionForm>(
          [](Options& v, FusedAttentionForm& o) {
            v("causal", o.causal, "token i sees tokens j <= i");
            v("eps", o.eps, "of the linear part's denominator");
            v("chunk", o.chunk, "steps at once; changes rounding only");
          },
          [](const FusedAttentionForm& o, const Inputs& in) {
            return fused_attention(in["q"], in["k"], in["v"], in["gate"], o, in["key_mask"]);
          }),
  });
}

}  // namespace layer_check
