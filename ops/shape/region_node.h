// The nodes of parts of a tensor: of a slice, and of slices that an index names.
#pragma once

#include <sluice/core/node.h>

namespace sluice::detail {

/// Goes back from a box of a tensor of shape `full`, as region() cuts it out.
struct RegionNode final : PartNode {
  Shape full, starts, steps;
  RegionNode(const Shape& of, const Shape& from, const Shape& by) : full(of), starts(from), steps(by) {}
  static const char* op_name() { return "slice"; }
  const char* name() const override { return op_name(); }
  /// g in its box of a zero tensor.
  Tensors vjp(const Tensor& g) override;
  void add_vjp(const Tensor& g, Tensor& sum) const override;
};

/// Goes back from the slices along dim of a tensor of shape `full` that the saved index names.
struct SlicesNode final : PartNode {
  const char* op;
  Shape full;
  int dim;
  SlicesNode(const char* o, const Shape& of, int d) : op(o), full(of), dim(d) {}
  const char* name() const override { return op; }
  /// The slices of g, added to those of a zero tensor.
  Tensors vjp(const Tensor& g) override;
  void add_vjp(const Tensor& g, Tensor& sum) const override;
};

}  // namespace sluice::detail
