// What layers cost: the options of the layer, and sizes.
#include "option_lists.h"
#include "registry.h"

#include <sluice/layers/report/cost.h>

namespace layer_check {

using namespace sluice;

namespace {

struct Sizes {
  int64_t n = 0, m = 0, context = 0;
};

Results as_results(const Cost& c) {
  return {{"", Tensor::from(std::vector<int64_t>{c.parameters, c.flops, c.attention_elements, c.bytes, c.state})}};
}

template <class O>
Cost cost_of(const O& o, const Sizes& s) {
  if constexpr (requires { o.module_options(); }) return cost(o.module_options(), s.n);
  else if constexpr (std::is_same_v<O, GateCall>) return cost(o.gate, o.dim, o.heads, o.head_dim, s.n);
  else if constexpr (std::is_same_v<O, MultiHeadAttentionOptions>)
    return cost(o, s.n, o.heads.context_dim == 0 ? 0 : s.context == 0 ? s.n : s.context);
  else if constexpr (std::is_same_v<O, CrossGauOptions> || std::is_same_v<O, GatedCrossAttentionOptions>)
    return cost(o, s.m, s.n);
  else return cost(o, s.n);
}

/// The cost of a layer that `all` has already; examples come from there.
template <class O>
void add(std::vector<Layer>& all, const char* layer, void (*list)(Options&, O&), bool two_streams = false) {
  std::vector<Values> examples;
  for (const Layer& l : all)
    if (l.name == layer) examples = l.examples;
  for (Values& e : examples) e.erase("stream"), e.erase("map");
  all.push_back({
      .name = std::string("cost_") + layer,
      .family = "cost",
      .formula = "trained values, operations of a forward pass (a multiply-add is 2), attention elements, bytes "
                 "that its kernels read and write, numbers of the streaming state",
      .source = "counted while the layer runs without values, by the papers' conventions",
      .notes = std::string("Options are those of ") + layer + ".",
      .outputs = {{"", "[5]", "i64, in that order"}},
      .examples = examples,
      .prepare = function_layer<std::pair<O, Sizes>>(
          [=](Options& v, std::pair<O, Sizes>& o) {
            list(v, o.first);
            v.required("tokens", o.second.n, 6, two_streams ? "tokens of the context" : "tokens");
            if (two_streams) v.required("queries", o.second.m, 6, "tokens of x");
            if constexpr (std::is_same_v<O, MultiHeadAttentionOptions>)
              v("context_tokens", o.second.context, "of cross attention; 0: as many as tokens");
          },
          [](const std::pair<O, Sizes>& o, const Inputs&) { return as_results(cost_of(o.first, o.second)); }),
  });
}

}  // namespace

void add_costs(std::vector<Layer>& all) {
  add(all, "mlp", mlp_options);
  add(all, "glu", glu_options);
  add(all, "gau", gau_options);
  add(all, "cross_gau", cross_gau_options, true);
  add(all, "tutorial_gau", tutorial_gau_options);
  add(all, "flash", flash_options);
  add(all, "multi_head_attention", multi_head_options);
  add(all, "attention_stack", stack_options);
  add(all, "attention_gate", gate_call_options);
  add(all, "linear_attention", linear_attention_options);
  add(all, "retention", retention_options);
  add(all, "gla", gla_options);
  add(all, "gated_attention", gated_attention_options);
  add(all, "gated_cross_attention", gated_cross_attention_options, true);
  add(all, "gated_residual", gated_residual_options);
  add(all, "fused_attention", fused_attention_options);
}

}  // namespace layer_check
