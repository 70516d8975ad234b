// Activations and gates. Formulas in ops/elementwise/formulas.h, with their sources and conventions at kinks.
#pragma once

#include <sluice/core/text/options.h>
#include <sluice/core/tensor.h>

namespace sluice {

/// max(x, 0), also of i64 and i32; slope 0 at 0.
Tensor relu(const Tensor& x);
/// relu(x)²
Tensor relu2(const Tensor& x);
/// x, or slope · x where x < 0.
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
/// x, or α(e^x − 1) where x < 0.
Tensor elu(const Tensor& x, double alpha = 1);
/// elu(x) + 1
Tensor elu1(const Tensor& x);
/// x · σ(x)
Tensor silu(const Tensor& x);
/// x·Φ(x) with the exact normal distribution; gelu_tanh is its tanh approximation.
Tensor gelu(const Tensor& x);
Tensor gelu_tanh(const Tensor& x);
/// ½(1 + erf((x − √½)/(√(1/4π)√2))), MEGA's attention function
Tensor laplace(const Tensor& x);
/// ½ + ½σ(x)
Tensor ns_sigmoid(const Tensor& x);

// Gates x ⊙ φ(g) in one pass.
Tensor glu(const Tensor& x, const Tensor& g);         // φ = sigmoid
Tensor reglu(const Tensor& x, const Tensor& g);       // φ = relu
Tensor geglu(const Tensor& x, const Tensor& g);       // φ = gelu
Tensor geglu_tanh(const Tensor& x, const Tensor& g);  // φ = gelu_tanh
Tensor swiglu(const Tensor& x, const Tensor& g);      // φ = silu
Tensor bilinear(const Tensor& x, const Tensor& g);    // φ = identity
/// silu(x) ⊙ silu(g), FLASH's two-sided form
Tensor silu_glu(const Tensor& x, const Tensor& g);

/// Activations by name, for layer options.
enum class Act {
  identity,
  relu,
  relu2,
  leaky_relu,
  elu,
  elu1,
  silu,
  gelu,
  gelu_tanh,
  tanh,
  sigmoid,
  ns_sigmoid,
  softplus,
  laplace
};
constexpr const char* choices(Act) {
  return "identity relu relu2 leaky_relu elu elu1 silu gelu gelu_tanh tanh sigmoid ns_sigmoid softplus laplace";
}
/// Applies the activation `act`.
Tensor activate(Act act, const Tensor& x);

}  // namespace sluice
