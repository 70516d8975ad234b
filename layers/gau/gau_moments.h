// Statistics of a GAU at initialisation (Su, "Gated Attention Unit needs no warmup?", 2022, with its integrals computed
// numerically). Assumptions: x ~ N(0, 1); Wu, Wv, Wz ~ N(0, 1/d), Wo ~ N(0, 1/e); γ = 1, β = 0, no bias, no RoPE;
// A = relu²(Z·Zᵀ)/(ns), where all scores count as positive. Then U, V and Z are φ(ε) for normal ε.
#pragma once

#include <sluice/ops/elementwise/activation.h>

namespace sluice {

/// Moments of φ(ε) for ε ~ N(0, scale²). For SiLU μ = 0.2066, ν² = 0.3558, E φ(ε)⁴ = 0.9192.
struct ActivationMoments {
  double mean, second, fourth;  // μ = E φ(ε), ν² = E φ(ε)², E φ(ε)⁴
};
/// Computed by quadrature: about 13 digits for activations that are smooth or have a kink at 0. Throws ValueError if
/// scale is negative.
ActivationMoments activation_moments(Act act, double scale = 1);

/// Expected values of the attention matrix of a GAU with initial weights.
struct GauAtInit {
  /// E A_ii = (sν⁴ + E φ⁴ − ν⁴)/n. The literature uses its limit sν⁴/n for s → ∞.
  double diagonal;
  /// E A_ij = (sμ⁴ + ν⁴ − μ⁴)/n, because ⟨z_i, z_j⟩ has a variance. The limit for s → ∞ is sμ⁴/n.
  double off_diagonal;
  /// E A_ii/E A_ij, and the limit ν⁴/μ⁴ for s → ∞. For SiLU the limit is 69, and the ratio at s = 128 is 47.
  double ratio, ratio_limit;
  /// Σ_{j≠i} E A_ij / E A_ii: the sum of the other entries of a row, divided by the diagonal entry.
  double row_over_diagonal;
  /// rms of GAU's output if A were diagonal: ν²·sν⁴/n, the claimed 0.01.
  double output_from_diagonal;
  /// The least that the other pairs add, because V has the mean μ: νμ(sμ⁴ + ν⁴ − μ⁴), for any n.
  double output_from_mean;
};
/// The values of a row that sees n tokens (any row of a full GAU over n tokens, the last row of a causal GAU), with
/// queries and keys of width s = key_dim. Throws ValueError unless both are at least 1.
GauAtInit gau_at_init(int64_t key_dim, int64_t n, Act act = Act::silu);

}  // namespace sluice
