// What every layer with heads and padding needs: the split into heads, its inverse, and rows of padding.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// x [batch, n, d] with NaN and infinities in padded rows replaced by 0; x itself without a mask. Attention
/// already ignores padded keys, but as a query such a row would come back through the gradients, as 0·NaN.
Tensor finite_padding(const Tensor& x, const Tensor& key_mask);

namespace detail {
/// [batch, n, heads·w] → [batch, heads, n, w], a view, and back.
Tensor split_heads(const Tensor& x, int64_t heads);
Tensor merge_heads(const Tensor& x);
}  // namespace detail

}  // namespace sluice
