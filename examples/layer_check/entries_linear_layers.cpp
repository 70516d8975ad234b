// Linear attention, retention and gated linear attention as layers.
#include "linear_options.h"
#include "option_lists.h"
#include "registry.h"

namespace layer_check {

using namespace sluice;

void linear_attention_options(Options& v, LinearAttentionOptions& o) {
  using enum LinearDecay;
  static const Choices<LinearDecay> decays{{"none", none}, {"fixed", fixed}, {"learned", learned}};
  static const Choices<LinearRope> ropes{
      {"none", LinearRope::none}, {"inputs", LinearRope::inputs}, {"features", LinearRope::features}};
  v.required("dim", o.dim, 8, "width d");
  v("heads", o.heads, "number of heads");
  v("head_dim", o.head_dim, "width of a head's queries and keys; 0: dim/heads");
  v("value_dim", o.value_dim, "width of a head's values; 0: head_dim");
  feature_map_options(v, o.feature_map, "feature_map_");
  v("tie_feature_map", o.tie_feature_map, "one map for queries and keys");
  v("direction", o.direction, linear_directions(), kDirectionMeaning);
  v("normalize", o.normalize, linear_normalizers(), "sum: divide by phi(q) Z + eps");
  v("eps", o.eps, "of the denominator");
  v("scale", o.scale, "of phi(q)");
  v("decay", o.decay, decays, "gamma of each head: none, as given, or sigmoid of a parameter");
  v("gamma", o.gamma, "of each head, in (0, 1]; empty: 1 - 2^(-5-h)");
  v("chunk", o.chunk, "steps at once; changes rounding only");
  v("use_rope", o.use_rope, ropes, "on q and k before phi, or on phi(q) and phi(k) in the numerator");
  rope_options(v, o.rope);
  v("output_norm", o.output_norm, norm_kinds(), "of each head's output, weights shared by heads");
  v("qkv_bias", o.qkv_bias, "biases of Wq, Wk, Wv");
  v("out_bias", o.out_bias, "bias of Wo");
}

void retention_options(Options& v, RetentionOptions& o) {
  static const Choices<NormKind> norms{
      {"layer", NormKind::layer}, {"rms", NormKind::rms}, {"rms_plain", NormKind::rms_plain}};
  v.required("dim", o.dim, 16, "width d");
  v("heads", o.heads, "number of heads");
  v("expand_k", o.expand_k, "heads*dk = expand_k*dim");
  v("expand_v", o.expand_v, "heads*dv = expand_v*dim");
  v("gamma", o.gamma, "of each head, in (0, 1]; empty: 1 - 2^(-5-h)");
  v("use_rope", o.use_rope, "rotate q and k");
  rope_options(v, o.rope);
  v("gate", o.gate, "times swish(x Wg)");
  v("group_norm", o.group_norm, norms, "of each head's output");
  v("norm_eps", o.norm_eps, "of the norm");
  v("chunk", o.chunk, "steps at once; changes rounding only");
}

void gla_options(Options& v, GlaOptions& o) {
  static const Choices<GlaGate> gates{{"per_channel", GlaGate::per_channel}, {"per_head", GlaGate::per_head}};
  v.required("dim", o.dim, 8, "width d");
  v("heads", o.heads, "number of heads");
  v("expand_k", o.expand_k, "heads*dk = expand_k*dim");
  v("expand_v", o.expand_v, "heads*dv = expand_v*dim");
  v("gate", o.gate, gates, "alpha for every key channel (rank-r map), or one a head");
  v("gate_rank", o.gate_rank, "rank of the gate's map");
  v("gate_temperature", o.gate_temperature, "alpha = sigmoid(z)^(1/gate_temperature)");
  v("scale", o.scale, "of q; null: dk^(-1/2)");
  v("output_gate", o.output_gate, "times swish(x Wg)");
  v("norm", o.norm, norm_kinds(), "of each head's output, weights shared by heads");
  v("norm_eps", o.norm_eps, "of the norm");
  v("chunk", o.chunk, "steps at once; changes rounding only");
}

namespace {

const InputInfo sequence{.name = "x", .shape = "[batch, n, dim]"};
const std::vector<double> pieces{3, 1, 2};

}  // namespace

void add_linear_layers(std::vector<Layer>& all) {
  const Values two{{"heads", 2}};
  auto with = [&](std::initializer_list<Values::value_type> more) {
    Values v = two;
    for (const auto& [name, value] : more) v[name] = value;
    return v;
  };
  all.push_back({
      .name = "linear_attention",
      .family = "linear attention",
      .formula = "y = concat_h(norm(o_h)) Wo + b, o_i = phi(q_i) U / (phi(q_i) Z + eps), sums U of phi(k)' v and Z of "
                 "phi(k), with decay gamma^(i-j)",
      .source = "Katharopoulos et al. 2020",
      .notes = "With the feature map favor, input_scale null means head_dim^(-1/4). No residual.",
      .derived = {{"d", "head_dim or dim // heads"}, {"dv", "value_dim or d"}},
      .inputs = {sequence, key_mask_input()},
      .parameters = joined(
          {linear_parameters("q", "dim", "heads*d", "qkv_bias"),
           linear_parameters("k", "dim", "heads*d", "qkv_bias"),
           linear_parameters("v", "dim", "heads*dv", "qkv_bias"),
           linear_parameters("out", "heads*dv", "dim", "out_bias"),
           feature_map_parameters("feature_map", "feature_map_", "d", "True"),
           feature_map_parameters("key_feature_map", "feature_map_", "d", "not tie_feature_map"),
           {{.name = "log_gamma", .shape = "[heads]", .meaning = "from the option gamma unless given",
             .when = "decay == 'fixed'", .buffer = true, .optional = true},
            {.name = "gamma_logit", .shape = "[heads]", .meaning = "gamma = sigmoid(z)", .when = "decay == 'learned'"}},
           norm_parameters("norm", "output_norm", "dv")}),
      .outputs = {{"", "[batch, n, dim]"}},
      .examples =
          {two,
           with({{"direction", "causal"}, {"decay", "learned"}, {"output_norm", "rms"}, {"qkv_bias", true},
                 {"out_bias", true}}),
           with({{"direction", "bidirectional"}, {"decay", "fixed"}, {"gamma", std::vector<double>{0.9, 0.5}}}),
           with({{"direction", "two_direction_mean"}, {"feature_map_kind", "t2r"}, {"tie_feature_map", false}}),
           with({{"feature_map_kind", "mlp"}, {"feature_map_heads", 2}, {"head_dim", 6}, {"value_dim", 3}}),
           with({{"feature_map_kind", "favor"}, {"feature_map_features", 6}, {"use_rope", "features"}}),
           with({{"direction", "causal"}, {"normalize", "none"}, {"use_rope", "inputs"}, {"stream", pieces}})},
      .prepare = module_layer<LinearAttention, LinearAttentionOptions>(
          linear_attention_options,
          [](const LinearAttention& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
  });
  all.push_back({
      .name = "retention",
      .family = "linear attention",
      .formula = "S_t = gamma_h S_{t-1} + k_t' v_t, o_t = q_t S_t/sqrt(dk), RoPE on q and k; y = (swish(x Wg) * "
                 "GroupNorm_h(o)) Wo",
      .source = "Sun et al. 2023",
      .derived = {{"keys", "int(expand_k*dim)"}, {"values", "int(expand_v*dim)"}},
      .inputs = {sequence, key_mask_input()},
      .parameters = joined(
          {linear_parameters("q", "dim", "keys", "False"), linear_parameters("k", "dim", "keys", "False"),
           linear_parameters("v", "dim", "values", "False"),
           linear_parameters("gate", "dim", "values", "False", "", "gate"),
           linear_parameters("out", "values", "dim", "False"),
           {{.name = "log_gamma", .shape = "[heads]", .meaning = "from the option gamma unless given", .buffer = true,
             .optional = true},
            {.name = "norm.weight", .shape = "[values]", .when = "group_norm != 'rms_plain'"},
            {.name = "norm.bias", .shape = "[values]", .when = "group_norm == 'layer'"}}}),
      .outputs = {{"", "[batch, n, dim]"}},
      .examples = {two, with({{"gate", false}, {"group_norm", "rms_plain"}, {"expand_k", 0.5}}),
                   with({{"group_norm", "rms"}, {"use_rope", false}, {"gamma", std::vector<double>{0.9, 1}}}),
                   with({{"stream", pieces}})},
      .sizes = {},
      .prepare = module_layer<Retention, RetentionOptions>(
          retention_options,
          [](const Retention& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
  });
  all.push_back({
      .name = "gla",
      .family = "linear attention",
      .formula = "alpha_t = sigmoid(x_t W1 W2 + b)^(1/tau); S_t = diag(alpha_t) S_{t-1} + k_t' v_t, o_t = scale q_t "
                 "S_t; y = (norm_h(o) * swish(x Wg)) Wo",
      .source = "Yang et al. 2024",
      .derived = {{"keys", "int(expand_k*dim)"},
                  {"values", "int(expand_v*dim)"},
                  {"channels", "gate == 'per_channel'"}},
      .inputs = {sequence, key_mask_input()},
      .parameters = joined(
          {linear_parameters("q", "dim", "keys", "False"), linear_parameters("k", "dim", "keys", "False"),
           linear_parameters("v", "dim", "values", "False"),
           linear_parameters("gate_down", "dim", "gate_rank", "False", "W1", "channels"),
           linear_parameters("gate_up", "gate_rank if channels else dim", "keys if channels else heads", "True", "W2"),
           linear_parameters("output_gate", "dim", "values", "False", "Wg", "output_gate"),
           linear_parameters("out", "values", "dim", "False"), norm_parameters("norm", "norm", "values // heads")}),
      .outputs = {{"", "[batch, n, dim]"}},
      .examples = {two, with({{"gate", "per_head"}, {"output_gate", false}, {"norm", "none"}, {"scale", 1.0}}),
                   with({{"expand_k", 1.0}, {"gate_rank", 3}, {"norm", "layer"}, {"stream", pieces}})},
      .prepare = module_layer<Gla, GlaOptions>(
          gla_options, [](const Gla& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
  });
}

}  // namespace layer_check
