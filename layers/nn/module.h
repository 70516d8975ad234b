// Modules are plain structs. A module lists its members once,
//
//   static void visit(auto& self, auto&& f) { f("value", self.value); f("out", self.out); }
//
// and everything else — parameters, state, loading, counting, summaries — is a free function over that.
// Members may be Tensors, modules, and std::vector or std::optional of either. Tensors that require a
// gradient are parameters; the others are buffers, part of the state but not trained. Copying a module
// shares its tensors: what to(), load() and an optimiser do to them, all copies see. clone() shares nothing.
#pragma once

#include <sluice/core/options.h>
#include <sluice/core/random.h>
#include <sluice/core/scope.h>
#include <sluice/core/tensor.h>
#include <sluice/layers/nn/meta_init.h>
#include <sluice/layers/nn/named_tensor.h>

#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace sluice {

namespace detail {

template <class T> struct is_vector : std::false_type {};
template <class T> struct is_vector<std::vector<T>> : std::true_type {};
template <class T> struct is_optional : std::false_type {};
template <class T> struct is_optional<std::optional<T>> : std::true_type {};

/// What a visit finds: tensors in place, so that they can be replaced, and the modules that hold them.
struct Members {
  struct Slot {
    std::string name;
    Tensor* tensor;
  };
  struct Part {
    std::string name, type;
    const void* object;
    std::size_t first, last;  // its slots
  };
  std::vector<Slot> slots;
  std::vector<Part> parts;
  std::string path;  // of what is visited now

  /// Down to a member, and what to give to up() afterwards.
  std::size_t down(const char* name);
  void up(std::size_t length) { path.resize(length); }
  std::size_t begin(std::string type, const void* object);  // a part, whose index end() takes
  void end(std::size_t part) { parts[part].last = slots.size(); }
};

void collect(Members& out, const Tensor& x);
/// Every layer of every model is an instance: hence all that needs no T is a function of Members.
template <class T>
void collect(Members& out, const T& x) {
  const auto member = [&](const char* name, const auto& m) {
    const std::size_t above = out.down(name);
    collect(out, m);
    out.up(above);
  };
  if constexpr (is_vector<T>::value) {
    for (std::size_t i = 0; i < x.size(); ++i) member(std::to_string(i).c_str(), x[i]);
  } else if constexpr (is_optional<T>::value) {
    if (x) collect(out, *x);
  } else if constexpr (requires { T::visit(x, [](const char*, auto&) {}); }) {
    std::size_t part;
    if constexpr (requires { T::type; }) part = out.begin(T::type, &x);
    else part = out.begin("module", &x);
    T::visit(x, member);
    out.end(part);
  } else {
    static_assert(sizeof(T) == 0, "a module lists its members: static void visit(auto& self, auto&& f) { f(\"weight\", self.weight); }; each is a Tensor, such a struct, or a vector or optional of those");
  }
}

/// ValueError when two members have one name.
void check_names(const Members& m);

template <class M>
Members members(const M& module) {
  Members out;
  collect(out, module);
  check_names(out);
  return out;
}

std::vector<NamedTensor> tensors_of(const Members& m, bool only_parameters);
/// Throws unless `state` fits, without `strict` what is of it; then load_state cannot fail. `op` begins the message.
void check_state(const Members& m, const std::map<std::string, Tensor>& state, bool strict = true, const std::string& op = "load_state");
void load_state(const Members& m, const std::map<std::string, Tensor>& state, bool strict = true, const std::string& op = "load_state");
void convert(const Members& m, DType dtype);
void move(const Members& m, Device device);
/// Gives m tensors of its own: copies there, or where they are; what two members share they share still.
void unshare(const Members& m, std::optional<Device> device = {});
void save_state(const Members& m, const std::string& path, const std::map<std::string, std::string>& metadata);
std::map<std::string, std::string> load_file(const Members& m, const std::string& path, const std::string& prefix,
                                             bool strict);
/// Adds what load_model() needs to know.
void describe_model(std::map<std::string, std::string>& metadata, const char* type, const OptionList& options);
/// Reads the options that a file stores, and its tensors.
std::map<std::string, Tensor> open_model(const std::string& path, const char* type, const OptionList& options);
/// Gives tensors of an old file the names that m has for them, also within longer ones ("w.m" of an optimiser): layers
/// that have their maps from Heads called q, k and v query, key and value before they had it.
void take_former_names(const Members& m, std::map<std::string, Tensor>& file);
/// Takes the dtype of the state, and throws unless it fits.
void check_model(const Members& m, const std::map<std::string, Tensor>& state);
void fill_model(const Members& m, const std::map<std::string, Tensor>& state);
std::string summary_of(const Members& m);
ModuleNames names_of(const Members& m);

template <class M>
concept HasOptions = requires(const M& m) {
  M::type;
  requires Described<std::remove_cvref_t<decltype(m.options)>>;
};
template <class M>
std::map<std::string, std::string> described(const M& m, std::map<std::string, std::string> metadata) {
  if constexpr (HasOptions<M>) describe_model(metadata, M::type, options_of(m.options));
  return metadata;
}

}  // namespace detail

/// What load() takes of a file.
struct LoadOptions {
  std::string prefix = {};  // only names of the file that begin so take part, without it: "body." for a part of a model
  bool strict = true;       // false: what is missing keeps its values, what is not part of the model is left out
};

/// The tensors that are trained, with dotted names ("blocks.0.out.weight"); one that several members share
/// is listed once, under its first name.
template <class M>
std::vector<NamedTensor> parameters(const M& m) {
  return detail::tensors_of(detail::members(m), true);
}
/// Parameters and buffers.
template <class M>
std::vector<NamedTensor> state_dict(const M& m) {
  return detail::tensors_of(detail::members(m), false);
}
/// Copies a state into m: every name, shape and dtype is checked before the first value changes. IOError
/// names the missing, unexpected or misfit entries.
template <class M>
void load_state(const M& m, const std::map<std::string, Tensor>& state) {
  detail::load_state(detail::members(m), state);
}
/// Writes the state as safetensors, atomically, with the model's options: the metadata gains "layer" and "options".
template <class M>
void save(const M& m, const std::string& path, const std::map<std::string, std::string>& metadata = {}) {
  detail::save_state(detail::members(m), path, detail::described(m, metadata));
}
/// Reads it back (all or nothing, see load_state) and returns the file's metadata. Of a checkpoint, reads the weights.
/// IOError for a file of PyTorch, whose linear maps are transposed: load_pytorch() reads those. Old files whose
/// attention has parameters query, key and value instead of q, k and v are read, too.
template <class M>
std::map<std::string, std::string> load(const M& m, const std::string& path, const LoadOptions& options = {}) {
  return detail::load_file(detail::members(m), path, options.prefix, options.strict);
}
/// The model of a file that save() or save_checkpoint() wrote: built from the options in the file, then given its
/// state. IOError naming the file and what is wrong with it; also for the file of another type of model, and for one
/// without options, which load() reads into a model that exists.
template <class M>
  requires detail::HasOptions<M>
M load_model(const std::string& path) {
  using Options = std::remove_cvref_t<decltype(std::declval<M>().options)>;
  Options options{};
  std::map<std::string, Tensor> state = detail::open_model(path, M::type, options_of(options));
  const auto build = [&] {
    Rng rng(0);
    if constexpr (std::is_constructible_v<M, Options, Rng&>) return M(options, rng);
    else return M(options);
  };
  try {
    {
      detail::MetaInit shapes_only;  // options that lie about the sizes cost no memory
      M shapes = build();
      detail::take_former_names(detail::members(shapes), state);
      detail::check_model(detail::members(shapes), state);
    }
    M m = build();
    detail::fill_model(detail::members(m), state);
    return m;
  } catch (const std::exception& e) {
    fail<IOError>("load_model: '", path, "': ", e.what());
  }
}
/// Converts floating-point tensors, and their gradients, in place (to f32, f64 or bf16): whoever holds one — a copy of
/// m, an optimiser, which converts its moments at the next step — has it converted. A backward pass through what m
/// computed before is an AutogradError, as is a tensor that an op has computed.
template <class M>
  requires(!std::is_same_v<M, Tensor>)  // a tensor is converted by value, see ops/create.h
void to(M& m, DType dtype) {
  detail::convert(detail::members(m), dtype);
}
/// Moves every tensor to a device, in place as above. On meta there are no values: m gets tensors of its own there, and
/// those that it had stay what they are for all others who hold them.
template <class M>
  requires(!std::is_same_v<M, Tensor>)
void to(M& m, Device device) {
  detail::move(detail::members(m), device);
}
/// Number of trained values.
template <class M>
int64_t count(const M& m) {
  int64_t n = 0;
  for (const NamedTensor& p : parameters(m)) n += p.tensor.numel();
  return n;
}
/// Forgets the gradients of all parameters.
template <class M>
void zero_grad(const M& m) {
  for (NamedTensor& p : parameters(m)) p.tensor.zero_grad();
}
/// A table: path, type, shapes, number of values.
template <class M>
std::string summary(const M& m) {
  return detail::summary_of(detail::members(m));
}
/// Paths of the modules, for AnomalyMode. Valid while m stays where it is.
template <class M>
ModuleNames name_modules(const M& m) {
  return detail::names_of(detail::members(m));
}

}  // namespace sluice
