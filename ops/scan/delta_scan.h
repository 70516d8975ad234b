// The delta rule: linear attention whose state first forgets what it held under a key, then takes the key's new value.
// Gated DeltaNet, Kimi Delta Attention, DeltaNet and DeltaProduct are this scan with other decays and gates; RWKV-7 is
// this scan with two rows a token.
//
//   S̄_t = D_t ∘ S_{t−1}                 [dk, dv], decays first
//   u_t = w_t − e_t S̄_t                 the value to write, less what the state already holds
//   S_t = S̄_t + k_tᵀ u_t                o_t = q_t S_t
//
// D_t is the decay e^{g_t} of the whole state (Gated DeltaNet) or of each key channel (KDA). Decays are logarithms
// g <= 0, as in linear_scan.h. With e_t = β_t k_t and w_t = β_t v_t this is the delta rule
// S_t = (I − β_t k_tᵀ k_t) S̄_t + β_t k_tᵀ v_t (Schlag et al. 2021; gates: Yang et al. 2024, "Gated Delta Networks"),
// and with e = 0 it is linear_scan.
//
// Keys should have length 1, or e_t k_tᵀ should be at most 2: beyond that the state explodes.
//
// The rows u solve a triangular system, (I + A) u = w − (e ∘ e^G) S_0 with A_ij = Σ_c e_ic k_jc e^{G_ic − G_jc} for
// i > j and running sums G. Once u is known, o is linear_scan(q, k, u). The transposed system is the same scan read
// backwards with e and k exchanged. So delta_values() and linear_scan() are closed under differentiation, and gradients
// of every order run through them in O(n) memory. The first gradient has a kernel of its own.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

struct DeltaScanOptions {
  /// Most steps that are computed together, as one triangular system; a recorded call keeps a state for each chunk.
  /// Results depend on `chunk` by rounding only.
  int64_t chunk = 64;
};

/// The results of a scan.
struct DeltaScanResult {
  Tensor out;    // [batch, value_heads, n, dv]
  Tensor state;  // S after the last step [batch, value_heads, dk, dv]; f32 beside operands of bf16
};

/// q, k [batch, heads, n, dk], erase [batch, value_heads, n, dk], write [batch, value_heads, n, dv]; `heads` divides
/// value_heads, and value head i reads q and k of head ⌊i/(value_heads/heads)⌋. `log_decay` is undefined, or broadcasts
/// to [batch, value_heads, n] or, with four dims, to [batch, value_heads, n, dk]; beside operands of bf16 it may be
/// f32. Its values must be <= 0; −∞ drops everything before the step; on a CPU, where all channels drop, even NaN and
/// infinities. `initial` is S_0 in the shape of the state, in its dtype or that of q; undefined: 0. q is not scaled.
/// Both results have gradients of any order. Throws ShapeError or DTypeError for operands that do not fit, ValueError
/// for chunk < 1. O(n·chunk·(dk + dv) + n·dk·dv) time; a recorded call keeps a state for each chunk.
DeltaScanResult delta_scan(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write,
                           const Tensor& log_decay = {}, const Tensor& initial = {},
                           const DeltaScanOptions& options = {});
/// The delta rule: delta_scan() with erase = βk and write = βv, for v [batch, value_heads, n, dv] and write strengths
/// beta [batch, value_heads, n] in [0, 2]. β = 1 replaces what the state held under a key of length 1.
DeltaScanResult delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                           const Tensor& log_decay = {}, const Tensor& initial = {},
                           const DeltaScanOptions& options = {});
/// The rows u of delta_scan() from S_0 = 0, [batch, heads, n, dv], for k and erase of one shape.
Tensor delta_values(const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& log_decay = {},
                    const DeltaScanOptions& options = {});

}  // namespace sluice
