// Dense maps, MLP and GLU, norms, activations.
#include "shared.h"
#include "registry.h"

#include <sluice/layers/linear_time/retention.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/ops/norm.h>
#include <sluice/ops/softmax.h>

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

const InputInfo any_x{.name = "x", .shape = "[..., dim]"};

void add_dense(std::vector<Layer>& all) {
  all.push_back({
      .name = "linear",
      .family = "basic",
      .formula = "y = x W + b",
      .source = "",
      .notes = "Weights are [in, out], as formulas are written; PyTorch's nn.Linear holds the transpose.",
      .inputs = {{.name = "x", .shape = "[..., in_dim]"}},
      .parameters = {{.name = "weight", .shape = "[in_dim, out_dim]"},
                     {.name = "bias", .shape = "[out_dim]", .when = "bias"}},
      .outputs = {{"", "[..., out_dim]"}},
  });
  all.push_back({
      .name = "embedding",
      .family = "basic",
      .formula = "y = rows of the table",
      .source = "",
      .inputs = {{.name = "index", .shape = "[batch, n]", .kind = Kind::integer, .sample = Sample::index,
                  .below = "count"}},
      .parameters = {{.name = "weight", .shape = "[count, dim]"}},
      .outputs = {{"", "[batch, n, dim]"}},
  });
  all.push_back({
      .name = "mlp",
      .family = "mlp",
      .formula = "O = act(x Wu + bu) Wo + bo",
      .source = "Rumelhart et al. 1986",
      .derived = {{"e", "hidden or 4*dim"}},
      .inputs = {any_x},
      .parameters = joined({linear_parameters("in", "dim", "e", "bias", "Wu"),
                            linear_parameters("out", "e", "dim", "bias", "Wo")}),
      .outputs = {{"", "[..., dim]"}},
  });
  all.push_back({
      .name = "glu",
      .family = "mlp",
      .formula = "O = gate(x Wv, x Wg) Wo; glu v*sigmoid(g), reglu v*relu(g), geglu v*gelu(g), geglu_tanh, swiglu v*silu(g), "
                 "bilinear v*g, silu_glu silu(v)*silu(g)",
      .source = "Dauphin et al. 2017, Shazeer 2020; silu_glu: Hua et al. 2022 (FLASH)",
      .derived = {{"e", "hidden or (dim*8//3 + 7)//8*8"}},
      .inputs = {any_x},
      .parameters = joined({linear_parameters("value", "dim", "e", "bias", "Wv"),
                            linear_parameters("gate", "dim", "e", "bias", "Wg"),
                            linear_parameters("out", "e", "dim", "bias", "Wo")}),
      .outputs = {{"", "[..., dim]"}},
  });
}

void add_norms(std::vector<Layer>& all) {
  all.push_back({
      .name = "norm",
      .family = "norm",
      .formula = "layer (x - mean)/sqrt(var + eps)*weight + bias; rms x/sqrt(mean x^2 + eps)*weight; rms_plain the "
                 "same without weight; scale g*x/sqrt(mean x^2 + eps), one scalar g; scale_l2 g*x/max(|x|/sqrt(dim), "
                 "eps)",
      .source = "Ba et al. 2016, Zhang & Sennrich 2019, Nguyen & Salazar 2019",
      .inputs = {any_x},
      .parameters = norm_parameters("", "kind", "dim"),
      .outputs = {{"", "[..., dim]"}},
  });
  all.push_back({
      .name = "group_norm",
      .family = "norm",
      .formula = "each group of a token's channels is normalised on its own, then y*weight + bias channel by channel",
      .source = "Wu & He 2018; Sun et al. 2023 (retention)",
      .inputs = {{.name = "x", .shape = "[..., groups*dim]"}},
      .parameters = {{.name = "weight", .shape = "[dim if shared else groups*dim]", .when = "kind != 'rms_plain'"},
                     {.name = "bias", .shape = "[dim if shared else groups*dim]", .when = "kind == 'layer'"}},
      .outputs = {{"", "[..., groups*dim]"}},
  });
}

}  // namespace

void add_basic(std::vector<Layer>& all) {
  add_dense(all);
  add_norms(all);
  std::vector<Values> each;
  for (const std::string& name : options_of(ActivationOptions()).all[0].choice_names()) each.push_back({{"kind", name}});
  all.push_back({
      .name = "activation",
      .family = "basic",
      .formula = "y = act(x), elementwise",
      .source = "Hendrycks & Gimpel 2016 (gelu), So et al. 2021 (relu2), Ma et al. 2022, MEGA (laplace)",
      .notes = "gelu is exact, gelu_tanh its approximation; relu2 relu(x)^2; elu1 elu(x) + 1; ns_sigmoid (1 + "
               "sigmoid(x))/2; laplace (1 + erf((x - sqrt(1/2))/(sqrt(1/(4 pi)) sqrt 2)))/2. relu'(0) = 0.",
      .inputs = {{.name = "x", .shape = "[...]"}},
      .outputs = {{"", "[...]"}},
      .examples = each,
      .draft = function_layer<ActivationOptions>(
          [](const ActivationOptions& o, const Inputs& in) { return activate(o.kind, in["x"]); }),
  });
  all.push_back({
      .name = "glu_gate",
      .family = "mlp",
      .formula = "y = the gate of glu, of value and gate",
      .source = "as glu",
      .inputs = {{.name = "value", .shape = "[batch, n, d]"}, {.name = "gate", .shape = "[batch, n, d]"}},
      .outputs = {{"", "[batch, n, d]"}},
      .examples = {{{"kind", "glu"}}, {{"kind", "reglu"}}, {{"kind", "geglu"}}, {{"kind", "bilinear"}},
                   {{"kind", "silu_glu"}}},
      .draft = function_layer<GluGateOptions>(
          [](const GluGateOptions& o, const Inputs& in) { return apply_glu(o.kind, in["value"], in["gate"]); }),
  });
  all.push_back({
      .name = "softmax",
      .family = "basic",
      .formula = "y = e^x / sum e^x along the last dim; a line of -inf gives zeros",
      .source = "",
      .inputs = {{.name = "x", .shape = "[...]"}},
      .outputs = {{"", "[...]"}},
      .draft = plain_function([](const Inputs& in) { return softmax(in["x"]); }),
  });
}

}  // namespace layer_check
