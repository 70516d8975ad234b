#include "options.h"

#include <sluice/core/error.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace layer_check {

using sluice::fail;
using sluice::str;
using sluice::ValueError;

void Options::wrong(const OptionInfo& o, const Value& got) const {
  std::string known;
  for (const std::string& v : o.values) known += (known.empty() ? "; known: " : ", ") + v;
  fail<ValueError>(layer_, ": option \"", o.name, "\" must be of type ", o.type, " — got ", text_of(got), known);
}

const Value* Options::take(OptionInfo info) {
  const std::string name = info.name;
  const auto it = given_.find(name);
  if (it == given_.end() && info.required && !examples_)
    fail<ValueError>(layer_, ": option \"", name, "\" (", info.type, ", ", info.meaning, ") is required");
  values_[name] = it == given_.end() ? info.otherwise : it->second;
  infos_.push_back(std::move(info));
  return it == given_.end() ? nullptr : &it->second;
}

void Options::operator()(const char* name, bool& field, const char* meaning) {
  const Value* v = take({name, "bool", field, false, {}, meaning});
  if (!v) return;
  if (const auto* b = std::get_if<bool>(v)) field = *b;
  else wrong(infos_.back(), *v);
}

void Options::operator()(const char* name, int64_t& field, const char* meaning) {
  const Value* v = take({name, "int", field, false, {}, meaning});
  if (!v) return;
  if (const auto* i = std::get_if<int64_t>(v)) field = *i;
  else wrong(infos_.back(), *v);
}

void Options::required(const char* name, int64_t& field, int64_t example, const char* meaning) {
  field = example;
  const Value* v = take({name, "int", example, true, {}, meaning});
  if (!v) return;
  if (const auto* i = std::get_if<int64_t>(v)) field = *i;
  else wrong(infos_.back(), *v);
}

namespace {

/// JSON has no infinities: they come as text.
bool as_number(const Value& v, double& out) {
  if (const auto* x = std::get_if<double>(&v)) return out = *x, true;
  if (const auto* i = std::get_if<int64_t>(&v)) return out = static_cast<double>(*i), true;
  const auto* s = std::get_if<std::string>(&v);
  if (!s || (*s != "inf" && *s != "-inf")) return false;
  out = *s == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  return true;
}
Value printable(double x) {
  return std::isinf(x) ? Value(std::string(x > 0 ? "inf" : "-inf")) : Value(x);
}

}  // namespace

void Options::operator()(const char* name, double& field, const char* meaning) {
  const Value* v = take({name, "float", printable(field), false, {}, meaning});
  if (v && !as_number(*v, field)) wrong(infos_.back(), *v);
}

void Options::operator()(const char* name, std::optional<double>& field, const char* meaning) {
  const Value* v = take({name, "float or null", field ? printable(*field) : Value(), false, {}, meaning});
  if (!v || v->index() == 0) return;
  double x = 0;
  if (!as_number(*v, x)) wrong(infos_.back(), *v);
  field = x;
}

void Options::operator()(const char* name, std::vector<double>& field, const char* meaning) {
  const Value* v = take({name, "list of float", field, false, {}, meaning});
  if (!v) return;
  if (const auto* xs = std::get_if<std::vector<double>>(v)) field = *xs;
  else wrong(infos_.back(), *v);
}

void Options::operator()(const char* name, std::vector<int64_t>& field, const char* meaning) {
  const Value* v = take({name, "list of int", std::vector<double>(field.begin(), field.end()), false, {}, meaning});
  if (!v) return;
  const auto* xs = std::get_if<std::vector<double>>(v);
  auto whole = [](double x) { return std::abs(x) < 9e15 && x == std::floor(x); };
  if (!xs || !std::all_of(xs->begin(), xs->end(), whole)) wrong(infos_.back(), *v);
  field.clear();
  for (double x : *xs) field.push_back(static_cast<int64_t>(x));
}

std::vector<Values> Options::take_objects(const char* name, const char* meaning, std::vector<OptionInfo> fields) {
  OptionInfo info{name, "list of objects", layer_check::objects({}), false, {}, meaning};
  info.fields = std::move(fields);
  const Value* v = take(std::move(info));
  if (!v) return {};
  if (const auto* o = std::get_if<std::shared_ptr<const Objects>>(v)) return (*o)->list;
  const auto* none = std::get_if<std::vector<double>>(v);  // [] does not say of what
  if (!none || !none->empty()) wrong(infos_.back(), *v);
  return {};
}

std::size_t Options::choose(const char* name, const std::vector<std::string>& names, std::size_t now,
                            const char* meaning) {
  const bool nullable = now == names.size();
  OptionInfo info{name, nullable ? "text or null" : "text", {}, false, names, meaning};
  if (!nullable) info.otherwise = names[now];
  const Value* v = take(std::move(info));
  if (!v || (nullable && v->index() == 0)) return now;
  const auto* s = std::get_if<std::string>(v);
  const auto it = s ? std::find(names.begin(), names.end(), *s) : names.end();
  if (it == names.end()) wrong(infos_.back(), *v);
  return static_cast<std::size_t>(it - names.begin());
}

void Options::finish() const {
  for (const auto& [name, value] : given_) {
    if (values_.contains(name)) continue;
    std::string known;
    for (const OptionInfo& o : infos_) known += (known.empty() ? "" : ", ") + o.name;
    fail<ValueError>(layer_, ": unknown option \"", name, "\"; ",
                     known.empty() ? "it has none" : str("known: ", known));
  }
}

}  // namespace layer_check
