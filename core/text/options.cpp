#include <sluice/core/text/options.h>

#include <algorithm>
#include <cmath>
#include <ostream>

namespace sluice {

namespace {

using detail::joined;

constexpr double kInf = std::numeric_limits<double>::infinity(), kMost = static_cast<double>(kLargestSize);

std::vector<std::string> split_names(const char* choices) {
  std::vector<std::string> names(1);
  for (const char* c = choices; *c; ++c)
    if (*c == ' ') names.emplace_back();
    else names.back() += *c;
  return names;
}

bool inside(const OptionRange& r, double x) {
  if (std::isinf(x)) return r.infinite && x >= r.low && x <= r.high;
  return (r.without_low ? x > r.low : x >= r.low) && (r.without_high ? x < r.high : x <= r.high);
}

std::string words(const OptionRange& r) {
  const auto ends = [](double x) { return std::isinf(x) || std::abs(x) == kMost; };
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
  const int64_t i = choice_from(choices, name);
  if (i < 0) fail<ValueError>("from_name: nothing is called \"", name, "\"; known: ", joined(split_names(choices)));
  return i;
}

Json choice_json(const char* choices, int64_t i) {
  const std::string_view name = choice_name(choices, i);
  return name == "unknown" ? Json(i) : Json(name);
}

int64_t choice_from(const char* choices, const Json& name) {
  const auto* s = name.as<std::string>();
  const std::vector<std::string> names = split_names(choices);
  const auto it = s ? std::find(names.begin(), names.end(), *s) : names.end();
  return it == names.end() ? -1 : it - names.begin();
}

Json number_json(double x) {
  if (std::isfinite(x)) return x;
  return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
}

bool number_from(const Json& j, double& x) {
  if (const auto* y = j.as<double>()) return x = *y, true;
  if (const auto* i = j.as<int64_t>()) return x = static_cast<double>(*i), true;
  const auto* s = j.as<std::string>();
  if (!s || (*s != "inf" && *s != "-inf")) return false;
  return x = *s == "inf" ? kInf : -kInf, true;
}

}  // namespace detail

// -- one option ----------------------------------------------------------------------------------------------

std::string Option::range_text() const { return words(range); }

std::vector<std::string> Option::choice_names() const {
  return choices ? split_names(choices) : std::vector<std::string>();
}

std::string Option::type_name() const {
  static constexpr const char* names[] = {"bool", "int", "float", "text", "text", "objects"};
  return str(list ? "list of " : "", names[type], optional ? " or null" : "");
}

void Option::set(std::string_view layer, const Json& given) const {
  if (write(given, at, str(layer, ": ", name))) return;
  const std::vector<std::string> known = choice_names();
  const auto* s = given.as<std::string>();
  fail<ValueError>(layer, ": option \"", name, "\" must be of type ", type_name(), " — got ", given,
                   known.empty() ? "" : str("; known: ", joined(known)), s ? did_you_mean(*s, known) : "");
}

void Option::check(std::string_view layer, const Json& value) const {
  const auto refuse = [&](const std::string& allowed, const auto&... got) {
    fail<ValueError>(layer, ": ", name, " must be ", allowed, " — got ", got...);
  };
  if (const auto* items = value.as<Json::List>()) {
    for (std::size_t i = 0; i < items->size(); ++i) {
      if (!fields) check(layer, (*items)[i]);
      else
        for (const Option& o : fields().all) o.check(str(layer, ": ", name, '[', i, ']'), (*items)[i].at(o.name));
    }
  } else if (const auto* i = value.as<int64_t>(); i && choices) {
    refuse(str("one of ", joined(choice_names())), "number ", *i);
  } else if (double x; (type == whole || type == real) && !value.is_null()) {
    const auto* special = value.as<std::string>();
    if (!detail::number_from(value, x)) x = std::nan("");
    if (inside(range, x)) return;
    const bool bounded = std::isfinite(range.low) && std::isfinite(range.high);
    std::string allowed = std::isfinite(x) || bounded ? words(range) : "finite";
    if (x > range.high && range.high == kMost) allowed = str("at most ", kLargestSize);
    if (x < range.low && range.low == -kMost) allowed = str("at least ", -kLargestSize);
    refuse(allowed, name, '=', special ? *special : i ? str(*i) : str(x));
  }
}

// -- lists of options ------------------------------------------------------------------------------------------

Option& OptionList::add(const char* name, Option& o) {
  o.name = prefix_ + name;
  if (o.type == Option::whole) {
    if (std::isinf(o.range.low)) o.range.low = -kMost;
    if (std::isinf(o.range.high)) o.range.high = kMost;
  }
  return all.emplace_back(std::move(o));
}

void OptionList::without(std::initializer_list<std::string_view> names) {
  std::erase_if(all, [&](const Option& o) {
    return std::any_of(names.begin(), names.end(),
                       [&](std::string_view n) { return o.name == prefix_ + std::string(n); });
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
