// Feature maps φ of linear attention. Attention weights are φ(q)·φ(k), so a map defines a kernel κ(x, y) = φ(x)·φ(y).
// Sources are beside the kinds. m is the width of φ(x), d is the width of x.
#pragma once

#include <sluice/layers/nn/init.h>
#include <sluice/layers/nn/module.h>

#include <optional>

namespace sluice {

struct Pass;  // layers/nn/pass.h; a feature map maps each token by itself and reads no field of a pass

enum class FeatureMapKind {
  identity,     // x                                   κ = x·y, may be negative
  exp,          // e^x elementwise                     κ = Σ_c e^{x_c + y_c}; for κ = e^{x·y} use favor
  elu1,         // elu(x) + 1                          Katharopoulos et al. 2020
  relu,         // relu(x·W) + offset                  with features = 0: relu(x) + offset
  t2r,          // relu(x·W + b) + offset              Kasai et al. 2021
  poly_elem,    // [x, x², …, x^p], m = p·d            κ = Σ_r Σ_c (x_c·y_c)^r; odd powers may be negative
  poly_kernel,  // [x, √c] ⊗ … ⊗ [x, √c], m = (d+1)^p  κ = (x·y + c)^p; with s a feature more, + s
  favor,  // (e^{x·ω − |x|²/2} + offset)/√m, ω ~ N(0, I); E κ = e^{x·y} if offset = 0; Choromanski et al. 2021
  fourier,  // [cos x·ω, sin x·ω]/√f, ω ~ N(0, I/σ²), m = 2f; E κ = e^{−|x − y|²/2σ²}; Rahimi & Recht 2007
  mlp,      // softplus(relu(x·W₁ + b₁)·W₂ + b₂)   > 0
  hedgehog,  // softmax[2y, −2y], y = x·W + b, m = 2d; Zhang et al. 2024
};
constexpr const char* choices(FeatureMapKind) {
  return "identity exp elu1 relu t2r poly_elem poly_kernel favor fourier mlp hedgehog";
}

/// True for maps of random directions.
constexpr bool is_random(FeatureMapKind kind) {
  return kind == FeatureMapKind::favor || kind == FeatureMapKind::fourier;
}

struct FeatureMapOptions {
  using Layer = struct FeatureMap;
  FeatureMapKind kind = FeatureMapKind::elu1;
  int64_t dim = 0;  // d; a layer sets it to the width of its heads
  /// Number of learned columns (relu, t2r, mlp) or random directions (favor, fourier). 0 means d; for relu, no W.
  int64_t features = 0;
  int64_t degree = 2;   // p of poly_elem, poly_kernel
  double constant = 1;  // c of poly_kernel
  double sigma = 1;     // σ of fourier
  /// s of poly_kernel and fourier: > 0 adds a feature √s, so that κ grows by s and sums are rarely 0. poly_kernel with
  /// p = 2, c = s = 1 is twice the Taylor series 1 + x·y + (x·y)²/2 of Based (Arora et al. 2024).
  double smoothing = 0;
  double offset = 0;        // relu, t2r, favor: keeps sums away from 0, e.g. 1e-3; Performer's favor uses 1e-4
  bool orthogonal = false;  // favor, fourier: directions orthogonal in blocks of d, norms as of independent draws
  int64_t hidden = 0;       // hidden width of mlp; 0 means 2·d
  bool bias = true;         // t2r, mlp, hedgehog: biases, initially 0
  int64_t heads = 0;        // > 0: weights [heads, d, m], one map for each head; 0: one map for all heads
  /// Factor of x before the map; 1 if unset. With d^{−1/4} favor approximates e^{x·y/√d}.
  std::optional<double> input_scale = std::nullopt;
  Init init = Init::lecun();  // of learned weights; hedgehog's W starts as the identity
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d of x");
    f("kind", o.kind, "phi");
    f("features", o.features, at_least(0), "learned columns or random directions; 0: d, and for relu no W");
    f("degree", o.degree, between(1, 64), "p of poly_elem and poly_kernel");
    f("constant", o.constant, at_least(0), "c of poly_kernel");
    f.training("sigma", o.sigma, above(0), "of fourier: directions are N(0, 1/sigma^2)");
    f("smoothing", o.smoothing, at_least(0), "poly_kernel, fourier: one more feature sqrt(smoothing)");
    f("offset", o.offset, at_least(0), "relu, t2r, favor: added, keeps sums away from 0");
    f.training("orthogonal", o.orthogonal, "favor, fourier: directions orthogonal in blocks of d");
    f("hidden", o.hidden, at_least(0), "mlp; 0: 2*d");
    f("bias", o.bias, "t2r, mlp, hedgehog");
    f("heads", o.heads, at_least(0), "weights [heads, d, m], a map for each head; 0: one map for all");
    f("input_scale", o.input_scale, any_number(), "x is multiplied by it first; null: 1");
    describe_parameters(o, f);
  }
};

struct FeatureMap {
  static constexpr const char* type = "FeatureMap";
  FeatureMapOptions options{};
  Tensor weight, bias;    // relu, t2r, hedgehog; first map of mlp
  Tensor weight2, bias2;  // second map of mlp
  Tensor omega;           // ω [d, features] of favor and fourier; fixed, so a buffer

  FeatureMap() = default;
  /// `rng` draws the weights or the fixed directions. Throws ValueError for options out of range.
  FeatureMap(FeatureMapOptions o, Rng& rng);
  /// x [..., d] → [..., out_dim()]. With a map for each head, x must be [..., heads, n, d].
  Tensor operator()(const Tensor& x) const;
  Tensor operator()(const Tensor& x, const Pass&) const { return (*this)(x); }
  /// m, the width of φ(x).
  int64_t out_dim() const;

  SLUICE_PARTS(weight, bias, weight2, bias2, omega);
};

}  // namespace sluice
