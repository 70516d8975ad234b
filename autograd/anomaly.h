// Anomaly mode: stops at the op that first produces a NaN or an infinity, forward or backward.
#pragma once

#include <sluice/core/kernel/observer.h>

namespace sluice {

struct AnomalyOptions {
  bool infinity = true;         // +∞ in a forward result is an anomaly too, and ±∞ in a gradient
  bool minus_infinity = false;  // −∞ in a forward result is one; off, because masked scores are −∞
  /// Paths of modules, from name_modules(model). Modules without a path are shown by type.
  ModuleNames modules = {};
};

/// While it lives, it checks each result of an op that is f32, f64 or bf16 and each such gradient, on all threads. The
/// first bad one throws AutogradError naming the op, the pass, the count of bad values and the module path. A second
/// AnomalyMode at the same time throws AutogradError. Works together with Profile and summary(). Costs a pass over each
/// tensor.
class AnomalyMode final : detail::Observer {
 public:
  /// Checks from here to the end of its scope.
  [[nodiscard]] explicit AnomalyMode(AnomalyOptions options = {});
  ~AnomalyMode();

 private:
  void on_op(const char* op, const Tensor& y, Node* node) override;
  void on_vjp(const Node& node, const Tensors& grads) override;
  const ModuleNames* modules() const override { return &options_.modules; }
  AnomalyOptions options_;
};

}  // namespace sluice
