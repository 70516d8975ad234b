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

/// x with zeros in place of padding, and its q | k | v through the three maps and, if the layer has one, the
/// convolution with the activation `act`.
struct MappedRows {
  Matrix x, q = {}, k = {}, v = {};
};
MappedRows mapped_rows(const LayerFacts& l, const LayerSequence& s, const std::string& act);

inline double softplus_of(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

}  // namespace sluice::testing
