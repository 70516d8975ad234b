// The nodes of parts of a tensor: of a slice, and of slices that an index names. The backward walk adds a part's
// gradient to its places in a sum that exists already.
#pragma once

#include <sluice/core/node.h>

namespace sluice::detail {

/// Goes back from a part of a tensor of shape `full`.
struct PartNode : Node {
  Shape full;
  explicit PartNode(const Shape& of) : full(of) {}
  /// sum += vjp(g), in place: only the part is read and written.
  virtual void add_vjp(const Tensor& g, Tensor& sum) const = 0;
};

/// Goes back from a box of the tensor, as region() cuts it out.
struct RegionNode final : PartNode {
  Shape starts, steps;
  RegionNode(const Shape& of, const Shape& from, const Shape& by) : PartNode(of), starts(from), steps(by) {}
  static const char* op_name() { return "slice"; }
  const char* name() const override { return op_name(); }
  /// g in its box of a zero tensor.
  Tensors vjp(const Tensor& g) override;
  void add_vjp(const Tensor& g, Tensor& sum) const override;
};

/// Goes back from the slices along dim that the saved index names.
struct SlicesNode final : PartNode {
  const char* op;
  int dim;
  SlicesNode(const char* o, const Shape& of, int d) : PartNode(of), op(o), dim(d) {}
  const char* name() const override { return op; }
  /// The slices of g, added to those of a zero tensor.
  Tensors vjp(const Tensor& g) override;
  void add_vjp(const Tensor& g, Tensor& sum) const override;
};

}  // namespace sluice::detail
