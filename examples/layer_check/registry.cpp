#include "registry.h"

namespace layer_check {

const std::vector<Layer>& layers() {
  static const std::vector<Layer> all = [] {
    std::vector<Layer> list;
    const auto fill = [&] {
      for (Layer& l : list) {
        fill_from_table(l);
        for (const sluice::Option& o : l.draft().options.all)
          if (o.required) l.required.try_emplace(o.name, 8);
      }
    };
    for (auto add : {add_basic, add_positions, add_gau, add_flash, add_attention, add_multi_head, add_mla,
                     add_conversions, add_sparse, add_sinkhorn, add_sparse_layers, add_linear, add_linear_layers,
                     add_gates, add_metrics, add_rest_of_table})
      add(list);
    fill();
    add_costs(list);
    return list;
  }();
  return all;
}

const Layer& find_layer(const std::string& name) {
  std::string known;
  std::vector<std::string> names;
  for (const Layer& l : layers()) {
    if (l.name == name) return l;
    known += (known.empty() ? "" : ", ") + l.name, names.push_back(l.name);
  }
  sluice::fail<sluice::ValueError>("unknown layer \"", name, "\"", sluice::did_you_mean(name, names),
                                   "; known: ", known);
}

Json object(const Values& values) { return Json::Object(values.begin(), values.end()); }

Values bare_options(const Layer& layer) {
  Values options = layer.required;
  options.insert(layer.bare.begin(), layer.bare.end());
  return options;
}

std::vector<Values> samples_of(const Layer& layer) {
  std::vector<Values> all{bare_options(layer)};
  for (Values sample : layer.examples) {
    sample.insert(layer.required.begin(), layer.required.end());
    all.push_back(std::move(sample));
  }
  return all;
}

}  // namespace layer_check
