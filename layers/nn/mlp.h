// MLP and the GLU family: O = φ(X·Wu)·Wo and O = (X·Wv ⊙ φ(X·Wg))·Wo. φ may be xIELU (Huang 2024), which learns two
// numbers: x/2 + p·x² for x > 0, else x/2 + n·(e^x − 1 − x), with p = softplus(a) and n = 1/2 + softplus(b).
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/ops/elementwise/activation.h>

namespace sluice {

struct MlpOptions {
  using Layer = struct Mlp;
  int64_t dim;
  int64_t hidden = 0;  // 0 means 4·dim
  Act activation = Act::gelu;
  bool xielu = false;  // in place of `activation`
  bool bias = true;
  double dropout = 0;  // on the hidden activations
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("hidden", o.hidden, at_least(0), "width e of the hidden layer; 0: 4*dim");
    f("activation", o.activation, "act");
    f("xielu", o.xielu, "act is xIELU, which learns two numbers");
    f("bias", o.bias, "add bu and bo");
    f.training("dropout", o.dropout, probability(), "on the hidden activations");
    describe_parameters(o, f);
  }
};

/// O = φ(X·Wu)·Wo.
struct Mlp {
  static constexpr const char* type = "Mlp";
  MlpOptions options{};
  Linear in, out;
  Tensor xielu_positive, xielu_negative;  // a and b of xIELU, each [1]; softplus of them is at first 0.8 and 0.3

  Mlp() = default;
  Mlp(MlpOptions o, Rng& rng);
  /// x [..., dim] → the same shape. A generator in the pass switches dropout on.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(in, out, xielu_positive, xielu_negative);
};

enum class GluKind {
  glu,         // x ⊙ σ(g)             Dauphin et al. 2017
  reglu,       // x ⊙ relu(g)          Shazeer 2020
  geglu,       // x ⊙ gelu(g)
  swiglu,      // x ⊙ silu(g)
  bilinear,    // x ⊙ g
  silu_glu,    // silu(x) ⊙ silu(g)    FLASH, Hua et al. 2022
  geglu_tanh,  // x ⊙ gelu_tanh(g)   T5 1.1, Gemma
  swiglu_oai,  // (x + 1) ⊙ g ⊙ σ(1.702·g)   gpt-oss, MiniMax-M3
};
constexpr const char* choices(GluKind) { return "glu reglu geglu swiglu bilinear silu_glu geglu_tanh swiglu_oai"; }
/// The formula of `kind` with x = value and g = gate; shapes broadcast.
Tensor apply_glu(GluKind kind, const Tensor& value, const Tensor& gate);
/// (x + 1) ⊙ g ⊙ σ(α·g).
Tensor swiglu_oai(const Tensor& x, const Tensor& g, double alpha);
/// x ⊙ act(g). Where a fused formula exists, one kernel computes it and saves only x and g for the backward pass.
Tensor gated_by(Act act, const Tensor& x, const Tensor& g);

struct GluOptions {
  using Layer = struct Glu;
  int64_t dim;
  int64_t hidden = 0;  // 0 means 8/3·dim rounded up to a multiple of 8: about as many parameters as a 4·dim MLP
  GluKind kind = GluKind::swiglu;
  double gate_scale = 1;  // of X·Wg (Falcon-H1)
  double limit = 0;  // l > 0: |X·Wv| <= l and the gate's map <= l before `kind` (DeepSeek-V4, GLM-5.3, MiniMax-M3)
  /// p > 0: of a token's gates only about the largest 1 − p are not 0: g ← relu(g − μ − Φ⁻¹(p)·σ), where μ and σ are
  /// the mean and deviation of its g (Gemma 3n).
  double sparsity = 0;
  bool bias = false;
  double dropout = 0;
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("hidden", o.hidden, at_least(0), "width e of value and gate; 0: 8/3*dim rounded up to a multiple of 8");
    f("kind", o.kind, "the gate");
    f("gate_scale", o.gate_scale, any_number(), "factor of the gate's map");
    f("limit", o.limit, at_least(0), "l > 0: |v| <= l and g <= l, where v and g are what the gate reads");
    f("sparsity", o.sparsity, probability(),
      "p > 0: g becomes relu(g - m - z s) of its mean m and deviation s; z = Phi^-1(p)");
    f("bias", o.bias, "biases of all three maps");
    f.training("dropout", o.dropout, probability(), "on the gated values");
    describe_parameters(o, f);
  }
};

/// O = apply_glu(kind, X·Wv, gate_scale·X·Wg)·Wo.
struct Glu {
  static constexpr const char* type = "Glu";
  GluOptions options{};
  Linear value, gate, out;

  Glu() = default;
  Glu(GluOptions o, Rng& rng);
  /// x [..., dim] → the same shape. A generator in the pass switches dropout on.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(value, gate, out);
};

}  // namespace sluice
