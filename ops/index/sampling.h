// Drawing categories. For the next token of a language model see layers/nn/generate.h.
#pragma once

#include <sluice/core/number/random.h>
#include <sluice/core/tensor.h>

namespace sluice {

/// Draws n categories from each row of weights [..., C]: i64 [..., n]. Category i has probability
/// weights_i / Σ weights; without replacement, Σ is over the categories not yet drawn. A category of weight 0 is never
/// drawn. Throws ValueError unless weights are finite, >= 0 and enough of them > 0. Draws from rng once per call; the
/// result is the same for any number of threads.
///   multinomial(softmax(logits / temperature), 1, rng)
Tensor multinomial(const Tensor& weights, int64_t n, Rng& rng, bool replacement = false);

}  // namespace sluice
