// Arguments of the kernels of attention() (slots: ops/kernels.h).
#pragma once

#include <sluice/ops/attention/attention.h>
#include <sluice/ops/elementwise/formulas.h>
#include <sluice/ops/kernels.h>

namespace sluice::detail {

/// The precision in which a call's kernels must run.
inline Precision precision_of(const AttentionOptions& o, DType t) {
  return t == bf16 ? Precision::bf16 : o.precision.value_or(precision());
}

/// One call, checked: operands of rank 4 whose last dim is contiguous, options with every default filled in.
struct AttentionCall {
  Tensor q, k, v;
  AttentionOptions options;
  RngBlocks from = {};  // of the dropout mask, see kernel::attention_keep_mask
  /// gate: logits z [batch, heads, m, dv or 1]. A kernel that can gate multiplies its result by σ(z) and sets *gates;
  /// other kernels ignore z. Backward: defined only if the forward call was gated; `gated` is that call's result.
  Tensor gate = {}, gated = {};
  bool* gates = nullptr;

  void each_tensor(auto f) const { f(q), f(k), f(v), f(options), f(gate), f(gated); }
};

/// Gradients to fill; undefined ones are not wanted. dq, dk, dv have the shapes of q, k, v; `bias` is
/// [batch, heads, m, n] and `relative` [batch, heads, attention_splits(k), n + m − 1]; the caller fills both with
/// zeros. A gated call also fills `gate`, the gradient of the logits, and `delta`, δ [batch, heads, m] in f32. Other
/// calls receive δ as an argument.
struct AttentionGradients {
  Tensor dq, dk, dv, bias, relative, gate = {}, delta = {};

  void each_tensor(auto f) const { f(dq), f(dk), f(dv), f(bias), f(relative), f(gate), f(delta); }
};

/// Query-key pairs of a call by the rules that need no values: window, dilation and globals. Causality does not halve
/// them; a window of W leaves W keys a query (2W − 1 if not causal), at the ends of a sequence too.
int64_t counted_pairs(const AttentionCall& call);
/// Number of independent parts into which the backward pass splits the keys of one head. Depends on k's shape alone.
int64_t attention_splits(const Tensor& k);

/// The gradient [heads] of a sink [heads or 1], from lse and δ [batch, heads, m]; in the sink's dtype.
Tensor sink_gradient(const Tensor& sink, const Tensor& lse, const Tensor& delta);

/// Calls f with the formula of an elementwise weighting.
template <class F> void with_formula(Weighting w, F f) {
  switch (w) {
    case Weighting::relu2: return f(formula::Relu2{});
    case Weighting::laplace: return f(formula::Laplace{});
    case Weighting::sigmoid: return f(formula::Sigmoid{});
    default: return f(formula::Identity{});
  }
}

}  // namespace sluice::detail
