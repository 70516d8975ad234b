// What the literature measures on attention layers: sinks, massive activations, gate scores (Qiu et al. 2025), the
// rank and the entropy of attention maps.
#pragma once

#include <sluice/core/tensor.h>

#include <vector>

namespace sluice {

/// F-Attn: the share of attention that the first token gets, the mean of map[..., i, 0] over rows i and everything
/// before. A causal row 0 sees nothing else and always gives 1: it is left out unless include_row_0 (it changes
/// the mean by about 1/n). A map of fewer rows than keys has no such row. map [..., m, n], after softmax.
/// ShapeError when no row is left.
double first_token_share(const Tensor& map, bool include_row_0 = false);
/// The mean over layers.
double first_token_share(const std::vector<Tensor>& maps, bool include_row_0 = false);

/// M-Act: the mean over layers of max |hidden state|.
double max_activation(const std::vector<Tensor>& hidden);

/// How open gates stand.
struct GateStatistics {
  int64_t count = 0;  // of scores
  /// Of the scores.
  double mean = 0, min = 0, max = 0;
  /// Shares of the scores s with |s| < ½, 10⁻², 10⁻³.
  double below_half = 0, below_1e2 = 0, below_1e3 = 0;
};
/// Over all scores of all layers, each score counting once. NaN in the fields of an empty list.
GateStatistics gate_statistics(const std::vector<Tensor>& scores);
/// Of one layer.
inline GateStatistics gate_statistics(const Tensor& scores) { return gate_statistics(std::vector<Tensor>{scores}); }

/// Mean over rows of −Σ_j p_j ln p_j, in nats: 0 for a row on one key, ln n for a uniform one. Rows that see
/// nothing (all 0) are left out; NaN if there are no others. map [..., m, n], rows summing to 1.
double attention_entropy(const Tensor& map);

/// Singular values of a matrix, largest first, in f64 (LAPACK's dgesvd). ShapeError unless rank 2; ValueError for
/// NaN and infinities.
std::vector<double> singular_values(const Tensor& matrix);
/// e^H of the normalised singular values σ_i/Σσ (Roy & Vetterli 2007): between 1 and the rank. 0 for a matrix of
/// zeros.
double effective_rank(const Tensor& matrix);
/// Number of singular values above tolerance · σ_max. Default: max(rows, columns) times the epsilon of the dtype.
int64_t matrix_rank(const Tensor& matrix, double tolerance = -1);

}  // namespace sluice
