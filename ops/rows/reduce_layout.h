// How a tensor of any layout is reduced over any of its dims: in which order its memory is read, and in how many
// passes.
#pragma once

#include <sluice/core/tensor.h>
#include <sluice/ops/kernels.h>

#include <vector>

namespace sluice::detail {

/// Reduces sorted dims of x without history. The result has x's dtype, or, if `wide`, is f32 for bf16: not rounded; and
/// i64 for integers and bool.
Tensor reduce_values(ReduceKind kind, const Tensor& x, const Shape& dims, bool keep_dims, bool wide = false);

/// s with the sorted `dims` of size 1, and without them.
Shape with_dims_kept(Shape s, const Shape& dims);
Shape with_dims_dropped(const Shape& s, const Shape& dims);
/// Number of positions along `dims`.
int64_t count_of(const Shape& s, const Shape& dims);

/// Neighbouring dims, which are reduced in one pass.
struct DimRun {
  int first, last;
  Shape kept(Shape s) const {
    for (int d = first; d <= last; ++d) s[d] = 1;
    return s;
  }
  ReduceShape of(const Shape& shape) const { return ReduceShape::along(shape, first, last); }
};
/// Sorted dims as runs of neighbours, the last run first.
std::vector<DimRun> runs_of(const Shape& dims);

inline constexpr int64_t kFew = 16;  // numbers that fill no register

/// True if x is reduced as the CPU does it: also on meta, where cost() counts.
inline bool as_on_cpu(const Tensor& x) { return x.device() == cpu || x.device() == meta; }
/// The dims of windows, as unfold() makes them, with those of `run`, the places in a window, first: then loops go along
/// all windows. Empty for other tensors.
Shape places_first(const Tensor& x, DimRun run);
/// x without history, and without its repeats, as by expand(), along all dims but those of `except`, which get size 1.
Tensor without_repeats(const Tensor& x, const Shape& except = {});
/// to() of a tensor without history. The result repeats its numbers where x does.
Tensor converted(const Tensor& x, DType dtype);

}  // namespace sluice::detail
