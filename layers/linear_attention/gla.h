// Gated linear attention (Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient
// Training"): the state decays by a gate that depends on the token.
//
//   α_t = σ(x_t·W₁·W₂ + b)^{1/τ}  [dk]     S_t = diag(α_t)·S_{t−1} + k_tᵀ v_t     o_t = q_t·S_t / √dk
//   y = (RMSNorm_h(o) ⊙ swish(x·Wg))·Wo
//
// α = 1 is causal linear attention without a normaliser; α = γ is retention. The layer computes with the logarithm of
// the gate, log α = −softplus(−z)/τ, which is accurate for gates close to 0 and 1.
#pragma once

#include <sluice/layers/linear_attention/linear_attention.h>

namespace sluice {

/// log(σ(z)^{1/τ}) = −softplus(−z)/τ.
Tensor gla_log_decay(const Tensor& z, double temperature = 16);

enum class GlaGate {
  per_channel,  // an α_t for each key channel: map of rank r, dim → r → kv_heads·dk
  per_head,     // an α_t for each head: map dim → h (simple GLA; Mamba-2's form)
};
constexpr const char* choices(GlaGate) { return "per_channel per_head"; }

struct GlaOptions {
  using Layer = struct Gla;
  int64_t dim;
  int64_t heads = 4;
  int64_t kv_heads = 0;   // 0 means heads; head h reads k, v and per-channel α of KV head ⌊h/(heads/kv_heads)⌋
  double expand_k = 0.5;  // heads·dk = expand_k·dim
  double expand_v = 1;    // heads·dv = expand_v·dim
  GlaGate gate = GlaGate::per_channel;
  int64_t gate_rank = 16;                      // of per_channel
  double gate_temperature = 16;                // τ: with a larger τ, α is closer to 1
  std::optional<double> scale = std::nullopt;  // of q; default dk^{−1/2}
  bool output_gate = true;                     // factor swish(x·Wg)
  NormKind norm = NormKind::rms;               // of each head's output, with one weight for all heads
  double norm_eps = 1e-5;
  int64_t short_conv = 0;  // > 0: a convolution of q, k, v over so many tokens
  int64_t chunk = 64;
  double dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    detail::describe_sizes(o, f);
    f("gate", o.gate, "alpha for every key channel of a KV head (rank-r map), or one a head");
    f("gate_rank", o.gate_rank, at_least(1), "rank of the gate's map");
    f("gate_temperature", o.gate_temperature, above(0), "alpha = sigmoid(z)^(1/gate_temperature)");
    f("scale", o.scale, any_number(), "of q; null: dk^(-1/2)");
    f("output_gate", o.output_gate, "times swish(x Wg)");
    f("norm", o.norm, "of each head's output, weights shared by heads");
    detail::describe_rest(o, f);
  }
};

/// Causal. Only the gate α has a bias; there is no residual.
struct Gla : LinearMixer {
  static constexpr const char* type = "Gla";
  GlaOptions options{};
  Linear gate_down;  // dim → rank; absent for per_head
  Linear gate_up;    // rank → kv_heads·dk, or dim → h for per_head
  Norm norm;

  Gla() = default;
  Gla(GlaOptions o, Rng& rng);
  int64_t key_dim() const { return heads.q.weight.dim(1) / options.heads; }       // dk
  int64_t value_dim() const { return heads.v.weight.dim(1) / options.kv_heads; }  // dv

  /// x [batch, n, dim] → the same shape. A document, a run of equal segments, begins with an empty state. A stream
  /// keeps h·dk·dv numbers a sequence, and those of a short convolution.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  /// log α [batch, heads, n, dk], or [batch, heads, n] for per_head.
  Tensor log_decay(const Tensor& x) const;

  SLUICE_PARTS(heads, gate_down, gate_up, output_gate, conv, norm);
};

}  // namespace sluice
