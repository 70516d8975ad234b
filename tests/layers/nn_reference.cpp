// References of dense layers, norms, the short convolution and gated residuals.
#include "layers/nn_reference.h"

namespace sluice::testing {

Matrix glu_reference(const LayerFacts& l, const std::string& kind, const Matrix& x) {
  const auto gate = [](const std::string& k) -> const char* {
    if (k == "glu") return "sigmoid";
    if (k == "reglu") return "relu";
    if (k == "geglu") return "gelu";
    if (k == "geglu_tanh") return "gelu_tanh";
    return k == "bilinear" ? "identity" : "silu";  // swiglu, silu_glu
  };
  const Matrix value = activated(dense(l, "value", x), kind == "silu_glu" ? "silu" : "identity");
  return dense(l, "out", product(value, activated(dense(l, "gate", x), gate(kind))));
}

Matrix short_convolution_reference(const LayerFacts& l, const std::string& act, const Matrix& x,
                                   const std::vector<bool>& real, const std::vector<int64_t>& documents) {
  const Matrix w = l.matrix("weight");
  const std::vector<double> b = l.values("bias");
  Matrix y = x;
  for (std::size_t t = 0; t < x.size(); ++t)
    for (std::size_t c = 0; c < y[t].size(); ++c) {
      y[t][c] = b.empty() ? 0 : b[c];
      for (std::size_t back = 0; back < w.size() && back <= t; ++back) {
        if (back > 0 && !documents.empty() && documents[t - back] != documents[t - back + 1]) break;
        if (real[t - back]) y[t][c] += w[w.size() - 1 - back][c] * x[t - back][c];
      }
    }
  return activated(y, act);
}

namespace {

Matrix embedding(const LayerFacts& l, const LayerSequence& s) {
  const Matrix w = l.matrix("weight");
  Matrix y;
  for (const auto& token : s.x) y.push_back(w[static_cast<std::size_t>(token[0])]);
  return y;
}

Matrix mlp(const LayerFacts& l, const LayerSequence& s) {
  return dense(l, "out", activated(dense(l, "in", s.x), l.text("activation")));
}

Matrix norm(const LayerFacts& l, const LayerSequence& s) {
  return norm_of(l.text("kind"), l.real("eps"), l.values("weight"), l.values("bias"), s.x, l.size("parts"));
}

Matrix gated_residual(const LayerFacts& l, const LayerSequence& s) {
  Matrix y = s.x;
  const std::vector<double> w = l.values("weight");
  const Matrix g = l.has("map.weight") ? activated(dense(l, "map", s.x), "sigmoid") : Matrix(s.x.size(), w);
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t c = 0; c < y[i].size(); ++c) y[i][c] += g[i][c % g[i].size()] * s.context[i][c];
  return y;
}

const bool registered[] = {
    register_reference("linear", [](const LayerFacts& l, const LayerSequence& s) { return dense(l, s.x); }),
    register_reference("embedding", embedding),
    register_reference("mlp", mlp),
    register_reference(
        "glu", [](const LayerFacts& l, const LayerSequence& s) { return glu_reference(l, l.text("kind"), s.x); }),
    register_reference("norm", norm),
    register_reference("short_convolution",
                       [](const LayerFacts& l, const LayerSequence& s) {
                         return short_convolution_reference(l, l.text("activation"), s.x, s.real, s.documents);
                       }),
    register_reference("gated_residual", gated_residual),
};

}  // namespace

}  // namespace sluice::testing
