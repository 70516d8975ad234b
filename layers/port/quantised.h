// Weights that a checkpoint of PyTorch stores in few bits, with scales beside them, become floats as they are read:
//
//   w, w_scale_inv or w_scale    F8 or I8 [rows, columns]; a scale for all of it, for each row, or a grid of scales,
//                                each for 2^a rows and 2^b columns (DeepSeek-V3, Qwen3-FP8, compressed-tensors)
//   w_packed, w_shape, w_scale   numbers of 4 or 8 bits, the first in the lowest bits of an I32, plus 8 or 128; I64 [2]
//                                says rows and columns, more than 4 of these (compressed-tensors)
//   w_blocks, w_scales           MXFP4 (OCP Microscaling Formats 1.0): U8 […, rows, columns/32, 16], 16 bytes with two
//                                numbers each, the low half first, and their exponents U8 […, rows, columns/32];
//                                w is [..., columns, rows] (gpt-oss)
//
// A product of number and scale is rounded to the dtype of the model once.
#pragma once

#include <sluice/core/tensor.h>

#include <functional>
#include <map>
#include <set>
#include <string>

namespace sluice::detail {

/// The name w of the weight to which a tensor with this name belongs, if w is stored in few bits: "a.weight" for
/// "a.weight_scale_inv", and for "a.input_scale", which scales what the weight multiplies. Otherwise "".
std::string weight_of(const std::string& name);

/// Replaces the packed tensors and scales of each weight w that `file` stores in few bits, and for which `wanted` is
/// true, by w in `dtype(w)`. In `names`, the name of w replaces theirs. Drops scales of the numbers that w multiplies.
/// IOError, which begins with `op`, for scales that do not fit.
void dequantise(const std::string& op, std::map<std::string, Tensor>& file, std::set<std::string>& names,
                const std::function<bool(const std::string&)>& wanted,
                const std::function<DType(const std::string&)>& dtype);

}  // namespace sluice::detail
