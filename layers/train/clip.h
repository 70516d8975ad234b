// Limits on gradients, between backward() and an optimiser's step().
#pragma once

#include <sluice/layers/nn/named_tensor.h>

#include <vector>

namespace sluice {

/// The Euclidean norm of all gradients together, accumulated in f64. Where it exceeds max_norm, every
/// gradient is scaled by max_norm/norm. A norm that is not finite leaves the gradients as they are:
/// test the result and skip the step. Tensors without a gradient are passed over. A gradient that
/// somebody else can see (backward() may give two leaves the same one) is replaced, not edited, and a
/// recorded one (create_graph) loses its history. ValueError unless max_norm > 0, or when a tensor
/// occurs twice.
double clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm);
double clip_grad_norm(const std::vector<NamedTensor>& parameters, double max_norm);

/// clip_grad_norm() of which the host learns nothing, so that it need not wait for a GPU: the norm, before clipping, as an f64
/// scalar where the gradients are; undefined if there are none.
Tensor clip_grad_norm_on_device(const std::vector<Tensor>& parameters, double max_norm);

/// Limits each element of each gradient to [−limit, limit]; NaN stays. Otherwise as clip_grad_norm.
void clip_grad_value(const std::vector<Tensor>& parameters, double limit);
void clip_grad_value(const std::vector<NamedTensor>& parameters, double limit);

}  // namespace sluice
