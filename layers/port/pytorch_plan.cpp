#include <sluice/layers/port/pytorch_plan.h>

#include <sluice/core/text/utf8.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <utility>

namespace sluice::detail {

namespace {

template <class... Args> [[noreturn]] void refuse(const Args&... args) { fail<ValueError>("pytorch rules: ", args...); }

/// The type of the innermost module with this slot.
std::string owner(const Members& m, std::size_t slot) {
  std::string type;
  for (const Members::Part& p : m.parts)
    if (p.first <= slot && slot < p.last) type = p.type;  // a part precedes the parts inside it
  return type;
}

void set_layout(const Members& m, FilePiece& p, PyTorchLayout layout) {
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

std::vector<FilePiece> cut(const Members& m, std::size_t slot, const Stored& s) {
  const std::string name = in_quotes(m.slots[slot].name);
  FilePiece whole{.slot = slot, .name = s.names[0], .shape = {}};
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
  std::vector<FilePiece> out;
  int64_t row = 0;
  for (std::size_t i = 0; i < s.names.size(); ++i) {
    const PyTorchPiece& piece = s.how.pieces[i];
    const int64_t left = whole.shape[0] - row;
    FilePiece p = whole;
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
void check_pieces(const Members& m, const std::string& name, const std::vector<FilePiece>& pieces) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const FilePiece &p = pieces[i], &q = pieces[i ? i - 1 : 0];
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

}  // namespace

FilePlan file_plan(const Members& m, const PyTorchRules& rules, const std::string& prefix) {
  std::vector<std::regex> patterns;
  for (const PyTorchRule& r : rules) patterns.push_back(compiled(r.name));
  FilePlan plan;
  for (std::size_t slot = 0; slot < m.slots.size(); ++slot) {
    const Stored s = stored(m.slots[slot].name, rules, patterns);
    if (std::all_of(s.names.begin(), s.names.end(), [](auto& n) { return n.empty(); })) continue;
    for (const FilePiece& p : cut(m, slot, s)) {
      std::vector<FilePiece>& pieces = plan[prefix + p.name];
      const auto same = [&](const FilePiece& q) {  // tied tensors are once in the file
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

Shape file_shape(const std::vector<FilePiece>& pieces) {
  Shape s = pieces[0].shape;
  const int axis = pieces[0].axis;
  for (std::size_t i = 1; i < pieces.size(); ++i) s[axis] += pieces[i].shape[axis];
  if (pieces[0].single) s.erase(0);
  if (pieces[0].unit_axis) s.insert(1, 1);
  return pieces[0].file_swapped ? swapped(s) : s;
}

Tensor place_of(const Tensor& whole, const FilePiece& p) {
  Tensor x = whole.detach();
  if (p.swapped) x = swapped(x);
  return x.rank() > 0 ? narrow(x, 0, p.first, p.shape[0]) : x;
}

std::vector<Tensor> taken_apart(const Tensor& file, const std::vector<FilePiece>& pieces) {
  const Tensor x = pieces[0].file_swapped ? swapped(file) : pieces[0].unit_axis ? squeeze(file, 1) : file;
  if (pieces[0].single) return {unsqueeze(x, 0)};
  if (pieces.size() == 1) return {x};
  const int64_t groups = pieces[0].groups;
  const int64_t axis = pieces[0].axis;
  std::vector<int64_t> rows;
  for (const FilePiece& p : pieces) rows.push_back(p.shape[p.axis] / groups);
  std::vector<Tensor> out = split(unflatten(x, axis, {groups, x.dim(axis) / groups}), rows, axis + 1);
  for (Tensor& y : out) y = flatten(y, axis, axis + 1);
  return out;
}
Tensor put_together(std::vector<Tensor> xs, const std::vector<FilePiece>& pieces) {
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

Tensor swapped(const Tensor& x) { return transpose(x, -1, -2); }
Shape swapped(Shape s) {
  std::swap(s[s.rank() - 1], s[s.rank() - 2]);
  return s;
}
std::string in_quotes(const std::string& name) { return str("\"", shortened(name), "\""); }
std::regex compiled(const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& e) { refuse(in_quotes(text), " is no regular expression: ", e.what()); }
}

}  // namespace sluice::detail
