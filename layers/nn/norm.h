// Normalisation layers.
#pragma once

#include <sluice/layers/nn/module.h>
#include <sluice/ops/norm.h>

namespace sluice {

enum class NormKind {
  none,
  layer,      // LayerNorm with weight and bias
  rms,        // RMSNorm with weight
  rms_plain,  // RMSNorm without parameters (GAU-α)
  scale,      // ScaleNorm, rms form
  scale_l2,   // ScaleNorm, max(‖x‖/√d, eps) form
};

struct NormOptions {
  int64_t dim;
  NormKind kind = NormKind::layer;
  double eps = 1e-5;
  DType dtype = f32;
};

/// Any of the above, chosen by an option: [..., dim] → [..., dim].
struct Norm {
  static constexpr const char* type = "Norm";
  NormKind kind = NormKind::none;
  double eps = 1e-5;
  Tensor weight, bias;  // [dim]; ScaleNorm's g is [1]

  Norm() = default;
  explicit Norm(NormOptions o);
  Tensor operator()(const Tensor& x) const;
  static void visit(auto& self, auto&& f) {
    f("weight", self.weight);
    f("bias", self.bias);
  }
};

struct LayerNorm : Norm {
  static constexpr const char* type = "LayerNorm";
  LayerNorm(int64_t dim, double eps = 1e-5, DType dtype = f32) : Norm({dim, NormKind::layer, eps, dtype}) {}
};
struct RMSNorm : Norm {
  static constexpr const char* type = "RMSNorm";
  RMSNorm(int64_t dim, double eps = 1e-6, DType dtype = f32) : Norm({dim, NormKind::rms, eps, dtype}) {}
};
struct ScaleNorm : Norm {
  static constexpr const char* type = "ScaleNorm";
  ScaleNorm(int64_t dim, double eps = 1e-5, DType dtype = f32) : Norm({dim, NormKind::scale, eps, dtype}) {}
};

}  // namespace sluice
