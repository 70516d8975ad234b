#include "json.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

namespace layer_check {

using nlohmann::ordered_json;
using sluice::fail;
using sluice::ValueError;

namespace {

Values object_from_json(const ordered_json& j, int depth);

Value from_json(const std::string& name, const ordered_json& j, int depth) {
  if (j.is_null()) return {};
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_number_unsigned() && j.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    fail<ValueError>("config: option \"", name, "\" is too large — got ", j.dump());
  if (j.is_number_integer()) return j.get<int64_t>();
  if (j.is_number()) return j.get<double>();
  if (j.is_string()) return j.get<std::string>();
  if (!j.is_array()) fail<ValueError>("config: option \"", name, "\" is an object; none is");
  if (!j.empty() && j[0].is_object() && depth == 0) {
    std::vector<Values> list;
    for (const ordered_json& x : j) {
      if (!x.is_object()) fail<ValueError>("config: option \"", name, "\" is a list of objects and other things");
      list.push_back(object_from_json(x, 1));
    }
    return objects(std::move(list));
  }
  std::vector<double> xs;
  for (const ordered_json& x : j) {
    if (!x.is_number()) fail<ValueError>("config: option \"", name, "\" is a list of other things than numbers");
    xs.push_back(x.get<double>());
  }
  return xs;
}

Values object_from_json(const ordered_json& j, int depth) {
  Values options;
  for (const auto& [name, value] : j.items()) options[name] = from_json(name, value, depth);
  return options;
}

ordered_json to_json(const Values& options);

ordered_json number(double x) {
  if (x == std::floor(x) && std::abs(x) < 9e15) return static_cast<int64_t>(x);
  return x;
}

ordered_json to_json(const Value& v) {
  struct {
    ordered_json operator()(std::monostate) const { return nullptr; }
    ordered_json operator()(bool b) const { return b; }
    ordered_json operator()(int64_t i) const { return i; }
    ordered_json operator()(double x) const { return x; }
    ordered_json operator()(const std::string& s) const { return s; }
    ordered_json operator()(const std::vector<double>& xs) const {
      ordered_json list = ordered_json::array();
      for (double x : xs) list.push_back(number(x));
      return list;
    }
    ordered_json operator()(const std::shared_ptr<const Objects>& o) const {
      ordered_json list = ordered_json::array();
      for (const Values& v : o->list) list.push_back(to_json(v));
      return list;
    }
  } const convert;
  return std::visit(convert, v);
}

ordered_json to_json(const Values& options) {
  ordered_json j = ordered_json::object();
  for (const auto& [name, value] : options) j[name] = to_json(value);
  return j;
}

template <class T>
ordered_json describe_all(const std::vector<T>& infos);

ordered_json describe(const OptionInfo& o) {
  ordered_json j{{"name", o.name}, {"type", o.type}};
  if (!o.values.empty()) j["values"] = o.values;
  j["required"] = o.required;
  j[o.required ? "example" : "default"] = to_json(o.otherwise);
  j["meaning"] = o.meaning;
  if (!o.fields.empty()) j["fields"] = describe_all(o.fields);
  return j;
}

ordered_json describe(const InputInfo& i) {
  static constexpr const char* names[] = {"float", "i64", "bool"};
  ordered_json j{{"name", i.name}, {"shape", i.shape}, {"dtype", names[static_cast<int>(i.kind)]},
                 {"optional", i.optional}};
  if (i.when != "True") j["when"] = i.when;
  if (!i.meaning.empty()) j["meaning"] = i.meaning;
  return j;
}

ordered_json describe(const ParameterInfo& p) {
  ordered_json j{{"name", p.name}, {"shape", p.shape}};
  if (!p.repeat.empty()) j["repeat"] = p.repeat;
  if (!p.inner_repeat.empty()) j["inner_repeat"] = p.inner_repeat;
  if (p.when != "True") j["when"] = p.when;
  if (p.buffer) j["trained"] = false;
  if (p.optional) j["optional"] = true;
  if (!p.meaning.empty()) j["meaning"] = p.meaning;
  return j;
}

ordered_json describe(const OutputInfo& o) {
  ordered_json j{{"name", o.name.empty() ? "output" : "output." + o.name}, {"shape", o.shape}};
  if (o.when != "True") j["when"] = o.when;
  if (!o.meaning.empty()) j["meaning"] = o.meaning;
  return j;
}

template <class T>
ordered_json describe_all(const std::vector<T>& infos) {
  ordered_json list = ordered_json::array();
  for (const T& i : infos) list.push_back(describe(i));
  return list;
}

ordered_json describe(const Layer& l) {
  Options options(l.name, {}, true);
  l.prepare(options);
  ordered_json j{{"name", l.name}, {"family", l.family}, {"formula", l.formula}, {"source", l.source}};
  if (!l.notes.empty()) j["notes"] = l.notes;
  j["options"] = describe_all(options.infos());
  if (!l.derived.empty()) {
    ordered_json derived = ordered_json::object();
    for (const auto& d : l.derived) derived[d.first] = d.second;
    j["derived"] = derived;
  }
  j["inputs"] = describe_all(l.inputs);
  j["parameters"] = describe_all(l.parameters);
  j["outputs"] = describe_all(l.outputs);
  return j;
}

}  // namespace

Values parse_config(const std::string& text) {
  ordered_json j;
  try {
    j = ordered_json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    fail<ValueError>("config is not JSON: ", e.what());
  }
  if (!j.is_object()) fail<ValueError>("config is not a JSON object of options — got ", j.dump());
  return object_from_json(j, 0);
}

std::string config_text(const Values& options) {
  return to_json(options).dump();
}

std::string listing(const std::vector<const Layer*>& layers) {
  ordered_json list = ordered_json::array();
  for (const Layer* l : layers) list.push_back(describe(*l));
  const ordered_json whole{
      {"format",
       "A case is a safetensors file with tensors input.<name>, param.<name>, optionally cotangent and "
       "cotangent.<output>, and metadata entries layer (a name below) and config (a JSON object of options)."},
      {"formulas",
       "shape, when, repeat and derived are Python expressions over option names, derived names and sizes of inputs. "
       "[...] stands for any leading sizes, broadcast for any shape that broadcasts to the one given; {i} in a name "
       "counts from 0 through repeat, {j} through inner_repeat: a number, or a list of objects whose fields are "
       "item.<field>."},
      {"layers", list}};
  return whole.dump(1) + "\n";
}

}  // namespace layer_check
