// The plan of load_pytorch() and save_pytorch(): which pieces of which slots a tensor of the file consists of.
//
// Model and file are compared "in rows": the model's tensor in PyTorch's layout, where the rows of a linear map are its
// outputs. A tensor of the file, in rows, consists of pieces of such tensors.
#pragma once

#include <sluice/layers/port/pytorch.h>

#include <map>
#include <regex>
#include <string>
#include <vector>

namespace sluice::detail {

/// A piece of a slot, as the file has it.
struct FilePiece {
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
using FilePlan = std::map<std::string, std::vector<FilePiece>>;

/// Where each slot of the model stands in a file whose names have the prefix. Throws ValueError for rules that
/// contradict the model or each other.
FilePlan file_plan(const Members& m, const PyTorchRules& rules, const std::string& prefix);
/// The shape in the file of the tensor that consists of these pieces.
Shape file_shape(const std::vector<FilePiece>& pieces);
/// The view of a piece in the model's tensor `whole`, in rows.
Tensor place_of(const Tensor& whole, const FilePiece& p);
/// Splits a tensor of the file into its pieces. put_together() is the inverse.
std::vector<Tensor> taken_apart(const Tensor& file, const std::vector<FilePiece>& pieces);
Tensor put_together(std::vector<Tensor> xs, const std::vector<FilePiece>& pieces);

/// With the last two axes in the other order.
Tensor swapped(const Tensor& x);
Shape swapped(Shape s);
std::string in_quotes(const std::string& name);
/// Throws ValueError for a text that is no regular expression.
std::regex compiled(const std::string& text);

}  // namespace sluice::detail
