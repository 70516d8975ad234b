// What the kernels of attention() are given (slots: ops/kernels.h).
#pragma once

#include <sluice/ops/attention/attention.h>
#include <sluice/ops/formulas.h>
#include <sluice/ops/kernels.h>

namespace sluice::detail {

/// One call, checked: operands of rank 4 whose last dim is contiguous, options with every default filled in.
struct AttentionCall {
  Tensor q, k, v;
  AttentionOptions options;
  RngBlocks from = {};  // of the dropout mask, see kernel::attention_keep_mask
  /// Logits [batch, heads, m, dv or 1]. A kernel that can do so multiplies its result by their σ, and sets *gates; others
  /// take no notice. Backward: of a call that was gated, with its result `gated`.
  Tensor gate = {}, gated = {};
  bool* gates = nullptr;

  void each_tensor(auto f) const { f(q), f(k), f(v), f(options), f(gate), f(gated); }
};

/// Gradients to fill; those that are undefined are not wanted. dq, dk, dv have the shapes of q, k, v; `bias`
/// [batch, heads, m, n]; `relative` [batch, heads, splits, n + m − 1], zero-filled. Of a gated call also that of the logits,
/// and δ [batch, heads, m] in f32 instead of the δ that other calls are given.
struct AttentionGradients {
  Tensor dq, dk, dv, bias, relative, gate = {}, delta = {};

  void each_tensor(auto f) const { f(dq), f(dk), f(dv), f(bias), f(relative), f(gate), f(delta); }
};

/// Query-key pairs of a call by the rules that need no values: window, dilation and globals. Causality does not halve
/// them; a window of W leaves W keys a query (2W − 1 if not causal), at the ends of a sequence too.
int64_t counted_pairs(const AttentionCall& call);
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
