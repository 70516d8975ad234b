#include <sluice/layers/table.h>

#include <sluice/layers/table_rows.h>

namespace sluice {

std::vector<Json> detail::merged_samples(const char* base, std::initializer_list<const char*> changes) {
  std::vector<Json> samples{parse_json(base)};
  for (const char* change : changes) {
    Json sample = samples[0];
    const Json changed = parse_json(change);
    for (const auto& [name, value] : *changed.as<Json::Object>()) sample[name] = value;
    samples.push_back(std::move(sample));
  }
  return samples;
}

const std::vector<LayerRow>& layer_table() {
  static const std::vector<LayerRow> table = [] {
    detail::RowList list;
    detail::add_nn_rows(list);
    detail::add_gau_rows(list);
    detail::add_attention_rows(list);
    detail::add_linear_attention_rows(list);
    return std::move(list.rows);
  }();
  return table;
}

const LayerRow& layer_row(std::string_view name) {
  std::vector<std::string> known;
  for (const LayerRow& row : layer_table()) {
    if (row.name == name) return row;
    known.push_back(row.name);
  }
  fail<ValueError>("layer_row: no layer is called \"", name, "\"", did_you_mean(name, known),
                   "; known: ", detail::joined(known));
}

std::unique_ptr<AnyLayer> LayerRow::make(const Json& sample, Rng& rng, std::optional<DType> dtype) const {
  LayerDraft d = draft();
  Json options = sample;
  if (dtype) options["dtype"] = name_of(*dtype);
  detail::from_json(name, options, d.options);
  return d.build(rng);
}

}  // namespace sluice
