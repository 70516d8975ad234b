// The "softmax GAU" of a widely read Chinese tutorial: a different layer with the same name.
//
//   U = x·Wu, V' = x·Wv  [n, e];   Q, K = halves of U;   V, G = halves of V'   [n, e/2]
//   A = softmax(Q·Kᵀ/√(e/2)),  O = A·V,  G ← σ(G)
//   y = GELU(O) ⊙ G + (1 − G) ⊙ (x·Wz)                    [n, e/2]
//
// It differs from the paper's GAU in each part: Q and K are halves of U instead of scaled copies of a narrow Z, the
// gate is a half of V', and a path with the factor 1 − G replaces the residual.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

struct TutorialGauOptions {
  using Layer = struct TutorialGau;
  int64_t dim;
  int64_t expansion = 0;  // e, even; 0 means 2·dim
  bool causal = false;
  bool sigmoid_gate = true;  // false: no sigmoid on G, as in the printed formula
  bool gelu_tanh = false;    // true: the tanh approximation of GELU
  bool project_out = false;  // e/2 → dim; needed to stack layers unless e = 2·dim
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("expansion", o.expansion, at_least(0), "even width e; 0: 2*dim");
    f("causal", o.causal, "token i sees tokens j <= i");
    f("sigmoid_gate", o.sigmoid_gate, "false: the printed formula, which leaves G raw");
    f("gelu_tanh", o.gelu_tanh, "the tanh approximation of gelu");
    f("project_out", o.project_out, "map e/2 to dim");
    describe_parameters(o, f);
  }
};

struct TutorialGau {
  static constexpr const char* type = "TutorialGau";
  TutorialGauOptions options{};
  Tensor wu, wv;  // [dim, e]
  Tensor wz;      // [dim, e/2]
  Tensor w_out;   // [e/2, dim], with project_out

  TutorialGau() = default;
  TutorialGau(TutorialGauOptions o, Rng& rng);
  /// x [batch, n, dim] → [batch, n, e/2]; with project_out [batch, n, dim]. A stream keeps e numbers per token. Throws
  /// ValueError in a stream unless causal.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(wu, wv, wz, w_out);
};

}  // namespace sluice
