// Layout: how indices map to elements — sizes, strides and an offset, all counted in elements.
// Geometry only: no memory, no dtype. Every view is a new layout over old storage.
#pragma once

#include <sluice/core/shape.h>

#include <optional>

namespace sluice {

struct Layout {
  Shape shape;
  Shape strides;
  int64_t offset = 0;

  Layout() = default;
  explicit Layout(const Shape& s) : shape(s), strides(s) {  // row-major, contiguous
    int64_t step = 1;
    for (int i = s.rank() - 1; i >= 0; --i) strides[i] = step, step *= s[i];
  }
  Layout(const Shape& s, const Shape& st, int64_t off) : shape(s), strides(st), offset(off) {}

  int rank() const { return shape.rank(); }
  int64_t numel() const { return shape.numel(); }

  /// True when elements follow one another in row-major order (size-1 dims are ignored).
  bool is_contiguous() const {
    int64_t step = 1;
    bool ordered = true;
    for (int i = rank() - 1; i >= 0; --i) {
      if (shape[i] == 0) return true;  // nothing can be out of order
      ordered &= shape[i] == 1 || strides[i] == step;
      step *= shape[i];
    }
    return ordered;
  }

  /// Keeps sizes[d] indices of each dim d: starts[d], starts[d] + steps[d], …
  Layout box(const Shape& starts, const Shape& sizes, const Shape& steps) const;
  /// Keeps `size` indices of dim d: start, start + step, …
  Layout narrowed(int d, int64_t start, int64_t size, int64_t step = 1) const;
  /// The same elements in shape `to`; nothing if strides cannot express it.
  std::optional<Layout> reshaped(const Shape& to) const;
  /// The dims from the largest step to the smallest; of equal steps the earlier dim is first.
  Shape order_in_memory() const;
  /// Distance of position i of the row-major box of dims [first, last) from its first element.
  int64_t step_to(int64_t i, int first, int last) const;
  /// Broadcast to `to`: new and size-1 dims get stride 0. The caller must have checked that the shape broadcasts.
  Layout expanded(const Shape& to) const;
};

}  // namespace sluice
