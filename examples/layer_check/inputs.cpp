// The inputs of a case against the listing: which there are with these options, their dtypes, shapes and values.
#include "run.h"

#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <limits>

namespace layer_check {

using namespace sluice;

namespace {

const char* kind_name(Kind k) { return k == Kind::floating ? "a float tensor" : k == Kind::integer ? "i64" : "bool"; }
bool is_of(Kind k, DType t) { return k == Kind::floating ? is_float(t) : k == Kind::integer ? t == i64 : t == boolean; }

/// Whether a condition of an input holds: clauses joined by "and". A clause is an option, or "not" and an option, or
/// an option or its len() compared with a value, or a derived name that stands for one of these.
bool holds(const Prepared& p, std::string_view when) {
  if (when == "True") return true;
  if (const std::size_t both = when.find(" and "); both != when.npos)
    return holds(p, when.substr(0, both)) && holds(p, when.substr(both + 5));
  if (when.starts_with("not ")) return !holds(p, when.substr(4));
  for (const auto& [name, condition] : p.layer->derived)
    if (name == when) return holds(p, condition);
  const std::size_t end = std::min(when.find(' '), when.size());
  const std::size_t op_end = std::min(when.find(' ', end + 1), when.size());
  const bool length = when.starts_with("len(");
  const Json& option = p.options.at(length ? when.substr(4, end - 5) : when.substr(0, end));
  const Json value = length ? Json(static_cast<int64_t>(option.get<Json::List>().size())) : option;
  if (end == when.size()) return value == Json(true);
  const auto* name = value.as<std::string>();
  const std::string text = name ? "'" + *name + "'" : to_text(value);
  const std::string_view op = when.substr(end + 1, op_end - end - 1), right = when.substr(op_end + 1);
  if (op == "in") return right.find(text) != right.npos;
  if (op == ">") return value.get<int64_t>() > std::stoll(std::string(right));
  return (text == right) == (op == "==");
}

using Sizes = std::map<std::string, int64_t>;

/// The shape of an input as the listing writes it: "[batch, n, dim]"; "[..., dim]" begins with any sizes; "broadcast
/// [batch, heads, m, n]" is any shape that broadcasts to it. A size is compared if it is a number, an option or its
/// len(), or a name that an input before has given its size. Arithmetic is left to the layer.
struct ShapeText {
  std::string text;
  bool broadcast = false, ellipsis = false;
  std::vector<std::string> sizes;

  ShapeText(const Prepared& p, const std::string& given) : text(given), broadcast(given.starts_with("broadcast ")) {
    for (std::size_t at = given.find('[') + 1, end; at < given.size(); at = end + 2) {
      end = std::min(given.find(", ", at), given.size() - 1);
      std::string size = given.substr(at, end - at);
      if (const std::size_t a = size.find(" if "), b = size.find(" else "); b != size.npos)
        size = holds(p, size.substr(a + 4, b - a - 4)) ? size.substr(0, a) : size.substr(b + 6);
      if (size == "...") ellipsis = true;
      else if (!size.empty()) sizes.push_back(size);
    }
  }

  static bool is_name(const std::string& size) {
    return !size.empty() && !std::isdigit(static_cast<unsigned char>(size[0])) &&
           size.find_first_of(" +*()") == size.npos;
  }
  static std::optional<int64_t> value(const std::string& size, const Sizes& known) {
    if (const auto it = known.find(size); it != known.end()) return it->second;
    if (size.find_first_not_of("0123456789") == size.npos) return std::stoll(size);
    return {};
  }

  bool rank_fits(int given) const {
    const int rank = static_cast<int>(sizes.size());
    return broadcast ? given <= rank : ellipsis ? given >= rank : given == rank;
  }
  /// Gives names without a value the sizes of `shape`, whose rank fits.
  void bind(const Shape& shape, Sizes& known) const {
    for (int i = 1; i <= static_cast<int>(sizes.size()) && !broadcast; ++i)
      if (const std::string& size = sizes[sizes.size() - static_cast<std::size_t>(i)]; is_name(size))
        known.emplace(size, shape[shape.rank() - i]);
  }
  bool fits(const Shape& shape, const Sizes& known) const {
    for (int i = 1; i <= std::min(static_cast<int>(sizes.size()), shape.rank()); ++i) {
      const int64_t got = shape[shape.rank() - i];
      const auto want = value(sizes[sizes.size() - static_cast<std::size_t>(i)], known);
      if (want && got != *want && !(broadcast && got == 1)) return false;
    }
    return true;
  }
  /// "[batch, n, 2*dim] = [2, 6, 2*dim]": what is known filled in.
  std::string explain(const Sizes& known) const {
    std::string filled = ellipsis ? "..." : "";
    for (const std::string& size : sizes) {
      const auto there = value(size, known);
      filled += (filled.empty() ? "" : ", ") + (there ? std::to_string(*there) : size);
    }
    return str(text, " = [", filled, "]");
  }
};

std::string expected_inputs(const Prepared& p) {
  std::string known;
  for (const InputInfo& i : p.layer->inputs)
    if (holds(p, i.when))
      known +=
          str(known.empty() ? "" : ", ", i.name, " ", i.shape, " ", kind_name(i.kind), i.optional ? " (optional)" : "");
  return known.empty() ? "none" : known;
}

/// ValueError for values that mean nothing to the layer; rows of padding may hold anything.
void check_values(const std::string& layer, const InputInfo& info, const Tensor& given, const Tensor& key_mask) {
  if (info.range == Range::any || given.numel() == 0) return;
  const std::string name = str(layer, ": input.", info.name);
  Tensor x = given;
  if (info.range == Range::ascending) {
    if (key_mask.defined()) {  // padding repeats the document before it
      std::vector<int64_t> rows = x.to_vector<int64_t>();
      const std::vector<bool> real = key_mask.to_vector<bool>();
      for (std::size_t i = 0, n = static_cast<std::size_t>(x.dim(-1)); i < rows.size(); ++i)
        if (!real[i]) rows[i] = i % n == 0 ? std::numeric_limits<int64_t>::min() : rows[i - 1];
      x = Tensor::from(rows, x.shape());
    }
    const int64_t n = x.dim(-1);
    if (n > 1 && any(narrow(x, -1, 1, n - 1) < narrow(x, -1, 0, n - 1)).item())
      fail<ValueError>(name, " decreases; document numbers must not");
  } else if (info.range == Range::nonpositive && !all(x <= 0.0).item()) {
    fail<ValueError>(name, " has values that are not <= 0; it holds logarithms of what is kept");
  } else if (info.range == Range::unit && !all(logical_and(x >= 0.0, x <= 1.0)).item()) {
    fail<ValueError>(name, " has values outside [0, 1]");
  }
}

}  // namespace

Inputs checked_inputs(const Prepared& p, const std::map<std::string, Tensor>& given) {
  const std::string& layer = p.layer->name;
  std::vector<const InputInfo*> infos;  // of the inputs that these options have
  std::vector<std::string> known, unexpected;
  for (const InputInfo& info : p.layer->inputs) {
    if (!holds(p, info.when)) continue;
    infos.push_back(&info), known.push_back("input." + info.name);
    if (!info.optional && !given.contains(info.name))
      fail<ValueError>(layer, ": input.", info.name, " is missing; inputs: ", expected_inputs(p));
  }
  for (const auto& [name, x] : given)
    if (std::find(known.begin(), known.end(), "input." + name) == known.end()) unexpected.push_back("input." + name);
  if (!unexpected.empty())
    fail<ValueError>(layer, ": ", not_there(unexpected, "an input", known), "; inputs: ", expected_inputs(p));
  std::erase_if(infos, [&](const InputInfo* info) { return !given.contains(info->name); });
  for (const InputInfo* info : infos)
    if (const DType type = given.at(info->name).dtype(); !is_of(info->kind, type))
      fail<DTypeError>(layer, ": input.", info->name, " is ", type, ", must be ", kind_name(info->kind));

  Sizes sizes;
  for (const auto& [name, value] : *p.options.as<Json::Object>()) {
    if (const auto* size = value.as<int64_t>()) sizes[name] = *size;
    if (const auto* list = value.as<Json::List>()) sizes["len(" + name + ")"] = static_cast<int64_t>(list->size());
  }
  Inputs inputs;
  for (const InputInfo* info : infos) {
    const Tensor& x = given.at(info->name);
    const ShapeText shape(p, info->shape);
    if (!shape.rank_fits(x.rank()))
      fail(layer, ": input.", info->name, " has shape ", x, ", must be ", shape.explain(sizes), ": its rank is ",
           x.rank(), ", needed is ",
           shape.ellipsis    ? "at least "
           : shape.broadcast ? "at most "
                             : "",
           shape.sizes.size());
    shape.bind(x.shape(), sizes);
    if (!shape.fits(x.shape(), sizes))
      fail(layer, ": input.", info->name, " has shape ", x, ", must be ", shape.explain(sizes));
    Tensor leaf = x;
    if (is_float(x.dtype())) leaf.requires_grad_();
    inputs.tensors[info->name] = leaf;
  }
  for (const InputInfo* info : infos) check_values(layer, *info, given.at(info->name), inputs["key_mask"]);
  return inputs;
}

}  // namespace layer_check
