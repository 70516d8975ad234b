#include <sluice/core/text/json.h>

#include <sluice/core/text/utf8.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <type_traits>

namespace sluice {

namespace {

constexpr std::size_t kDeepest = 32;

/// Builds the value. `open_` has the lists and objects around the next value.
struct Builder final : nlohmann::json_sax<nlohmann::json> {
  Json root;
  std::string error;

  bool null() override { return put({}); }
  bool boolean(bool b) override { return put(b); }
  bool number_unsigned(uint64_t u) override {
    return u <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ? put(static_cast<int64_t>(u))
                                                                           : put(static_cast<double>(u));
  }
  bool number_integer(int64_t i) override { return put(i); }
  bool number_float(double x, const std::string&) override { return put(x); }
  bool string(std::string& s) override { return put(std::move(s)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_array(std::size_t) override { return start(Json::List{}); }
  bool start_object(std::size_t) override { return start(Json::Object{}); }
  bool end_array() override { return open_.pop_back(), true; }
  /// Sorts the names: a vocabulary has too many for a search at each.
  bool end_object() override {
    std::vector<std::string_view> names;
    for (const auto& entry : std::get<Json::Object>(open_.back()->value)) names.push_back(entry.first);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end())
      return error = str("the name \"", detail::shortened(*twice, 100), "\" appears twice in an object"), false;
    return open_.pop_back(), true;
  }
  bool key(std::string& s) override {
    std::get<Json::Object>(open_.back()->value).emplace_back(s, Json());
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception& e) override {
    return error = str("it is not JSON at byte ", at, " (", detail::shortened(e.what()), ")"), false;
  }

 private:
  bool put(Json j) { return place() = std::move(j), true; }
  Json& place() {
    if (open_.empty()) return root;
    if (auto* list = std::get_if<Json::List>(&open_.back()->value)) return list->emplace_back();
    return std::get<Json::Object>(open_.back()->value).back().second;
  }
  bool start(Json j) {
    if (open_.size() == kDeepest) return error = str("it is nested deeper than ", kDeepest), false;
    Json& at = place();
    at = std::move(j);
    open_.push_back(&at);
    return true;
  }
  std::vector<Json*> open_;
};

/// Appends j to `out` in the format of nlohmann's dump(). Writes lists and objects itself, because destroying
/// nlohmann's needs memory. A negative indent writes one line; `depth` is the number of lists and objects around j.
void write(const Json& j, int indent, int depth, std::string& out) {
  const auto line = [&](int at) {
    if (indent >= 0) out.append(1, '\n').append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(at), ' ');
  };
  const auto each = [&](const auto& values, char open, char close, const auto& value) {
    out += open;
    for (const auto& x : values) {
      if (&x != &values.front()) out += ',';
      line(depth + 1);
      value(x);
    }
    if (!values.empty()) line(depth);
    out += close;
  };
  if (const auto* list = j.as<Json::List>()) {
    each(*list, '[', ']', [&](const Json& x) { write(x, indent, depth + 1, out); });
  } else if (const auto* object = j.as<Json::Object>()) {
    each(*object, '{', '}', [&](const auto& entry) {
      out.append(nlohmann::json(entry.first).dump()).append(indent < 0 ? ":" : ": ");
      write(entry.second, indent, depth + 1, out);
    });
  } else {
    std::visit(
        [&]<class T>(const T& v) {
          if constexpr (std::is_same_v<T, std::monostate>) out += "null";
          else if constexpr (!std::is_same_v<T, Json::List> && !std::is_same_v<T, Json::Object>)
            out += nlohmann::json(v).dump();
        },
        j.value);
  }
}

}  // namespace

const Json& Json::at(std::string_view name) const {
  if (const Json* j = find(name)) return *j;
  fail<ValueError>("json: no \"", name, "\" in ", detail::shortened(to_text(*this)));
}
bool operator==(const Json& a, const Json& b) { return a.value == b.value; }  // not defaulted: clang 14 would crash
void Json::fail_type() const {
  fail<ValueError>("json: not the type that is needed — got ", detail::shortened(to_text(*this)));
}

const Json* Json::find(std::string_view name) const {
  const Object* o = as<Object>();
  if (!o) return nullptr;
  const auto it = std::find_if(o->begin(), o->end(), [&](const auto& e) { return e.first == name; });
  return it == o->end() ? nullptr : &it->second;
}

Json& Json::operator[](std::string_view name) {
  if (is_null()) value = Object();
  if (const Json* found = find(name)) return const_cast<Json&>(*found);
  if (!as<Object>()) fail_type();
  return std::get<Object>(value).emplace_back(name, Json()).second;
}

Json parse_json(std::string_view text) {
  if (const std::size_t nul = text.find('\0'); nul != text.npos)
    fail<ValueError>("json: it is not JSON at byte ", nul, " (a NUL character)");
  Builder builder;
  if (!nlohmann::json::sax_parse(text, &builder)) fail<ValueError>("json: ", builder.error);
  return std::move(builder.root);
}

std::string to_text(const Json& j, int indent) {
  try {
    std::string out;
    write(j, indent, 0, out);
    return out;
  } catch (const nlohmann::json::exception& e) {
    fail<ValueError>("json: a name or text is not UTF-8 (", e.what(), ")");
  }
}

}  // namespace sluice
