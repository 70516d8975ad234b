#include "listing.h"

#include <sluice/ops/shape/create.h>

namespace layer_check {

using sluice::Option;

namespace {

Json texts(const std::vector<std::string>& names) { return Json::list(names); }

/// `examples`: values of those that have no default, and of those whose default does not go together with these.
Json describe(const std::vector<Option>& options, const Values& examples) {
  Json::List list;
  for (const Option& o : options) {
    Json j = Json::Object{{"name", o.name}, {"type", o.type_name()}};
    if (o.choices) j["values"] = texts(o.choice_names());
    j["required"] = o.required;
    if (!o.required) j["default"] = o.get();
    if (const auto example = examples.find(o.name); example != examples.end()) j["example"] = example->second;
    if (const std::string range = o.range_text(); !range.empty()) j["range"] = range;
    j["meaning"] = o.meaning;
    if (o.fields) j["fields"] = describe(o.fields().all, {});
    list.push_back(j);
  }
  return list;
}

Json describe(const InputInfo& i) {
  static constexpr const char* names[] = {"float", "i64", "bool"};
  Json j = Json::Object{
      {"name", i.name}, {"shape", i.shape}, {"dtype", names[static_cast<int>(i.kind)]}, {"optional", i.optional}};
  if (i.when != "True") j["when"] = i.when;
  if (!i.meaning.empty()) j["meaning"] = i.meaning;
  return j;
}

Json describe(const ParameterInfo& p) {
  Json j = Json::Object{{"name", p.name}, {"shape", p.shape}};
  if (!p.repeat.empty()) j["repeat"] = p.repeat;
  if (!p.inner_repeat.empty()) j["inner_repeat"] = p.inner_repeat;
  if (p.when != "True") j["when"] = p.when;
  if (p.buffer) j["trained"] = false;
  if (p.optional) j["optional"] = true;
  if (!p.meaning.empty()) j["meaning"] = p.meaning;
  return j;
}

Json describe(const OutputInfo& o) {
  Json j = Json::Object{{"name", o.name.empty() ? "output" : "output." + o.name}, {"shape", o.shape}};
  if (o.when != "True") j["when"] = o.when;
  if (!o.meaning.empty()) j["meaning"] = o.meaning;
  return j;
}

template <class T> Json describe_all(const std::vector<T>& infos) {
  Json::List list;
  for (const T& i : infos) list.push_back(describe(i));
  return list;
}

Json describe(const Layer& l) {
  Json j = Json::Object{{"name", l.name}, {"family", l.family}, {"formula", l.formula}, {"source", l.source}};
  if (!l.notes.empty()) j["notes"] = l.notes;
  j["options"] = describe(l.draft().options.all, bare_options(l));
  if (!l.derived.empty()) {
    Json derived;
    for (const auto& [name, formula] : l.derived) derived[name] = formula;
    j["derived"] = derived;
  }
  j["inputs"] = describe_all(l.inputs);
  j["parameters"] = describe_all(l.parameters);
  j["outputs"] = describe_all(l.outputs);
  Json::List samples;
  for (const Values& sample : samples_of(l)) samples.push_back(object(sample));
  j["samples"] = samples;
  return j;
}

/// Where layers run: what --device takes.
Json devices() {
  Json there = Json::Object{{"cpu", "every layer"}};
  try {
    sluice::zeros({1}, {sluice::f32, sluice::Device::cuda()});
    there["cuda"] = "every layer";
  } catch (const sluice::DeviceError& e) { there["cuda"] = std::string("none here: ") + e.what(); }
  return there;
}

}  // namespace

std::string listing(const std::vector<const Layer*>& layers) {
  Json::List list;
  for (const Layer* l : layers) list.push_back(describe(*l));
  const Json whole = Json::Object{
      {"format",
       "A case is a safetensors file with tensors input.<name>, param.<name>, optionally cotangent and "
       "cotangent.<output>, and metadata entries layer (a name below) and config (a JSON object of options)."},
      {"formulas",
       "shape, when, repeat and derived are Python expressions over option names, derived names and sizes of inputs. "
       "[...] stands for any leading sizes, broadcast for any shape that broadcasts to the one given; {i} in a name "
       "counts from 0 through repeat, {j} through inner_repeat: a number, or a list of objects whose fields are "
       "item.<field>."},
      {"devices", devices()},
      {"layers", list}};
  return to_text(whole, 1) + "\n";
}

}  // namespace layer_check
