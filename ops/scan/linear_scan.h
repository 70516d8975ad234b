// One chunked scan for causal linear attention, retention and gated linear attention. (FLASH's global term, whose
// chunks are long, is a product of whole chunks: layers/gau/mixed_chunk.cpp.)
//
//   S_t = D_t ∘ S_{t−1} + k_tᵀ v_t   [m, e]          o_t = q_t S_t
//
// D_t is the decay: e^{g_t} for the whole state (retention, simple GLA), by rows (a decay per key channel, GLA), or by
// columns (per value channel). Decays are given as logarithms g <= 0 and enter only as e^{G_t − G_j}, t >= j, with
// running sums G. Kernels split such a factor only where its parts stay within 2^±24, so nothing overflows.
//
// The family is closed under differentiation: dq, dk and dv are scans again, forwards or in reverse, with the roles of
// q, k, v exchanged, and dg is a cumulative sum of q ⊙ dq − k ⊙ dk, both without the step's own term. So gradients of
// every order run through the same kernel. Where it pays, the first gradient has a kernel of its own.
#pragma once

#include <sluice/core/tensor.h>
#include <sluice/ops/scan/scan.h>

namespace sluice {

struct LinearScanOptions {
  /// Most steps that are computed together, as a small quadratic problem. Results depend on `chunk` by rounding only.
  int64_t chunk = 64;
  /// Runs from the last step to the first: o_t = q_t Σ_{j >= t} e^{G_j − G_t} k_jᵀ v_j.
  bool reverse = false;
  /// A decay per channel applies to the channels of v, not of k.
  bool decay_on_values = false;
  /// Without the step's own term: o_t = q_t D_t ∘ S_{t−1}.
  bool exclusive = false;
};

/// q, k [batch, groups, n, m], v [batch, heads, n, e] → [batch, heads, n, e]; `groups` divides heads, and head i of v
/// reads q and k of head ⌊i/(heads/groups)⌋. `log_decay` is undefined (no decay), or broadcasts to [batch, heads, n]
/// or, with four dims, to [batch, heads, n, m] ([batch, heads, n, e] with decay_on_values). Its values must be <= 0; −∞
/// drops everything before the step; on a CPU, where all channels drop, even NaN and infinities. Beside operands of
/// bf16 log_decay may be f32, here and below. The result is not normalised: a call with v = 1, [batch, heads, n, 1],
/// gives the denominator, at little cost. O(n·chunk·(m + e) + n·m·e) time, O(n) memory.
Tensor linear_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay = {},
                   const LinearScanOptions& options = {});
/// The state S_n after all steps, [batch, heads, m, e], starting from `initial` if defined: a stream continues from it.
/// Differentiable.
Tensor linear_scan_state(const Tensor& k, const Tensor& v, const Tensor& log_decay = {}, const Tensor& initial = {});
/// q_t (e^{G_t} ∘ initial), [batch, heads, n, e]: the term that an earlier state adds to linear_scan's output.
Tensor linear_scan_carry(const Tensor& q, const Tensor& initial, const Tensor& log_decay = {});

namespace detail {

/// log_decay broadcast to the first three dims of `channels`, or, if it has four dims, to all of `channels`; undefined
/// for undefined. Throws DTypeError, with `name` for `operand`, unless log_decay has its dtype, or is f32 beside bf16.
Tensor expanded_decay(const char* op, const Tensor& log_decay, const char* name, const Tensor& operand,
                      const Shape& channels);
/// cumsum() of log decays: −∞ from the first −∞ on, whatever came before, even NaN. total_decay() is such a sum.
Tensor running_decay(const Tensor& log_decay, int64_t dim, CumsumOptions options = {});
Tensor total_decay(const Tensor& log_decay, int64_t dim);
/// The log decays for the scan read backwards in time, in which the way from j to t < j passes g_{t+1} … g_j. Undefined
/// for undefined.
Tensor backward_decay(const Tensor& g);
/// The gradient Σ_{t >= s} x_t of log decays g, where x_t (in the shape of g) is the contribution of step t. On a CPU
/// the sum ends before the next step that drops everything: later steps contribute 0, even if they are NaN.
Tensor decay_gradient(const Tensor& x, const Tensor& g);
/// Σ_j (k_j ∘ e^{left_j})ᵀ v_j, for log decays left [batch, heads, n, 1 or m] from each step to the end.
Tensor decayed_state(const Tensor& k, const Tensor& v, const Tensor& left);
/// (q_t ∘ e^{upto_t})·state, for log decays upto [batch, heads, n, 1 or m] from the state to each step. In both
/// functions a decay of −∞ in all channels leaves 0, even of NaN.
Tensor carried(const Tensor& q, const Tensor& state, const Tensor& upto);

}  // namespace detail

}  // namespace sluice
