// Losses. Shapes must be equal — (N,1) against (N) is a mistake, not a broadcast — and are checked.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

enum class Reduction { mean, sum, none };

struct CrossEntropyOptions {
  int64_t ignore_index = -100;  // targets with this value count for nothing
  double label_smoothing = 0;   // ε: the target distribution is (1−ε)·one-hot + ε/C
  Reduction reduction = Reduction::mean;  // mean over the targets that are not ignored
  Tensor weight = {};  // [C], constants: q_c counts weight_c times, and the mean is over Σ weight of the targets
};
/// −Σ_c q_c log softmax(logits)_c over the last dim, in nats. logits [..., C]; targets [...] i64 or i32
/// in [0, C). The mean over no target at all is 0 with zero gradient. A logit of −∞ is a class of probability 0: where q has
/// it, the loss is +∞, and the gradient, softmax(logits) − q, is finite nevertheless.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions options = {});

/// The same of log-probabilities [..., C]: −Σ_c q_c log_p_c.
Tensor nll_loss(const Tensor& log_p, const Tensor& targets, CrossEntropyOptions options = {});

/// |x − y|
Tensor l1_loss(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::mean);
/// ½(x − y)² where |x − y| <= δ, and δ(|x − y| − ½δ) beyond. ValueError unless δ > 0 and finite.
Tensor huber_loss(const Tensor& x, const Tensor& y, double delta = 1, Reduction reduction = Reduction::mean);
/// (x − y)²
Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::mean);
/// Binary cross entropy of σ(x) against targets in [0, 1], from logits, without overflow. The share of positive targets
/// counts pos_weight times; it broadcasts: [C] for x [..., C].
Tensor bce_with_logits(const Tensor& x, const Tensor& targets, Reduction reduction = Reduction::mean,
                       const Tensor& pos_weight = {});
/// KL(p ‖ q) = p·(log p − log q) elementwise, 0 where p = 0; takes log q and p. With `mean` the sum is
/// divided by the number of rows (all dims but the last), the mathematical mean of a batch.
Tensor kl_div(const Tensor& log_q, const Tensor& p, Reduction reduction = Reduction::mean);

}  // namespace sluice
