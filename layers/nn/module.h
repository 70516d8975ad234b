// Modules are plain structs. A module lists its members once, as SLUICE_PARTS(value, out);, which stands for
//
//   static void visit(auto& self, auto&& f) { f("value", self.value); f("out", self.out); }
//
// A module that calls its members otherwise, or has more in the list than members, writes its own visit. Free functions
// over this list do everything else: parameters, state, loading, counting, summaries. Members may be Tensors, modules,
// std::vector or std::optional of either, and std::variant of modules and std::monostate. Tensors that require a
// gradient are parameters. The other tensors are buffers: part of the state, but not trained. A copy of a module shares
// the module's tensors, so all copies see changes by to() (except to meta), load() and an optimiser. clone() in
// layers/train/models.h shares no tensors. The members whose names keeps_f32 accepts stay f32 in a module of bf16.
#pragma once

#include <sluice/core/text/options.h>
#include <sluice/core/number/random.h>
#include <sluice/core/scope.h>
#include <sluice/core/tensor.h>
#include <sluice/layers/nn/meta_init.h>
#include <sluice/layers/nn/named_tensor.h>
#include <sluice/layers/nn/parts.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace sluice {

/// Names of tensors without a counterpart: those of the model that a file lacks, and those of a file that the model
/// lacks.
struct StateNames {
  std::vector<std::string> missing, unexpected;  // of the model, of the file
};
/// Which tensors of a file load() reads.
struct LoadOptions {
  std::string prefix = {};      // read only names with this prefix, and remove it: "body." for a part of a model
  bool strict = true;           // false: missing tensors keep their values, tensors that the model lacks are ignored
  StateNames* names = nullptr;  // receives the names of these tensors, without the prefix
};

namespace detail {
/// The metadata entry "format" of a training checkpoint (layers/train/training.h), and the beginning of the names of
/// its model's tensors.
inline constexpr std::string_view kCheckpointFormat = "sluice-checkpoint-1", kCheckpointModel = "model.";

/// Whether T is some Kind<…>: std::vector, std::optional, std::variant.
template <class T, template <class...> class Kind> inline constexpr bool is_a = false;
template <class... Ts, template <class...> class Kind> inline constexpr bool is_a<Kind<Ts...>, Kind> = true;

/// The result of a visit: pointers to the tensors, so that they can be replaced, and the modules that own them.
struct Members {
  struct Slot {
    std::string name;
    Tensor* tensor;
    bool exact;  // in a bf16 module this tensor is f32: its layer's keeps_f32(name)
  };
  struct Part {
    std::string name, type;
    const void* object;
    std::size_t first, last;  // its slots are [first, last)
  };
  std::vector<Slot> slots;
  std::vector<Part> parts;
  std::string path;  // path of the current member
  bool exact = false;

  /// Appends a member's name to `path`. Returns the previous length of `path`, for up().
  std::size_t down(const char* name);
  void up(std::size_t length) { path.resize(length); }
  std::size_t begin(std::string type, const void* object);  // begins a part; returns its index, for end()
  void end(std::size_t part) { parts[part].last = slots.size(); }
};

void collect(Members& out, const Tensor& x);
inline void collect(Members&, std::monostate) {}
/// Every type of layer instantiates this template, so all code that needs no T is in functions of Members.
template <class T> void collect(Members& out, const T& x) {
  const auto member = [&](const char* name, const auto& m) {
    const std::size_t above = out.down(name);
    const Restored<bool> outer(out.exact, out.exact);
    if constexpr (requires { T::keeps_f32(name); }) out.exact |= T::keeps_f32(name);
    collect(out, m);
    out.up(above);
  };
  if constexpr (is_a<T, std::vector>) {
    for (std::size_t i = 0; i < x.size(); ++i) member(std::to_string(i).c_str(), x[i]);
  } else if constexpr (is_a<T, std::optional>) {
    if (x) collect(out, *x);
  } else if constexpr (is_a<T, std::variant>) {
    std::visit([&](const auto& chosen) { collect(out, chosen); }, x);
  } else if constexpr (requires { T::visit(x, [](const char*, auto&) {}); }) {
    std::size_t part;
    if constexpr (HasType<T>) part = out.begin(T::type, &x);
    else part = out.begin("module", &x);
    T::visit(x, member);
    out.end(part);
  } else {
    static_assert(
        sizeof(T) == 0,
        "a module lists its members: SLUICE_PARTS(weight, out); each is a Tensor, such a struct, or a vector, "
        "optional or variant of those");
  }
}

/// Throws ValueError when two tensors have the same name.
void check_names(const Members& m);

template <class M> Members members(const M& module) {
  Members out;
  collect(out, module);
  check_names(out);
  return out;
}

std::vector<NamedTensor> tensors_of(const Members& m, bool only_parameters);
/// Throws IOError unless `state` fits: the names must be equal (if `strict`), and tensors of equal names must have
/// equal shapes and dtypes, and be both on meta or neither (unless `shapes_only`). After this check load_state cannot
/// fail. The message begins with `op`. Returns the names that are not equal.
StateNames check_state(const Members& m, const std::map<std::string, Tensor>& state, bool strict = true,
                       const std::string& op = "load_state", bool shapes_only = false);
StateNames load_state(const Members& m, const std::map<std::string, Tensor>& state, bool strict = true,
                      const std::string& op = "load_state");
void convert(const Members& m, DType dtype);
/// The dtype in which a module of these tensors computes; `otherwise` if no tensor says it.
DType compute_dtype(const Members& m, DType otherwise);
void move(const Members& m, Device device);
/// Replaces the tensors of m by copies on `device`, without `device` on the device of each tensor. Tensors that are
/// already on `device` are not copied. Members that share a tensor share its copy.
void unshare(const Members& m, std::optional<Device> device = {});
void save_state(const Members& m, const std::string& path, const std::map<std::string, std::string>& metadata);
std::map<std::string, std::string> load_file(const Members& m, const std::string& path, const LoadOptions& options);
/// Sets the entries "layer" and "options", which load_model() needs. ValueError if "layer" says another type.
void describe_model(std::map<std::string, std::string>& metadata, const char* type, const OptionList& options);
/// Reads the options of a model file into `options`, and returns the file's tensors.
std::map<std::string, Tensor> open_model(const std::string& path, const char* type, const OptionList& options);
/// Renames the tensors of an old file to the names in m. Layers with a Heads had the names query, key and value for q,
/// k and v before. Also renames longer names that begin with a former name ("w.m" of an optimiser).
void take_former_names(const Members& m, std::map<std::string, Tensor>& file);
/// Converts the tensors of m to the dtypes of the state. Throws IOError unless the state fits.
void check_model(const Members& m, const std::map<std::string, Tensor>& state);
void fill_model(const Members& m, const std::map<std::string, Tensor>& state);
/// Number of trained values in a part; a tensor that several members share counts once.
int64_t trained_values(const Members& m, const Members::Part& part);
std::string summary_of(const Members& m);
ModuleNames names_of(const Members& m);

template <class M>
concept HasOptions = HasType<M> && requires(const M& m) {
  requires Described<std::remove_cvref_t<decltype(m.options)>>;
};
/// The layer; its constructor may take a generator.
template <class M, class O> M build(const O& options, Rng& rng) {
  if constexpr (std::is_constructible_v<M, O, Rng&>) return M(options, rng);
  else return M(options);
}
template <class M>
std::map<std::string, std::string> described(const M& m, std::map<std::string, std::string> metadata) {
  if constexpr (HasOptions<M>) describe_model(metadata, M::type, options_of(m.options));
  return metadata;
}

}  // namespace detail

/// The trained tensors, with dotted names ("blocks.0.out.weight"). A tensor that several members share is listed once,
/// under its first name.
template <class M> std::vector<NamedTensor> parameters(const M& m) {
  return detail::tensors_of(detail::members(m), true);
}
/// Parameters and buffers. A tensor that several members share is listed under each of its names.
template <class M> std::vector<NamedTensor> state_dict(const M& m) {
  return detail::tensors_of(detail::members(m), false);
}
/// Copies a state into m. The state may consist of m's own tensors. Checks all names, shapes and dtypes before the
/// first value changes. Throws IOError naming the entries that are missing, unexpected or of another shape or dtype,
/// and a tensor that only one of the two has on meta.
template <class M> void load_state(const M& m, const std::map<std::string, Tensor>& state) {
  detail::load_state(detail::members(m), state);
}
/// Writes the state as safetensors, atomically, with the model's options: the metadata gains "layer" and "options". An
/// entry "options" that it has is replaced; ValueError for an entry "layer" other than the model's type.
template <class M>
void save(const M& m, const std::string& path, const std::map<std::string, std::string>& metadata = {}) {
  detail::save_state(detail::members(m), path, detail::described(m, metadata));
}
/// Reads the state from a file of save() (all or nothing, see load_state) and returns the file's metadata. Reads the
/// model's tensors from a checkpoint. Also reads old files whose attention has parameters query, key and value instead
/// of q, k and v. If m has a Linear, throws IOError for a file of PyTorch, where linear maps are transposed: use
/// load_pytorch().
template <class M>
std::map<std::string, std::string> load(const M& m, const std::string& path, const LoadOptions& options = {}) {
  return detail::load_file(detail::members(m), path, options);
}
/// Builds a model from the options in a file of save() or save_checkpoint(), and loads the file's state into it. Throws
/// IOError naming the file and its fault, also for another type of model and for a file without options. load() reads a
/// file without options into an existing model.
template <class M>
requires detail::HasOptions<M> M load_model(const std::string& path) {
  std::remove_cvref_t<decltype(std::declval<M>().options)> options{};
  std::map<std::string, Tensor> state = detail::open_model(path, M::type, options_of(options));
  Rng rng(0);
  try {
    {
      MetaInit shapes_only;  // wrong sizes in the options cost no memory
      M shapes = detail::build<M>(options, rng);
      detail::take_former_names(detail::members(shapes), state);
      detail::check_model(detail::members(shapes), state);
    }
    M m = detail::build<M>(options, rng);
    detail::fill_model(detail::members(m), state);
    return m;
  } catch (const std::exception& e) { fail<IOError>("load_model: '", path, "': ", e.what()); }
}
/// Converts floating-point tensors, and their gradients, in place, to f32, f64 or bf16. All owners of a tensor see the
/// conversion: copies of m, and an optimiser, which converts its moments at its next step. A later backward pass
/// through earlier results of m throws AutogradError. to() throws AutogradError if a tensor of m is the result of an
/// op.
template <class M>
requires(!std::is_same_v<M, Tensor>)  // a tensor is converted by value, see ops/shape/create.h
    void to(M& m, DType dtype) {
  detail::convert(detail::members(m), dtype);
}
/// Moves every tensor to a device, in place as above. Meta has no values: there m gets tensors of its own, and the
/// earlier tensors stay unchanged for their other owners.
template <class M>
requires(!std::is_same_v<M, Tensor>) void to(M& m, Device device) { detail::move(detail::members(m), device); }
/// Number of trained values.
template <class M> int64_t count(const M& m) {
  int64_t n = 0;
  for (const NamedTensor& p : parameters(m)) n += p.tensor.numel();
  return n;
}
/// Clears the gradients of all parameters.
template <class M> void zero_grad(const M& m) {
  for (NamedTensor& p : parameters(m)) p.tensor.zero_grad();
}
/// Returns a table with the path, the type, the number of trained values and the tensors of each module that has any.
template <class M> std::string summary(const M& m) { return detail::summary_of(detail::members(m)); }
/// Paths of the modules, for AnomalyMode and Profile. Valid as long as m is not moved in memory.
template <class M> ModuleNames name_modules(const M& m) { return detail::names_of(detail::members(m)); }

}  // namespace sluice
