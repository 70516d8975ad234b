#include <sluice/core/options.h>

#include <algorithm>
#include <cmath>
#include <ostream>

namespace sluice {

namespace {

std::vector<std::string> split_names(const char* choices) {
  std::vector<std::string> names(1);
  for (const char* c = choices; *c; ++c)
    if (*c == ' ') names.emplace_back();
    else names.back() += *c;
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string s;
  for (const std::string& n : names) s += (s.empty() ? "" : ", ") + n;
  return s;
}

/// JSON has no infinities and no NaN.
Json printable(double x) {
  if (std::isfinite(x)) return x;
  return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
}
bool as_number(const Json& j, double& out) {
  if (const auto* x = j.as<double>()) return out = *x, true;
  if (const auto* i = j.as<int64_t>()) return out = static_cast<double>(*i), true;
  const auto* s = j.as<std::string>();
  if (!s || (*s != "inf" && *s != "-inf")) return false;
  out = *s == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  return true;
}

bool inside(const OptionRange& r, double x) {
  if (std::isinf(x)) return r.infinite && x >= r.low && x <= r.high;
  return (r.without_low ? x > r.low : x >= r.low) && (r.without_high ? x < r.high : x <= r.high);
}

std::string words(const OptionRange& r) {
  const auto ends = [](double x) { return std::isinf(x) || std::abs(x) == static_cast<double>(kLargestSize); };
  if (!ends(r.low) && !ends(r.high))
    return str("in ", r.without_low ? '(' : '[', r.low, ", ", r.high, r.without_high ? ')' : ']');
  if (!ends(r.low)) return str(r.without_low ? "above " : "at least ", r.low);
  return ends(r.high) ? "" : str(r.without_high ? "below " : "at most ", r.high);
}

/// Letters to insert, drop or exchange to get from one name to the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = i - 1;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  name = name.substr(0, 200);  // a damaged file may have endless names
  const std::string* best = nullptr;
  std::size_t least = name.size() / 2 + 1;
  for (const std::string& k : known) {
    if (k.size() >= name.size() + least) continue;
    if (const std::size_t d = edit_distance(name, k); d < least) least = d, best = &k;
  }
  return best ? str(" — did you mean \"", *best, "\"?") : "";
}

namespace detail {

std::string_view choice_name(const char* choices, int64_t i) {
  std::string_view rest = choices;
  for (; i > 0 && !rest.empty(); --i) rest.remove_prefix(std::min(rest.find(' '), rest.size() - 1) + 1);
  return i != 0 || rest.empty() ? "unknown" : rest.substr(0, rest.find(' '));
}

int64_t choice_index(const char* choices, std::string_view name) {
  const std::vector<std::string> names = split_names(choices);
  const auto it = std::find(names.begin(), names.end(), name);
  if (it == names.end())
    fail<ValueError>("from_name: nothing is called \"", name, "\"; known: ", joined(names));
  return it - names.begin();
}

}  // namespace detail

// -- one option ----------------------------------------------------------------------------------------------

std::string Option::range_text() const { return words(range); }

std::vector<std::string> Option::choice_names() const {
  return choices ? split_names(choices) : std::vector<std::string>();
}

std::string Option::type_name() const {
  static constexpr const char* names[] = {"bool",        "int",           "float", "list of int",
                                          "list of float", "text",        "list of objects"};
  return str(names[type], optional ? " or null" : "");
}

Json Option::get() const {
  switch (type) {
    case yes_no: return *static_cast<const bool*>(at);
    case whole: return *static_cast<const int64_t*>(at);
    case real: {
      if (!optional) return printable(*static_cast<const double*>(at));
      const auto& x = *static_cast<const std::optional<double>*>(at);
      return x ? printable(*x) : Json();
    }
    case whole_list: return Json::list(*static_cast<const std::vector<int64_t>*>(at));
    case real_list: {
      Json::List list;
      for (double x : *static_cast<const std::vector<double>*>(at)) list.push_back(printable(x));
      return list;
    }
    case choice: {
      const Json i = access.get(at);
      return i.is_null() ? i : Json(detail::choice_name(choices, *i.as<int64_t>()));
    }
    case object_list: {
      Json::List list;
      for (std::size_t i = 0; i < access.size(at); ++i) list.push_back(detail::to_json(access.object(at, i)));
      return list;
    }
  }
  return {};
}

void Option::set(std::string_view layer, const Json& given) const {
  auto wrong = [&] {
    const std::vector<std::string> known = choice_names();
    const auto* s = given.as<std::string>();
    fail<ValueError>(layer, ": option \"", name, "\" must be of type ", type_name(), " — got ", given,
                     known.empty() ? "" : str("; known: ", joined(known)), s ? did_you_mean(*s, known) : "");
  };
  if (given.is_null() && optional) {
    if (type == real) static_cast<std::optional<double>*>(at)->reset();
    else access.set(at, -1);
    return;
  }
  const auto* list = given.as<Json::List>();
  switch (type) {
    case yes_no:
      if (const auto* b = given.as<bool>()) *static_cast<bool*>(at) = *b;
      else wrong();
      return;
    case whole:
      if (const auto* i = given.as<int64_t>()) *static_cast<int64_t*>(at) = *i;
      else wrong();
      return;
    case real: {
      double x = 0;
      if (!as_number(given, x)) wrong();
      if (optional) *static_cast<std::optional<double>*>(at) = x;
      else *static_cast<double*>(at) = x;
      return;
    }
    case whole_list: {
      std::vector<int64_t> xs;
      for (const Json& j : list ? *list : Json::List{Json()}) {
        const auto* i = j.as<int64_t>();
        if (!i) wrong();
        xs.push_back(*i);
      }
      *static_cast<std::vector<int64_t>*>(at) = std::move(xs);
      return;
    }
    case real_list: {
      std::vector<double> xs;
      for (const Json& j : list ? *list : Json::List{Json()})
        if (!as_number(j, xs.emplace_back())) wrong();
      *static_cast<std::vector<double>*>(at) = std::move(xs);
      return;
    }
    case choice: {
      const auto* s = given.as<std::string>();
      const std::vector<std::string> known = choice_names();
      const auto it = s ? std::find(known.begin(), known.end(), *s) : known.end();
      if (it == known.end()) wrong();
      return access.set(at, it - known.begin());
    }
    case object_list:
      if (!list) wrong();
      access.resize(at, 0);  // so that options left out of an object have their defaults
      access.resize(at, list->size());
      for (std::size_t i = 0; i < list->size(); ++i)
        detail::from_json(str(layer, ": ", name, "[", i, "]"), (*list)[i], access.object(at, i));
  }
}

void Option::check(std::string_view layer) const {
  auto number = [&](double x, const OptionRange& r, const auto& got) {
    if (inside(r, x)) return;
    const bool huge = x > r.high && r.high == static_cast<double>(kLargestSize);
    const bool bounded = std::isfinite(r.low) && std::isfinite(r.high);
    const std::string allowed = huge ? str("at most ", kLargestSize) : std::isfinite(x) || bounded ? words(r) : "finite";
    fail<ValueError>(layer, ": ", name, " must be ", allowed, " — got ", name, "=", got);
  };
  switch (type) {
    case yes_no: return;
    case whole: {
      const int64_t i = *static_cast<const int64_t*>(at);
      return number(static_cast<double>(i), range, i);
    }
    case real: {
      const auto* x = static_cast<const double*>(at);
      if (optional) {
        const auto& maybe = *static_cast<const std::optional<double>*>(at);
        x = maybe ? &*maybe : nullptr;
      }
      if (x) number(*x, range, *x);
      return;
    }
    case whole_list:
      for (int64_t i : *static_cast<const std::vector<int64_t>*>(at))
        number(static_cast<double>(i), range, i);
      return;
    case real_list:
      for (double x : *static_cast<const std::vector<double>*>(at)) number(x, range, x);
      return;
    case choice: {
      const Json i = access.get(at);
      if (!i.is_null() && detail::choice_name(choices, *i.as<int64_t>()) == "unknown")
        fail<ValueError>(layer, ": ", name, " must be one of ", joined(choice_names()), " — got number ", i);
      return;
    }
    case object_list:
      for (std::size_t i = 0; i < access.size(at); ++i)
        detail::check_options(str(layer, ": ", name, "[", i, "]"), access.object(at, i));
  }
}

// -- lists of options ------------------------------------------------------------------------------------------

Option& OptionList::add(const char* name, Option::Type type, void* at, OptionRange range, const char* meaning) {
  if (type == Option::whole || type == Option::whole_list) {
    if (std::isinf(range.low)) range.low = -static_cast<double>(kLargestSize);
    if (std::isinf(range.high)) range.high = static_cast<double>(kLargestSize);
  }
  return all.emplace_back(Option{.name = prefix_ + name, .meaning = meaning, .type = type, .range = range, .at = at});
}

void OptionList::add(const char* name, std::optional<bool>& x, OptionRange r, const char* meaning) {
  Option& o = add(name, Option::choice, &x, r, meaning);
  o.optional = true, o.choices = "no yes";
  o.access.get = [](const void* at) {
    const auto& b = *static_cast<const std::optional<bool>*>(at);
    return b ? Json(int64_t{*b}) : Json();
  };
  o.access.set = [](void* at, int64_t i) {
    *static_cast<std::optional<bool>*>(at) = i < 0 ? std::nullopt : std::optional<bool>(i == 1);
  };
}

void OptionList::without(std::initializer_list<std::string_view> names) {
  std::erase_if(all, [&](const Option& o) {
    return std::any_of(names.begin(), names.end(), [&](std::string_view n) { return o.name == prefix_ + std::string(n); });
  });
}

namespace detail {

void check_options(std::string_view layer, const OptionList& options) {
  for (const Option& o : options.all) o.check(layer);
}

Json to_json(const OptionList& options) {
  Json::Object object;
  for (const Option& o : options.all) object.emplace_back(o.name, o.get());
  return object;
}

void from_json(std::string_view layer, const Json& j, const OptionList& options) {
  const auto* object = j.as<Json::Object>();
  if (!object) fail<ValueError>(layer, ": options must be a JSON object — got ", j);
  std::vector<std::string> known;
  for (const Option& o : options.all) known.push_back(o.name);
  for (const auto& [name, value] : *object)
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail<ValueError>(layer, ": unknown option \"", name, "\"", did_you_mean(name, known), "; ",
                       known.empty() ? "it has none" : str("known: ", joined(known)));
  for (const Option& o : options.all) {
    if (const Json* given = j.find(o.name)) o.set(layer, *given);
    else if (o.required)
      fail<ValueError>(layer, ": option \"", o.name, "\" (", o.type_name(), ", ", o.meaning, ") is required");
    o.check(layer);
  }
}

std::string text_of(const OptionList& options, const OptionList& defaults) {
  std::string s = "{";
  for (std::size_t i = 0; i < options.all.size(); ++i) {
    const Option& o = options.all[i];
    const Json now = o.get();
    if (!o.required && now == defaults.all[i].get()) continue;
    const auto* text = now.as<std::string>();
    s += str(s.size() > 1 ? ", " : "", o.name, "=", text ? *text : to_text(now));
  }
  return s + "}";
}

std::ostream& print(std::ostream& out, const std::string& text) { return out << text; }

}  // namespace detail

}  // namespace sluice
