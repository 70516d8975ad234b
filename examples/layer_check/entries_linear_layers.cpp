// Linear attention, retention and gated linear attention as layers.
#include "linear_options.h"
#include "registry.h"

#include <sluice/layers/linear_time/gla.h>
#include <sluice/layers/linear_time/retention.h>

namespace layer_check {

using namespace sluice;

namespace {

const InputInfo sequence{.name = "x", .shape = "[batch, n, dim]"};
const Json pieces = Json::List{3, 1, 2};

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
           with({{"direction", "causal"}, {"decay", "learned"}, {"output_norm", "rms"}, {"qkv_bias", true}, {"out_bias", true}}),
           with({{"direction", "bidirectional"}, {"decay", "fixed"}, {"gamma", Json::List{0.9, 0.5}}}),
           with({{"direction", "two_direction_mean"}, {"feature_map_kind", "t2r"}, {"tie_feature_map", false}}),
           with({{"feature_map_kind", "mlp"}, {"feature_map_heads", 2}, {"head_dim", 6}, {"value_dim", 3}}),
           with({{"feature_map_kind", "favor"}, {"feature_map_features", 6}, {"use_rope", "features"}}),
           with({{"direction", "causal"}, {"normalize", "none"}, {"use_rope", "inputs"}, {"stream", pieces}})},
      .draft = module_layer<LinearAttention, LinearAttentionOptions>( [](const LinearAttention& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
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
      .required = {{"dim", 16}},
      .examples = {two, with({{"gate", false}, {"group_norm", "rms_plain"}, {"expand_k", 0.5}}),
                   with({{"group_norm", "rms"}, {"use_rope", false}, {"gamma", Json::List{0.9, 1}}}),
                   with({{"stream", pieces}})},
      .sizes = {},
      .draft = module_layer<Retention, RetentionOptions>( [](const Retention& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
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
      .draft = module_layer<Gla, GlaOptions>( [](const Gla& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
  });
}

}  // namespace layer_check
