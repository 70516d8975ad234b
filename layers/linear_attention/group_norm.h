// A norm of each group of channels on its own, as retention applies it to the output of its heads.
#pragma once

#include <sluice/layers/nn/init.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

struct GroupNormOptions {
  using Layer = struct GroupNorm;
  int64_t groups, dim;              // channels are groups · dim
  NormKind kind = NormKind::layer;  // layer, rms, rms_plain
  double eps = 1e-5;
  DType dtype = f32;
  bool shared = false;  // one weight and bias [dim] for all groups
  bool bias = true;     // of `layer`

  static void describe(auto& o, auto& f) {
    f.required("groups", o.groups, at_least(1), "number of groups");
    f.required("dim", o.dim, at_least(1), "channels of a group");
    f("kind", o.kind, "layer, rms or rms_plain");
    f("eps", o.eps, at_least(0), "added to the variance");
    f.training("dtype", o.dtype, "of the parameters");
    f("shared", o.shared, "one weight and bias [dim] for all groups");
    f("bias", o.bias, "of layer");
  }
};

/// Normalises each group of a token's channels on its own, then scales (and for `layer` shifts) each channel.
struct GroupNorm {
  static constexpr const char* type = "GroupNorm";
  GroupNormOptions options{};
  Tensor weight, bias;  // [groups·dim]; if shared [dim]; absent without use

  GroupNorm() = default;
  explicit GroupNorm(GroupNormOptions o);
  /// x [..., groups·dim] → the same shape.
  Tensor operator()(const Tensor& x) const;
  Tensor operator()(const Tensor& x, const Pass&) const { return (*this)(x); }
  SLUICE_PARTS(weight, bias);
};

}  // namespace sluice
