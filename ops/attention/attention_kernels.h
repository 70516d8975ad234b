// The device seam of attention(): what its kernels are given.
#pragma once

#include <sluice/core/kernel.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/formulas.h>

namespace sluice::detail {

/// One call, checked: operands of rank 4 whose last dim is contiguous, options with every default filled in.
struct AttentionCall {
  const Tensor &q, &k, &v;
  const AttentionOptions& options;
  uint64_t seed = 0, offset = 0;  // of the dropout mask, see attention_keep_mask()
};

/// Gradients to fill; those that are undefined are not wanted. dq, dk, dv have the shapes of q, k, v; `bias`
/// [batch, heads, m, n]; `relative` [batch, heads, splits, n + m − 1], zero-filled.
struct AttentionGradients {
  Tensor dq, dk, dv, bias, relative;
};

/// out [batch, heads, m, dv] (any strides, last dim contiguous); lse [batch, heads, m], softmax only.
extern Kernel<void(const AttentionCall&, Tensor& out, Tensor& lse)> attention_forward;
/// From the gradient g of out (last dim contiguous) and, for softmax, lse and `delta`, [batch, heads, m] =
/// Σ_c g·out − (gradient of lse).
extern Kernel<void(const AttentionCall&, const Tensor& g, const Tensor& lse, const Tensor& delta,
                   AttentionGradients& out)> attention_backward;
/// Into how many independent parts the backward pass cuts the keys of one head: by shape alone.
int64_t attention_splits(const Tensor& k);

/// Calls f with the formula of an elementwise weighting.
template <class F>
void with_formula(Weighting w, F f) {
  switch (w) {
    case Weighting::relu2: return f(formula::Relu2{});
    case Weighting::laplace: return f(formula::Laplace{});
    case Weighting::sigmoid: return f(formula::Sigmoid{});
    default: return f(formula::Identity{});
  }
}

}  // namespace sluice::detail
