// Normalisation layers.
#pragma once

#include <sluice/core/text/options.h>
#include <sluice/layers/nn/module.h>
#include <sluice/ops/rows/norm.h>

namespace sluice {

struct Pass;  // layers/nn/pass.h; a norm maps each token by itself and reads no field of a pass

enum class NormKind {
  none,
  layer,        // LayerNorm with weight and, unless bias = false, bias
  rms,          // RMSNorm with weight
  rms_plain,    // RMSNorm without parameters (GAU-α)
  scale,        // ScaleNorm, rms form
  scale_l2,     // ScaleNorm, divides by max(‖x‖/√d, eps)
  layer_plain,  // LayerNorm without parameters (OLMo)
};
constexpr const char* choices(NormKind) { return "none layer rms rms_plain scale scale_l2 layer_plain"; }

/// Where the norm of a residual branch F stands.
enum class NormPlacement {
  pre,   // x + F(norm(x))
  post,  // norm(α·x + F(x)); α ≠ 1 is DeepNorm
};
constexpr const char* choices(NormPlacement) { return "pre post"; }

struct NormOptions {
  using Layer = struct Norm;
  int64_t dim;
  NormKind kind = NormKind::layer;
  double eps = 1e-5;
  DType dtype = f32;
  int64_t parts = 1;  // layer, rms, and the plain ones: each part of dim/parts channels is normalised on its own
  bool bias = true;   // of LayerNorm

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width");
    f("kind", o.kind, "which norm");
    f("eps", o.eps, at_least(0), "1e-5 in LayerNorm and ScaleNorm, 1e-6 in Qwen's RMSNorm");
    f.training("dtype", o.dtype, "of the parameters");
    f("parts", o.parts, at_least(1),
      "of dim/parts channels, each normalised on its own: layer, rms, and the plain ones");
    f("bias", o.bias, "of LayerNorm");
  }
};

namespace detail {
/// The options of a layer whose `kind` is its type's own: the default, or `other`. Throws ValueError for further kinds.
NormOptions norm_options(NormOptions o, NormKind kind, NormKind other);
/// Applies the norm of these options with other weights.
Tensor normalised(const NormOptions& o, const Tensor& x, const Tensor& weight, const Tensor& bias);
/// Normalises each group of channels of x [..., groups·dim] on its own, then multiplies by weight and adds bias, where
/// they are defined: both [groups·dim], or both [dim] for all groups. Only `layer` and `layer_plain` subtract the mean.
Tensor group_norm(const Tensor& x, int64_t groups, NormKind kind, const Tensor& weight, const Tensor& bias, double eps);
}  // namespace detail

/// The norm that options.kind selects: [..., dim] → [..., dim].
struct Norm {
  static constexpr const char* type = "Norm";
  NormOptions options{.dim = 0, .kind = NormKind::none};
  Tensor weight, bias;  // [dim]; ScaleNorm's g is [1]

  Norm() = default;
  explicit Norm(NormOptions o);
  /// Throws ShapeError unless the last dim of x is dim. This check needs a weight [dim] (layer, rms) or parts > 1; the
  /// other kinds take any width.
  Tensor operator()(const Tensor& x) const;
  Tensor operator()(const Tensor& x, const Pass&) const { return (*this)(x); }
  SLUICE_PARTS(weight, bias);
};

/// (x − mean)/√(var + ε)·w + b.
struct LayerNorm : Norm {
  static constexpr const char* type = "LayerNorm";
  LayerNorm() = default;
  /// The kind is `layer`, or `layer_plain`. Throws ValueError for others.
  explicit LayerNorm(NormOptions o) : Norm(detail::norm_options(o, NormKind::layer, NormKind::layer_plain)) {}
  /// Throws ValueError unless dim >= 1 and epsilon >= 0.
  LayerNorm(int64_t dim, double epsilon = 1e-5, DType dtype = f32) : Norm({dim, NormKind::layer, epsilon, dtype}) {}
};
/// x/√(mean x² + ε)·w.
struct RMSNorm : Norm {
  static constexpr const char* type = "RMSNorm";
  RMSNorm() = default;
  /// The kind is `rms`, or `rms_plain`. Throws ValueError for others.
  explicit RMSNorm(NormOptions o) : Norm(detail::norm_options(o, NormKind::rms, NormKind::rms_plain)) {}
  /// Throws ValueError unless dim >= 1 and epsilon >= 0.
  RMSNorm(int64_t dim, double epsilon = 1e-6, DType dtype = f32) : Norm({dim, NormKind::rms, epsilon, dtype}) {}
};
/// x/√(mean x² + ε)·g with one g for all channels.
struct ScaleNorm : Norm {
  static constexpr const char* type = "ScaleNorm";
  ScaleNorm() = default;
  /// The kind is `scale`, or `scale_l2`. Throws ValueError for others.
  explicit ScaleNorm(NormOptions o) : Norm(detail::norm_options(o, NormKind::scale, NormKind::scale_l2)) {}
  /// Throws ValueError unless dim >= 1 and epsilon >= 0.
  ScaleNorm(int64_t dim, double epsilon = 1e-5, DType dtype = f32) : Norm({dim, NormKind::scale, epsilon, dtype}) {}
};

}  // namespace sluice
