// Attention weights that are elementwise in the scores: what GAU uses in place of a softmax.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// relu(scale·t + bias)² ⊙ weight. `bias` may be undefined. Where weight is 0 the result is 0 whatever the
/// score, even NaN: weight holds mask / length.
Tensor relu2_weight(const Tensor& t, const Tensor& bias, const Tensor& weight, double scale = 1);
/// laplace(scale·t + bias) ⊙ weight, with the same convention.
Tensor laplace_weight(const Tensor& t, const Tensor& bias, const Tensor& weight, double scale = 1);

}  // namespace sluice
