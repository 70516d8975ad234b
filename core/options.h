// Options that describe themselves. The name, meaning and range of an option are written once, beside the struct;
// checks, printing, files and external tools use them.
//
//   enum class GauKind { su, softmax };
//   constexpr const char* choices(GauKind) { return "su softmax"; }  // in the order of the enum
//
//   struct GauOptions {
//     int64_t dim;
//     GauKind kind = GauKind::su;
//     double dropout = 0;
//     static void describe(auto& o, auto& f) {
//       f.required("dim", o.dim, at_least(1), "width d");
//       f("kind", o.kind, "weights A");
//       f.training("dropout", o.dropout, share(), "on the output");
//     }
//   };
//
//   check_options("gau", o);  // ValueError: gau: dim must be at least 1 — got dim=0
//   std::cout << o;           // {dim=8, kind=softmax}: what differs from the defaults
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/core/json.h>

#include <concepts>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <optional>

namespace sluice {

/// The values a number may have: finite ones from `low` to `high`.
struct OptionRange {
  double low = -std::numeric_limits<double>::infinity();  // the least
  double high = std::numeric_limits<double>::infinity();  // the greatest
  bool without_low = false, without_high = false;         // the range excludes `low`, `high` itself
  bool infinite = false;                                  // ±∞ too
};
/// The range of a number: at least, above, between (ends included).
constexpr OptionRange at_least(double low) { return {.low = low}; }
constexpr OptionRange above(double low) { return {.low = low, .without_low = true}; }
constexpr OptionRange between(double low, double high) { return {.low = low, .high = high}; }
/// [0, 1), for dropout.
constexpr OptionRange share() { return {.low = 0, .high = 1, .without_high = true}; }
/// Any finite number.
constexpr OptionRange any_number() { return {}; }

/// Largest whole number of an option, unless its range says otherwise. A product of two fits into i64.
inline constexpr int64_t kLargestSize = (int64_t{1} << 31) - 1;

// -- enums -------------------------------------------------------------------------------------------------

constexpr const char* choices(DType) { return "f32 f64 bf16 i64 i32 bool"; }

template <class E>
concept Named = std::is_enum_v<E> && requires(E e) {
  { choices(e) } -> std::same_as<const char*>;
};
namespace detail {
std::string_view choice_name(const char* choices, int64_t i);
/// Index of `name`; ValueError listing the known names.
int64_t choice_index(const char* choices, std::string_view name);
}  // namespace detail
/// The name of `e` in files and flags.
template <Named E>
std::string_view name_of(E e) {
  return detail::choice_name(choices(e), static_cast<int64_t>(e));
}
template <Named E>
  requires(!std::is_same_v<E, DType>)
void append_text(std::string& s, E e) {
  s += name_of(e);
}
/// The value called `name`; ValueError listing the known names.
template <Named E>
E from_name(std::string_view name) {
  return static_cast<E>(detail::choice_index(choices(E{}), name));
}

/// " — did you mean …?" with the known name that is most similar; empty if none is similar.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// -- options -----------------------------------------------------------------------------------------------

class OptionList;

/// One option of one struct.
struct Option {
  /// Type of the value.
  enum Type { yes_no, whole, real, whole_list, real_list, choice, object_list };
  std::string name;       // in files and flags, with the prefix of its part
  const char* meaning;    // for a reader
  Type type;              // of its value
  bool optional = false;          // std::optional: null is a value
  bool required = false;          // there is no default
  bool training = false;          // of initial values, dropout: no effect on a layer that gets its weights
  OptionRange range = {};         // of numbers
  const char* choices = nullptr;  // of an enum: its names, in order
  void* at = nullptr;             // address of the value

  /// Functions that reach a choice or a list of objects.
  struct Access {
    void (*resize)(void* list, std::size_t n) = nullptr;        // of a list of objects
    std::size_t (*size)(const void* list) = nullptr;            // of the list
    OptionList (*object)(void* list, std::size_t i) = nullptr;  // the i-th
    Json (*get)(const void* choice) = nullptr;                  // index, or null
    void (*set)(void* choice, int64_t index) = nullptr;         // -1: null
  };
  Access access = {};  // for choices and lists of objects

  /// The value as JSON; an enum as the name of its choice.
  Json get() const;
  /// ValueError, beginning with `layer`, for a value of another type.
  void set(std::string_view layer, const Json& value) const;
  /// ValueError unless the value is in range.
  void check(std::string_view layer) const;
  /// "int", "float or null", "list of objects", …
  std::string type_name() const;
  /// "at least 1", "in [0, 1)"; empty if every value of the type is allowed.
  std::string range_text() const;
  std::vector<std::string> choice_names() const;
};

/// The options that describe() declares.
class OptionList {
 public:
  std::vector<Option> all;  // in the order of describe()

  /// Adds an option: a bool, i64, double or named enum, a list, a std::optional, or a list of described structs.
  /// Numbers have a range.
  template <class T>
  void operator()(const char* name, T& x, const char* meaning) {
    add(name, x, any_number(), meaning);
  }
  template <class T>
  void operator()(const char* name, T& x, OptionRange range, const char* meaning) {
    add(name, x, range, meaning);
  }
  void required(const char* name, int64_t& x, OptionRange range, const char* meaning) {
    add(name, x, range, meaning), all.back().required = true;
  }
  /// Adds an option without effect on a layer that gets its weights: initial values, dropout, the dtype.
  template <class T>
  void training(const char* name, T& x, const char* meaning) {
    add(name, x, any_number(), meaning), all.back().training = true;
  }
  template <class T>
  void training(const char* name, T& x, OptionRange range, const char* meaning) {
    add(name, x, range, meaning), all.back().training = true;
  }
  /// Adds the options of a part, with `prefix` before each name.
  template <class O>
  void nested(const std::string& prefix, O& o) {
    const std::string outer = prefix_;
    prefix_ += prefix;
    O::describe(o, *this);
    prefix_ = outer;
  }
  /// Removes options that the layer decides itself.
  void without(std::initializer_list<std::string_view> names);

 private:
  Option& add(const char* name, Option::Type type, void* at, OptionRange range, const char* meaning);
  void add(const char* name, bool& x, OptionRange r, const char* meaning) { add(name, Option::yes_no, &x, r, meaning); }
  void add(const char* name, int64_t& x, OptionRange r, const char* meaning) { add(name, Option::whole, &x, r, meaning); }
  void add(const char* name, double& x, OptionRange r, const char* meaning) { add(name, Option::real, &x, r, meaning); }
  void add(const char* name, std::optional<double>& x, OptionRange r, const char* meaning) {
    add(name, Option::real, &x, r, meaning).optional = true;
  }
  void add(const char* name, std::vector<int64_t>& x, OptionRange r, const char* meaning) {
    add(name, Option::whole_list, &x, r, meaning);
  }
  void add(const char* name, std::vector<double>& x, OptionRange r, const char* meaning) {
    add(name, Option::real_list, &x, r, meaning);
  }
  void add(const char* name, std::optional<bool>& x, OptionRange, const char* meaning);
  template <Named E>
  void add(const char* name, E& x, OptionRange r, const char* meaning) {
    Option& o = add(name, Option::choice, &x, r, meaning);
    o.choices = choices(x);
    o.access.get = [](const void* at) { return Json(static_cast<int64_t>(*static_cast<const E*>(at))); };
    o.access.set = [](void* at, int64_t i) { *static_cast<E*>(at) = static_cast<E>(i); };
  }
  template <Named E>
  void add(const char* name, std::optional<E>& x, OptionRange r, const char* meaning) {
    Option& o = add(name, Option::choice, &x, r, meaning);
    o.optional = true, o.choices = choices(E{});
    o.access.get = [](const void* at) {
      const auto& e = *static_cast<const std::optional<E>*>(at);
      return e ? Json(static_cast<int64_t>(*e)) : Json();
    };
    o.access.set = [](void* at, int64_t i) {
      auto& e = *static_cast<std::optional<E>*>(at);
      e = i < 0 ? std::nullopt : std::optional<E>(static_cast<E>(i));
    };
  }
  template <class O>
    requires requires(O& o, OptionList& f) { O::describe(o, f); }
  void add(const char* name, std::vector<O>& x, OptionRange r, const char* meaning) {
    using List = std::vector<O>;
    Option& o = add(name, Option::object_list, &x, r, meaning);
    o.access.resize = [](void* at, std::size_t n) { static_cast<List*>(at)->resize(n); };
    o.access.size = [](const void* at) { return static_cast<const List*>(at)->size(); };
    o.access.object = [](void* at, std::size_t i) {
      OptionList inner;
      O::describe((*static_cast<List*>(at))[i], inner);
      return inner;
    };
  }

  std::string prefix_;
};

template <class O>
concept Described = requires(O& o, OptionList& f) { O::describe(o, f); };

namespace detail {
void check_options(std::string_view layer, const OptionList& options);
Json to_json(const OptionList& options);
void from_json(std::string_view layer, const Json& j, const OptionList& options);
std::string text_of(const OptionList& options, const OptionList& defaults);
std::ostream& print(std::ostream& out, const std::string& text);
}  // namespace detail

/// The options of o, with addresses inside o.
template <Described O>
OptionList options_of(O& o) {
  OptionList list;
  O::describe(o, list);
  return list;
}
/// The options of o, for reading only.
template <Described O>
OptionList options_of(const O& o) {
  return options_of(const_cast<O&>(o));
}

/// Throws ValueError "layer: dim must be at least 1 — got dim=0" for the first value out of its range. Combinations of
/// options are checked by the layer.
template <Described O>
void check_options(std::string_view layer, const O& o) {
  detail::check_options(layer, options_of(o));
}
/// One object, parts included. Infinities are the texts "inf" and "-inf", as JSON has none.
template <Described O>
Json to_json(const O& o) {
  return detail::to_json(options_of(o));
}
/// Sets the options that `j` names; others keep their values. Throws ValueError, beginning with `layer`, for unknown
/// names, for required names that are missing, for values of another type and for values out of range.
template <Described O>
void from_json(std::string_view layer, const Json& j, O& o) {
  detail::from_json(layer, j, options_of(o));
}
/// True if every option has the same value in a and b.
template <Described O>
bool options_equal(const O& a, const O& b) {
  return to_json(a) == to_json(b);
}
/// "{dim=8, kind=softmax}": the required options, and those that differ from the defaults.
template <Described O>
std::string text_of(const O& o) {
  O defaults{};
  return detail::text_of(options_of(o), options_of(defaults));
}
/// text_of().
template <Described O>
void append_text(std::string& s, const O& o) {
  s += text_of(o);
}
/// text_of().
template <Described O>
std::ostream& operator<<(std::ostream& out, const O& o) {
  return detail::print(out, text_of(o));
}

}  // namespace sluice
