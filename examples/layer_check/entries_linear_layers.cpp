// Linear attention, retention, gated linear attention, Mamba, Mamba-2, Griffin's block and mLSTM as layers.
#include "linear_forms.h"
#include "registry.h"

#include <sluice/layers/linear_attention/mamba.h>
#include <sluice/layers/linear_attention/mamba2.h>

namespace layer_check {

using namespace sluice;

namespace {

void sequence(Layer& l) { l.input("x [batch, n, dim]").key_mask(); }

/// What beside x a layer reads in which a document is a run of equal segments.
void documents(Layer& l) {
  l.input(Kind::integer, "segments? [batch, n]", "document numbers; equal ones in a row are a document",
          "len(stream) == 0");
}

/// The convolution before a scan, over this many channels.
void convolution(Layer& l, const std::string& channels) {
  l.parameter("conv.weight [short_conv, " + channels + "]",
              "channels q | k | v; PyTorch's Conv1d has the transpose, [channels, 1, taps]", "short_conv > 0");
}

/// q, k, v of retention, GLA and mLSTM.
void projections(Layer& l) {
  l.dense("q", "dim", "keys", "False")
      .dense("k", "dim", "keys // g", "False")
      .dense("v", "dim", "values // g", "False");
}
/// The same, and their convolution.
void convolved_projections(Layer& l) {
  projections(l);
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
      .also(documents)
      .parameter("weight [width, dim]", "PyTorch's Conv1d has the transpose, [dim, 1, width]")
      .parameter("bias [dim]", "", "bias")
      .output("[batch, n, dim]");
  add(all, "gated_short_convolution", "linear attention",
      "[B | C | x] = u W_in; y = (C * conv(B * x)) W_out, conv causal over width tokens, channel by channel",
      "Liquid AI 2025 (LFM2)")
      .also(sequence)
      .also(documents)
      .dense("in", "dim", "3*dim", "bias", "B | C | x")
      .parameter("conv.weight [width, dim]", "PyTorch's Conv1d has the transpose, [dim, 1, width]")
      .parameter("conv.bias [dim]", "", "bias")
      .dense("out", "dim", "dim", "bias")
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
      .also(convolved_projections)
      .dense("gate", "dim", "values", "False", "", "gate")
      .dense("out", "values", "dim", "False")
      .also([](Layer& l) { log_gamma(l, "True"); })
      .parameter("norm.weight [values // heads if shared_norm else values]", "", "group_norm != 'rms_plain'")
      .parameter("norm.bias [values // heads if shared_norm else values]", "", "group_norm == 'layer'")
      .output("[batch, n, dim]");
  add(all, "lightning_attention", "linear attention",
      "[q | k | v] = silu(x [Wq | Wk | Wv]); S_t = gamma_h S_{t-1} + k_t' v_t, o_t = q_t S_t; y = (sigmoid(x Wg) * "
      "RMSNorm(o)) Wo, the norm over all heads together",
      "Qin et al. 2024, MiniMax-01 2025")
      .derive({{"g", "kv_heads or heads"}, {"d", "head_dim or dim // heads"}, {"dv", "value_dim or d"}})
      .also(sequence)
      .dense("q", "dim", "heads*d", "False")
      .dense("k", "dim", "g*d", "False")
      .dense("v", "dim", "g*dv", "False")
      .dense("output_gate", "dim", "heads*dv", "False", "Wg")
      .dense("out", "heads*dv", "dim", "False")
      .also([](Layer& l) { log_gamma(l, "True"); })
      .parameter("norm.weight [heads*dv]", "")
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
      .also(convolved_projections)
      .dense("gate_down", "dim", "gate_rank", "False", "W1", "channels")
      .dense("gate_up", "gate_rank if channels else dim", "keys // g if channels else heads", "True", "W2")
      .dense("output_gate", "dim", "values", "False", "Wg", "output_gate")
      .dense("out", "values", "dim", "False")
      .norm("norm", "norm", "values // heads")
      .output("[batch, n, dim]");
  add(all, "mamba", "linear attention",
      "[x | z] = u W_in; x <- silu(conv(x) + b); [r | B | C] = norm(x W_x); dt = softplus(r W_dt + dt_bias); h_t = "
      "exp(-dt_t exp(a_log)) * h_{t-1} + (dt_t x_t) B_t', y_t = h_t C_t + d * x_t; out = (y * silu(z)) W_out",
      "Gu & Dao 2023")
      .derive({{"i", "inner or 2*dim"}, {"rank", "dt_rank or -(-dim // 16)"}})
      .also(sequence)
      .also(documents)
      .dense("in", "dim", "2*i", "bias", "x | z")
      .parameter("conv.weight [short_conv, i]", "", "short_conv > 0")
      .parameter("conv.bias [i]", "", "short_conv > 0 and conv_bias")
      .dense("select", "i", "rank + 2*state", "False", "r | B | C")
      .norm("dt_norm", "norm", "rank")
      .norm("b_norm", "norm", "state")
      .norm("c_norm", "norm", "state")
      .dense("dt", "rank", "i", "False")
      .parameter("dt_bias [i]")
      .parameter("a_log [i, state]", "A = -exp(a_log)")
      .parameter("d [i]")
      .dense("out", "i", "dim", "bias")
      .output("[batch, n, dim]")
      .output("state [batch, i, state]", "h after the last step", "len(stream) == 0")
      .draft = module_layer<Mamba, MambaOptions>(
      [](const Mamba& l, const Inputs& in) {
        const Pass pass = pass_of(in);
        const Mamba::Operands p = l.operands(Call(l, "mamba", in["x"], l.options.dim, pass));
        return Results{{"", l(in["x"], pass)}, {"state", squeeze(linear_scan_state(p.k, p.v, p.log_decay), -1)}};
      },
      true);
  add(all, "rg_lru", "linear attention",
      "x <- conv(u W_in); r = sigmoid(x W_r + b_r), i = sigmoid(x W_i + b_i) by blocks; log a_t = -8 r_t "
      "softplus(lambda), "
      "-inf at the first token; h_t = a_t * h_{t-1} + sqrt(1 - a_t^2) * i_t * x_t; out = (h * gelu_tanh(u W_g)) W_out",
      "De et al. 2024")
      .derive({{"e", "inner or dim"}, {"w", "e // heads"}})
      .also(sequence)
      .also(documents)
      .dense("in", "dim", "e", "bias")
      .dense("gate", "dim", "e", "bias", "W_g")
      .parameter("conv.weight [short_conv, e]", "", "short_conv > 0")
      .parameter("conv.bias [e]", "", "short_conv > 0 and bias")
      .parameter("forget_weight [heads, w, w]", "W_r, input first")
      .parameter("forget_bias [heads, w]")
      .parameter("input_weight [heads, w, w]", "W_i")
      .parameter("input_bias [heads, w]")
      .parameter("lambda [e]")
      .dense("out", "e", "dim", "bias")
      .output("[batch, n, dim]");
  add(all, "mlstm", "linear attention",
      "i = cap(x W_i + b_i), log f = log sigmoid(cap(x W_f + b_f)), cap(z) = c tanh(z/c), or z if c = 0; S_t = f_t "
      "S_{t-1} + exp(i_t) k_t' [v_t, 1], [o_t, d_t] = q_t S_t / sqrt(dk); m_t = max(m_{t-1} + log f_t, i_t), m_0 = 0; "
      "h = o / (max(|d|, 1) + eps exp(m)); y = (sigmoid(x Wg) * LayerNorm_h(h)) Wo",
      "Beck et al. 2024")
      .derive({{"keys", "int(expand_k*dim)"}, {"values", "int(expand_v*dim)"}, {"g", "heads // (kv_heads or heads)"}})
      .also(sequence)
      .also(documents)
      .also(projections)
      .dense("input_gate", "dim", "heads", "True", "W_i")
      .dense("forget_gate", "dim", "heads", "True", "W_f")
      .dense("output_gate", "dim", "values", "False", "Wg")
      .dense("out", "values", "dim", "False")
      .parameter("norm.weight [values]")
      .output("[batch, n, dim]");
  add(all, "mamba2", "linear attention",
      "[z | x | B | C | dt] = u W_in, times in_factors; x, B, C <- silu(conv(x | B | C) + b); dt <- clamp(softplus(dt "
      "+ dt_bias)); h_t = "
      "exp(-dt_t exp(a_log)) h_{t-1} + dt_t x_t B_t', y_t = h_t C_t + d x_t; out = norm(y * silu(z)) W_out",
      "Dao & Gu 2024")
      .derive({{"h", "heads or 2*dim // head_dim"}, {"inner", "h*head_dim"}, {"mixed", "inner + 2*groups*state"}})
      .also(sequence)
      .also(documents)
      .dense("in", "dim", "inner + mixed + h", "False", "z | x | B | C | dt; B and C by groups")
      .parameter("conv.weight [short_conv, mixed]", "channels x | B | C", "short_conv > 0")
      .parameter("conv.bias [mixed]", "", "short_conv > 0 and conv_bias")
      .parameter("dt_bias [h]")
      .parameter("a_log [h]", "A = -exp(a_log)")
      .parameter("d [inner if d_per_channel else h]")
      .parameter("norm.weight [inner]", "", "norm")
      .dense("out", "inner", "dim", "False")
      .output("[batch, n, dim]")
      .output("state [batch, h, head_dim, state]", "h after the last step", "len(stream) == 0")
      .require({{"dim", 8}, {"head_dim", 4}})
      .samples({{{"heads", 6}, {"groups", 2}, {"state", 5}, {"dt_limit", Json::List{0.05, 2}}, {"chunk", 3}},
                {{"norm_before_gate", true}, {"conv_bias", false}, {"d_per_channel", true}},
                {{"norm", false}, {"short_conv", 0}},
                {{"stream", Json::List{3, 1, 2}}}})
      .draft = module_layer<Mamba2, Mamba2Options>(
      [](const Mamba2& l, const Inputs& in) {
        const Pass pass = pass_of(in);
        const Mamba2::Operands p = l.operands(Call(l, "mamba2", in["x"], l.options.dim, pass));
        return Results{{"", l(in["x"], pass)}, {"state", transpose(linear_scan_state(p.k, p.v, p.log_decay), -2, -1)}};
      },
      true);
}

}  // namespace layer_check
