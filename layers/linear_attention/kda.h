// Kimi Delta Attention (Moonshot AI 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture"): Gated
// DeltaNet with a decay for each key channel and a sigmoid gate.
//
//   S_t = (I − β_t·k_tᵀ k_t)·diag(e^{g_t})·S_{t−1} + β_t·k_tᵀ v_t     o_t = q_t S_t
//   z = x·F + dt_bias [HV·dk]     g = −e^{A_log} ⊙ softplus(z), or above a lower bound ℓ·σ(e^{A_log} ⊙ z)
//   y = (RMSNorm(o) ⊙ σ(x·Γ))·Wo
//
// F and Γ have rank dv, or, as in Ling 3.0, are one full matrix each.
//
// With `erase_write`, gates for each erased key channel and each written value channel replace β (NVIDIA 2026, GDN-2):
// e = c·σ(x·Wb) ⊙ k and w = σ(x·Ww) ⊙ v in the terms of ops/scan/delta_scan.h.
#pragma once

#include <sluice/layers/linear_attention/delta_mixer.h>

namespace sluice {

struct KdaOptions {
  using Layer = struct Kda;
  DeltaOptions heads;
  std::optional<double> lower_bound = std::nullopt;  // ℓ < 0 of the decay, −5 in published models; none: softplus
  bool gate_bias = false;                            // a bias of Γ
  int64_t rank = 0;                                  // of F and Γ; 0 means value_dim
  bool full_rank = false;                            // F and Γ are decay_up and output_gate_up alone
  bool erase_write = false;

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("lower_bound", o.lower_bound, between(-1e4, 0), "l of g = l sigmoid(e^A_log z); null: g = -e^A_log softplus(z)");
    f("gate_bias", o.gate_bias, "a bias of the output gate");
    f("rank", o.rank, at_least(0), "of the maps of decay and output gate; 0: value_dim");
    f("full_rank", o.full_rank, "the maps of decay and output gate are one matrix each");
    f("erase_write", o.erase_write, "gates for each erased key channel and written value channel, in place of beta");
  }
};

/// Causal, without residual or RoPE. Leave a_log and dt_bias out of weight decay. Initially e^{A_log} is from U(1, 16)
/// (1 with lower_bound), and softplus(dt_bias) log-uniform on [0.001, 0.1].
struct Kda : DeltaMixer {
  static constexpr const char* type = "Kda";
  static constexpr bool keeps_f32(std::string_view part) { return part == "a_log" || part == "dt_bias"; }
  KdaOptions options{};
  Linear decay_down, decay_up;  // F: dim → rank → HV·dk; with full_rank the second alone, dim → HV·dk
  Tensor a_log;                 // [HV], of dtype exact(dtype), as dt_bias
  Tensor dt_bias;               // [HV·dk]
  Linear output_gate_down, output_gate_up;  // Γ: dim → rank → HV·dv; with full_rank dim → HV·dv
  Linear erase, write;                      // Wb, dim → H·dk; Ww, dim → HV·dv; absent without erase_write

  Kda() = default;
  Kda(KdaOptions o, Rng& rng);
  Kda(DeltaOptions o, Rng& rng) : Kda(KdaOptions{.heads = o}, rng) {}
  /// x [batch, n, dim] → the same shape. A stream keeps HV·dk·dv numbers a sequence, and short_conv − 1 rows.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  /// g [batch, n, HV, dk]; f32 for x of bf16.
  Tensor log_decay(const Tensor& x) const;
  /// The logits of the output gate, x·Γ [batch, n, HV·dv].
  Tensor gate_logits(const Tensor& x) const;

  SLUICE_PARTS_BEHIND(DeltaMixer, decay_down, decay_up, a_log, dt_bias, output_gate_down, output_gate_up, erase, write);
};

}  // namespace sluice
