// A residual connection with a gate: y = x + g ⊙ F(x). g = 0 gives x; g = 1 is the ordinary residual.
#pragma once

#include <sluice/layers/nn/linear.h>

#include <concepts>
#include <utility>

namespace sluice {

enum class ResidualGate {
  scalar,       // g is a learned number; initially 0 in ReZero (Bachlechner et al. 2021)
  per_channel,  // g [dim] is learned; initially about 1e-4 in LayerScale (Touvron et al. 2021)
  input,        // g = σ(x·W + b), one number for each channel of each token
  input_token,  // g = σ(x·w + b), one number for each token
};
constexpr const char* choices(ResidualGate) { return "scalar per_channel input input_token"; }

struct GatedResidualOptions {
  using Layer = struct GatedResidual;
  int64_t dim;
  ResidualGate kind = ResidualGate::scalar;
  double initial = 1;  // initial value of a learned g
  double bias = 0;     // initial b
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width");
    f("kind", o.kind, "g: a number, a vector, sigmoid(x W + b), sigmoid(x w + b) one number a token");
    f.training("initial", o.initial, "of a learned g");
    f.training("bias", o.bias, "initial b");
    describe_parameters(o, f);
  }
};

struct GatedResidual {
  static constexpr const char* type = "GatedResidual";
  GatedResidualOptions options{};
  Tensor weight;  // g of scalar [1], of per_channel [dim]
  Linear map;     // dim → dim for input, dim → 1 for input_token

  GatedResidual() = default;
  GatedResidual(GatedResidualOptions o, Rng& rng);

  /// Returns g, which broadcasts to x [..., dim].
  Tensor gate(const Tensor& x) const;
  /// Returns x + g(x) ⊙ f for the branch f = F(x). Throws ShapeError unless f has the shape of x, [..., dim].
  Tensor operator()(const Tensor& x, const Tensor& f) const;
  /// Returns x + g(x) ⊙ branch(x): residual(x, [&](const Tensor& h) { return attention(norm(h)); }).
  template <std::invocable<const Tensor&> Branch> Tensor operator()(const Tensor& x, Branch&& branch) const {
    return (*this)(x, Tensor(std::forward<Branch>(branch)(x)));
  }
  SLUICE_PARTS(weight, map);
};

}  // namespace sluice
