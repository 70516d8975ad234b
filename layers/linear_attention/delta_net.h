// DeltaNet (Schlag et al. 2021, "Linear Transformers Are Secretly Fast Weight Programmers"; Yang et al. 2024,
// "Parallelizing Linear Transformers with the Delta Rule over Sequence Length") and Gated DeltaNet (Yang et al. 2024,
// "Gated Delta Networks"), the mixer of Qwen3-Next, Qwen3.5 and OLMo-Hybrid. A state per value head is corrected
// towards v at the key k, and in the second decays:
//
//   S_t = e^{g_t}·S_{t−1} + β_t·k_tᵀ (v_t − k_t·e^{g_t}·S_{t−1})     o_t = q_t S_t
//   g = −e^{A_log} ⊙ softplus(x·Wa + dt_bias), a number for each value head; none in DeltaNet
//   y = (RMSNorm(o) ⊙ silu(x·Wg))·Wo
//
// delta_mixer.h has the parts around it: q, k, v, the convolution, β.
#pragma once

#include <sluice/layers/linear_attention/delta_mixer.h>

namespace sluice {

enum class DeltaNorm {
  l2,   // x/√(Σ x² + 10⁻⁶)
  sum,  // x/Σ x, without an epsilon; a row of zeros stays so (Schlag et al. 2021)
};
constexpr const char* choices(DeltaNorm) { return "l2 sum"; }

struct DeltaNetOptions {
  using Layer = struct DeltaNet;
  DeltaOptions heads;
  Act qk_activation = Act::silu;  // with silu the convolution has it, otherwise it follows; v has silu
  DeltaNorm qk_norm = DeltaNorm::l2;
  bool use_beta = true;      // false: β = beta_scale
  bool output_gate = false;  // factor silu(x·Wg), behind the norm

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("qk_activation", o.qk_activation, "of q and k; v has silu");
    f("qk_norm", o.qk_norm, "l2: length 1; sum: sum 1");
    f("use_beta", o.use_beta, "false: beta = beta_scale");
    f("output_gate", o.output_gate, "times silu(x Wg), behind the norm");
  }
};

/// Causal, without biases, residual or RoPE.
struct DeltaNet : DeltaMixer {
  static constexpr const char* type = "DeltaNet";
  DeltaNetOptions options{};
  Linear output_gate;  // Wg, dim → HV·dv

  DeltaNet() = default;
  DeltaNet(DeltaNetOptions o, Rng& rng);
  DeltaNet(DeltaOptions o, Rng& rng) : DeltaNet(DeltaNetOptions{.heads = o}, rng) {}
  /// x [batch, n, dim] → the same shape. A stream keeps HV·dk·dv numbers a sequence, and short_conv − 1 rows.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  SLUICE_PARTS_BEHIND(DeltaMixer, output_gate);
};

enum class DeltaGate { none, silu, sigmoid };
constexpr const char* choices(DeltaGate) { return "none silu sigmoid"; }

struct GatedDeltaNetOptions {
  using Layer = struct GatedDeltaNet;
  DeltaOptions heads;
  DeltaGate output_gate = DeltaGate::silu;

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("output_gate", o.output_gate, "behind the norm, times silu(x Wg) or sigmoid(x Wg)");
  }
};

/// Causal, without biases, residual or RoPE. Leave a_log and dt_bias out of weight decay.
struct GatedDeltaNet : DeltaMixer {
  static constexpr const char* type = "GatedDeltaNet";
  static constexpr bool keeps_f32(std::string_view part) { return part == "a_log" || part == "dt_bias"; }
  GatedDeltaNetOptions options{};
  Linear decay;           // Wa, dim → HV
  Tensor a_log, dt_bias;  // [HV], of dtype exact(dtype)
  Linear output_gate;     // Wg, dim → HV·dv

  GatedDeltaNet() = default;
  GatedDeltaNet(GatedDeltaNetOptions o, Rng& rng);
  GatedDeltaNet(DeltaOptions o, Rng& rng) : GatedDeltaNet(GatedDeltaNetOptions{.heads = o}, rng) {}
  /// x [batch, n, dim] → the same shape. A stream keeps the same numbers as one of DeltaNet.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  /// g [batch, n, HV]; f32 for x of bf16.
  Tensor log_decay(const Tensor& x) const;

  SLUICE_PARTS_BEHIND(DeltaMixer, decay, a_log, dt_bias, output_gate);
};

}  // namespace sluice
