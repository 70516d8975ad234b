// JSON as a value and as text. Only json.cpp includes the parser's own header, which is slow to compile.
#pragma once

#include <sluice/core/error.h>

#include <utility>
#include <variant>
#include <vector>

namespace sluice {

/// null, bool, whole number, float, text, list, object. Objects keep the order of their names.
struct Json {
  using List = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;
  std::variant<std::monostate, bool, int64_t, double, std::string, List, Object> value;

  Json() = default;
  /// Assigns to a default value: when memory runs out, libstdc++ 12's copy constructor of variant destroys an object
  /// that it never made.
  Json(const Json& o) {
    std::visit([this](const auto& v) { value = v; }, o.value);
  }
  Json(Json&&) noexcept = default;
  Json& operator=(const Json& o) { return *this = Json(o); }
  Json& operator=(Json&&) noexcept = default;
  ~Json() = default;
  Json(bool b) : value(b) {}
  Json(int i) : value(int64_t{i}) {}
  Json(int64_t i) : value(i) {}
  Json(double x) : value(x) {}
  Json(const char* s) : value(std::string(s)) {}
  Json(std::string_view s) : value(std::string(s)) {}
  Json(std::string s) : value(std::move(s)) {}
  Json(List l) : value(std::move(l)) {}
  Json(Object o) : value(std::move(o)) {}
  template <class T> static Json list(const std::vector<T>& xs) { return List(xs.begin(), xs.end()); }

  bool is_null() const { return value.index() == 0; }
  /// The value as a T; null if it has another type.
  template <class T> const T* as() const { return std::get_if<T>(&value); }
  /// The member `name` of an object; null if there is none.
  const Json* find(std::string_view name) const;
  /// at() returns the member `name`; throws ValueError if there is none. get() returns this value as a T; throws
  /// ValueError for another type.
  const Json& at(std::string_view name) const;
  template <class T> const T& get() const {
    if (const T* v = as<T>()) return *v;
    fail_type();
  }
  /// The member `name`, added if there is none; null becomes an object. ValueError for any other value. Adding ends
  /// references to the other members: j["new"] = Json(j["old"]) needs the copy.
  Json& operator[](std::string_view name);
  friend bool operator==(const Json&, const Json&);

 private:
  [[noreturn]] void fail_type() const;
};

/// Throws ValueError with place and reason for text that is not JSON, for names that occur twice in an object, and for
/// nesting deeper than 32. A whole number beyond i64 becomes a float.
Json parse_json(std::string_view text);
/// On one line, or with `indent` spaces per level. An infinity or NaN is written as null: JSON has neither. ValueError
/// for text that is not UTF-8.
std::string to_text(const Json& j, int indent = -1);
inline void append_text(std::string& s, const Json& j) { s += to_text(j); }

}  // namespace sluice
