// The loops of the optimisers. Tensors are contiguous, of one dtype (f32, f64) and shape.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice::detail {

struct SgdRule {
  double lr, momentum, weight_decay;
  bool nesterov;
};
/// `momentum` is null where there is none.
void sgd_cpu(const SgdRule& rule, Tensor& w, const Tensor& g, Tensor* momentum);

struct AdamRule {
  double beta1, beta2, eps;
  double lr;          // divided by 1 − β1^t
  double root_scale;  // 1/√(1 − β2^t)
  double shrink;      // share of w that decays by itself
  double l2;          // factor of w added to the gradient
};
void adam_cpu(const AdamRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v);

struct LambRule {
  double beta1, beta2, eps, lr;
  double mean_scale, root_scale;  // 1/(1 − β1^t), 1/√(1 − β2^t); 1 without bias correction
  double weight_decay;
  bool adapt;
};
void lamb_cpu(const LambRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v);

/// Σx², accumulated in f64.
double sum_squares_cpu(const Tensor& x);
/// x ← clamp(factor·x, ±limit); NaN stays.
void limit_cpu(Tensor& x, double factor, double limit);

}  // namespace sluice::detail
