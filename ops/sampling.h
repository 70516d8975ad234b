// Drawing categories. For the next token of a language model see layers/nn/generate.h.
#pragma once

#include <sluice/core/random.h>
#include <sluice/core/tensor.h>

namespace sluice {

/// n categories of each row of weights [..., C], as i64 [..., n]: category i with probability weights_i / Σ weights, of
/// what is left of the row unless it is put back. One of weight 0 is never drawn. ValueError unless weights are finite,
/// >= 0 and enough of them above 0. Draws from rng once per call; the same for any number of threads.
///   multinomial(softmax(logits / temperature), 1, rng)
Tensor multinomial(const Tensor& weights, int64_t n, Rng& rng, bool replacement = false);

}  // namespace sluice
