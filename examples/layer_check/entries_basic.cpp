// Dense maps, MLP and GLU, norms, activations.
#include "registry.h"

#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/rows/softmax.h>

namespace layer_check {

using namespace sluice;

namespace {

struct ActivationOptions {
  Act kind = Act::silu;
  static void describe(auto& o, auto& f) { f("kind", o.kind, "act"); }
};
struct GluGateOptions {
  GluKind kind = GluKind::swiglu;
  static void describe(auto& o, auto& f) { f("kind", o.kind, "the gate"); }
};

/// A sample for each kind.
template <class O> std::vector<Values> each_kind() {
  std::vector<Values> all;
  for (const std::string& name : options_of(O()).all[0].choice_names()) all.push_back({{"kind", name}});
  return all;
}

}  // namespace

void add_basic(std::vector<Layer>& all) {
  add(all, "linear", "basic", "y = x W + b")
      .note("Weights are [in, out], as formulas are written; PyTorch's nn.Linear holds the transpose.")
      .input("x [..., in_dim]")
      .dense("", "in_dim", "out_dim", "bias")
      .output("[..., out_dim]");
  add(all, "embedding", "basic", "y = rows of the table")
      .input(Kind::integer, "index [batch, n]")
      .parameter("weight [count, dim]")
      .output("[batch, n, dim]");
  add(all, "mlp", "mlp",
      "O = act(x Wu + bu) Wo + bo; act may be xIELU, u/2 + softplus(a) u^2 for u > 0, else u/2 + (1/2 + softplus(b)) "
      "(e^u - 1 - u)",
      "Rumelhart et al. 1986; xIELU: Huang 2024")
      .derive({{"e", "hidden or 4*dim"}})
      .input("x [..., dim]")
      .dense("in", "dim", "e", "bias", "Wu")
      .dense("out", "e", "dim", "bias", "Wo")
      .parameter("xielu_positive [1]", "a", "xielu")
      .parameter("xielu_negative [1]", "b", "xielu")
      .output("[..., dim]");
  add(all, "glu", "mlp",
      "O = gate(x Wv, gate_scale x Wg) Wo; glu v*sigmoid(g), reglu v*relu(g), geglu v*gelu(g), geglu_tanh, swiglu "
      "v*silu(g), bilinear v*g, silu_glu silu(v)*silu(g), swiglu_oai (v + 1)*g*sigmoid(1.702 g); with limit l > 0 of v "
      "in [-l, l] and g <= l; with sparsity "
      "p > 0 of relu(g - mean(g) - Phi^-1(p)*deviation(g))",
      "Dauphin et al. 2017, Shazeer 2020; silu_glu: Hua et al. 2022 (FLASH)")
      .derive({{"e", "hidden or (dim*8//3 + 7)//8*8"}})
      .input("x [..., dim]")
      .dense("value", "dim", "e", "bias", "Wv")
      .dense("gate", "dim", "e", "bias", "Wg")
      .dense("out", "e", "dim", "bias", "Wo")
      .output("[..., dim]");
  add(all, "norm", "norm",
      "layer (x - mean)/sqrt(var + eps)*weight + bias; rms x/sqrt(mean x^2 + eps)*weight; rms_plain and "
      "layer_plain the same without weight and bias; scale g*x/sqrt(mean x^2 + eps), one scalar g; scale_l2 "
      "g*x/max(|x|/sqrt(dim), eps)",
      "Ba et al. 2016, Zhang & Sennrich 2019, Nguyen & Salazar 2019")
      .input("x [..., dim]")
      .norm("", "kind", "dim", "", "bias")
      .output("[..., dim]");
  add(all, "group_norm", "norm",
      "each group of a token's channels is normalised on its own, then y*weight + bias channel by channel",
      "Wu & He 2018; Sun et al. 2023 (retention)")
      .input("x [..., groups*dim]")
      .parameter("weight [dim if shared else groups*dim]", "", "kind != 'rms_plain'")
      .parameter("bias [dim if shared else groups*dim]", "", "kind == 'layer' and bias")
      .output("[..., groups*dim]");
  add(all, "activation", "basic", "y = act(x), elementwise",
      "Hendrycks & Gimpel 2016 (gelu), So et al. 2021 (relu2), Ma et al. 2022, MEGA (laplace)")
      .note(
          "gelu is exact, gelu_tanh its approximation; relu2 relu(x)^2; elu1 elu(x) + 1; ns_sigmoid (1 + "
          "sigmoid(x))/2; laplace (1 + erf((x - sqrt(1/2))/(sqrt(1/(4 pi)) sqrt 2)))/2. relu'(0) = 0.")
      .input("x [...]")
      .output("[...]")
      .samples(each_kind<ActivationOptions>())
      .runs<ActivationOptions>([](const auto& o, const Inputs& in) { return activate(o.kind, in["x"]); });
  add(all, "glu_gate", "mlp", "y = the gate of glu, of value and gate", "as glu")
      .input("value [batch, n, d]")
      .input("gate [batch, n, d]")
      .output("[batch, n, d]")
      .samples(each_kind<GluGateOptions>())
      .runs<GluGateOptions>([](const auto& o, const Inputs& in) { return apply_glu(o.kind, in["value"], in["gate"]); });
  add(all, "softmax", "basic", "y = e^x / sum e^x along the last dim; a line of -inf gives zeros")
      .input("x [...]")
      .output("[...]")
      .runs([](const Inputs& in) { return softmax(in["x"]); });
}

}  // namespace layer_check
