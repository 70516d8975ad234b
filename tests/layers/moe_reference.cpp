// Reference of the mixture of experts, token by token.
#include "layers/nn_reference.h"

#include <algorithm>

namespace sluice::testing {

namespace {

/// Expert e's rows of the maps [experts, in, out].
Matrix expert(const LayerFacts& l, const std::string& name, std::size_t e, std::size_t in) {
  const std::vector<double> all = l.values(name + ".weight");
  const std::size_t out = all.size() / l.size("experts") / in;
  Matrix m(in, std::vector<double>(out));
  for (std::size_t i = 0; i < in; ++i)
    for (std::size_t j = 0; j < out; ++j) m[i][j] = all[(e * in + i) * out + j];
  return m;
}

Matrix gated_mlp(const Matrix& x, const Matrix& gate, const Matrix& up, const Matrix& down) {
  return times(product(activated(times(x, gate), "silu"), times(x, up)), down);
}

Matrix moe(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t experts = l.size("experts"), k = l.size("top_k"), dim = s.x.empty() ? 0 : s.x[0].size();
  const std::vector<double> bias = l.values("router_bias");
  Matrix y;
  for (const auto& row : s.x) {
    std::vector<double> score = times({row}, l.part("router").matrix("weight"))[0];
    if (l.text("router") == "softmax") {
      double total = 0;
      for (double& v : score) v = std::exp(v), total += v;
      for (double& v : score) v /= total;
    } else {
      for (double& v : score) v = 1 / (1 + std::exp(-v));
    }
    std::vector<std::size_t> best(experts);
    std::iota(best.begin(), best.end(), std::size_t{0});
    const auto worth = [&](std::size_t e) { return score[e] + (bias.empty() ? 0 : bias[e]); };
    std::stable_sort(best.begin(), best.end(), [&](std::size_t a, std::size_t b) { return worth(a) > worth(b); });
    double total = 0;
    for (std::size_t i = 0; i < k; ++i) total += score[best[i]];
    std::vector<double> sum(dim, 0.0);
    for (std::size_t i = 0; i < k; ++i) {
      const std::size_t e = best[i], hidden = l.size("hidden") ? l.size("hidden") : dim;
      const Matrix one =
          gated_mlp({row}, expert(l, "gate", e, dim), expert(l, "up", e, dim), expert(l, "down", e, hidden));
      for (std::size_t c = 0; c < dim; ++c)
        sum[c] += l.real("scale") * (l.yes("norm_topk") ? score[e] / total : score[e]) * one[0][c];
    }
    if (l.size("shared_hidden") > 0) {
      const auto weight = [&](const char* name) { return l.part(name).matrix("weight"); };
      const Matrix one = gated_mlp({row}, weight("shared_gate_proj"), weight("shared_up"), weight("shared_down"));
      const double by = l.yes("shared_gate") ? 1 / (1 + std::exp(-times({row}, weight("shared_gate"))[0][0])) : 1;
      for (std::size_t c = 0; c < dim; ++c) sum[c] += by * one[0][c];
    }
    y.push_back(sum);
  }
  return y;
}

const bool registered[] = {register_reference("moe", moe)};

}  // namespace

}  // namespace sluice::testing
