// The config.json beside a model's weights. It remembers which fields were read: a field that nobody read may change
// what the model computes, and loading without it would give wrong results silently.
#pragma once

#include <sluice/core/text/json.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace sluice {

/// parse_json() of what Python writes: numbers may be Infinity, which becomes {"__float__": "Infinity"} as in newer
/// files.
Json parse_python_json(const std::string& text);
/// The inverse, with indents of 2: infinities become Infinity, which every version of Python's reader knows.
std::string to_python_text(const Json& j);

/// Fields have dotted names, "rope_parameters.rope_theta". A null counts as absent. A model for text and images keeps
/// its language model's fields in "text_config". They are found without this prefix; of the fields beside text_config
/// only tie_word_embeddings is found.
class ModelConfig {
 public:
  /// `text` is JSON; `at`, such as "op: 'path'", begins errors. IOError for text that is no JSON object.
  ModelConfig(const std::string& text, std::string at);

  /// True if the field is there and is not null.
  bool has(const std::string& name) const { return find(name) != nullptr; }
  /// True if the field is there and is null, or an object without members.
  bool is_null(const std::string& name) const { return nulls_.contains(name); }
  /// True if the field is there and has this value.
  bool is(const std::string& name, const Json& value) const { return has(name) && *find(name) == value; }
  /// True if the field is there and is a list.
  bool is_list(const std::string& name) const { return has(name) && find(name)->as<Json::List>(); }
  /// True if the fields are those of "text_config".
  bool nested() const { return nested_; }
  /// The field as int64_t, double, bool, std::string, or a vector of int64_t, double or std::string. IOError, naming
  /// it, if it is absent or of another type. A whole number is a double, too.
  template <class T> T at(const std::string& name) const;
  /// The same, `otherwise` if absent.
  template <class T> T get(const std::string& name, T otherwise) const { return has(name) ? at<T>(name) : otherwise; }
  /// The same, `if_null` where the field is there and null.
  template <class T> T get(const std::string& name, T otherwise, T if_null) const {
    return has(name) ? at<T>(name) : is_null(name) ? if_null : otherwise;
  }
  /// The first of these fields that is there.
  template <class T> T any_of(const std::vector<std::string>& names) const {
    for (const std::string& name : names)
      if (has(name)) return at<T>(name);
    return at<T>(names.front());
  }
  /// IOError unless one of the fields is given: for those that have other defaults in other families.
  void needs(const std::vector<std::string>& names) const {
    if (std::ranges::none_of(names, [&](const std::string& name) { return has(name); })) at<double>(names.front());
  }
  /// IOError, naming the field, unless it is absent or has this value.
  template <class T> void must_be(const std::string& name, const T& value) const {
    if (has(name) && !(at<T>(name) == value)) refuse(name, str("only ", value, " is known"));
  }
  /// Marks fields as read that do not change what the model computes. Names are separated by spaces.
  void ignore(const std::string& names) const;
  /// For each "theirs": "usual" of this JSON object, renames the field `theirs` to `usual`, unless both are there and
  /// differ.
  void rename(const std::string& names) const;
  /// Adds the members of this JSON object where fields are absent, but not where they are null.
  void assume(const std::string& defaults) const;
  /// IOError naming every field that was neither read nor ignored. Reading an object reads its fields. `ignored` are
  /// more names.
  void check_read(const std::vector<std::string>& ignored) const;
  /// IOError: `name` has a value that this library cannot follow; `why`.
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const;

 private:
  const Json* find(const std::string& name) const;
  void add(const std::string& prefix, const Json& value);

  std::string at_;
  bool nested_ = false;
  mutable std::map<std::string, Json> fields_;
  std::set<std::string> nulls_;  // names of fields that are null, or objects without members
  mutable std::set<std::string> read_;
};

}  // namespace sluice
