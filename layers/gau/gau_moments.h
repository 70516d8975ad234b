// GAU at initialisation, as far as it can be computed (Su, "Gated Attention Unit needs no warmup?", 2022, with
// its integrals done numerically). Assumed: x ~ N(0, 1); Wu, Wv, Wz ~ N(0, 1/d), Wo ~ N(0, 1/e); γ = 1, β = 0, no bias, no
// RoPE; A = relu²(Z·Zᵀ)/(ns), with scores of pairs taken as positive. Then U, V and Z are φ(ε) for normal ε.
#pragma once

#include <sluice/ops/activation.h>

namespace sluice {

/// Of φ(ε) for ε ~ N(0, scale²). SiLU: μ = 0.2066, ν² = 0.3558, 0.9192.
struct ActivationMoments {
  double mean, second, fourth;  // μ = E φ(ε), ν² = E φ(ε)², E φ(ε)⁴
};
/// By quadrature: about 13 digits for activations that are smooth or have a kink at 0. ValueError if
/// scale is negative.
ActivationMoments activation_moments(Act act, double scale = 1);

/// The attention matrix of a GAU with fresh weights, in expectation.
struct GauAtInit {
  /// E A_ii = (sν⁴ + E φ⁴ − ν⁴)/n; as s → ∞ it is sν⁴/n, which the literature uses.
  double diagonal;
  /// E A_ij = (sμ⁴ + ν⁴ − μ⁴)/n, because ⟨z_i, z_j⟩ has a variance; as s → ∞ it is sμ⁴/n.
  double off_diagonal;
  /// A_ii/A_ij, and its limit ν⁴/μ⁴ = 69 for s → ∞. For SiLU and s = 128 it is 47.
  double ratio, ratio_limit;
  /// Σ_{j≠i} A_ij / A_ii: by how much the sum of a row exceeds its diagonal.
  double row_over_diagonal;
  /// rms of GAU's output if A were its diagonal: ν²·sν⁴/n, the claimed 0.01.
  double output_from_diagonal;
  /// What the other pairs add at least, since V has the mean μ: νμ(sμ⁴ + ν⁴ − μ⁴), whatever n.
  double output_from_mean;
};
/// Of a causal or full GAU over n tokens, with queries and keys of width s = key_dim. ValueError unless both are at
/// least 1.
GauAtInit gau_at_init(int64_t key_dim, int64_t n, Act act = Act::silu);

}  // namespace sluice
