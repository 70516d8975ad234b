// References of small layers that are parts of larger ones.
#pragma once

#include "layers/layer_loops.h"

namespace sluice::testing {

/// (x·Wv ⊙ act(x·Wg))·Wo with the tensors value, gate and out; silu_glu also activates x·Wv.
Matrix glu_reference(const LayerFacts& l, const std::string& kind, const Matrix& x);
/// Row t: act(b + Σ_r w_r ⊙ x_{t − r}) with the tensors weight, whose last row is w_0, and bias. Padding counts as 0,
/// and so does what lies before the document, a run of equal numbers.
Matrix short_convolution_reference(const LayerFacts& l, const std::string& act, const Matrix& x,
                                   const std::vector<bool>& real, const std::vector<int64_t>& documents = {});

}  // namespace sluice::testing
