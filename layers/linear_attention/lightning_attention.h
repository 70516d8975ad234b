// Lightning attention (Qin et al. 2024, "Various Lengths, Constant Speed: Efficient Language Modeling with Lightning
// Attention"; MiniMax 2025, "MiniMax-01", section 2.2): linear attention with a fixed decay for each head, whose
// queries, keys and values are activations.
//
//   [q | k | v] = silu(x·[Wq | Wk | Wv])     S_t = γ_h·S_{t−1} + k_tᵀ v_t     o_t = q_t·S_t
//   y = (σ(x·Wg) ⊙ RMSNorm(o))·Wo            the norm is that of all heads' channels together
#pragma once

#include <sluice/layers/linear_attention/linear_attention.h>

namespace sluice {

struct LightningAttentionOptions {
  using Layer = struct LightningAttention;
  int64_t dim;
  int64_t heads = 8;
  int64_t kv_heads = 0;            // 0 means heads; head h reads KV head ⌊h/(heads/kv_heads)⌋
  int64_t head_dim = 0;            // of queries and keys; 0 means dim/heads
  int64_t value_dim = 0;           // of a head's values; 0 means head_dim
  std::vector<double> gamma = {};  // of each head, in (0, 1]; empty: lightning_gammas(heads)
  double norm_eps = 1e-6;
  int64_t chunk = 64;
  double dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    detail::describe_sizes(o, f);
    f("gamma", o.gamma, OptionRange{.low = 0, .high = 1, .without_low = true},
      "of each head, in (0, 1]; empty: those of lightning_gammas(heads)");
    detail::describe_rest(o, f);
  }
};

/// The decays of layer `layer` of `layers`: γ_h = e^{−s_h·(1 − layer/(layers − 1) + 10⁻⁵)} with ALiBi's slopes
/// s_h = 2^{−8h/heads}, h = 1 … heads: later layers forget less. MiniMax adds 10⁻⁵ to layers − 1, too.
/// Throws ValueError unless heads >= 0 and 0 <= layer < layers.
std::vector<double> lightning_gammas(int64_t heads, int64_t layer = 0, int64_t layers = 1);

/// Causal; decays are fixed. No biases, no residual.
struct LightningAttention : LinearMixer {
  static constexpr const char* type = "LightningAttention";
  static constexpr bool keeps_f32(std::string_view part) { return part == "log_gamma"; }

  LightningAttentionOptions options{};
  Tensor log_gamma;  // [heads], a buffer of dtype exact(dtype)
  Norm norm;         // of heads·dv channels

  LightningAttention() = default;
  LightningAttention(LightningAttentionOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape. A document, a run of equal segments, begins with an empty state. A stream
  /// keeps h·dk·dv numbers a sequence.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(heads, output_gate, log_gamma, norm);
};

}  // namespace sluice
