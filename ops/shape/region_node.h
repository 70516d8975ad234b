// The node of a slice. The backward walk adds a slice's gradient to its box of a sum that exists already.
#pragma once

#include <sluice/core/node.h>

namespace sluice::detail {

/// Goes back from a box of a tensor of shape `full`, as region() cuts it out.
struct RegionNode final : Op<"slice"> {
  Shape full, starts, steps;
  RegionNode(const Shape& of, const Shape& from, const Shape& by) : full(of), starts(from), steps(by) {}
  /// g in its box of a zero tensor.
  Tensors vjp(const Tensor& g) override;
  /// sum += vjp(g), in place: only the box is read and written.
  void add_vjp(const Tensor& g, Tensor& sum) const;
};

}  // namespace sluice::detail
