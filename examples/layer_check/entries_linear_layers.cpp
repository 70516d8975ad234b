// Linear attention, retention and gated linear attention as layers.
#include "linear_options.h"
#include "registry.h"

namespace layer_check {

namespace {

void sequence(Layer& l) { l.input("x [batch, n, dim]").key_mask(); }

/// The convolution before a scan, over this many channels.
void convolution(Layer& l, const std::string& channels) {
  l.parameter("conv.weight [short_conv, " + channels + "]",
              "channels q | k | v; PyTorch's Conv1d has the transpose, [channels, 1, taps]", "short_conv > 0");
}

/// q, k, v of retention and GLA, and the convolution.
void projections(Layer& l) {
  l.dense("q", "dim", "keys", "False")
      .dense("k", "dim", "keys // g", "False")
      .dense("v", "dim", "values // g", "False");
  convolution(l, "keys + (keys + values) // g");
}

/// Decays that the option gamma determines.
void log_gamma(Layer& l, const std::string& when) {
  ParameterInfo& p = l.parameter("log_gamma [heads]", "from the option gamma unless given", when).parameters.back();
  p.buffer = p.optional = true;
}

}  // namespace

void add_linear_layers(std::vector<Layer>& all) {
  add(all, "short_convolution", "linear attention",
      "y_t = act(sum_j W_j * x_{t - (width - 1) + j} + b), channel by channel", "Gu & Dao 2023 (Mamba), fla")
      .also(sequence)
      .parameter("weight [width, dim]", "PyTorch's Conv1d has the transpose, [dim, 1, width]")
      .parameter("bias [dim]", "", "bias")
      .output("[batch, n, dim]");
  add(all, "linear_attention", "linear attention",
      "y = (concat_h(norm(o_h)) [* swish(x Wg)]) Wo + b, o_i = phi(q_i) U / (phi(q_i) Z + eps), sums U of phi(k)' v "
      "and Z of phi(k), with decay gamma^(i-j)",
      "Katharopoulos et al. 2020")
      .note("With the feature map favor, input_scale null means head_dim^(-1/4). No residual.")
      .derive({{"g", "kv_heads or heads"}, {"d", "head_dim or dim // heads"}, {"dv", "value_dim or d"}})
      .also(sequence)
      .dense("q", "dim", "heads*d", "qkv_bias")
      .dense("k", "dim", "g*d", "qkv_bias")
      .dense("v", "dim", "g*dv", "qkv_bias")
      .dense("out", "heads*dv", "dim", "out_bias")
      .also([](Layer& l) {
        feature_map_parameters(l, "feature_map", "feature_map_", "d", "True");
        feature_map_parameters(l, "key_feature_map", "feature_map_", "d", "not tie_feature_map");
        log_gamma(l, "decay == 'fixed'");
      })
      .parameter("gamma_logit [heads]", "gamma = sigmoid(z)", "decay == 'learned'")
      .also([](Layer& l) { convolution(l, "heads*d + g*(d + dv)"); })
      .norm("norm", "output_norm", "dv")
      .dense("output_gate", "dim", "heads*dv", "False", "Wg", "output_gate")
      .output("[batch, n, dim]");
  add(all, "retention", "linear attention",
      "S_t = gamma_h S_{t-1} + k_t' v_t, o_t = q_t S_t/sqrt(dk), RoPE on q and k; y = (swish(x Wg) * GroupNorm_h(o)) "
      "Wo",
      "Sun et al. 2023")
      .derive({{"keys", "int(expand_k*dim)"}, {"values", "int(expand_v*dim)"}, {"g", "heads // (kv_heads or heads)"}})
      .also(sequence)
      .also(projections)
      .dense("gate", "dim", "values", "False", "", "gate")
      .dense("out", "values", "dim", "False")
      .also([](Layer& l) { log_gamma(l, "True"); })
      .parameter("norm.weight [values // heads if shared_norm else values]", "", "group_norm != 'rms_plain'")
      .parameter("norm.bias [values // heads if shared_norm else values]", "", "group_norm == 'layer'")
      .output("[batch, n, dim]");
  add(all, "gla", "linear attention",
      "alpha_t = sigmoid(x_t W1 W2 + b)^(1/tau); S_t = diag(alpha_t) S_{t-1} + k_t' v_t, o_t = scale q_t S_t; y = "
      "(norm_h(o) * swish(x Wg)) Wo",
      "Yang et al. 2024")
      .derive({{"keys", "int(expand_k*dim)"},
               {"values", "int(expand_v*dim)"},
               {"g", "heads // (kv_heads or heads)"},
               {"channels", "gate == 'per_channel'"}})
      .also(sequence)
      .also(projections)
      .dense("gate_down", "dim", "gate_rank", "False", "W1", "channels")
      .dense("gate_up", "gate_rank if channels else dim", "keys // g if channels else heads", "True", "W2")
      .dense("output_gate", "dim", "values", "False", "Wg", "output_gate")
      .dense("out", "values", "dim", "False")
      .norm("norm", "norm", "values // heads")
      .output("[batch, n, dim]");
}

}  // namespace layer_check
