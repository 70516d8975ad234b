// Gradients against central differences, for your own ops and layers.
#pragma once

#include <sluice/core/tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace sluice {

/// The function to check: any number of tensors to one.
using TensorFunction = std::function<Tensor(const std::vector<Tensor>&)>;

struct GradcheckOptions {
  double step = 1e-5;       // of the central difference
  double tolerance = 1e-6;  // |analytic − numeric| <= tolerance · max(1, |numeric|)
  uint64_t seed = 1;        // of the random cotangent
};

/// Result of a check. Converts to bool: true if every element agrees.
struct GradcheckResult {
  bool ok = false;       // every element agrees
  double max_error = 0;  // largest |analytic − numeric| / max(1, |numeric|)
  std::string message;   // where it failed: input, element, both values
  /// `ok`
  explicit operator bool() const { return ok; }
};

/// Compares vᵀJ of f, for a random v, with central differences, for every element of every f64 input that
/// requires a gradient. f must be deterministic. Throws DTypeError unless those inputs and the result are f64,
/// AutogradError if no input requires a gradient, and ValueError for an undefined input or result.
GradcheckResult gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs, GradcheckOptions options = {});

/// gradcheck of the gradient itself, x, v ↦ vᵀJ(x), recorded with create_graph. Throws as gradcheck() does.
GradcheckResult gradgradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                              GradcheckOptions options = {});

}  // namespace sluice
