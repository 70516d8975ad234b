// Losses. Shapes must be equal and are checked: (N,1) against (N) is a mistake, not a broadcast. Beside an f32 operand
// a bf16 one counts as f32, on either side; each operand's gradient has its own dtype. Sums of bf16 are f32, rounded
// once.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// What a loss returns: the mean or the sum of its terms, or each of them.
enum class Reduction { mean, sum, none };

struct CrossEntropyOptions {
  int64_t ignore_index = -100;            // classes with this value are left out; < 0 beside probabilities
  double label_smoothing = 0;             // ε: the target distribution is (1−ε)·q + ε/C, q one-hot or given
  Reduction reduction = Reduction::mean;  // mean over the targets that are not ignored
  Tensor weight = {};  // [C], constant: q_c counts weight_c times, and the mean divides by Σ weight of the classes
};
/// −Σ_c q_c log softmax(logits)_c over the last dim, in nats. logits [..., C]; targets are classes, [...] i64 or i32
/// in [0, C), or probabilities q [..., C], whose sum need not be 1. The mean of probabilities is over all rows, even
/// with a weight. If no target counts, the mean is 0 with zero gradient. A logit of −∞ is a class of probability 0:
/// where q_c > 0 for that class, the loss is +∞, but its gradient, softmax(logits) − q, is finite. The loss has the
/// dtype of the logits; weight and probabilities have it, too, or are f32 beside bf16. Throws ShapeError, DTypeError,
/// DeviceError, and ValueError for a class outside [0, C), a label_smoothing outside [0, 1], and an ignore_index >= 0
/// beside probabilities.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions options = {});

/// Cross entropy of log-probabilities [..., C]: −Σ_c q_c log_p_c, with the classes and options of cross_entropy().
Tensor nll_loss(const Tensor& log_p, const Tensor& targets, CrossEntropyOptions options = {});

/// |x − y|
Tensor l1_loss(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::mean);
/// ½(x − y)² where |x − y| <= δ, and δ(|x − y| − ½δ) beyond. Throws ValueError unless δ is finite and > 0.
Tensor huber_loss(const Tensor& x, const Tensor& y, double delta = 1, Reduction reduction = Reduction::mean);
/// (x − y)²
Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::mean);
/// Binary cross entropy of σ(x) against targets in [0, 1], from logits x, without overflow. The term of the positive
/// class counts pos_weight times; pos_weight broadcasts: [C] for x [..., C].
Tensor bce_with_logits(const Tensor& x, const Tensor& targets, Reduction reduction = Reduction::mean,
                       const Tensor& pos_weight = {});
/// KL(p ‖ q) = p·(log p − log q) elementwise, 0 where p = 0; takes log q and p. With `mean` the sum is
/// divided by the number of rows (all dims but the last), the mathematical mean of a batch.
Tensor kl_div(const Tensor& log_q, const Tensor& p, Reduction reduction = Reduction::mean);

}  // namespace sluice
