// Reading and adding at positions given by an index tensor (i64 or i32), and triangular masks.
// An index outside its dim is a ValueError that names the op, the index and the size. Results are
// bit-identical for any number of threads: every sum has one order.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// y[..., i, ...] = x[..., index[..., i, ...], ...] along dim. The index has the rank of x and may be
/// smaller outside dim.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// x plus src[..., i, ...] added at [..., index[..., i, ...], ...]; src has the shape of the index. Out of
/// place. The adjoint of gather.
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// x with src[..., i, ...] put at [..., index[..., i, ...], ...]; src has the shape of the index. If several
/// entries name one place, the last one along dim counts, and only it has a gradient. Any dtype. Out of place.
Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// The slices of x along dim that a rank-1 index names.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);
/// x plus slice i of src added to slice index[i], for a rank-1 index. Out of place. Each sum of floats is
/// accumulated in f64. The adjoint of index_select.
Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// Rows of weight [V, D]: the result has shape index.shape + [D].
Tensor embedding(const Tensor& weight, const Tensor& index);

// -- by value: these read the mask on the host, since the shape of the result depends on it -------------------

/// The positions where x is not 0 (NaN and denormals are included): i64 [count, x.rank()], in row-major order.
Tensor nonzero(const Tensor& x);
/// The elements of x where mask (bool) is true, in row-major order, as rank 1. The two broadcast.
Tensor masked_select(const Tensor& x, const Tensor& mask);

// -- triangles: of the last two dims -------------------------------------------------------------------

/// x where column >= row + k, else 0.
Tensor triu(const Tensor& x, int64_t k = 0);
/// x where column <= row + k, else 0.
Tensor tril(const Tensor& x, int64_t k = 0);
/// The bool mask [lq, lk] of causal attention, aligned at the bottom right: query i may attend (true) to
/// keys j <= i + lk − lq. With lq > lk the first queries see nothing.
Tensor causal_mask(int64_t lq, int64_t lk, Device device = cpu);

}  // namespace sluice
