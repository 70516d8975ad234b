#include <sluice/layers/nn/module.h>

#include <sluice/core/node.h>
#include <sluice/core/text/print.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/core/text/utf8.h>
#include <sluice/layers/nn/init.h>
#include <sluice/ops/shape/create.h>

#include <algorithm>
#include <set>

namespace sluice::detail {

std::size_t Members::down(const char* name) {
  const std::size_t above = path.size();
  if (above > 0) path += '.';
  path += name;
  return above;
}
std::size_t Members::begin(std::string type, const void* object) {
  parts.push_back({path, std::move(type), object, slots.size(), 0});
  return parts.size() - 1;
}
void collect(Members& out, const Tensor& x) {
  if (x.defined()) out.slots.push_back({out.path, const_cast<Tensor*>(&x), out.exact});
}

void check_names(const Members& m) {
  std::set<std::string_view> names;
  for (const auto& s : m.slots)
    if (!names.insert(s.name).second) fail<ValueError>("module: two tensors are called \"", s.name, "\"");
}

std::vector<NamedTensor> tensors_of(const Members& m, bool only_parameters) {
  std::vector<NamedTensor> out;
  std::set<const TensorImpl*> seen;
  for (const auto& s : m.slots)
    if (!only_parameters || (s.tensor->requires_grad() && seen.insert(s.tensor->ref().get()).second))
      out.push_back({s.name, *s.tensor});
  return out;
}

StateNames check_state(const Members& m, const std::map<std::string, Tensor>& state, bool strict, const std::string& op,
                       bool shapes_only) {
  std::set<std::string_view> names;
  StateNames apart;
  auto& [missing, unexpected] = apart;
  for (const auto& s : m.slots) {
    names.insert(s.name);
    auto it = state.find(s.name);
    if (it == state.end()) {
      missing.push_back(s.name);
      continue;
    }
    const Tensor& x = it->second;
    if (x.shape() != s.tensor->shape())
      fail<IOError>(op, ": tensor \"", s.name, "\" has shape ", x, ", the model needs ", *s.tensor,
                    x.rank() == 2 && s.tensor->shape() == Shape{x.dim(1), x.dim(0)}
                        ? "; of PyTorch's layout? load_pytorch() transposes"
                        : "");
    const bool widens = s.exact && x.dtype() == bf16 && s.tensor->dtype() == f32;  // of a file older than `exact`
    if (x.dtype() != s.tensor->dtype() && !widens)
      fail<IOError>(op, ": tensor \"", s.name, "\" is ", x.dtype(), ", the model needs ", s.tensor->dtype(),
                    "; to(model, dtype) converts a model");
    if (!shapes_only && (x.device() == meta) != (s.tensor->device() == meta))
      fail<IOError>(op, ": tensor \"", s.name, "\" is on ", x.device(), ", the model's on ", s.tensor->device(),
                    "; a tensor on meta has no values");
  }
  for (const auto& [name, x] : state)
    if (!names.contains(name)) unexpected.push_back(name);
  if (!strict || (missing.empty() && unexpected.empty())) return apart;
  std::string text;
  const auto list = [&](const auto& these, const char* what, const auto& others) {
    constexpr std::size_t most = 8;
    for (std::size_t i = 0; i < std::min(these.size(), most); ++i)
      text += str(text.empty() ? "" : "; ", "tensor \"", shortened(these[i]), "\" is ", what,
                  did_you_mean(these[i], others));
    if (these.size() > most) text += str("; ", these.size() - most, " more are ", what);
  };
  list(missing, "missing", unexpected);
  list(unexpected, "not part of the model", missing);
  fail<IOError>(op, ": ", text);
}

StateNames load_state(const Members& m, const std::map<std::string, Tensor>& state, bool strict,
                      const std::string& op) {
  StateNames apart = check_state(m, state, strict, op);
  NoGrad guard;
  std::set<const Storage*> written;
  for (const auto& s : m.slots) written.insert(s.tensor->impl().storage.get());
  std::vector<std::pair<Tensor, Tensor>> copies;  // to, from
  for (const auto& s : m.slots) {
    const auto it = state.find(s.name);
    if (it == state.end() || it->second.ref() == s.tensor->ref()) continue;
    const Tensor& from = it->second;  // if it shares memory with the model: its values before the first copy
    copies.emplace_back(*s.tensor, written.contains(from.impl().storage.get()) ? clone(from) : from);
  }
  for (auto& [to, from] : copies) copy_(to, from);
  return apart;
}

/// Replaces the memory of each tensor by that of f(tensor, slot), which may have another dtype or device. All owners of
/// the tensor see the change. Checks all tensors before the first one changes.
template <class F> static void become(const Members& m, F f) {
  NoGrad guard;
  struct Change {
    Tensor at, now, grad;
  };
  std::vector<Change> changes;
  std::set<const TensorImpl*> seen;
  for (const auto& s : m.slots) {
    const Tensor& x = *s.tensor;
    if (!seen.insert(x.ref().get()).second) continue;
    const Tensor now = f(x.detach(), s);
    if (now.dtype() == x.dtype() && now.device() == x.device()) continue;
    if (!x.is_leaf())
      fail<AutogradError>("to: \"", s.name, "\" ", x, " is the result of ", x.impl().history->name(),
                          "; only leaves are converted");
    changes.push_back({x, now, x.grad().defined() ? f(x.grad().detach(), s) : Tensor()});
  }
  for (Change& c : changes) replace_memory(c.at, c.now, std::move(c.grad));
}

void convert(const Members& m, DType dtype) {
  if (!is_float(dtype)) fail<DTypeError>("to: a module computes in f32, f64 or bf16 — got ", dtype);
  become(m, [=](const Tensor& x, const Members::Slot& s) {
    return is_float(x.dtype()) ? sluice::to(x, s.exact ? exact(dtype) : dtype) : x;
  });
}
DType compute_dtype(const Members& m, DType otherwise) {
  std::optional<DType> first;  // of buffers, which may differ from the parameters
  for (const auto& [name, tensor, exact] : m.slots) {
    if (exact || !is_float(tensor->dtype())) continue;
    if (tensor->requires_grad() || tensor->dtype() == otherwise) return tensor->dtype();
    if (!first) first = tensor->dtype();
  }
  return first.value_or(otherwise);
}
void move(const Members& m, Device device) {
  if (device == meta) return unshare(m, meta);  // other owners may still need the values
  become(m, [=](const Tensor& x, const Members::Slot&) { return sluice::to(x, device); });
}
void unshare(const Members& m, std::optional<Device> device) {
  NoGrad guard;
  std::map<const TensorImpl*, Tensor> own;
  for (const auto& s : m.slots) {
    const Tensor& x = *s.tensor;
    Tensor& copy = own[x.ref().get()];
    if (copy.defined()) continue;
    copy = x;
    if (x.device() == device) continue;
    copy = device ? sluice::to(x.detach(), *device) : sluice::clone(x.detach());
    if (x.requires_grad()) copy.requires_grad_();
  }
  for (const auto& s : m.slots) *s.tensor = own.at(s.tensor->ref().get());
}

void save_state(const Members& m, const std::string& path, const std::map<std::string, std::string>& metadata) {
  SafeTensors file;
  file.metadata = metadata;
  file.metadata.try_emplace("format", "sluice");  // linear maps are [in, out]: load_pytorch() must not read them
  for (const auto& s : m.slots) file.tensors[s.name] = s.tensor->detach();
  save_safetensors(path, file, "save");
}

namespace {
/// The tensors whose names begin with `prefix`, named without it.
std::map<std::string, Tensor> with_prefix(const std::map<std::string, Tensor>& tensors, std::string_view prefix) {
  std::map<std::string, Tensor> out;
  for (const auto& [name, x] : tensors)
    if (name.starts_with(prefix)) out[name.substr(prefix.size())] = x;
  return out;
}
/// The model's tensors of a training checkpoint; all tensors of any other file.
std::map<std::string, Tensor> weights_of(const SafeTensors& file) {
  return with_prefix(file.tensors, file.format() == detail::kCheckpointFormat ? detail::kCheckpointModel : "");
}
}  // namespace

std::map<std::string, std::string> load_file(const Members& m, const std::string& path, const LoadOptions& o) {
  const SafeTensors file = load_safetensors(path, {}, "load");
  const auto transposed = [](const Members::Part& p) { return p.type == "Linear"; };
  if (file.format() == "pt" && std::any_of(m.parts.begin(), m.parts.end(), transposed))
    fail<IOError>("load: '", path, "': was written by PyTorch, whose linear maps are [out, in]; read it with ",
                  "load_pytorch()");
  std::map<std::string, Tensor> state = with_prefix(weights_of(file), o.prefix);
  take_former_names(m, state);
  const std::string op = str("load: '", path, "'", o.prefix.empty() ? "" : str(", prefix \"", o.prefix, '"'));
  StateNames apart = load_state(m, state, o.strict, op);
  if (o.names) *o.names = std::move(apart);
  std::map<std::string, std::string> metadata = file.metadata;
  std::erase_if(metadata, [](const auto& e) { return e.first == "format" && e.second == "sluice"; });  // save()'s own
  return metadata;
}

void take_former_names(const Members& m, std::map<std::string, Tensor>& file) {
  constexpr std::pair<std::string_view, std::string_view> kFormer[] = {{"q", "query"},
                                                                       {"k", "key"},
                                                                       {"v", "value"},
                                                                       {"global_q", "global_query"},
                                                                       {"global_k", "global_key"},
                                                                       {"global_v", "global_value"}};
  std::set<std::string> names;
  for (const auto& s : m.slots) names.insert(s.name);
  for (const std::string& name : names) {
    const std::size_t last = name.rfind('.');
    const std::size_t above = last == name.npos || last == 0 ? name.npos : name.rfind('.', last - 1);
    const std::size_t first = above == name.npos ? 0 : above + 1;
    for (const auto& [now, then] : kFormer) {
      if (last == name.npos || name.substr(first, last - first) != now) continue;
      const std::string former = str(name.substr(0, first), then, name.substr(last));
      if (names.contains(former)) continue;  // the model has tensors of both names
      for (auto it = file.lower_bound(former); it != file.end() && it->first.starts_with(former);) {
        const auto at = it++;
        const std::string rest = at->first.substr(former.size());
        if ((!rest.empty() && rest[0] != '.') || file.contains(name + rest)) continue;
        auto entry = file.extract(at);
        entry.key() = name + rest;
        file.insert(std::move(entry));
      }
    }
  }
}

void describe_model(std::map<std::string, std::string>& metadata, const char* type, const OptionList& options) {
  if (const std::string& layer = metadata.try_emplace("layer", type).first->second; layer != type)
    fail<ValueError>("save: the metadata's \"layer\" is the type of the model, ", type, " — got ", shortened(layer));
  metadata["options"] = to_text(to_json(options));
}

std::map<std::string, Tensor> open_model(const std::string& path, const char* type, const OptionList& options) {
  const SafeTensors file = load_safetensors(path, {}, "load_model");
  const auto layer = file.metadata.find("layer"), stored = file.metadata.find("options");
  if (layer == file.metadata.end() || stored == file.metadata.end())
    fail<IOError>("load_model: '", path, "': the file does not say what its model is; metadata \"",
                  layer == file.metadata.end() ? "layer" : "options", "\" is missing");
  if (layer->second != type)
    fail<IOError>("load_model: '", path, "': the file holds a model of type ", layer->second, "; need ", type);
  try {
    from_json(type, parse_json(stored->second), options);
  } catch (const ValueError& e) { fail<IOError>("load_model: '", path, "': its options do not fit: ", e.what()); }
  return weights_of(file);
}

void check_model(const Members& m, const std::map<std::string, Tensor>& state) {
  // The saved model may have had other dtypes than its options say.
  become(m, [&](const Tensor& x, const Members::Slot& s) {
    const auto saved = state.find(s.name);
    const bool both = saved != state.end() && is_float(x.dtype()) && is_float(saved->second.dtype());
    return both ? sluice::to(x, saved->second.dtype()) : x;
  });
  check_state(m, state, true, "load_state", true);
}
void fill_model(const Members& m, const std::map<std::string, Tensor>& state) {
  check_model(m, state);
  load_state(m, state);
}

int64_t trained_values(const Members& m, const Members::Part& part) {
  std::set<const TensorImpl*> counted;
  int64_t values = 0;
  for (std::size_t i = part.first; i < part.last; ++i)
    if (const Tensor& x = *m.slots[i].tensor; x.requires_grad() && counted.insert(x.ref().get()).second)
      values += x.numel();
  return values;
}

std::string summary_of(const Members& m) {
  std::vector<std::vector<std::string>> lines{{"path", "type", "    values", "tensors"}};
  for (auto p = m.parts.begin(); p != m.parts.end(); ++p) {
    if (p->first == p->last && !p->name.empty()) continue;  // e.g. an optional layer that this model lacks
    std::string tensors;                                    // that belong to no part inside this one
    for (std::size_t i = p->first; i < p->last; ++i) {
      const auto holds = [&](const Members::Part& q) { return q.first <= i && i < q.last; };
      if (std::any_of(p + 1, m.parts.end(), holds)) continue;
      const auto& [name, tensor, exact] = m.slots[i];
      tensors +=
          str(tensors.empty() ? "" : ", ", p->name.empty() ? name : name.substr(p->name.size() + 1), tensor->shape());
    }
    lines.push_back({p->name.empty() ? "(model)" : p->name, p->type, str(trained_values(m, *p)), tensors});
  }
  return aligned(lines, "llrl");
}

ModuleNames names_of(const Members& m) {
  ModuleNames out;
  for (const auto& p : m.parts) out[{p.object, p.type}] = p.name;
  return out;
}

}  // namespace sluice::detail
