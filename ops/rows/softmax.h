// Softmax and log-softmax along one dim.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// e^x / Σ e^x. A line of nothing but −∞ (a fully masked row) gives zeros with zero gradient, never NaN; a line with a
/// NaN gives a line of NaN. A line with +∞ gives NaN at +∞ and 0 elsewhere. A transposed x is read as it lies; the last
/// bits of the result may differ from those of a contiguous copy.
Tensor softmax(const Tensor& x, int64_t dim = -1);
/// x − log Σ e^x; −∞ throughout where the whole line is −∞.
Tensor log_softmax(const Tensor& x, int64_t dim = -1);

}  // namespace sluice
