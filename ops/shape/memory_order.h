// The dims of a view in the order in which they lie in memory.
#pragma once

#include <sluice/core/layout.h>

#include <cstdlib>

namespace sluice::detail {

/// The dims of `l` from the largest step to the smallest; of equal steps the earlier dim is first.
inline Shape order_in_memory(const Layout& l) {
  Shape order;
  const auto step = [&](int64_t d) { return std::abs(l.strides[static_cast<int>(d)]); };
  for (int d = 0; d < l.shape.rank(); ++d) {
    int at = order.rank();
    while (at > 0 && step(order[at - 1]) < step(d)) --at;
    order.insert(at, d);
  }
  return order;
}

}  // namespace sluice::detail
