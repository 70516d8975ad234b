// The loops of reductions. A reduction sees its input as [outer, n, inner] and reduces the middle.
#pragma once

#include <sluice/core/tensor.h>

#include <cstdint>

namespace sluice::detail {

struct ReduceShape {
  int64_t outer, n, inner;
};

enum class ReduceKind { sum, max, min };

/// y[outer, inner] = reduction over n of contiguous x[outer, n, inner]; f32, f64, and for sum also i64.
void reduce_cpu(ReduceKind kind, const Tensor& x, Tensor& y, ReduceShape shape);
/// Index of the first extreme value.
void arg_extreme_cpu(bool largest, const Tensor& x, Tensor& index, ReduceShape shape);

}  // namespace sluice::detail
