#include <sluice/core/layout.h>

#include <cstdlib>

namespace sluice {

std::optional<Layout> Layout::reshaped(const Shape& to) const {
  if (is_contiguous()) {
    Layout out(to);
    out.offset = offset;
    return out;
  }
  // Walk both shapes from the right, matching groups of old dims with groups of new dims that hold
  // as many elements; a group of old dims must itself be one evenly strided run.
  Shape strides_out = to;
  int new_dim = to.rank() - 1;
  for (int old_dim = rank() - 1; old_dim >= 0;) {
    int64_t old_count = shape[old_dim], step = strides[old_dim];
    --old_dim;
    while (old_dim >= 0 && (shape[old_dim] == 1 || strides[old_dim] == step * old_count || old_count == 1)) {
      if (old_count == 1) step = strides[old_dim];
      old_count *= shape[old_dim--];
    }
    int64_t new_count = 1;
    while (new_dim >= 0 && (new_count < old_count || to[new_dim] == 1)) {
      strides_out[new_dim] = new_count * step;
      new_count *= to[new_dim--];
    }
    if (new_count != old_count) return std::nullopt;
  }
  for (; new_dim >= 0; --new_dim) strides_out[new_dim] = 1;  // leading size-1 dims
  return Layout(to, strides_out, offset);
}

Layout Layout::narrowed(int d, int64_t start, int64_t size, int64_t step) const {
  Layout l = *this;
  l.offset += start * l.strides[d], l.shape[d] = size, l.strides[d] *= step;
  return l;
}

Layout Layout::box(const Shape& starts, const Shape& sizes, const Shape& steps) const {
  Layout l = *this;
  for (int d = 0; d < rank(); ++d) l = l.narrowed(d, starts[d], sizes[d], steps[d]);
  return l;
}

Shape Layout::order_in_memory() const {
  Shape order;
  const auto step = [&](int64_t d) { return std::abs(strides[static_cast<int>(d)]); };
  for (int d = 0; d < rank(); ++d) {
    int at = order.rank();
    while (at > 0 && step(order[at - 1]) < step(d)) --at;
    order.insert(at, d);
  }
  return order;
}

int64_t Layout::step_to(int64_t i, int first, int last) const {
  int64_t at = 0;
  for (int d = last - 1; d >= first; i /= shape[d], --d) at += i % shape[d] * strides[d];
  return at;
}

Layout Layout::expanded(const Shape& to) const {
  Shape out = Shape::filled(to.rank(), 0);
  int shift = to.rank() - rank();
  for (int i = shift; i < to.rank(); ++i)
    if (shape[i - shift] == to[i] && to[i] != 1) out[i] = strides[i - shift];
  return Layout(to, out, offset);
}

}  // namespace sluice
