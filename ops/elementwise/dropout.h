// Dropout by counter: the mask is a function of (seed, offset), so backward recomputes it and no mask is
// stored.
#pragma once

#include <sluice/core/number/random.h>
#include <sluice/core/tensor.h>

namespace sluice {

/// Inverted dropout: each element is zeroed with probability p, otherwise divided by 1 − p. p must be in [0, 1];
/// with p = 0 the result is x itself. Draws from rng once per call.
Tensor dropout(const Tensor& x, double p, Rng& rng);
/// The same with the generator of a Pass; x itself without one, as evaluation needs it.
inline Tensor dropout(const Tensor& x, double p, Rng* rng) { return rng ? dropout(x, p, *rng) : x; }

}  // namespace sluice
