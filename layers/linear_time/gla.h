// Gated linear attention (Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient
// Training"): the state decays by a gate that depends on the token.
//
//   α_t = σ(x_t·W₁·W₂ + b)^{1/τ}  [dk]     S_t = diag(α_t)·S_{t−1} + k_tᵀ v_t     o_t = q_t·S_t / √dk
//   y = (RMSNorm_h(o) ⊙ swish(x·Wg))·Wo
//
// α = 1 is causal linear attention without a normaliser; α = γ is retention. The layer computes with the logarithm of
// the gate, log α = −softplus(−z)/τ, which is accurate for gates close to 0 and 1.
#pragma once

#include <sluice/layers/linear_time/linear_attention.h>

namespace sluice {

/// log(σ(z)^{1/τ}) = −softplus(−z)/τ.
Tensor gla_log_decay(const Tensor& z, double temperature = 16);

enum class GlaGate {
  per_channel,  // an α_t for each key channel: map of rank r, dim → r → kv_heads·dk
  per_head,     // an α_t for each head: map dim → h (simple GLA; Mamba-2's form)
};
constexpr const char* choices(GlaGate) { return "per_channel per_head"; }

struct GlaOptions {
  int64_t dim;
  int64_t heads = 4;
  int64_t kv_heads = 0;   // 0 means heads; head h reads k, v and per-channel α of KV head ⌊h/(heads/kv_heads)⌋
  double expand_k = 0.5;  // heads·dk = expand_k·dim
  double expand_v = 1;    // heads·dv = expand_v·dim
  GlaGate gate = GlaGate::per_channel;
  int64_t gate_rank = 16;        // of per_channel
  double gate_temperature = 16;  // τ: with a larger τ, α is closer to 1
  std::optional<double> scale = std::nullopt;  // of q; default dk^{−1/2}
  bool output_gate = true;                     // factor swish(x·Wg)
  NormKind norm = NormKind::rms;               // of each head's output, with one weight for all heads
  double norm_eps = 1e-5;
  int64_t short_conv = 0;                      // see kShortConvMeaning
  int64_t chunk = 64;
  double dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of heads");
    f("kv_heads", o.kv_heads, at_least(0), "heads of k, v and alpha per channel; head i reads head i // (heads/kv_heads); 0: heads");
    f("expand_k", o.expand_k, above(0), "heads*dk = expand_k*dim");
    f("expand_v", o.expand_v, above(0), "heads*dv = expand_v*dim");
    f("gate", o.gate, "alpha for every key channel (rank-r map), or one a head");
    f("gate_rank", o.gate_rank, at_least(1), "rank of the gate's map");
    f("gate_temperature", o.gate_temperature, above(0), "alpha = sigmoid(z)^(1/gate_temperature)");
    f("scale", o.scale, any_number(), "of q; null: dk^(-1/2)");
    f("output_gate", o.output_gate, "times swish(x Wg)");
    f("norm", o.norm, "of each head's output, weights shared by heads");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm");
    f("short_conv", o.short_conv, between(0, 1024), kShortConvMeaning);
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
    f.training("dropout", o.dropout, share(), "on the output");
    f.nested("init_", o.init);
    f.training("dtype", o.dtype, "of the parameters");
  }
};

/// Causal. Only the gate α has a bias; there is no residual.
struct Gla {
  static constexpr const char* type = "Gla";

  GlaOptions options;
  Heads heads;
  Linear gate_down;  // dim → rank; absent for per_head
  Linear gate_up;    // rank → kv_heads·dk, or dim → h for per_head
  Linear output_gate;
  ShortConvolution conv;
  Norm norm;

  Gla() = default;
  Gla(GlaOptions o, Rng& rng);
  int64_t key_dim() const { return heads.q.weight.dim(1) / options.heads; }    // dk
  int64_t value_dim() const { return heads.v.weight.dim(1) / options.kv_heads; }  // dv

  /// x [batch, n, dim] → the same shape. A stream keeps h·dk·dv numbers per sequence, plus those of a short
  /// convolution.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  /// log α [batch, heads, n, dk], or [batch, heads, n] for per_head.
  Tensor log_decay(const Tensor& x) const;

  static void visit(auto& self, auto&& f) {
    Heads::visit(self.heads, f);
    f("gate_down", self.gate_down);
    f("gate_up", self.gate_up);
    f("output_gate", self.output_gate);
    f("conv", self.conv);
    f("norm", self.norm);
  }

 private:
  HeadsOptions head_options() const;
};

}  // namespace sluice
