// Order along a dim. Equal values keep their order and NaN comes last, ascending or descending; so the
// result is unique. Values are a recorded gather of x, so they have gradients of any order.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// Values in order, and where they came from.
struct Sorted {
  Tensor values;   // of x
  Tensor indices;  // i64: values = gather(x, dim, indices)
};

/// Sorts all values along dim; ties by index, NaN last.
Sorted sort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// The k largest values along dim, largest first; of equal values the one with the lower index.
Sorted topk(const Tensor& x, int64_t k, int64_t dim = -1);
/// The indices of sort() alone.
Tensor argsort(const Tensor& x, int64_t dim = -1, bool descending = false);

}  // namespace sluice
