// Entries for the layers of the library's table.
#include "registry.h"
#include "shared.h"

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

}  // namespace

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
      layer.examples.push_back(with(example, {{"stream", Json::List{3, 1, 2}}}));
  }
}

void add_rest_of_table(std::vector<Layer>& all) {
  for (const LayerRow& row : layer_table()) {
    if (std::any_of(all.begin(), all.end(), [&](const Layer& l) { return l.name == row.name; })) continue;
    Layer layer{.name = row.name, .family = "other", .formula = row.type, .source = "",
                .notes = "Names and shapes of its parameters: --parameters.",
                .inputs = {{.name = "x", .shape = "[batch, n, dim]"}},
                .outputs = {{"", "[batch, n, dim]"}}};
    if (row.context) {
      layer.inputs.push_back({.name = "context", .shape = "[batch, m, context_dim or dim]"});
      layer.inputs.push_back({.name = "key_mask", .shape = "[batch, m]", .meaning = "of the context",
                              .kind = Kind::boolean, .optional = true});
    } else if (row.key_mask) {
      layer.inputs.push_back(key_mask_input(row.streams));
    }
    all.push_back(std::move(layer));
  }
}

}  // namespace layer_check
