// One chunked scan for everything linear: causal linear attention, retention and gated linear attention. (FLASH's global
// term, whose chunks are long, is a product of whole chunks: layers/gau/mixed_chunk.cpp.)
//
//   S_t = D_t ∘ S_{t−1} + k_tᵀ v_t   [m, e]          o_t = q_t S_t
//
// D_t forgets: e^{g_t} for the whole state (retention, simple GLA), by rows (a decay per key channel, GLA), or by
// columns (per value channel). Decays are given as logarithms g <= 0 and only ever used as e^{G_t − G_j}, t >= j,
// with running sums G: nothing overflows and nothing is divided.
//
// The family is closed under differentiation: dq, dk and dv are scans again, forwards or in reverse, with the
// roles of q, k, v exchanged, and dg is a cumulative sum of q ⊙ dq − k ⊙ dk. So gradients of every order run
// through the same kernel.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

struct LinearScanOptions {
  /// Steps that are treated at once as a small quadratic problem; the result does not depend on it, except by
  /// rounding — unless `chunks_only`.
  int64_t chunk = 64;
  /// o_t = q_t S at the *start of the chunk* of t: own chunk excluded, as in FLASH's causal global term.
  bool chunks_only = false;
  /// Runs from the last step to the first: o_t = q_t Σ_{j >= t} e^{G_j − G_t} k_jᵀ v_j.
  bool reverse = false;
  /// A decay with channels belongs to the channels of v instead of those of k.
  bool decay_on_values = false;
};

/// q, k [batch, heads, n, m], v [batch, heads, n, e] → [batch, heads, n, e]. `log_decay` is undefined (no
/// forgetting), broadcasts to [batch, heads, n] or, with four dims, to [batch, heads, n, m] (n, e with decay_on_values), and
/// has values <= 0.
/// No normaliser: with v = 1, [batch, heads, n, 1], comes the denominator, at little cost. O(n·chunk·(m + e) + n·m·e) time, O(n)
/// memory.
Tensor linear_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay = {},
                   const LinearScanOptions& options = {});
/// The state S_n after all steps, [batch, heads, m, e], continuing from `initial` if defined: what a stream
/// carries on. Differentiable.
Tensor linear_scan_state(const Tensor& k, const Tensor& v, const Tensor& log_decay = {}, const Tensor& initial = {});
/// e^{G_t} ∘ initial, read by q: what a state from before adds to linear_scan's output. [batch, heads, n, e].
Tensor linear_scan_carry(const Tensor& q, const Tensor& initial, const Tensor& log_decay = {});
/// The definition as a masked n×n product, composed of ops: what linear_scan is tested against.
Tensor linear_scan_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay = {},
                             const LinearScanOptions& options = {});

namespace detail {
/// Running sums of log decays along dim 2, in f64. A step below −10⁴, −∞ too, counts as −10⁴: nothing is left either
/// way, and differences of sums stay numbers.
Tensor decay_sums(const Tensor& log_decay);
}  // namespace detail

}  // namespace sluice
