// load_pytorch and save_pytorch: a plan (layers/port/pytorch_plan.h), the comparison with the file, then the copies.
#include <sluice/layers/port/pytorch.h>

#include <sluice/core/node.h>
#include <sluice/layers/port/pytorch_plan.h>
#include <sluice/layers/port/quantised.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <regex>
#include <set>
#include <utility>

namespace sluice::detail {

namespace {

/// Describes the wrong shape or dtype of a tensor of the file; "" if the tensor fits.
std::string misfit(const Members& m, const std::string& name, const Tensor& x, const std::vector<FilePiece>& pieces) {
  const DType dtype = m.slots[pieces[0].slot].tensor->dtype();
  const bool right_dtype = is_float(dtype) ? is_float(x.dtype()) : x.dtype() == dtype;
  const Shape need = file_shape(pieces), got = x.shape();
  if (right_dtype && need == got) return {};
  std::string slots;
  for (const FilePiece& p : pieces) slots += (slots.empty() ? "" : " and ") + in_quotes(m.slots[p.slot].name);
  return str(in_quotes(name), " is ", x.dtype(), " ", got, "; ", slots, " needs ", right_dtype ? "" : str(dtype, " "),
             need, got.rank() >= 2 && swapped(got) == need ? ", its transpose: see PyTorchLayout" : "");
}

Shape without_ones(const Shape& shape) {
  Shape s;
  for (const int64_t n : shape)
    if (n != 1) s.push_back(n);
  return s;
}

constexpr std::size_t kShown = 12;  // names of a kind in a message

void add_lines(std::string& text, const char* what, const std::vector<std::string>& lines) {
  for (std::size_t i = 0; i < std::min(lines.size(), kShown); ++i) text += str("\n  ", what, ": ", lines[i]);
  if (lines.size() > kShown) text += str("\n  ", what, ": … and ", lines.size() - kShown, " more");
}

/// Those of the names that share the most characters with `name` at both ends. A mixture of experts may have a hundred
/// thousand names, and did_you_mean() takes microseconds for each.
std::vector<std::string> likely(const std::string& name, const std::vector<std::string>& others) {
  constexpr std::size_t most = 100;
  if (others.size() <= most) return others;
  std::vector<std::pair<std::ptrdiff_t, const std::string*>> apart;
  for (const std::string& other : others) {
    const auto begin = std::mismatch(name.begin(), name.end(), other.begin(), other.end()).first - name.begin(),
               end = std::mismatch(name.rbegin(), name.rend(), other.rbegin(), other.rend()).first - name.rbegin();
    apart.emplace_back(-(begin + end), &other);
  }
  std::partial_sort(apart.begin(), apart.begin() + most, apart.end());
  std::vector<std::string> chosen;
  for (std::size_t i = 0; i < most; ++i) chosen.push_back(*apart[i].second);
  return chosen;
}
/// did_you_mean() among the names that are similar after their common modules.
std::string nearest(const std::string& name, const std::vector<std::string>& others) {
  std::vector<std::string> alike;
  for (const std::string& other : likely(name, others)) {
    const auto differ = std::mismatch(name.begin(), name.end(), other.begin(), other.end()).first - name.begin();
    const std::size_t rest = name.substr(0, static_cast<std::size_t>(differ)).rfind('.') + 1;  // npos + 1 is 0
    if (!did_you_mean(name.substr(rest), {other.substr(rest)}).empty()) alike.push_back(other);
  }
  return did_you_mean(name, alike);
}
std::vector<std::string> with_nearest(const std::vector<std::string>& names, const std::vector<std::string>& others) {
  std::vector<std::string> out;
  for (const std::string& n : names) out.push_back(in_quotes(n) + (out.size() < kShown ? nearest(n, others) : ""));
  return out;
}

/// The names that the file lacks, but for those of tied tensors that it has under another name.
std::vector<std::string> missing_from(const std::map<std::string, Tensor>& file, const Members& m,
                                      const FilePlan& plan) {
  std::set<const TensorImpl*> found;
  for (const auto& [name, pieces] : plan)
    for (const FilePiece& p : pieces)
      if (file.contains(name)) found.insert(m.slots[p.slot].tensor->ref().get());
  std::vector<std::string> missing;
  for (const auto& [name, pieces] : plan) {
    const auto elsewhere = [&](const FilePiece& p) {
      const Tensor& x = *m.slots[p.slot].tensor;
      return p.shape.numel() == x.numel() && found.contains(x.ref().get());
    };
    if (!file.contains(name) && !std::all_of(pieces.begin(), pieces.end(), elsewhere)) missing.push_back(name);
  }
  return missing;
}

/// Those of the file's names with the prefix that are neither the plan's nor ignored.
std::vector<std::string> unexpected(const std::set<std::string>& names, const FilePlan& plan, const std::string& prefix,
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
bool usable(const Tensor& x, const FilePiece& p) {
  if (x.rank() < 2) return x.is_contiguous();
  return !p.unit_axis && (x.strides().back() == 1 || x.strides()[x.rank() - 2] == 1);
}

/// Gives the model the values of the file, which fit. Replaces tensors on meta: with `map` by the file's own memory
/// where that can be used, and where pieces of one are `missing`, they are 0. Lets go of each tensor of the file that
/// it has copied.
void fill(const Members& m, const FilePlan& plan, std::map<std::string, Tensor> file, bool map, bool missing) {
  NoGrad guard;
  std::vector<std::pair<Tensor, Tensor>> writes;  // all values are computed before the first of the model changes
  std::map<const TensorImpl*, Tensor> made;       // what takes the place of a tensor on meta
  for (const auto& [name, pieces] : plan) {
    const auto node = file.extract(name);
    if (node.empty()) continue;
    const std::vector<Tensor> parts = taken_apart(node.mapped(), pieces);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const FilePiece& p = pieces[i];
      const Tensor& slot = *m.slots[p.slot].tensor;
      const Tensor value = to(p.add == 0 ? parts[i] : to(parts[i], f64) + p.add, slot.dtype());
      const bool on_meta = slot.device() == meta;
      if (on_meta && p.shape.numel() == slot.numel()) {
        const Tensor x = p.swapped ? swapped(value) : value;
        const bool shared = pieces.size() > 1 && x.shares_storage(node.mapped());  // with the other slots of the file's
        made[slot.ref().get()] = map && usable(x, p) ? x : shared ? clone(x) : contiguous(x);
        continue;
      }
      if (!on_meta) {
        writes.emplace_back(place_of(slot, p), value);
        continue;
      }
      Tensor& whole = made[slot.ref().get()];
      if (!whole.defined()) whole = missing ? zeros(slot.shape(), {slot.dtype()}) : empty(slot.shape(), {slot.dtype()});
      Tensor place = place_of(whole, p);
      copy_(place, value);  // at once, so that no second copy of a mixture of experts waits here
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
  const FilePlan plan = file_plan(m, rules, options.prefix);
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
    const std::vector<FilePiece>& pieces = plan.at(name);
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
  fill(m, plan, std::move(file), options.map, !out.missing.empty());
  return out;
}

void save_pytorch(const Members& m, const std::string& path, const PyTorchRules& rules, const std::string& prefix) {
  save_safetensors(path, pytorch_tensors("save_pytorch", m, rules, prefix), "save_pytorch");
}

SafeTensors pytorch_tensors(const char* op, const Members& m, const PyTorchRules& rules, const std::string& prefix) {
  NoGrad guard;
  SafeTensors file;
  file.metadata["format"] = "pt";
  for (const auto& [name, pieces] : file_plan(m, rules, prefix)) {
    std::vector<Tensor> parts;
    for (const FilePiece& p : pieces) {
      const Tensor x = on_cpu(op, place_of(*m.slots[p.slot].tensor, p));
      parts.push_back(p.add == 0 ? x : to(to(x, f64) - p.add, x.dtype()));
    }
    file.tensors[name] = put_together(std::move(parts), pieces);
  }
  return file;
}

}  // namespace sluice::detail
