// Weights of PyTorch and Hugging Face, read into a model and written back. layers/port/README.md has the rules of
// common checkpoints.
//
//   load_pytorch(model, "model.safetensors",
//                {{"^blocks", "model.layers"},
//                 {"attention\\.([kv])\\.", "self_attn.$1_proj."},
//                 {"attention\\.q\\.", "self_attn.q_proj.", {.part = 0, .groups = 8}},  // q and gate in one map,
//                 {"attention\\.gates\\.0\\.map\\.", "self_attn.q_proj.", {.part = 1, .groups = 8}},  // by heads
//                 {"attention\\.([qk]_norm)", "self_attn.$1", {.add = 1}}});  // the file has w − 1
#pragma once

#include <sluice/layers/nn/module.h>

namespace sluice {

/// How a file holds a matrix of the model.
enum class PyTorchLayout {
  automatic,   // transposed for Linear, depthwise for ShortConvolution, else as is; a square matrix of none is refused
  as_is,       // as in the model: for Linear [in, out], like GPT-2's Conv1D
  transposed,  // the last two axes swapped
  depthwise,   // [width, dim] here, [dim, 1, width] there: Conv1d with groups = dim
};
constexpr const char* choices(PyTorchLayout) { return "automatic as_is transposed depthwise"; }

/// A share of a tensor that the file has in several places.
struct PyTorchPiece {
  static constexpr int64_t single = -1;  // as `rows`
  std::string as;    // in place of PyTorchRule::as
  int64_t rows = 0;  // 0: all that are left; single: one row, which the file holds without its axis
  int64_t part = 0;  // as PyTorchStorage::part
  friend bool operator==(const PyTorchPiece&, const PyTorchPiece&) = default;
};

/// How the file stores a tensor. Rows are counted as PyTorch stores it: of a Linear, its outputs.
struct PyTorchStorage {
  double add = 0;  // model = file + add: 1 for norms that store w − 1
  /// Tensors of the model with one name in the file lie there one behind another, in the order of `part`. Groups: the
  /// file interleaves them, rows/groups of each in turn. One a head for NeoX, Bloom, Qwen3-Next; one a KV head for
  /// fused maps of grouped-query attention.
  int64_t part = 0, groups = 1;
  PyTorchLayout layout = PyTorchLayout::automatic;
  /// The tensor's rows from the first on, each piece with a name of its own: for what the model has in one tensor.
  std::vector<PyTorchPiece> pieces = {};
  friend bool operator==(const PyTorchStorage&, const PyTorchStorage&) = default;
};

/// Whatever `name` (ECMAScript) matches in a name of the model is replaced by `as`, where $1 is the first group and $&
/// the match. All rules apply, each to what the ones before have made of the name; the last that matches and says
/// something about the storage says all of it. A name that becomes empty is not in the file, and keeps its values.
struct PyTorchRule {
  std::string name, as;         // pattern and replacement
  PyTorchStorage stored = {};   // how the file has the tensors whose names it matches
};
/// All of them, in order.
using PyTorchRules = std::vector<PyTorchRule>;

/// Which names of a file take part, and what becomes of those that do not fit.
struct PyTorchOptions {
  std::string prefix = {};               // only names that begin so take part; rules do not see it
  std::vector<std::string> ignore = {};  // names of the file, prefix included, that one of these matches are left out
  bool strict = true;                    // false: what is missing keeps its values, what is unexpected is left out
};
/// What load_pytorch() found no partner for.
struct PyTorchNames {
  std::vector<std::string> missing, unexpected;  // as in the file
};

namespace detail {
PyTorchNames load_pytorch(const Members& m, const std::string& path, const PyTorchRules& rules,
                          const PyTorchOptions& options);
void save_pytorch(const Members& m, const std::string& path, const PyTorchRules& rules, const std::string& prefix);
}  // namespace detail

/// Copies the weights of a safetensors file that PyTorch wrote into the model: linear maps transposed, floats converted
/// to the dtype that the model has. Of sharded checkpoints `path` is the index, model.safetensors.index.json. All or
/// nothing: IOError naming every missing, unexpected or misfit tensor, with the nearest name, and ValueError for rules
/// that do not make sense, leave the model as it was. Returns what was missing or unexpected without `strict`.
template <class M>
PyTorchNames load_pytorch(const M& m, const std::string& path, const PyTorchRules& rules = {},
                          const PyTorchOptions& options = {}) {
  return detail::load_pytorch(detail::members(m), path, rules, options);
}
/// The way back, by the same rules: PyTorch's load_state_dict reads the file. Written atomically.
template <class M>
void save_pytorch(const M& m, const std::string& path, const PyTorchRules& rules = {}, const std::string& prefix = {}) {
  detail::save_pytorch(detail::members(m), path, rules, prefix);
}

}  // namespace sluice
