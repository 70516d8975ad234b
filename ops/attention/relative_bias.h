// Additive biases that depend on the distance of key and query only, as the table that attention() takes:
// [heads or 1, n + m − 1] for m queries and n keys aligned at the end, entry n − 1 + p_j − p_i. So a bias
// and its gradient cost n + m numbers each instead of n·m.
#pragma once

#include <sluice/ops/rows/rope.h>

namespace sluice {

/// w[h, centre + p_j − p_i] of a table [2·n_max − 1] or [heads, 2·n_max − 1], centre = n_max − 1: a view.
/// ShapeError when n > n_max or m > n_max.
Tensor relative_toeplitz(const Tensor& w, int64_t m, int64_t n);
/// weight[bucket(p_j − p_i), h] for weight [buckets, heads] (Raffel et al. 2020).
Tensor relative_t5(const Tensor& weight, int64_t m, int64_t n, T5BucketOptions options = {});
/// −slope_h · |p_i − p_j| (Press et al. 2022).
Tensor relative_alibi(const Tensor& slopes, int64_t m, int64_t n);
/// The published slopes 2^(−8(h+1)/heads). If heads is not a power of two: the slopes of the next lower power,
/// followed by every other slope of the next higher power.
Tensor alibi_slopes(int64_t heads, TensorOptions options = {});
/// ⟨rope_p_i(a), rope_p_j(b)⟩ for vectors a, b [s]: GAU's bias for long sequences, a Toeplitz matrix. [1, n + m − 1].
Tensor relative_rope(const Tensor& a, const Tensor& b, int64_t m, int64_t n, RopeOptions options = {});
/// The m×n matrix of a table, [heads or 1, m, n], as a view.
Tensor relative_matrix(const Tensor& table, int64_t m, int64_t n);

}  // namespace sluice
