// Metrics of the literature for attention layers: sinks, massive activations, gate scores (Qiu et al. 2025), rank and
// entropy of attention maps.
#pragma once

#include <sluice/core/tensor.h>

#include <vector>

namespace sluice {

/// F-Attn: the share of attention on the first token. Returns the mean of map[..., i, 0] over rows i and all leading
/// dims. The map [..., m, n] must be after softmax. A causal row 0 sees only the first token and always gives 1.
/// Therefore row 0 is left out unless include_row_0 (it changes the mean by about 1/n), or m < n, where row 0 sees more
/// keys. Throws ShapeError if no row is left.
double first_token_share(const Tensor& map, bool include_row_0 = false);
/// The mean of first_token_share() over layers. Throws ValueError without maps.
double first_token_share(const std::vector<Tensor>& maps, bool include_row_0 = false);

/// M-Act: the mean over layers of max |hidden state|. Throws ValueError without layers.
double max_activation(const std::vector<Tensor>& hidden);

/// Statistics of gate scores: how open the gates are.
struct GateStatistics {
  int64_t count = 0;  // number of scores
  /// Mean, minimum and maximum of the scores.
  double mean = 0, min = 0, max = 0;
  /// Shares of the scores s with |s| < ½, 10⁻², 10⁻³.
  double below_half = 0, below_1e2 = 0, below_1e3 = 0;
};
/// Statistics over all scores of all layers; each score counts once. Without scores all fields except count are NaN.
GateStatistics gate_statistics(const std::vector<Tensor>& scores);
/// Statistics of one layer.
inline GateStatistics gate_statistics(const Tensor& scores) { return gate_statistics(std::vector<Tensor>{scores}); }

/// Mean over rows of −Σ_j p_j ln p_j, in nats: 0 for a row with one key, ln n for a uniform row. The rows of the map
/// [..., m, n] must sum to 1. Rows of zeros, which see no key, are left out. NaN without other rows.
double attention_entropy(const Tensor& map);

/// Singular values of a matrix, largest first, in f64 (LAPACK's dgesvd). Throws ShapeError unless the rank is 2,
/// ValueError for NaN and infinities and if dgesvd does not converge.
std::vector<double> singular_values(const Tensor& matrix);
/// e^H, where H is the entropy of the normalised singular values σ_i/Σσ (Roy & Vetterli 2007): between 1 and the rank;
/// 0 for a matrix of zeros.
double effective_rank(const Tensor& matrix);
/// Number of singular values above tolerance · σ_max. A negative tolerance means max(rows, columns) times the epsilon
/// of f64 for an f64 matrix, of f32 for any other dtype. Throws as singular_values() does; ValueError for a tolerance
/// NaN.
int64_t matrix_rank(const Tensor& matrix, double tolerance = -1);

}  // namespace sluice
