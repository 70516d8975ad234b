// The loops of gather and its relatives. Indices are contiguous i64; targets are contiguous.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice::detail {

/// y = x gathered along dim; x of any layout, y contiguous of the shape of the index.
void gather_cpu(const Tensor& x, int dim, const Tensor& index, Tensor& y);
/// y[index] += src along dim; src contiguous of the shape of the index.
void scatter_add_cpu(Tensor& y, int dim, const Tensor& index, const Tensor& src);
/// y = slices of x. `op` is named in errors.
void index_select_cpu(const char* op, const Tensor& x, int dim, const Tensor& index, Tensor& y);
/// y's slice index[i] += slice i of contiguous src.
void index_add_cpu(Tensor& y, int dim, const Tensor& index, const Tensor& src);
/// Zeroes the part of each matrix of y that triu (upper) or tril drops.
void zero_triangle_cpu(Tensor& y, bool upper, int64_t k);

}  // namespace sluice::detail
