// Reading and writing weights of PyTorch and Hugging Face. layers/port/README.md has the rules of common checkpoints.
//
//   load_pytorch(model, "model.safetensors",
//                {{"^blocks", "model.layers"},
//                 {"attention\\.([kv])\\.", "self_attn.$1_proj."},
//                 {"attention\\.q\\.", "self_attn.q_proj.", {.part = 0, .groups = 8}},  // q and gate in one map,
//                 {"attention\\.gates\\.0\\.map\\.", "self_attn.q_proj.", {.part = 1, .groups = 8}},  // head by head
//                 {"attention\\.([qk]_norm)", "self_attn.$1", {.add = 1}}});  // the file has w − 1
#pragma once

#include <sluice/core/text/safetensors.h>
#include <sluice/layers/nn/module.h>

#include <functional>
#include <set>

namespace sluice {

/// The layout of a matrix of the model in the file.
enum class PyTorchLayout {
  automatic,   // transposed for Linear, depthwise for ShortConvolution, otherwise as in the model; a square matrix of
               // another module (not Embedding) throws ValueError
  as_is,       // as in the model: for Linear [in, out], like GPT-2's Conv1D
  transposed,  // the last two axes are swapped
  depthwise,   // [width, dim] in the model, [dim, 1, width] in the file: Conv1d with groups = dim
};
constexpr const char* choices(PyTorchLayout) { return "automatic as_is transposed depthwise"; }

/// A piece of a tensor that the file stores as several tensors.
struct PyTorchPiece {
  static constexpr int64_t single = -1;  // a value of `rows`
  std::string as;                        // the replacement for this piece, instead of PyTorchRule::as
  int64_t rows = 0;  // 0: all remaining rows; single: one row, which the file stores without the axis of rows
  int64_t part = 0;  // as PyTorchStorage::part
  friend bool operator==(const PyTorchPiece&, const PyTorchPiece&) = default;
};

/// How the file stores a tensor. Rows are those of PyTorch's layout: the rows of a Linear are its outputs.
struct PyTorchStorage {
  double add = 0;  // model = file + add; 1 for norms that store w − 1
  /// Several tensors of the model with the same name in the file are one tensor there: concatenated along rows, in the
  /// order of `part`. With `groups` > 1 the file interleaves them: rows/groups rows of each tensor in turn. `groups` is
  /// the number of heads for NeoX, Bloom, Qwen3-Next, and the number of KV heads for fused maps of grouped-query
  /// attention.
  int64_t part = 0, groups = 1;
  int64_t axis = 0;  // of the rows, counted in the file: 1 where each expert of [experts, rows, …] has rows
  PyTorchLayout layout = PyTorchLayout::automatic;
  /// For a tensor of the model that is several tensors in the file: the pieces cover the tensor's rows in order, and
  /// each piece has its own name.
  std::vector<PyTorchPiece> pieces = {};
  friend bool operator==(const PyTorchStorage&, const PyTorchStorage&) = default;
};

/// Replaces all matches of the regular expression `name` (ECMAScript) in a name of the model by `as`, where $1 is the
/// first group and $& is the match. All rules apply in order, each to the result of the rules before it. The last
/// matching rule with a `stored` that is not the default determines the whole storage. A tensor whose name becomes
/// empty is not in the file, and keeps its values.
struct PyTorchRule {
  std::string name, as;        // pattern and replacement
  PyTorchStorage stored = {};  // storage of the tensors whose names match
};
/// Rules, in the order in which they apply.
using PyTorchRules = std::vector<PyTorchRule>;

/// Which names of a file load_pytorch() reads, and whether all names must match.
struct PyTorchOptions {
  std::string prefix = {};               // read only names with this prefix; rules see names without it
  std::vector<std::string> ignore = {};  // patterns: unexpected names of the file (with prefix) that match are ignored
  bool strict = true;                    // false: missing tensors keep their values, unexpected tensors are ignored;
                                         // of a tensor on meta the missing pieces become 0
  /// Tensors that take the place of ones on meta are the file's own memory, see map_safetensors(). What the file stores
  /// in another dtype, in parts, or less 1 is copied.
  bool map = false;
};
/// Names without a counterpart in the file or in the model, both as in the file.
using PyTorchNames = StateNames;

namespace detail {
PyTorchNames load_pytorch(const Members& m, const std::string& path, const PyTorchRules& rules,
                          const PyTorchOptions& options);
void save_pytorch(const Members& m, const std::string& path, const PyTorchRules& rules, const std::string& prefix);
/// What save_pytorch() writes. DeviceError, which begins with `op`, for a tensor on meta.
SafeTensors pytorch_tensors(const char* op, const Members& m, const PyTorchRules& rules, const std::string& prefix);
/// The index of a sharded checkpoint: the file of each tensor. IOError, which begins with `op`, for what is no index
/// and for one that names files of other folders.
std::map<std::string, std::string> read_index(const char* op, const std::string& path);
/// The tensors that are `wanted`, of one file or of the files of an index; with `map` they are the files' own memory.
/// Adds the names of all tensors to `names`. IOError for a file that is not PyTorch's, and for a name in two files.
std::map<std::string, Tensor> read_pytorch(const std::string& path, bool map,
                                           const std::function<bool(const std::string&)>& wanted,
                                           std::set<std::string>& names);
}  // namespace detail

/// Copies the weights of a safetensors file of PyTorch into the model. Transposes linear maps and converts floats to
/// the dtypes of the model; what is stored in few bits is read with its scales (layers/port/quantised.h). For a sharded
/// checkpoint `path` must be its index, model.safetensors.index.json. All or nothing: the model is unchanged after an
/// error. Axes of size 1 that the model lacks are dropped. Tensors of the model that are on meta are replaced by
/// tensors on the CPU. Throws IOError listing the tensors that are missing, unexpected or of another shape or dtype,
/// with the most similar names, and ValueError for rules that do not make sense. Without `strict` returns the missing
/// and unexpected names.
template <class M>
PyTorchNames load_pytorch(const M& m, const std::string& path, const PyTorchRules& rules = {},
                          const PyTorchOptions& options = {}) {
  return detail::load_pytorch(detail::members(m), path, rules, options);
}
/// Writes the model with the same rules, atomically. PyTorch's load_state_dict reads the file.
template <class M>
void save_pytorch(const M& m, const std::string& path, const PyTorchRules& rules = {}, const std::string& prefix = {}) {
  detail::save_pytorch(detail::members(m), path, rules, prefix);
}

}  // namespace sluice
