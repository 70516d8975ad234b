// Reductions over one dim, sum(x, -1), or several, sum(x, {0, 2}). Empty `dims` means all dims; `keep` leaves dims of
// size 1 in their place. Long f32 sums are accumulated in blocks with f64 totals, so the error does not grow with the
// length. The shape fixes the order of a sum, so results do not depend on the number of threads.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// Spells keep = true at call sites: sum(x, {-1}, keep).
inline constexpr bool keep = true;

/// Sum over `dims`; 0 for an empty range. f32 and bf16 are summed in blocks; the sum of integers or bool is i64.
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keep = false);
/// Mean; NaN for an empty range, as 0/0. The mean of integers or bool is f32: mean(argmax(logits, -1) == targets) is an
/// accuracy.
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keep = false);
/// Largest and smallest value, of any dtype; NaN wins; a 0 has no sign; ties share the gradient equally. ShapeError on
/// an empty range.
Tensor max(const Tensor& x, const Shape& dims = {}, bool keep = false);
Tensor min(const Tensor& x, const Shape& dims = {}, bool keep = false);
/// Index (i64) of the first largest or smallest value along dim; a NaN counts as largest and smallest.
Tensor argmax(const Tensor& x, int64_t dim, bool keep = false);
Tensor argmin(const Tensor& x, int64_t dim, bool keep = false);
/// Variance Σ(x − mean)²/max(0, n − correction); std_dev is its root.
Tensor var(const Tensor& x, const Shape& dims = {}, bool keep = false, double correction = 1);
Tensor std_dev(const Tensor& x, const Shape& dims = {}, bool keep = false, double correction = 1);
/// log Σ e^x, without overflow; −inf for an empty or all −inf range.
Tensor logsumexp(const Tensor& x, const Shape& dims = {}, bool keep = false);
/// Euclidean norm √Σx², of values of any size, but denormals count as 0; the gradient at 0 is 0.
Tensor norm(const Tensor& x, const Shape& dims = {}, bool keep = false);
/// Product; its gradient is exact at zeros too. 1 for an empty range. The product of integers or bool is i64.
Tensor prod(const Tensor& x, const Shape& dims = {}, bool keep = false);
/// Logical reductions of bool tensors.
Tensor any(const Tensor& x, const Shape& dims = {}, bool keep = false);
Tensor all(const Tensor& x, const Shape& dims = {}, bool keep = false);

}  // namespace sluice
