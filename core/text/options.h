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
//       f.training("dropout", o.dropout, probability(), "on the output");
//     }
//   };
//
//   check_options("gau", o);  // ValueError: gau: dim must be at least 1 — got dim=0
//   std::cout << o;           // {dim=8, kind=softmax}: what differs from the defaults
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/core/text/json.h>

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
constexpr OptionRange probability() { return {.low = 0, .high = 1, .without_high = true}; }
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
template <Named E> std::string_view name_of(E e) { return detail::choice_name(choices(e), static_cast<int64_t>(e)); }
template <Named E>
requires(!std::is_same_v<E, DType>) void append_text(std::string& s, E e) { s += name_of(e); }
/// The value called `name`; ValueError listing the known names.
template <Named E> E from_name(std::string_view name) {
  return static_cast<E>(detail::choice_index(choices(E{}), name));
}

/// " — did you mean …?" with the known name that is most similar; empty if none is similar.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// -- options -----------------------------------------------------------------------------------------------

class OptionList;

/// One option of one struct.
struct Option {
  /// The type of the value; of a list, the type of its items.
  enum Type { yes_no, whole, real, text, choice, object };
  std::string name;               // in files and flags, with the prefix of its part
  const char* meaning = "";       // for a reader
  Type type = yes_no;             // of its value
  bool list = false;              // the value is a list
  bool optional = false;          // std::optional: null is a value
  bool required = false;          // there is no default
  bool training = false;          // of initial values, dropout: no effect on a layer that gets its weights
  OptionRange range = {};         // of numbers
  const char* choices = nullptr;  // of an enum: its names, in order
  void* at = nullptr;             // address of the value

  /// The options of an object, with their defaults.
  OptionList (*fields)() = nullptr;
  /// The value at `at` as JSON.
  Json (*read)(const void* at) = nullptr;
  /// Replaces the value at `at`; false for JSON of another type. Errors of objects in a list begin with `where`.
  bool (*write)(const Json& value, void* at, const std::string& where) = nullptr;

  /// The value as JSON; an enum as the name of its choice, or as its number if it has no name.
  Json get() const { return read(at); }
  /// ValueError, beginning with `layer`, for a value of another type.
  void set(std::string_view layer, const Json& value) const;
  /// ValueError unless the value is in range.
  void check(std::string_view layer) const { check(layer, get()); }
  /// "int", "float or null", "list of objects", …
  std::string type_name() const;
  /// "at least 1", "in [0, 1)"; empty if every value of the type is allowed.
  std::string range_text() const;
  /// The names of an enum, in order; empty for other options.
  std::vector<std::string> choice_names() const;

 private:
  void check(std::string_view layer, const Json& value) const;
};

/// The options that describe() declares.
class OptionList {
 public:
  std::vector<Option> all;  // in the order of describe()

  /// Adds an option: a bool, i64, double, text or named enum, a std::optional or a list of them, or a list of described
  /// structs. Numbers have a range.
  template <class T> void operator()(const char* name, T& x, const char* meaning) {
    add(name, x, any_number(), meaning);
  }
  template <class T> void operator()(const char* name, T& x, OptionRange range, const char* meaning) {
    add(name, x, range, meaning);
  }
  void required(const char* name, int64_t& x, OptionRange range, const char* meaning) {
    add(name, x, range, meaning).required = true;
  }
  /// Adds an option without effect on a layer that gets its weights: initial values, dropout, the dtype.
  template <class T> void training(const char* name, T& x, const char* meaning) {
    add(name, x, any_number(), meaning).training = true;
  }
  template <class T> void training(const char* name, T& x, OptionRange range, const char* meaning) {
    add(name, x, range, meaning).training = true;
  }
  /// Adds the options of a part, with `prefix` before each name.
  template <class O> void nested(const std::string& prefix, O& o) {
    const std::string outer = prefix_;
    prefix_ += prefix;
    O::describe(o, *this);
    prefix_ = outer;
  }
  /// Removes options that the layer decides itself.
  void without(std::initializer_list<std::string_view> names);

 private:
  template <class T> Option& add(const char* name, T& x, OptionRange range, const char* meaning);
  Option& add(const char* name, Option& o);

  std::string prefix_;
};

template <class O>
concept Described = requires(O& o, OptionList& f) {
  O::describe(o, f);
};

/// The options of o, with addresses inside o.
template <Described O> OptionList options_of(O& o) {
  OptionList list;
  O::describe(o, list);
  return list;
}
/// The options of o, for reading only.
template <Described O> OptionList options_of(const O& o) { return options_of(const_cast<O&>(o)); }

namespace detail {
/// The name of a choice, or its number if it has no name. choice_from(): the number of a name, or −1.
Json choice_json(const char* choices, int64_t i);
int64_t choice_from(const char* choices, const Json& name);
/// A number that may be infinite, as JSON; JSON has no infinities and no NaN, so these are texts. number_from() refuses
/// NaN.
Json number_json(double x);
bool number_from(const Json& j, double& x);

void check_options(std::string_view layer, const OptionList& options);
Json to_json(const OptionList& options);
void from_json(std::string_view layer, const Json& j, const OptionList& options);
std::string text_of(const OptionList& options, const OptionList& defaults);
std::ostream& print(std::ostream& out, const std::string& text);

enum class YesNo : bool { no, yes };
constexpr const char* choices(YesNo) { return "no yes"; }
template <class T>
concept List = requires(T x) {
  x.emplace_back();
};
template <class T>
concept Optional = requires(T x) {
  x.has_value();
};
/// The type inside an optional. An optional bool is declared as a choice (YesNo).
template <Optional T>
using Held = std::conditional_t<std::is_same_v<T, std::optional<bool>>, YesNo, typename T::value_type>;

/// Names of the values of an option of type E. An option of type DType allows only the dtypes in which layers compute.
template <Named E> constexpr const char* option_choices(E e) {
  return std::is_same_v<E, DType> ? "f32 f64 bf16" : choices(e);
}

/// Sets the members of `o` that follow from the type T.
template <class T> void declare(Option& o) {
  if constexpr (List<T>) declare<typename T::value_type>(o), o.list = true;
  else if constexpr (Optional<T>) declare<Held<T>>(o), o.optional = true;
  else if constexpr (Named<T>) o.type = Option::choice, o.choices = option_choices(T{});
  else if constexpr (Described<T>) {
    o.type = Option::object;
    o.fields = [] {
      static const T defaults{};
      return options_of(defaults);
    };
  } else if constexpr (std::is_same_v<T, bool>) o.type = Option::yes_no;
  else if constexpr (std::is_same_v<T, int64_t>) o.type = Option::whole;
  else if constexpr (std::is_same_v<T, double>) o.type = Option::real;
  else {
    static_assert(std::is_same_v<T, std::string>, "OptionList::operator() says which types an option may have");
    o.type = Option::text;
  }
}
/// The value as JSON.
template <class T> Json value_json(const T& x) {
  if constexpr (List<T>) {
    Json::List list;
    for (const auto& item : x) list.push_back(value_json(item));
    return list;
  } else if constexpr (Optional<T>) return x ? value_json(static_cast<Held<T>>(*x)) : Json();
  else if constexpr (Named<T>) return choice_json(option_choices(x), static_cast<int64_t>(x));
  else if constexpr (Described<T>) return to_json(options_of(x));
  else if constexpr (std::is_same_v<T, double>) return number_json(x);
  else return x;
}
/// Sets x. False, and x unchanged, for JSON of another type. Errors about an object in a list begin with `where`.
template <class T> bool value_from(const Json& j, T& x, const std::string& where) {
  if constexpr (List<T>) {
    const auto* list = j.as<Json::List>();
    T items(list ? list->size() : 0);
    for (std::size_t i = 0; i < items.size(); ++i)
      if (!value_from((*list)[i], items[i], str(where, '[', i, ']'))) return false;
    return list && (x = std::move(items), true);
  } else if constexpr (Optional<T>) {
    if (j.is_null()) return x.reset(), true;
    Held<T> held{};
    return value_from(j, held, where) && (x = static_cast<typename T::value_type>(held), true);
  } else if constexpr (Named<T>) {
    const int64_t i = choice_from(option_choices(x), j);
    return i >= 0 && (x = static_cast<T>(i), true);
  } else if constexpr (Described<T>) return from_json(where, j, options_of(x)), true;
  else if constexpr (std::is_same_v<T, double>) return number_from(j, x);
  else return j.as<T>() && (x = *j.as<T>(), true);
}
}  // namespace detail

template <class T> Option& OptionList::add(const char* name, T& x, OptionRange range, const char* meaning) {
  Option o;
  o.meaning = meaning, o.range = range, o.at = &x;
  detail::declare<T>(o);
  o.read = [](const void* at) { return detail::value_json(*static_cast<const T*>(at)); };
  o.write = [](const Json& j, void* at, const std::string& where) {
    return detail::value_from(j, *static_cast<T*>(at), where);
  };
  return add(name, o);
}

/// Throws ValueError "layer: dim must be at least 1 — got dim=0" for the first value out of its range. Combinations of
/// options are checked by the layer.
template <Described O> void check_options(std::string_view layer, const O& o) {
  detail::check_options(layer, options_of(o));
}
/// One object, parts included. Infinities are the texts "inf" and "-inf", as JSON has none.
template <Described O> Json to_json(const O& o) { return detail::to_json(options_of(o)); }
/// Sets the options that `j` names; others keep their values. Throws ValueError, beginning with `layer`, for unknown
/// names, for required names that are missing, for values of another type and for values out of range; `o` is then as
/// before.
template <Described O> void from_json(std::string_view layer, const Json& j, O& o) {
  O set = o;
  detail::from_json(layer, j, options_of(set));
  o = std::move(set);
}
/// "{dim=8, kind=softmax}": the required options, and those that differ from the defaults.
template <Described O> std::string text_of(const O& o) {
  O defaults{};
  return detail::text_of(options_of(o), options_of(defaults));
}
/// text_of().
template <Described O> void append_text(std::string& s, const O& o) { s += text_of(o); }
/// text_of().
template <Described O> std::ostream& operator<<(std::ostream& out, const O& o) {
  return detail::print(out, text_of(o));
}

}  // namespace sluice
