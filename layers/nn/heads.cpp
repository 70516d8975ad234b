#include <sluice/layers/nn/heads.h>

#include <sluice/ops/elementwise.h>
#include <sluice/ops/view.h>

namespace sluice {

Tensor finite_padding(const Tensor& x, const Tensor& key_mask) {
  if (!key_mask.defined()) return x;
  const Tensor padded = unsqueeze(logical_not(key_mask), -1);
  return masked_fill(x, logical_and(padded, logical_not(isfinite(x))), 0);
}

namespace detail {

Tensor split_heads(const Tensor& x, int64_t heads) {
  return transpose(unflatten(x, -1, {heads, x.dim(-1) / heads}), 1, 2);
}
Tensor merge_heads(const Tensor& x) { return flatten(transpose(x, 1, 2), 2, 3); }

}  // namespace detail

}  // namespace sluice
