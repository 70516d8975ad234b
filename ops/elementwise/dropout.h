// Dropout by counter: the mask is a function of (seed, offset), so backward recomputes it and no mask is
// stored.
#pragma once

#include <sluice/core/number/random.h>
#include <sluice/core/tensor.h>

namespace sluice {

/// Inverted dropout: each element is zeroed with probability p, else divided by 1 − p. p in [0, 1];
/// p = 0 returns x itself. Draws from rng once per call.
Tensor dropout(const Tensor& x, double p, Rng& rng);

}  // namespace sluice
