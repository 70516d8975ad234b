// Anomaly mode: stops at the op that first produces a NaN or an infinity, forward or backward.
#pragma once

#include <sluice/core/scope.h>

namespace sluice {

struct AnomalyOptions {
  bool infinity = true;         // +∞ is an anomaly too
  bool minus_infinity = false;  // −∞ in a forward result is one; off, because masked scores are −∞
  /// Paths of modules, from name_modules(model). Modules without a path are shown by type.
  ModuleNames modules = {};
};

/// While it lives, checks every f32 and f64 result of an op and every such gradient, on all threads. The first bad one
/// throws AutogradError naming the op, the pass, the count of bad values and the module path. Only one may live at a
/// time. Costs a pass over each tensor.
class AnomalyMode {
 public:
  explicit AnomalyMode(AnomalyOptions options = {});
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;
  AnomalyMode& operator=(const AnomalyMode&) = delete;
};

namespace detail {
/// The path of a running module; empty when unknown.
std::string registered_name(const ModuleNames& modules, const void* object, const char* type);
}  // namespace detail

}  // namespace sluice
