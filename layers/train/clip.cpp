#include <sluice/layers/train/clip.h>

#include <sluice/core/node.h>
#include <sluice/ops/optim_kernels.h>
#include <sluice/ops/basic.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace sluice {

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();  // no limit

/// The tensors that have a gradient. Throws ValueError if such a tensor is listed twice.
std::vector<Tensor> with_gradient(const char* op, const std::vector<Tensor>& parameters) {
  std::vector<Tensor> found;
  std::set<const Node*> seen;
  for (const Tensor& p : parameters) {
    if (!p.grad().defined()) continue;
    if (!seen.insert(p.impl().history.get()).second)
      fail<ValueError>(op, ": a tensor of shape ", p, " is listed twice");
    found.push_back(p);
  }
  return found;
}

/// Scales the gradients to a norm of at most `norm` if `squares`, their sum of squares, is given. Then limits every
/// element to ±limit.
void limit_gradients(std::vector<Tensor>& parameters, const Tensor& squares, double norm, double limit) {
  std::vector<Tensor> grads;
  for (const Tensor& p : parameters) {
    const Tensor& now = p.grad();
    const bool in_place = now.is_sole_owner() && now.is_contiguous() && !now.requires_grad();
    grads.push_back(in_place ? now : clone(now));
  }
  kernel::clip_grad(grads, squares, norm, limit);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    grads[i].bump_version();
    parameters[i].set_grad(std::move(grads[i]));
  }
}

/// The tensors that have a gradient, and the sum of the squares of all their gradients.
std::pair<std::vector<Tensor>, Tensor> sum_squares(const std::vector<Tensor>& parameters, double max_norm) {
  if (!(max_norm > 0)) fail<ValueError>("clip_grad_norm: max_norm must be > 0 — got ", max_norm);
  std::vector<Tensor> clipped = with_gradient("clip_grad_norm", parameters), grads;
  if (clipped.empty()) return {};
  Tensor squares = zeros({}, {f64, clipped[0].device()});
  for (const Tensor& p : clipped) grads.push_back(contiguous(p.grad()));
  kernel::sum_squares(grads, squares);
  return {std::move(clipped), std::move(squares)};
}

std::vector<Tensor> without_names(const std::vector<NamedTensor>& parameters) {
  std::vector<Tensor> tensors;
  for (const NamedTensor& p : parameters) tensors.push_back(p.tensor);
  return tensors;
}

}  // namespace

double clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm) {
  NoGrad guard;
  auto [clipped, squares] = sum_squares(parameters, max_norm);
  if (clipped.empty()) return 0;
  const double norm = std::sqrt(squares.item());
  if (std::isfinite(norm) && norm > max_norm) limit_gradients(clipped, squares, max_norm, kNone);
  return norm;
}

Tensor clip_grad_norm_on_device(const std::vector<Tensor>& parameters, double max_norm) {
  NoGrad guard;
  auto [clipped, squares] = sum_squares(parameters, max_norm);
  if (clipped.empty()) return {};
  limit_gradients(clipped, squares, max_norm, kNone);
  return sqrt(squares);
}

void clip_grad_value(const std::vector<Tensor>& parameters, double limit) {
  if (!(limit > 0)) fail<ValueError>("clip_grad_value: limit must be > 0 — got ", limit);
  NoGrad guard;
  std::vector<Tensor> clipped = with_gradient("clip_grad_value", parameters);
  if (!clipped.empty()) limit_gradients(clipped, Tensor(), kNone, limit);
}

double clip_grad_norm(const std::vector<NamedTensor>& parameters, double max_norm) {
  return clip_grad_norm(without_names(parameters), max_norm);
}
Tensor clip_grad_norm_on_device(const std::vector<NamedTensor>& parameters, double max_norm) {
  return clip_grad_norm_on_device(without_names(parameters), max_norm);
}
void clip_grad_value(const std::vector<NamedTensor>& parameters, double limit) {
  clip_grad_value(without_names(parameters), limit);
}

}  // namespace sluice
