// Anomaly mode: stops at the op that first produces a NaN or an infinity, forward or backward.
#pragma once

#include <sluice/core/scope.h>

namespace sluice {

struct AnomalyOptions {
  bool infinity = true;         // +∞ is an anomaly too
  bool minus_infinity = false;  // −∞ is the customary value of a masked score
  /// Paths of modules, from name_modules(model); without them types are named.
  ModuleNames modules = {};
};

/// While it lives, every op's result and every gradient is checked on all threads; the first bad one is
/// an AutogradError that names the op, the pass, the count of bad values and the module path. One at a
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
