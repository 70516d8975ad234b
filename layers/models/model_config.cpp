#include <sluice/layers/models/model_config.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <type_traits>

namespace sluice {

namespace {

constexpr int64_t kMost = int64_t{1} << 26;  // so that sums and products of two fields do not overflow

/// Python writes Infinity, which JSON does not know; newer files have an object in its place.
std::string with_infinity(const std::string& text) {
  std::string out;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t taken = quoted && text[i] == '\\' ? 2 : 1;  // an escaped quote does not end the string
    if (taken == 1 && text[i] == '"') quoted = !quoted;
    const std::string_view rest = std::string_view(text).substr(i);
    if (const bool negative = rest.starts_with("-Infinity"); !quoted && (negative || rest.starts_with("Infinity"))) {
      out += negative ? R"({"__float__": "-Infinity"})" : R"({"__float__": "Infinity"})";
      i += negative ? 8 : 7;
    } else {
      out += text.substr(i, taken), i += taken - 1;
    }
  }
  return out;
}

}  // namespace

Json parse_python_json(const std::string& text) { return parse_json(with_infinity(text)); }

std::string to_python_text(const Json& j) {
  std::string text = to_text(j, 2);
  for (const std::string number : {"Infinity", "-Infinity"}) {
    const std::string member = "\"__float__\": \"" + number + '"';
    for (std::size_t at = 0; (at = text.find(member, at)) != std::string::npos; ++at) {
      const std::size_t begin = text.find_last_not_of(" \n", at - 1),
                        end = text.find_first_not_of(" \n", at + member.size());
      if (text[begin] == '{' && text[end] == '}') text.replace(begin, end + 1 - begin, number), at = begin;
    }
  }
  return text;
}

ModelConfig::ModelConfig(const std::string& text, std::string at) : at_(std::move(at)) {
  Json json;
  try {
    json = parse_python_json(text);
  } catch (const ValueError& e) { fail<IOError>(at_, ": ", e.what()); }
  if (!json.as<Json::Object>()) fail<IOError>(at_, ": is no JSON object");
  const Json* language = json.find("text_config");
  nested_ = language && language->as<Json::Object>();
  add("", nested_ ? *language : json);
  // tie_word_embeddings stands at the top level, in text_config, or in both.
  const Json* const tied = nested_ ? json.find("tie_word_embeddings") : nullptr;
  if (tied && *tied == Json(true)) fields_["tie_word_embeddings"] = true;
}

void ModelConfig::add(const std::string& prefix, const Json& value) {
  const auto* const object = value.find("__float__") ? nullptr : value.as<Json::Object>();  // an infinity is a number
  if (object)
    for (const auto& [name, member] : *object) add(prefix.empty() ? name : prefix + "." + name, member);
  if (value.is_null() || (object && object->empty())) nulls_.insert(prefix);
  else if (object) return;
  else if (!fields_.emplace(prefix, value).second)
    fail<IOError>(at_, ": the field \"", prefix, "\" stands there twice, once with a dot in its name");
}

const Json* ModelConfig::find(const std::string& name) const {
  read_.insert(name);
  const auto it = fields_.find(name);
  return it == fields_.end() ? nullptr : &it->second;
}

void ModelConfig::refuse(const std::string& name, const std::string& why) const {
  const auto it = fields_.find(name);
  fail<IOError>(at_, ": \"", name, "\" is ", it == fields_.end() ? "missing" : to_text(it->second), "; ", why);
}

void ModelConfig::ignore(const std::string& names) const {
  std::istringstream all(names);
  for (std::string name; all >> name;) read_.insert(name);
}

void ModelConfig::rename(const std::string& names) const {
  const Json json = parse_json(names);
  for (const auto& [theirs, usual] : json.get<Json::Object>()) {
    const auto there = fields_.find(usual.get<std::string>()), old = fields_.find(theirs);
    if (old == fields_.end() || (there != fields_.end() && there->second != old->second)) continue;
    auto field = fields_.extract(old);
    field.key() = usual.get<std::string>();
    fields_.insert(std::move(field));
  }
}

void ModelConfig::assume(const std::string& defaults) const {
  const Json json = parse_json(defaults);
  for (const auto& [name, value] : json.get<Json::Object>())
    if (!find(name) && !is_null(name)) fields_.emplace(name, value);
}

void ModelConfig::check_read(const std::vector<std::string>& ignored) const {
  const auto known = [&](const std::string& name) {  // the field or an object around it was read: names have dots, too
    for (std::size_t end = name.find('.');; end = name.find('.', end + 1)) {
      const std::string part = name.substr(0, end);
      if (read_.contains(part) || std::find(ignored.begin(), ignored.end(), part) != ignored.end()) return true;
      if (end == std::string::npos) return false;
    }
  };
  std::string unknown;
  for (const auto& [name, value] : fields_)
    if (!known(name)) unknown += str("\n  \"", name, "\": ", to_text(value).substr(0, 100));
  if (!unknown.empty())
    fail<IOError>(at_,
                  ": fields that this library does not know and that may change what the model computes; "
                  "name them in ModelFilesOptions::ignore if they do not:",
                  unknown);
}

template <class T> T ModelConfig::at(const std::string& name) const {
  const Json* const value = find(name);
  if (!value) refuse(name, "the model needs it");
  const auto one = [&]<class V>(const Json& j, V*) -> V {
    if constexpr (std::is_same_v<V, double>) {
      if (const int64_t* whole = j.as<int64_t>()) return static_cast<double>(*whole);
      if (const Json* special = j.find("__float__"); special && *special == Json("Infinity"))
        return std::numeric_limits<double>::infinity();
    }
    const V* const exact = j.as<V>();
    if constexpr (std::is_same_v<V, int64_t>) {
      const double* const x = j.as<double>();
      const bool whole = x && std::abs(*x) < 1e18 && *x == std::trunc(*x);  // 8.0
      if (!exact && !whole) refuse(name, "it has another type");
      const int64_t i = exact ? *exact : static_cast<int64_t>(*x);
      if (i > kMost || i < -kMost) refuse(name, str("beyond ", kMost, ", it is no size of a model"));
      return i;
    } else {
      if (!exact) refuse(name, "it has another type");
      return *exact;
    }
  };
  if constexpr (requires { typename T::allocator_type; } && !std::is_same_v<T, std::string>) {
    const auto* list = value->as<Json::List>();
    if (!list) refuse(name, "it must be a list");
    T out;
    for (const Json& j : *list) out.push_back(one(j, static_cast<typename T::value_type*>(nullptr)));
    return out;
  } else {
    return one(*value, static_cast<T*>(nullptr));
  }
}
template int64_t ModelConfig::at(const std::string&) const;
template double ModelConfig::at(const std::string&) const;
template bool ModelConfig::at(const std::string&) const;
template std::string ModelConfig::at(const std::string&) const;
template std::vector<int64_t> ModelConfig::at(const std::string&) const;
template std::vector<double> ModelConfig::at(const std::string&) const;
template std::vector<std::string> ModelConfig::at(const std::string&) const;

}  // namespace sluice
