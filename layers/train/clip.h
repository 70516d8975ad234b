// Limits on gradients, to apply between backward() and an optimiser's step().
#pragma once

#include <sluice/layers/nn/named_tensor.h>

#include <vector>

namespace sluice {

/// Returns the Euclidean norm of all gradients together, accumulated in f64. If the norm exceeds max_norm, multiplies
/// all gradients by max_norm/norm. If the norm is not finite, the gradients stay unchanged: test the result and skip
/// the step. Tensors without a gradient are skipped. A gradient with other owners is replaced, not edited: set_grad()
/// may have given two tensors the same one. A recorded gradient (create_graph) loses its history. Throws ValueError
/// unless max_norm > 0, and when a tensor with a gradient is listed twice.
double clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm);
double clip_grad_norm(const std::vector<NamedTensor>& parameters, double max_norm);

/// clip_grad_norm() without a value for the host, so that the host does not wait for a GPU. Returns the norm before
/// clipping as an f64 scalar on the device of the gradients; undefined if there are no gradients.
Tensor clip_grad_norm_on_device(const std::vector<Tensor>& parameters, double max_norm);
Tensor clip_grad_norm_on_device(const std::vector<NamedTensor>& parameters, double max_norm);

/// Limits each element of each gradient to [−limit, limit]; NaN stays. Treats tensors as clip_grad_norm() does. Throws
/// ValueError unless limit > 0, and when a tensor with a gradient is listed twice.
void clip_grad_value(const std::vector<Tensor>& parameters, double limit);
void clip_grad_value(const std::vector<NamedTensor>& parameters, double limit);

}  // namespace sluice
