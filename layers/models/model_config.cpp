#include <sluice/layers/models/model_config.h>

#include <algorithm>
#include <limits>

namespace sluice {

namespace {

constexpr int64_t kMost = int64_t{1} << 26;  // so that sums and products of two fields do not overflow

/// Python writes Infinity, which JSON does not know; newer files have an object in its place.
std::string with_infinity(const std::string& text) {
  std::string out;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') out += text[i++];
    if (i < text.size() && text[i] == '"') quoted = !quoted;
    if (!quoted && text.compare(i, 8, "Infinity") == 0) out += "{\"__float__\": \"Infinity\"}", i += 7;
    else if (i < text.size()) out += text[i];
  }
  return out;
}

}  // namespace

ModelConfig::ModelConfig(const std::string& text, std::string path) : path_(std::move(path)) {
  Json json;
  try {
    json = parse_json(with_infinity(text));
  } catch (const ValueError& e) { fail<IOError>("'", path_, "': ", e.what()); }
  if (!json.as<Json::Object>()) fail<IOError>("'", path_, "': is no JSON object");
  const Json* language = json.find("text_config");
  nested_ = language && language->as<Json::Object>();
  add("", nested_ ? *language : json);
}

void ModelConfig::add(const std::string& prefix, const Json& value) {
  if (const auto* object = value.as<Json::Object>())
    for (const auto& [name, member] : *object) add(prefix.empty() ? name : prefix + "." + name, member);
  else if (!value.is_null()) fields_[prefix] = value;
}

const Json* ModelConfig::find(const std::string& name) const {
  read_.insert(name);
  const auto it = fields_.find(name);
  return it == fields_.end() ? nullptr : &it->second;
}

void ModelConfig::refuse(const std::string& name, const std::string& why) const {
  const auto it = fields_.find(name);
  fail<IOError>("'", path_, "': \"", name, "\" is ", it == fields_.end() ? "missing" : to_text(it->second), "; ", why);
}

void ModelConfig::check_read(const std::vector<std::string>& ignored) const {
  std::string unknown;
  for (const auto& [name, value] : fields_) {
    const std::string whole = name.substr(0, name.find('.'));
    const bool known = read_.contains(name) || read_.contains(whole) ||
                       std::find(ignored.begin(), ignored.end(), whole) != ignored.end();
    if (!known) unknown += str("\n  \"", name, "\": ", to_text(value).substr(0, 100));
  }
  if (!unknown.empty())
    fail<IOError>("'", path_,
                  "': fields that this library does not know and that may change what the model computes; "
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
    if constexpr (std::is_same_v<V, int64_t>)  // 8.0
      if (const double* x = j.as<double>(); x && *x > -1e15 && *x < 1e15 && *x == static_cast<double>(int64_t(*x)))
        return static_cast<int64_t>(*x);
    const V* const exact = j.as<V>();
    if (!exact) refuse(name, "it has another type");
    if constexpr (std::is_same_v<V, int64_t>)
      if (*exact > kMost || *exact < -kMost) refuse(name, str("beyond ", kMost, ", it is no size of a model"));
    return *exact;
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
