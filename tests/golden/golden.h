// Reference cases: inputs, weights and results that independent float64 programs computed. data/index.json says of each
// which layer of layer_check computes it, with which options, and which of its arrays are which tensors; a new case is
// an entry there. golden_test.cpp runs all of them in process, tests/layer_check three through its binary.
//
//   "safetensors": "next/mla.safetensors"             a file with layer, options and tensors in layer_check's names; or
//   "layer", "config", "lead"                         inputs have so many sizes 1 in front of those of their arrays
//   "tensors": {"param.in.weight": "wu | wv | wz"}    what layer_check gets; a mask is true above 0.5
//   "expect": {"output": "out + x"}                   what it must write
//   "runs": [{"label": "streamed", "config": …}, …]   ways to compute the case: what they change of the entry, or add
//   "f32": 1e-4                                       what f32 may differ by, relative to the largest number; else 1e-5
//   "arrays": {"wu": {"file": …, "shape": …}, …}      files of raw little-endian float64
//
// A tensor is a list of numbers, or columns of terms side by side ("a | b") that are sums ("a + b"). A term is an
// array; "zeros ROWS COLUMNS"; "eye ROWS COLUMNS K", columns of the identity matrix from the K-th on; "matrix w", the
// Toeplitz matrix b_ij = w[n − 1 + j − i]; "diagonals b", its w; or "diagonal_sums g", the gradient of w that belongs
// to b's.
#pragma once

#include <sluice/core/tensor.h>
#include <sluice/core/text/safetensors.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::testing {

struct GoldenResult {
  std::string name;   // as layer_check writes it: "output", "grad.input.x"
  std::string array;  // what the index expects
  Tensor want;
  double tolerance, tolerance_f32;  // of |got − want|
};

/// One way to compute a case.
struct GoldenRun {
  std::string name;   // of the case
  std::string label;  // " (streamed)"; may be empty
  SafeTensors file;   // as layer_check reads it
  std::vector<GoldenResult> results;

  /// The largest |got − want|, where layer_check wrote `got`; rows of padding are not compared. Infinite for a NaN, for
  /// another number of elements, and for a result that is not there.
  double error(const GoldenResult& result, const std::map<std::string, Tensor>& written) const;
};

/// The runs of a case, or of all, in the order of the index. IOError for no such case, for a name that is no array of
/// its case, and for a file that is not as long as the index says.
std::vector<GoldenRun> golden_runs(std::string_view name = {});

}  // namespace sluice::testing
