// Entries for the layers of the library's table.
#include "registry.h"

#include <sluice/layers/table.h>

#include <algorithm>

namespace layer_check {

using namespace sluice;

namespace {

struct Held {
  LayerDraft draft;
  StreamOption stream;
};

Results run(const AnyLayer& layer, const Inputs& in, const std::vector<int64_t>& pieces) {
  const Tensor x = in[in["index"].defined() ? "index" : "x"];
  return results_of(pieces.empty() ? layer(x, pass_of(in)) : run_stream(layer, x, in, pieces));
}

Values values_of(const Json& object) {
  Values values;
  for (const auto& [name, value] : *object.as<Json::Object>()) values[name] = value;
  return values;
}

/// Inputs are called as in pass_of(), and x or `index`.
std::function<Draft()> table_layer(const std::string& name, bool streams) {
  const LayerRow& row = layer_row(name);
  return [&row, streams] {
    auto held = std::make_shared<Held>(Held{row.draft(), {}});
    const OptionList more = streams ? options_of(held->stream) : OptionList();
    return Draft{case_options(held->draft.options, more), [held](DType dtype) {
                   for (const Option& o : held->draft.options.all)
                     if (o.name == "dtype") o.set("", name_of(dtype));
                   Rng rng(1);
                   const std::shared_ptr<AnyLayer> layer = held->draft.build(rng);
                   return Instance{layer->state(), [layer](const auto& state) { layer->load(state); },
                                   [=](const Inputs& in) { return run(*layer, in, held->stream.pieces); },
                                   [layer](Device device) {
                                     layer->move(device);
                                     return layer->state();
                                   }};
                 }};
  };
}

}  // namespace

void fill_from_table(Layer& layer) {
  if (layer.draft) return;
  const LayerRow& row = layer_row(layer.name);
  layer.streams = layer.streams && row.streams;
  layer.draft = table_layer(layer.name, layer.streams);
  const LayerDraft draft = row.draft();
  if (layer.required.empty()) {
    layer.bare = values_of(row.bare);
    for (const Option& o : draft.options.all) {
      if (!o.required) continue;
      const auto given = layer.bare.extract(o.name);
      layer.required[o.name] = given ? given.mapped() : row.samples[0].at(o.name);
    }
  }
  for (const Json& sample : row.samples) {
    Values example = values_of(sample);
    for (const Option& o : draft.options.all)
      if (o.training) example.erase(o.name);
    layer.examples.push_back(example);
    const auto causal = example.find("causal");
    if (layer.streams && causal != example.end() && causal->second == Json(true))
      example["stream"] = Json::List{3, 1, 2}, layer.examples.push_back(example);
  }
}

void add_rest_of_table(std::vector<Layer>& all) {
  for (const LayerRow& row : layer_table()) {
    if (std::any_of(all.begin(), all.end(), [&](const Layer& l) { return l.name == row.name; })) continue;
    Layer& layer = add(all, row.name, "other", row.type)
                       .note("Names and shapes of its parameters: --parameters.")
                       .input("x [batch, n, dim]")
                       .output("[batch, n, dim]");
    if (row.context)
      layer.input("context [batch, m, context_dim or dim]")
          .input(Kind::boolean, "key_mask? [batch, m]", "of the context");
    else if (row.key_mask) layer.key_mask(!row.streams);
  }
}

}  // namespace layer_check
