// What layers cost: the options of the layer, and sizes.
#include "option_lists.h"
#include "registry.h"

#include <sluice/layers/report/cost.h>

#include <algorithm>

namespace layer_check {

using namespace sluice;

namespace {

/// Options of a layer, and how many tokens it is given.
template <class O>
struct CostCase {
  O layer{};
  int64_t n = 0, m = 0, context = 0;
  static constexpr bool two_streams =
      std::is_same_v<O, CrossGauOptions> || std::is_same_v<O, GatedCrossAttentionOptions>;
  static constexpr bool perhaps_two = std::is_base_of_v<MultiHeadAttentionOptions, O>;
  static void describe(auto& o, auto& f) {
    f.nested("", o.layer);
    f.required("tokens", o.n, at_least(1), two_streams ? "tokens of the context" : "tokens");
    if (two_streams) f.required("queries", o.m, at_least(1), "tokens of x");
    if (perhaps_two) f("context_tokens", o.context, at_least(0), "of cross attention; 0: as many as tokens");
  }
};

Results as_results(const Cost& c) {
  return {{"", Tensor::from(std::vector<int64_t>{c.parameters, c.flops, c.attention_elements, c.bytes, c.state})}};
}

template <class O>
Cost cost_of(const CostCase<O>& c) {
  const O& o = c.layer;
  if constexpr (requires { o.module_options(); }) return cost(o.module_options(), c.n);
  else if constexpr (std::is_same_v<O, GateCall>) return cost(o.gate, o.dim, o.heads, o.head_dim, c.n);
  else if constexpr (CostCase<O>::perhaps_two)
    return cost(o, c.n, o.heads.context_dim == 0 ? 0 : c.context == 0 ? c.n : c.context);
  else if constexpr (CostCase<O>::two_streams) return cost(o, c.m, c.n);
  else return cost(o, c.n);
}

/// The cost of a layer that `all` has already; examples come from there.
template <class O>
void add(std::vector<Layer>& all, const char* layer) {
  const auto of = std::find_if(all.begin(), all.end(), [&](const Layer& l) { return l.name == layer; });
  std::vector<Values> examples = of->examples;
  for (Values& e : examples) e.erase("stream"), e.erase("map");
  Values required = with(of->required, {{"tokens", 6}});
  if (CostCase<O>::two_streams) required["queries"] = 6;
  all.push_back({
      .name = std::string("cost_") + layer,
      .family = "cost",
      .formula = "trained values, operations of a forward pass (a multiply-add is 2), attention elements, bytes "
                 "that its kernels read and write, numbers of the streaming state",
      .source = "counted while the layer runs without values, by the papers' conventions",
      .notes = std::string("Options are those of ") + layer + ".",
      .outputs = {{"", "[5]", "i64, in that order"}},
      .required = required,
      .examples = examples,
      .draft = function_layer<CostCase<O>>([](const CostCase<O>& c, const Inputs&) { return as_results(cost_of(c)); }),
  });
}

}  // namespace

void add_costs(std::vector<Layer>& all) {
  add<MlpOptions>(all, "mlp");
  add<GluOptions>(all, "glu");
  add<GauOptions>(all, "gau");
  add<CrossGauOptions>(all, "cross_gau");
  add<TutorialGauOptions>(all, "tutorial_gau");
  add<FlashOptions>(all, "flash");
  add<MultiHeadAttentionOptions>(all, "multi_head_attention");
  add<StackCall>(all, "attention_stack");
  add<GateCall>(all, "attention_gate");
  add<LinearAttentionOptions>(all, "linear_attention");
  add<RetentionOptions>(all, "retention");
  add<GlaOptions>(all, "gla");
  add<GatedAttentionOptions>(all, "gated_attention");
  add<GatedCrossAttentionOptions>(all, "gated_cross_attention");
  add<GatedResidualOptions>(all, "gated_residual");
  add<FusedAttentionOptions>(all, "fused_attention");
}

}  // namespace layer_check
