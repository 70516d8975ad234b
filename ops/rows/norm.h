// Normalisation along the last dim. All throw ValueError unless eps >= 0. The squares of a row are added up unscaled.
// Where their sum overflows (numbers from 1e19 on in f32 and bf16), the row becomes 0 (layer_norm: 0 or NaN), and its
// gradient 0, or NaN where products with the row overflow, too.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// (x − mean) / √(var + eps) ⊙ weight + bias (Ba et al. 2016). weight and bias are [d] or undefined.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// x / √(mean x² + eps) ⊙ weight (Zhang & Sennrich 2019). weight is [d] or undefined.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);

/// What scale_norm() divides by.
enum class ScaleNormForm {
  rms,     // g · x / √(mean x² + eps): the FLASH paper's ports; g = 1 is rms_norm without weight
  l2_max,  // g · x / max(‖x‖/√d, eps): lucidrains' form (Nguyen & Salazar 2019)
};
/// ScaleNorm: a single learned scalar g, of shape [] or [1].
Tensor scale_norm(const Tensor& x, const Tensor& g, double eps = 1e-5, ScaleNormForm form = ScaleNormForm::rms);

}  // namespace sluice
