// The reference of mLSTM: pair by pair, with sums that have no factor e^{−m}.
#include "layers/nn_reference.h"

namespace sluice::testing {

namespace {

/// The logits of a gate, [n][heads].
Matrix gate_logits(const LayerFacts& l, const char* gate, const Matrix& x) {
  Matrix z = dense(l, gate, x);
  const double cap = l.real("gate_cap");
  for (auto& row : z)
    for (double& v : row) v = cap > 0 ? cap * std::tanh(v / cap) : v;
  return z;
}

Matrix mlstm(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t kv_heads = l.size("kv_heads"), group = l.size("heads") / kv_heads;
  const std::vector<Matrix> q = heads_of(dense(l, "q", s.x), l.size("heads")),
                            k = heads_of(dense(l, "k", s.x), kv_heads), v = heads_of(dense(l, "v", s.x), kv_heads);
  const Matrix enter = gate_logits(l, "input_gate", s.x), forget = gate_logits(l, "forget_gate", s.x);
  std::vector<Matrix> all;
  for (std::size_t h = 0; h < q.size(); ++h) {
    Matrix y = matrix(static_cast<int64_t>(s.x.size()), static_cast<int64_t>(v[h / group][0].size()));
    for (std::size_t t = 0; t < y.size(); ++t) {
      double kept = 0, sum = 0, largest = -INFINITY;  // kept: log of all forget gates between j and t
      for (std::size_t j = t + 1; j-- > 0;) {
        if (s.real[j]) {
          const double w = scaled_dot(q[h][t], k[h / group][j]) * std::exp(kept + enter[j][h]);
          sum += w, largest = std::max(largest, kept + enter[j][h]);
          for (std::size_t c = 0; c < y[t].size(); ++c) y[t][c] += w * v[h / group][j][c];
          kept -= softplus_of(-forget[j][h]);
        }
        if (j == 0 || (!s.documents.empty() && s.documents[j] != s.documents[j - 1])) break;
      }
      const double m = std::max(largest, kept);  // the text begins with m = 0
      for (double& value : y[t]) value /= std::max(std::abs(sum), 1.0) + l.real("eps") * std::exp(m);
    }
    all.push_back(y);
  }
  const Matrix normed = norm_of(l, "norm", "layer", l.real("norm_eps"), joined(all), q.size());
  return dense(l, "out", product(normed, activated(dense(l, "output_gate", s.x), "sigmoid")));
}

const bool registered = register_reference("mlstm", mlstm);

}  // namespace

}  // namespace sluice::testing
