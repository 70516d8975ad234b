// Reads an options struct from JSON values and lists its fields at the same time: one function per struct names
// every field once, and the struct's own initialisers are the defaults.
//
//   void gau_options(Options& v, GauOptions& o) {
//     v.required("dim", o.dim, 8, "width d");
//     v("kind", o.kind, gau_kinds(), "weights A …");
//   }
#pragma once

#include "value.h"

#include <optional>
#include <string_view>
#include <utility>

namespace layer_check {

/// An enum's values by name.
template <class E>
using Choices = std::vector<std::pair<const char*, E>>;

struct OptionInfo {
  std::string name, type;  // bool, int, float, text, list of int, list of float, list of objects; "… or null"
  Value otherwise;         // the default; what --self-check takes if the option is required
  bool required = false;
  std::vector<std::string> values;  // of a text
  std::string meaning;
  std::vector<OptionInfo> fields = {};  // of an object
};

class Options {
 public:
  /// With `examples`, required options that are not given take their example values.
  Options(std::string layer, Values given, bool examples = false)
      : layer_(std::move(layer)), given_(std::move(given)), examples_(examples) {}

  void operator()(const char* name, bool& field, const char* meaning);
  void operator()(const char* name, int64_t& field, const char* meaning);
  void operator()(const char* name, double& field, const char* meaning);
  void operator()(const char* name, std::vector<int64_t>& field, const char* meaning);
  void operator()(const char* name, std::vector<double>& field, const char* meaning);
  void operator()(const char* name, std::optional<double>& field, const char* meaning);
  void required(const char* name, int64_t& field, int64_t example, const char* meaning);

  template <class E>
  void operator()(const char* name, E& field, const Choices<E>& choices, const char* meaning) {
    std::vector<std::string> names;
    std::size_t now = 0;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      names.push_back(choices[i].first);
      if (choices[i].second == field) now = i;
    }
    field = choices[choose(name, names, now, meaning)].second;
  }
  /// null leaves the field unset.
  template <class E>
  void operator()(const char* name, std::optional<E>& field, const Choices<E>& choices, const char* meaning) {
    std::vector<std::string> names;
    for (const auto& c : choices) names.push_back(c.first);
    const std::size_t i = choose(name, names, names.size(), meaning);
    if (i < choices.size()) field = choices[i].second;
  }

  /// A list of structs, each an object of options: list(v, T&).
  template <class T, class List>
  void objects(const char* name, std::vector<T>& field, List list, const char* meaning) {
    Options one(layer_ + ": " + name, {}, true);
    T example{};
    list(one, example);
    std::vector<Values> complete;
    for (const Values& given : take_objects(name, meaning, one.infos_)) {
      Options each(layer_ + ": " + name + "[" + std::to_string(complete.size()) + "]", given);
      T item{};
      list(each, item);
      each.finish();
      field.push_back(item);
      complete.push_back(each.values());
    }
    values_[name] = layer_check::objects(std::move(complete));
  }

  /// ValueError naming the first option that no field took, and all that there are.
  void finish() const;
  const std::vector<OptionInfo>& infos() const { return infos_; }
  /// Every option's value.
  const Values& values() const { return values_; }
  const std::string& layer() const { return layer_; }

 private:
  [[noreturn]] void wrong(const OptionInfo& o, const Value& got) const;
  /// Notes the option; the given value, or null for the default.
  const Value* take(OptionInfo info);
  std::vector<Values> take_objects(const char* name, const char* meaning, std::vector<OptionInfo> fields);
  std::size_t choose(const char* name, const std::vector<std::string>& names, std::size_t now, const char* meaning);

  std::string layer_;
  Values given_;
  bool examples_;
  std::vector<OptionInfo> infos_;
  Values values_;
};

}  // namespace layer_check
