// The kernel slots of the optimisers and of clipping. Tensors are contiguous, of one dtype (f32, f64) and shape.
#pragma once

#include <sluice/core/kernel.h>

namespace sluice {

struct SgdRule {
  double lr, momentum, weight_decay;
  bool nesterov;
};
struct AdamRule {
  double beta1, beta2, eps;
  double lr;          // divided by 1 − β1^t
  double root_scale;  // 1/√(1 − β2^t)
  double shrink;      // share of w that decays by itself
  double l2;          // factor of w added to the gradient
};
struct LambRule {
  double beta1, beta2, eps, lr;
  double mean_scale, root_scale;  // 1/(1 − β1^t), 1/√(1 − β2^t); 1 without bias correction
  double weight_decay;
  bool adapt;
};

namespace kernel {

/// `momentum` is null where there is none.
extern Kernel<void(const SgdRule& rule, Tensor& w, const Tensor& g, Tensor* momentum)> sgd;
extern Kernel<void(const AdamRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v)> adam;
extern Kernel<void(const LambRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v)> lamb;
/// total {} f64 += Σx².
extern Kernel<void(const Tensor& x, Tensor& total)> sum_squares;
/// x ← clamp(factor·x, ±limit); NaN stays.
extern Kernel<void(Tensor& x, double factor, double limit)> limit;

}  // namespace kernel
}  // namespace sluice
