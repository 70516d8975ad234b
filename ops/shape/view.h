// Views: new layouts over the same storage. No element moves; gradients flow back through the inverse
// geometry. Dims may be negative. Sizes and dims that do not fit are ShapeErrors that name the op and the shapes.
#pragma once

#include <sluice/core/tensor.h>

#include <optional>
#include <vector>

namespace sluice {

/// Same elements in row-major order under another shape; one entry may be −1 (inferred). A view when
/// strides can express it, else a copy.
Tensor reshape(const Tensor& x, const Shape& shape);
/// Merges dims first…last (inclusive) into one.
Tensor flatten(const Tensor& x, int64_t first = 0, int64_t last = -1);
/// Splits dim into `sizes` (one may be −1).
Tensor unflatten(const Tensor& x, int64_t dim, const Shape& sizes);
/// Exchanges dims a and b: a view.
Tensor transpose(const Tensor& x, int64_t a, int64_t b);
/// y.dim(i) = x.dim(order[i])
Tensor permute(const Tensor& x, const Shape& order);
/// Stretches size-1 dims (and adds leading ones) to `shape`; −1 keeps a size.
Tensor expand(const Tensor& x, const Shape& shape);
/// A new dim of size 1 before dim; −1: at the end.
Tensor unsqueeze(const Tensor& x, int64_t dim);
/// Drops dim, which must have size 1; without a dim, drops all dims of size 1.
Tensor squeeze(const Tensor& x, int64_t dim);
Tensor squeeze(const Tensor& x);
/// x[..., index, ...]: the dim disappears.
Tensor select(const Tensor& x, int64_t dim, int64_t index);
/// x[..., start:end:step, ...]; negative start and end count from the end, both are clamped as in
/// NumPy; step > 0.
Tensor slice(const Tensor& x, int64_t dim, std::optional<int64_t> start, std::optional<int64_t> end = std::nullopt,
             int64_t step = 1);
/// `length` entries from `start`, which counts from the end if it is negative. Throws ShapeError for a range beyond
/// dim, which slice() would clamp.
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length);
/// Consecutive pieces of the given sizes, which must sum to the dim. One node records all pieces; its backward pass
/// concatenates.
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int64_t dim = 0);
/// Pieces of ⌈dim/n⌉ entries, the last one possibly shorter: n pieces, or fewer where that many cover dim.
std::vector<Tensor> chunk(const Tensor& x, int64_t n, int64_t dim = 0);
/// The slices x[..., i, ...] along dim; the dim disappears.
std::vector<Tensor> unbind(const Tensor& x, int64_t dim = 0);
/// Windows of `size` entries every `step` along dim: dim becomes the number of windows, a new last dim their entries.
Tensor unfold(const Tensor& x, int64_t dim, int64_t size, int64_t step);
/// Reverses the order along dims; empty `dims` means all, as for reductions.
Tensor flip(const Tensor& x, const Shape& dims);
/// The diagonal of dims a and b, as long as the shorter one, moved to the last dim.
Tensor diagonal(const Tensor& x, int64_t a = -2, int64_t b = -1);

// -- joining and padding: these copy -----------------------------------------------------------------

/// Joins along dim; other dims must be equal.
Tensor cat(const std::vector<Tensor>& xs, int64_t dim = 0);
/// Joins along a new dim; shapes must be equal.
Tensor stack(const std::vector<Tensor>& xs, int64_t dim = 0);
/// `before` and `after` elements of `value` added along dim.
Tensor pad(const Tensor& x, int64_t dim, int64_t before, int64_t after, double value = 0);
/// Moves elements by `shift` along dim; they wrap around.
Tensor roll(const Tensor& x, int64_t shift, int64_t dim);
/// The adjoint of unfold: adds windows into a dim of size `length`.
Tensor fold(const Tensor& windows, int64_t dim, int64_t length, int64_t step);
/// Repeats each entry along dim `n` times in a row (a a b b), by an expand and a reshape.
Tensor repeat_interleave(const Tensor& x, int64_t n, int64_t dim);
/// Repeats the whole tensor n times along dim (a b a b).
Tensor repeat(const Tensor& x, int64_t n, int64_t dim);

}  // namespace sluice
