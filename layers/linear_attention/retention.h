// Multi-scale retention (Sun et al. 2023, "Retentive Network"): linear attention with a fixed decay for each head, and
// with a norm instead of the normaliser.
//
//   γ_h = 1 − 2^{−5−h}     S_t = γ_h·S_{t−1} + k_tᵀ v_t     o_t = q_t·S_t / √dk     (RoPE on q and k)
//   y = (swish(x·Wg) ⊙ GroupNorm_h(o))·Wo
#pragma once

#include <sluice/layers/linear_attention/group_norm.h>
#include <sluice/layers/linear_attention/linear_attention.h>

namespace sluice {

struct RetentionOptions {
  using Layer = struct Retention;
  int64_t dim;
  int64_t heads = 8;
  int64_t kv_heads = 0;            // 0 means heads; head h reads KV head ⌊h/(heads/kv_heads)⌋
  double expand_k = 1;             // heads·dk = expand_k·dim
  double expand_v = 2;             // heads·dv = expand_v·dim
  std::vector<double> gamma = {};  // of each head, in (0, 1]; empty: 1 − 2^{−5−h}
  bool use_rope = true;
  RopeOptions rope = {};
  bool gate = true;                       // factor swish(x·Wg)
  NormKind group_norm = NormKind::layer;  // layer, rms, rms_plain
  bool shared_norm = false;               // true: one weight [dv] for all heads, as in fla
  double norm_eps = 1e-5;
  int64_t short_conv = 0;  // > 0: a convolution of q, k, v over so many tokens
  int64_t chunk = 64;
  double dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    detail::describe_sizes(o, f);
    detail::describe_gamma(o, f);
    f("use_rope", o.use_rope, "rotate q and k");
    f.nested("rope_", o.rope);
    f("gate", o.gate, "times swish(x Wg)");
    f("group_norm", o.group_norm, "of each head's output: layer, rms or rms_plain");
    f("shared_norm", o.shared_norm, "one weight [dv] for all heads");
    detail::describe_rest(o, f);
  }
};

/// Causal. No biases, no residual.
struct Retention : LinearMixer {
  static constexpr const char* type = "Retention";
  static constexpr bool keeps_f32(std::string_view part) { return part == "log_gamma"; }

  RetentionOptions options{};
  Tensor log_gamma;  // [heads], a buffer of dtype exact(dtype)
  GroupNorm norm;

  Retention() = default;
  Retention(RetentionOptions o, Rng& rng);
  int64_t key_dim() const { return heads.q.weight.dim(1) / options.heads; }       // dk
  int64_t value_dim() const { return heads.v.weight.dim(1) / options.kv_heads; }  // dv

  /// x [batch, n, dim] → the same shape. A document, a run of equal segments, begins with an empty state. A stream
  /// keeps h·dk·dv numbers a sequence, and those of a short convolution.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  static void visit(auto& self, auto&& f) {
    Heads::visit(self.heads, f);
    f("gate", self.output_gate);
    f("log_gamma", self.log_gamma);
    f("conv", self.conv);
    f("norm", self.norm);
  }
};

}  // namespace sluice
