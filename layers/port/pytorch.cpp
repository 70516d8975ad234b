#include <sluice/layers/port/pytorch.h>

#include <sluice/core/node.h>
#include <sluice/core/text/utf8.h>
#include <sluice/layers/port/quantised.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <regex>
#include <set>
#include <utility>

namespace sluice::detail {

namespace {

// Model and file are compared "in rows": the model's tensor in PyTorch's layout, where the rows of a linear map are its
// outputs. A tensor of the file, in rows, consists of pieces of such tensors.
struct Piece {
  std::size_t slot;
  std::string name;     // in the file
  Shape shape;          // in rows, with all its axes
  int64_t first = 0;    // row in the slot
  bool single = false;  // the piece is one row, and the file has no axis of rows
  int64_t part = 0, groups = 1;
  int axis = 0;  // of the rows
  double add = 0;
  bool swapped = false;       // rows are the last axis of the model's tensor
  bool file_swapped = false;  // rows are the last axis of the file's tensor
  bool unit_axis = false;     // the file has [rows, 1, …]
};
/// The pieces of each tensor of the file, in the order of the file.
using Plan = std::map<std::string, std::vector<Piece>>;

Tensor swapped(const Tensor& x) { return transpose(x, -1, -2); }
Shape swapped(Shape s) {
  std::swap(s[s.rank() - 1], s[s.rank() - 2]);
  return s;
}
std::string in_quotes(const std::string& name) { return str("\"", shortened(name), "\""); }
template <class... Args> [[noreturn]] void refuse(const Args&... args) { fail<ValueError>("pytorch rules: ", args...); }

std::regex compiled(const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& e) { refuse(in_quotes(text), " is no regular expression: ", e.what()); }
}

/// The type of the innermost module with this slot.
std::string owner(const Members& m, std::size_t slot) {
  std::string type;
  for (const Members::Part& p : m.parts)
    if (p.first <= slot && slot < p.last) type = p.type;  // a part precedes the parts inside it
  return type;
}

void set_layout(const Members& m, Piece& p, PyTorchLayout layout) {
  const auto& [name, tensor, exact] = m.slots[p.slot];
  const Shape& shape = tensor->shape();
  const std::string type = owner(m, p.slot);
  const bool linear = type == "Linear" && shape.rank() == 2 && name.ends_with("weight");
  if (layout != PyTorchLayout::automatic && shape.rank() < 2)
    refuse("layout=", layout, " is of matrices — got ", in_quotes(name), " ", shape);
  const bool convolution = layout == PyTorchLayout::depthwise ||
                           (layout == PyTorchLayout::automatic && type == "ShortConvolution" && shape.rank() == 2);
  if (layout == PyTorchLayout::depthwise && shape.rank() != 2)
    refuse("layout=depthwise is of [width, dim] — got ", in_quotes(name), " ", shape);
  if (layout == PyTorchLayout::automatic && !linear && !convolution && type != "Embedding" && shape.rank() >= 2 &&
      shape.rank() <= 3 && shape[shape.rank() - 2] == shape.back() && shape.back() > 1)
    refuse(in_quotes(name), " ", shape,
           " is square and of no Linear, so that nothing says whether the file has it "
           "transposed; need a rule with {.layout = PyTorchLayout::transposed} or as_is");
  p.swapped = linear || convolution || layout == PyTorchLayout::transposed;
  p.unit_axis = convolution;
  p.file_swapped = linear && layout == PyTorchLayout::as_is;
  p.shape = p.swapped ? swapped(shape) : shape;
}

/// A slot's names in the file (several if a rule cuts the slot into pieces), and the slot's storage there.
struct Stored {
  std::vector<std::string> names;
  PyTorchStorage how = {};
};
Stored stored(const std::string& name, const PyTorchRules& rules, const std::vector<std::regex>& patterns) {
  Stored s{{name}};
  for (std::size_t r = 0; r < rules.size(); ++r) {
    const PyTorchStorage& says = rules[r].stored;
    const auto matches = [&](const std::string& n) { return std::regex_search(n, patterns[r]); };
    if (std::none_of(s.names.begin(), s.names.end(), matches)) continue;
    if (!(says == PyTorchStorage{})) {
      if (s.names.size() > 1) refuse("two of them say how ", in_quotes(name), ", which the first cuts, is stored");
      s.how = says;
    }
    std::vector<std::string> next;
    for (const std::string& n : s.names) {
      if (says.pieces.empty()) next.push_back(std::regex_replace(n, patterns[r], rules[r].as));
      for (const PyTorchPiece& p : says.pieces) next.push_back(std::regex_replace(n, patterns[r], p.as));
    }
    s.names = std::move(next);
  }
  return s;
}

std::vector<Piece> cut(const Members& m, std::size_t slot, const Stored& s) {
  const std::string name = in_quotes(m.slots[slot].name);
  Piece whole{.slot = slot, .name = s.names[0], .shape = {}};
  whole.part = s.how.part, whole.groups = s.how.groups, whole.add = s.how.add;
  if (whole.groups < 1) refuse("groups must be at least 1 — got groups=", whole.groups, " for ", name);
  if (whole.add != 0 && !is_float(m.slots[slot].tensor->dtype()))
    refuse("add=", whole.add, " is of floats — got ", name);
  set_layout(m, whole, s.how.layout);
  if (s.how.axis != 0 && (s.how.axis < 0 || s.how.axis >= whole.shape.rank() || !s.how.pieces.empty()))
    refuse("axis=", s.how.axis, " is of tensors with such an axis that are not cut — got ", name, " ", whole.shape);
  whole.axis = static_cast<int>(s.how.axis);
  if (s.how.pieces.empty()) return {whole};
  if (whole.shape.empty()) refuse(name, " is one number and cannot be cut into pieces");
  std::vector<Piece> out;
  int64_t row = 0;
  for (std::size_t i = 0; i < s.names.size(); ++i) {
    const PyTorchPiece& piece = s.how.pieces[i];
    const int64_t left = whole.shape[0] - row;
    Piece p = whole;
    p.name = s.names[i], p.part = piece.part, p.first = row, p.single = piece.rows == PyTorchPiece::single;
    p.file_swapped = p.file_swapped && !p.single;  // a single row has no second axis to swap
    p.unit_axis = p.unit_axis && !p.single;
    p.shape[0] = p.single ? 1 : piece.rows == 0 ? left : piece.rows;
    if (p.name.empty() || p.shape[0] < 1 || p.shape[0] > left || (i + 1 == s.names.size() && p.shape[0] < left))
      refuse("the pieces of ", name, " must have names and all its rows, ", whole.shape[0],
             " as PyTorch counts them — ", "got piece ", i, ", \"", p.name, "\", with rows=", piece.rows, ", and ",
             left, " are left");
    row += p.shape[0];
    out.push_back(p);
  }
  return out;
}

/// Throws ValueError unless the pieces of one tensor of the file, in the order of the file, fit together.
void check_pieces(const Members& m, const std::string& name, const std::vector<Piece>& pieces) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece &p = pieces[i], &q = pieces[i ? i - 1 : 0];
    const std::string p_name = in_quotes(m.slots[p.slot].name);
    if (p.groups > 1 && (p.single || p.shape.empty() || p.shape[p.axis] % p.groups != 0))
      refuse("groups=", p.groups, " must divide the rows of ", p_name, " — got ", p.shape);
    if (i == 0) continue;
    const auto both = [&](const auto&... why) {
      refuse(in_quotes(m.slots[q.slot].name), " and ", p_name, " are both ", in_quotes(name), " in the file, ", why...);
    };
    if (p.part == q.part) both("at the same place; need rules with {.part = 0}, {.part = 1}, …");
    if (p.groups != q.groups || p.axis != q.axis || p.file_swapped != q.file_swapped || p.unit_axis != q.unit_axis)
      both("in different groups or layouts");
    if (m.slots[p.slot].tensor->dtype() != m.slots[q.slot].tensor->dtype()) both("with different dtypes");
    Shape a = p.shape, b = q.shape;
    if (!a.empty() && !b.empty()) a[p.axis] = b[p.axis] = 1;
    if (p.single || q.single || a.empty() || !(a == b))
      both("where they do not fit side by side: ", q.shape, ", ", p.shape);
  }
}

Plan plan_of(const Members& m, const PyTorchRules& rules, const std::string& prefix) {
  std::vector<std::regex> patterns;
  for (const PyTorchRule& r : rules) patterns.push_back(compiled(r.name));
  Plan plan;
  for (std::size_t slot = 0; slot < m.slots.size(); ++slot) {
    const Stored s = stored(m.slots[slot].name, rules, patterns);
    if (std::all_of(s.names.begin(), s.names.end(), [](auto& n) { return n.empty(); })) continue;
    for (const Piece& p : cut(m, slot, s)) {
      std::vector<Piece>& pieces = plan[prefix + p.name];
      const auto same = [&](const Piece& q) {  // tied tensors are once in the file
        return m.slots[q.slot].tensor->ref() == m.slots[slot].tensor->ref() && q.first == p.first && q.shape == p.shape;
      };
      if (std::none_of(pieces.begin(), pieces.end(), same)) pieces.push_back(p);
    }
  }
  for (auto& [name, pieces] : plan) {
    std::stable_sort(pieces.begin(), pieces.end(), [](auto& a, auto& b) { return a.part < b.part; });
    check_pieces(m, name, pieces);
  }
  return plan;
}

Shape file_shape(const std::vector<Piece>& pieces) {
  Shape s = pieces[0].shape;
  const int axis = pieces[0].axis;
  for (std::size_t i = 1; i < pieces.size(); ++i) s[axis] += pieces[i].shape[axis];
  if (pieces[0].single) s.erase(0);
  if (pieces[0].unit_axis) s.insert(1, 1);
  return pieces[0].file_swapped ? swapped(s) : s;
}

/// The view of a piece in the model's tensor `whole`, in rows.
Tensor place_of(const Tensor& whole, const Piece& p) {
  Tensor x = whole.detach();
  if (p.swapped) x = swapped(x);
  return x.rank() > 0 ? narrow(x, 0, p.first, p.shape[0]) : x;
}

/// Splits a tensor of the file into its pieces. put_together() is the inverse.
std::vector<Tensor> taken_apart(const Tensor& file, const std::vector<Piece>& pieces) {
  const Tensor x = pieces[0].file_swapped ? swapped(file) : pieces[0].unit_axis ? squeeze(file, 1) : file;
  if (pieces[0].single) return {unsqueeze(x, 0)};
  if (pieces.size() == 1) return {x};
  const int64_t groups = pieces[0].groups;
  const int64_t axis = pieces[0].axis;
  std::vector<int64_t> rows;
  for (const Piece& p : pieces) rows.push_back(p.shape[p.axis] / groups);
  std::vector<Tensor> out = split(unflatten(x, axis, {groups, x.dim(axis) / groups}), rows, axis + 1);
  for (Tensor& y : out) y = flatten(y, axis, axis + 1);
  return out;
}
Tensor put_together(std::vector<Tensor> xs, const std::vector<Piece>& pieces) {
  Tensor y = xs[0];
  if (xs.size() > 1) {
    const int64_t axis = pieces[0].axis;
    for (Tensor& x : xs) x = unflatten(contiguous(x), axis, {pieces[0].groups, x.dim(axis) / pieces[0].groups});
    y = flatten(cat(xs, axis + 1), axis, axis + 1);
  }
  if (pieces[0].single) y = squeeze(y, 0);
  if (pieces[0].unit_axis) y = unsqueeze(y, 1);
  return pieces[0].file_swapped ? swapped(y) : y;
}

/// Describes the wrong shape or dtype of a tensor of the file; "" if the tensor fits.
std::string misfit(const Members& m, const std::string& name, const Tensor& x, const std::vector<Piece>& pieces) {
  const DType dtype = m.slots[pieces[0].slot].tensor->dtype();
  const bool right_dtype = is_float(dtype) ? is_float(x.dtype()) : x.dtype() == dtype;
  const Shape need = file_shape(pieces), got = x.shape();
  if (right_dtype && need == got) return {};
  std::string slots;
  for (const Piece& p : pieces) slots += (slots.empty() ? "" : " and ") + in_quotes(m.slots[p.slot].name);
  return str(in_quotes(name), " is ", x.dtype(), " ", got, "; ", slots, " needs ", right_dtype ? "" : str(dtype, " "),
             need, got.rank() >= 2 && swapped(got) == need ? ", its transpose: see PyTorchLayout" : "");
}

Shape without_ones(const Shape& shape) {
  Shape s;
  for (const int64_t n : shape)
    if (n != 1) s.push_back(n);
  return s;
}

void add_lines(std::string& text, const char* what, const std::vector<std::string>& lines) {
  constexpr std::size_t most = 12;
  for (std::size_t i = 0; i < std::min(lines.size(), most); ++i) text += str("\n  ", what, ": ", lines[i]);
  if (lines.size() > most) text += str("\n  ", what, ": … and ", lines.size() - most, " more");
}
/// did_you_mean() among the names that are similar after their common modules.
std::string nearest(const std::string& name, const std::vector<std::string>& others) {
  std::vector<std::string> alike;
  for (const std::string& other : others) {
    const auto differ = std::mismatch(name.begin(), name.end(), other.begin(), other.end()).first - name.begin();
    const std::size_t rest = name.substr(0, static_cast<std::size_t>(differ)).rfind('.') + 1;  // npos + 1 is 0
    if (!did_you_mean(name.substr(rest), {other.substr(rest)}).empty()) alike.push_back(other);
  }
  return did_you_mean(name, alike);
}
std::vector<std::string> with_nearest(const std::vector<std::string>& names, const std::vector<std::string>& others) {
  std::vector<std::string> out;
  for (const std::string& n : names) out.push_back(in_quotes(n) + (out.size() < 20 ? nearest(n, others) : ""));
  return out;
}

/// The names that the file lacks, but for those of tied tensors that it has under another name.
std::vector<std::string> missing_from(const std::map<std::string, Tensor>& file, const Members& m, const Plan& plan) {
  std::set<const TensorImpl*> found;
  for (const auto& [name, pieces] : plan)
    for (const Piece& p : pieces)
      if (file.contains(name)) found.insert(m.slots[p.slot].tensor->ref().get());
  std::vector<std::string> missing;
  for (const auto& [name, pieces] : plan) {
    const auto elsewhere = [&](const Piece& p) {
      const Tensor& x = *m.slots[p.slot].tensor;
      return p.shape.numel() == x.numel() && found.contains(x.ref().get());
    };
    if (!file.contains(name) && !std::all_of(pieces.begin(), pieces.end(), elsewhere)) missing.push_back(name);
  }
  return missing;
}

/// Those of the file's names with the prefix that are neither the plan's nor ignored.
std::vector<std::string> unexpected(const std::set<std::string>& names, const Plan& plan, const std::string& prefix,
                                    const std::vector<std::regex>& ignored) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    // std::regex needs stack for every character, and a name in a damaged file may have millions of characters.
    const auto matches = [&](const std::regex& r) { return name.size() <= 1000 && std::regex_search(name, r); };
    if (name.starts_with(prefix) && !plan.contains(name) && std::none_of(ignored.begin(), ignored.end(), matches))
      out.push_back(name);
  }
  return out;
}

/// Whether products read a view of the file's tensor in place.
bool usable(const Tensor& x, const Piece& p) {
  if (x.rank() < 2) return x.is_contiguous();
  return !p.unit_axis && (x.strides().back() == 1 || x.strides()[x.rank() - 2] == 1);
}

/// Gives the model the values of the file, which fit. Replaces tensors on meta: with `map` by the file's own memory
/// where that can be used, and where pieces of one are `missing`, they are 0.
void fill(const Members& m, const Plan& plan, const std::map<std::string, Tensor>& file, bool map, bool missing) {
  NoGrad guard;
  std::vector<std::pair<Tensor, Tensor>> writes;  // all values are computed before the first one changes
  std::map<const TensorImpl*, Tensor> made;       // what takes the place of a tensor on meta
  for (const auto& [name, pieces] : plan) {
    const auto it = file.find(name);
    if (it == file.end()) continue;
    const std::vector<Tensor> parts = taken_apart(it->second, pieces);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& p = pieces[i];
      const Tensor& slot = *m.slots[p.slot].tensor;
      const Tensor value = to(p.add == 0 ? parts[i] : to(parts[i], f64) + p.add, slot.dtype());
      const bool on_meta = slot.device() == meta;
      if (on_meta && p.shape.numel() == slot.numel()) {
        const Tensor x = p.swapped ? swapped(value) : value;
        made[slot.ref().get()] = map && usable(x, p) ? x : contiguous(x);
        continue;
      }
      Tensor* target = nullptr;
      if (on_meta && !(target = &made[slot.ref().get()])->defined())
        *target = missing ? zeros(slot.shape(), {slot.dtype()}) : empty(slot.shape(), {slot.dtype()});
      writes.emplace_back(place_of(target ? *target : slot, p), value);
    }
  }
  for (auto& [place, x] : writes) copy_(place, x);
  std::vector<Tensor> meta;  // alive until all are replaced: `made` knows them by address
  for (const Members::Slot& s : m.slots)
    if (const auto it = made.find(s.tensor->ref().get()); it != made.end()) {
      it->second.requires_grad_(s.tensor->requires_grad());
      meta.push_back(std::exchange(*s.tensor, it->second));
    }
}

}  // namespace

PyTorchNames load_pytorch(const Members& m, const std::string& path, const PyTorchRules& rules,
                          const PyTorchOptions& options) {
  const Plan plan = plan_of(m, rules, options.prefix);
  std::vector<std::regex> ignored;
  for (const std::string& text : options.ignore) ignored.push_back(compiled(text));
  std::set<std::string> names;
  const auto planned = [&](const std::string& name) { return plan.contains(name); };
  const auto needed = [&](const std::string& name) { return planned(name) || planned(weight_of(name)); };
  std::map<std::string, Tensor> file = read_pytorch(path, options.map, needed, names);
  dequantise(str("load_pytorch: '", path, "'"), file, names, planned, [&](const std::string& name) {
    const DType dtype = m.slots[plan.at(name)[0].slot].tensor->dtype();
    return is_float(dtype) ? dtype : f32;
  });
  std::vector<std::string> misfits;
  for (auto& [name, x] : file) {
    const std::vector<Piece>& pieces = plan.at(name);
    const Shape need = file_shape(pieces);
    if (x.rank() > need.rank() && without_ones(x.shape()) == without_ones(need)) x = reshape(x, need);
    if (const std::string wrong = misfit(m, name, x, pieces); !wrong.empty()) misfits.push_back(wrong);
  }
  const PyTorchNames out{missing_from(file, m, plan), unexpected(names, plan, options.prefix, ignored)};
  if (!misfits.empty() || (options.strict && (!out.missing.empty() || !out.unexpected.empty()))) {
    std::string text;
    add_lines(text, "missing", with_nearest(out.missing, out.unexpected));
    add_lines(text, "unexpected", with_nearest(out.unexpected, out.missing));
    add_lines(text, "misfit", misfits);
    fail<IOError>("load_pytorch: '", path, "' does not fit; the model is as it was", text);
  }
  fill(m, plan, file, options.map, !out.missing.empty());
  return out;
}

void save_pytorch(const Members& m, const std::string& path, const PyTorchRules& rules, const std::string& prefix) {
  save_safetensors(path, pytorch_tensors("save_pytorch", m, rules, prefix), "save_pytorch");
}

SafeTensors pytorch_tensors(const char* op, const Members& m, const PyTorchRules& rules, const std::string& prefix) {
  NoGrad guard;
  SafeTensors file;
  file.metadata["format"] = "pt";
  for (const auto& [name, pieces] : plan_of(m, rules, prefix)) {
    std::vector<Tensor> parts;
    for (const Piece& p : pieces) {
      const Tensor x = on_cpu(op, place_of(*m.slots[p.slot].tensor, p));
      parts.push_back(p.add == 0 ? x : to(to(x, f64) - p.add, x.dtype()));
    }
    file.tensors[name] = put_together(std::move(parts), pieces);
  }
  return file;
}

}  // namespace sluice::detail
