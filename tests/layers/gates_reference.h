// What the tests of gated layers share: attention as loops over one sequence and one head. Matrices come from
// gau_reference.h.
#pragma once

#include "layers/gau_reference.h"
#include "support/catch.h"
#include "support/identities.h"

namespace sluice::testing {

inline double logistic(double x) { return 1 / (1 + std::exp(-x)); }

/// Softmax attention over the pairs that `sees` allows, scores q·k/√d; a row that sees nothing is 0.
inline Matrix softmax_attention(const Matrix& q, const Matrix& k, const Matrix& v,
                                const std::function<bool(std::size_t, std::size_t)>& sees) {
  Matrix out = matrix(static_cast<int64_t>(q.size()), v.empty() ? 0 : static_cast<int64_t>(v[0].size()));
  for (std::size_t i = 0; i < q.size(); ++i) {
    double total = 0;
    for (std::size_t j = 0; j < k.size(); ++j) {
      if (!sees(i, j)) continue;
      double s = 0;
      for (std::size_t c = 0; c < q[i].size(); ++c) s += q[i][c] * k[j][c];
      const double p = std::exp(s / std::sqrt(static_cast<double>(q[i].size())));
      total += p;
      for (std::size_t c = 0; c < out[i].size(); ++c) out[i][c] += p * v[j][c];
    }
    if (total > 0)
      for (double& o : out[i]) o /= total;
  }
  return out;
}

inline std::function<bool(std::size_t, std::size_t)> sees_causal(bool causal, const std::vector<bool>& real) {
  return [causal, real](std::size_t i, std::size_t j) { return real[j] && (!causal || j <= i); };
}

inline Matrix with_sigmoid(Matrix m) {
  for (auto& row : m)
    for (double& v : row) v = logistic(v);
  return m;
}

}  // namespace sluice::testing
