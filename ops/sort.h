// Order along a dim. Equal values keep their order and NaN comes last, ascending or descending; so the
// result is unique. Values are a recorded gather of x, so they have gradients of any order.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

struct Sorted {
  Tensor values;
  Tensor indices;  // i64: values = gather(x, dim, indices)
};

Sorted sort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// The k largest values along dim, largest first; of equal values the one with the lower index.
Sorted topk(const Tensor& x, int64_t k, int64_t dim = -1);
Tensor argsort(const Tensor& x, int64_t dim = -1, bool descending = false);

}  // namespace sluice
