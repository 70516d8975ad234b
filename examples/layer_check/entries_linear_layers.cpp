// Linear attention, retention and gated linear attention as layers.
#include "linear_options.h"
#include "registry.h"

#include <sluice/layers/linear_time/gla.h>
#include <sluice/layers/linear_time/retention.h>

namespace layer_check {

using namespace sluice;

namespace {

const InputInfo sequence{.name = "x", .shape = "[batch, n, dim]"};

std::vector<ParameterInfo> conv_parameters(const std::string& channels) {
  return {{.name = "conv.weight", .shape = "[short_conv, " + channels + "]",
           .meaning = "channels q | k | v; PyTorch's Conv1d has the transpose, [channels, 1, taps]", .when = "short_conv > 0"}};
}

}  // namespace

void add_linear_layers(std::vector<Layer>& all) {
  all.push_back({
      .name = "short_convolution",
      .family = "linear attention",
      .formula = "y_t = act(sum_j W_j * x_{t - (width - 1) + j} + b), channel by channel",
      .source = "Gu & Dao 2023 (Mamba), fla",
      .inputs = {sequence, key_mask_input()},
      .parameters = {{.name = "weight", .shape = "[width, dim]", .meaning = "PyTorch's Conv1d has the transpose, [dim, 1, width]"},
                     {.name = "bias", .shape = "[dim]", .when = "bias"}},
      .outputs = {{"", "[batch, n, dim]"}},
  });
  all.push_back({
      .name = "linear_attention",
      .family = "linear attention",
      .formula = "y = (concat_h(norm(o_h)) [* swish(x Wg)]) Wo + b, o_i = phi(q_i) U / (phi(q_i) Z + eps), sums U of phi(k)' v and Z of "
                 "phi(k), with decay gamma^(i-j)",
      .source = "Katharopoulos et al. 2020",
      .notes = "With the feature map favor, input_scale null means head_dim^(-1/4). No residual.",
      .derived = {{"g", "kv_heads or heads"}, {"d", "head_dim or dim // heads"}, {"dv", "value_dim or d"}},
      .inputs = {sequence, key_mask_input()},
      .parameters = joined(
          {linear_parameters("q", "dim", "heads*d", "qkv_bias"),
           linear_parameters("k", "dim", "g*d", "qkv_bias"),
           linear_parameters("v", "dim", "g*dv", "qkv_bias"),
           linear_parameters("out", "heads*dv", "dim", "out_bias"),
           feature_map_parameters("feature_map", "feature_map_", "d", "True"),
           feature_map_parameters("key_feature_map", "feature_map_", "d", "not tie_feature_map"),
           {{.name = "log_gamma", .shape = "[heads]", .meaning = "from the option gamma unless given",
             .when = "decay == 'fixed'", .buffer = true, .optional = true},
            {.name = "gamma_logit", .shape = "[heads]", .meaning = "gamma = sigmoid(z)", .when = "decay == 'learned'"}},
           conv_parameters("heads*d + g*(d + dv)"), norm_parameters("norm", "output_norm", "dv"),
           linear_parameters("output_gate", "dim", "heads*dv", "False", "Wg", "output_gate")}),
      .outputs = {{"", "[batch, n, dim]"}},
  });
  all.push_back({
      .name = "retention",
      .family = "linear attention",
      .formula = "S_t = gamma_h S_{t-1} + k_t' v_t, o_t = q_t S_t/sqrt(dk), RoPE on q and k; y = (swish(x Wg) * "
                 "GroupNorm_h(o)) Wo",
      .source = "Sun et al. 2023",
      .derived = {{"keys", "int(expand_k*dim)"}, {"values", "int(expand_v*dim)"}, {"g", "heads // (kv_heads or heads)"}},
      .inputs = {sequence, key_mask_input()},
      .parameters = joined(
          {linear_parameters("q", "dim", "keys", "False"), linear_parameters("k", "dim", "keys // g", "False"),
           linear_parameters("v", "dim", "values // g", "False"), conv_parameters("keys + (keys + values) // g"),
           linear_parameters("gate", "dim", "values", "False", "", "gate"),
           linear_parameters("out", "values", "dim", "False"),
           {{.name = "log_gamma", .shape = "[heads]", .meaning = "from the option gamma unless given", .buffer = true,
             .optional = true},
            {.name = "norm.weight", .shape = "[values // heads if shared_norm else values]", .when = "group_norm != 'rms_plain'"},
            {.name = "norm.bias", .shape = "[values // heads if shared_norm else values]", .when = "group_norm == 'layer'"}}}),
      .outputs = {{"", "[batch, n, dim]"}},
      .sizes = {},
  });
  all.push_back({
      .name = "gla",
      .family = "linear attention",
      .formula = "alpha_t = sigmoid(x_t W1 W2 + b)^(1/tau); S_t = diag(alpha_t) S_{t-1} + k_t' v_t, o_t = scale q_t "
                 "S_t; y = (norm_h(o) * swish(x Wg)) Wo",
      .source = "Yang et al. 2024",
      .derived = {{"keys", "int(expand_k*dim)"},
                  {"values", "int(expand_v*dim)"},
                  {"g", "heads // (kv_heads or heads)"},
                  {"channels", "gate == 'per_channel'"}},
      .inputs = {sequence, key_mask_input()},
      .parameters = joined(
          {linear_parameters("q", "dim", "keys", "False"), linear_parameters("k", "dim", "keys // g", "False"),
           linear_parameters("v", "dim", "values // g", "False"), conv_parameters("keys + (keys + values) // g"),
           linear_parameters("gate_down", "dim", "gate_rank", "False", "W1", "channels"),
           linear_parameters("gate_up", "gate_rank if channels else dim", "keys // g if channels else heads", "True", "W2"),
           linear_parameters("output_gate", "dim", "values", "False", "Wg", "output_gate"),
           linear_parameters("out", "values", "dim", "False"), norm_parameters("norm", "norm", "values // heads")}),
      .outputs = {{"", "[batch, n, dim]"}},
  });
}

}  // namespace layer_check
