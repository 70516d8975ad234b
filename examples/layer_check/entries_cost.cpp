// What layers cost: the options of the layer, and sizes. Every layer of the library's table has an entry.
#include "option_lists.h"
#include "registry.h"

#include <sluice/layers/table.h>

#include <algorithm>

namespace layer_check {

using namespace sluice;

namespace {

/// How many tokens a layer is given.
struct CostSizes {
  enum Streams { one, two, perhaps_two, with_global };
  Streams streams = one;
  int64_t n = 0, m = 0, context = 0;

  static void describe(auto& o, auto& f) {
    f.required("tokens", o.n, at_least(1), o.streams == two ? "tokens of the context" : "tokens");
    if (o.streams == two) f.required("queries", o.m, at_least(1), "tokens of x");
    if (o.streams == perhaps_two)
      f("context_tokens", o.context, at_least(0), "of cross attention; 0: as many as tokens");
    if (o.streams == with_global) f("global_tokens", o.context, at_least(0), "tokens at global positions");
  }
};

const Option* context_dim(const OptionList& options) {
  for (const Option& o : options.all)
    if (o.name == "context_dim") return &o;
  return nullptr;
}

CostSizes::Streams streams_of(const LayerRow& row, const OptionList& options) {
  if (row.positions && !row.streams) return CostSizes::with_global;
  if (row.context && !row.segments) return CostSizes::two;
  return row.context && context_dim(options) ? CostSizes::perhaps_two : CostSizes::one;
}

/// For the options of a layer, and what it then costs.
template <class CostOf> Draft cost_draft(const OptionList& options, CostSizes::Streams streams, CostOf cost_of) {
  auto sizes = std::make_shared<CostSizes>(CostSizes{.streams = streams});
  return {case_options(options, options_of(*sizes)), [=](DType) {
            return Instance{{},
                            [](const auto&) {},
                            [=](const Inputs&) {
                              const Cost c = cost_of(*sizes);
                              return results_of(Tensor::from(
                                  std::vector<int64_t>{c.parameters, c.flops, c.attention_elements, c.bytes, c.state}));
                            }};
          }};
}

Draft row_draft(const LayerRow& row) {
  const LayerDraft layer = row.draft();
  return cost_draft(layer.options, streams_of(row, layer.options), [layer](const CostSizes& s) {
    if (s.streams == CostSizes::two) return layer.cost(s.m, s.n);
    const bool cross = s.streams == CostSizes::perhaps_two && context_dim(layer.options)->get() != Json(0);
    return layer.cost(s.n, cross && s.context == 0 ? s.n : s.context);
  });
}

/// Of a call that is no layer's.
template <class O> Draft call_draft() {
  auto o = std::make_shared<O>();
  return cost_draft(options_of(*o), CostSizes::one, [o](const CostSizes& s) {
    if constexpr (requires { o->module_options(); }) return cost(o->module_options(), s.n);
    else return cost(o->gate, o->dim, o->heads, o->head_dim, s.n);
  });
}

void add_cost(std::vector<Layer>& all, const std::string& layer, std::function<Draft()> draft) {
  const auto of = std::find_if(all.begin(), all.end(), [&](const Layer& l) { return l.name == layer; });
  std::vector<Values> examples = of->examples;
  const Draft made = draft();
  const auto unknown = [&](const auto& option) {
    return std::none_of(made.options.all.begin(), made.options.all.end(),
                        [&](const Option& o) { return o.name == option.first; });
  };
  for (Values& e : examples) std::erase_if(e, unknown);  // of the call, not of the layer
  Values required = of->required, bare = of->bare;
  std::erase_if(bare, unknown);
  for (const char* size : {"tokens", "queries"})
    if (!unknown(std::pair(size, 0))) required[size] = 6;
  Layer& cost =
      add(all, "cost_" + layer, "cost",
          "trained values, operations of a forward pass (a multiply-add is 2), attention elements, bytes that its "
          "kernels read and write, numbers of the streaming state",
          "counted while the layer runs without values, by the papers' conventions")
          .note("Options are those of " + layer + ".")
          .output("[5]", "i64, in that order")
          .require(required)
          .samples(examples);
  cost.bare = bare, cost.draft = std::move(draft);
}

}  // namespace

void add_costs(std::vector<Layer>& all) {
  for (const LayerRow& row : layer_table()) add_cost(all, row.name, [&row] { return row_draft(row); });
  add_cost(all, "attention_stack", call_draft<StackCall>);
  add_cost(all, "attention_gate", call_draft<GateCall>);
}

}  // namespace layer_check
