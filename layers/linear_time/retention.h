// Multi-scale retention (Sun et al. 2023, "Retentive Network"): linear attention with a fixed decay for each head, and
// with a norm instead of the normaliser.
//
//   γ_h = 1 − 2^{−5−h}     S_t = γ_h·S_{t−1} + k_tᵀ v_t     o_t = q_t·S_t / √dk     (RoPE on q and k)
//   y = (swish(x·Wg) ⊙ GroupNorm_h(o))·Wo
#pragma once

#include <sluice/layers/linear_time/linear_attention.h>

namespace sluice {

struct GroupNormOptions {
  int64_t groups, dim;  // channels are groups · dim
  NormKind kind = NormKind::layer;  // layer, rms, rms_plain
  double eps = 1e-5;
  DType dtype = f32;
  bool shared = false;  // one weight and bias [dim] for all groups

  static void describe(auto& o, auto& f) {
    f.required("groups", o.groups, at_least(1), "number of groups");
    f.required("dim", o.dim, at_least(1), "channels of a group");
    f("kind", o.kind, "layer, rms or rms_plain");
    f("eps", o.eps, at_least(0), "added to the variance");
    f.training("dtype", o.dtype, "of the parameters");
    f("shared", o.shared, "one weight and bias [dim] for all groups");
  }
};

/// Normalises each group of a token's channels on its own, then scales (and for `layer` shifts) each channel.
struct GroupNorm {
  static constexpr const char* type = "GroupNorm";
  GroupNormOptions options;
  Tensor weight, bias;  // [groups·dim]; if shared [dim]

  GroupNorm() = default;
  explicit GroupNorm(GroupNormOptions o);
  /// x [..., groups·dim] → the same shape.
  Tensor operator()(const Tensor& x) const;
  Tensor operator()(const Tensor& x, const Pass&) const { return (*this)(x); }
  static void visit(auto& self, auto&& f) {
    f("weight", self.weight);
    f("bias", self.bias);
  }
};

struct RetentionOptions {
  int64_t dim;
  int64_t heads = 8;
  int64_t kv_heads = 0;  // 0 means heads; head h reads KV head ⌊h/(heads/kv_heads)⌋
  double expand_k = 1;  // heads·dk = expand_k·dim
  double expand_v = 2;  // heads·dv = expand_v·dim
  std::vector<double> gamma = {};  // of each head, in (0, 1]; empty: 1 − 2^{−5−h}
  bool use_rope = true;
  RopeOptions rope = {};
  bool gate = true;  // factor swish(x·Wg)
  NormKind group_norm = NormKind::layer;  // layer, rms, rms_plain
  bool shared_norm = false;               // true: one weight [dv] for all heads, as in fla
  double norm_eps = 1e-5;
  int64_t short_conv = 0;                 // see kShortConvMeaning
  int64_t chunk = 64;
  double dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of heads");
    f("kv_heads", o.kv_heads, at_least(0), "key and value heads; head i reads head i // (heads/kv_heads); 0: heads");
    f("expand_k", o.expand_k, above(0), "heads*dk = expand_k*dim");
    f("expand_v", o.expand_v, above(0), "heads*dv = expand_v*dim");
    f("gamma", o.gamma, OptionRange{.low = 0, .high = 1, .without_low = true},
      "of each head, in (0, 1]; empty: 1 - 2^(-5-h)");
    f("use_rope", o.use_rope, "rotate q and k");
    f.nested("rope_", o.rope);
    f("gate", o.gate, "times swish(x Wg)");
    f("group_norm", o.group_norm, "of each head's output: layer, rms or rms_plain");
    f("shared_norm", o.shared_norm, "one weight [dv] for all heads");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm");
    f("short_conv", o.short_conv, between(0, 1024), kShortConvMeaning);
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
    f.training("dropout", o.dropout, share(), "on the output");
    f.nested("init_", o.init);
    f.training("dtype", o.dtype, "of the parameters");
  }
};

/// Causal. No biases, no residual.
struct Retention {
  static constexpr const char* type = "Retention";

  RetentionOptions options;
  Heads heads;
  Linear gate;
  Tensor log_gamma;  // [heads], a buffer
  ShortConvolution conv;
  GroupNorm norm;

  Retention() = default;
  Retention(RetentionOptions o, Rng& rng);
  int64_t key_dim() const { return heads.q.weight.dim(1) / options.heads; }    // dk
  int64_t value_dim() const { return heads.v.weight.dim(1) / options.kv_heads; }  // dv

  /// x [batch, n, dim] → the same shape. A stream keeps h·dk·dv numbers per sequence, plus those of a short
  /// convolution.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  static void visit(auto& self, auto&& f) {
    Heads::visit(self.heads, f);
    f("gate", self.gate);
    f("log_gamma", self.log_gamma);
    f("conv", self.conv);
    f("norm", self.norm);
  }

 private:
  HeadsOptions head_options() const;
};

}  // namespace sluice
