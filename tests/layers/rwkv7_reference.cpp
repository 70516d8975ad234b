// The reference of RWKV-7's time mixing: token by token, with the state of each head as a matrix.
#include "layers/nn_reference.h"

namespace sluice::testing {

namespace {

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

Matrix rwkv7(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t n = s.x.size(), dim = l.size("dim"), width = l.size("head_dim"), heads = dim / width;
  const auto begins = [&](std::size_t t) {
    return t == 0 || (!s.documents.empty() && s.documents[t] != s.documents[t - 1]);
  };
  Matrix x = s.x;
  for (std::size_t t = 0; t < n; ++t)
    if (!s.real[t]) x[t].assign(dim, 0.0);
  const Matrix mu = l.matrix("mix");
  const auto mixed = [&](std::size_t i) {
    Matrix y = x;
    for (std::size_t t = 0; t < n; ++t)
      for (std::size_t c = 0; c < dim; ++c) y[t][c] += mu[i][c] * ((begins(t) ? 0 : x[t - 1][c]) - x[t][c]);
    return y;
  };
  const auto low = [&](const std::string& name, std::size_t i, const std::string& act) {
    return dense(l, name + "_up", activated(dense(l, name + "_down", mixed(i)), act));
  };
  const Matrix r = dense(l, "r", mixed(0)), key = dense(l, "k", mixed(2)), v = dense(l, "v", mixed(3));
  const Matrix decay = low("decay", 1, "tanh"), rate = low("rate", 4, "identity"), gate = low("gate", 5, "sigmoid");
  const std::vector<double> bias = l.values("decay_bias"), xi = l.values("removal"), alpha = l.values("rate_mix"),
                            rho = l.values("bonus");
  Matrix o = matrix(static_cast<int64_t>(n), static_cast<int64_t>(dim)), own = o;
  for (std::size_t h = 0; h < heads; ++h) {
    Matrix state(width, std::vector<double>(width));  // [value, key], as the authors have it
    for (std::size_t t = 0; t < n; ++t) {
      if (begins(t)) state.assign(width, std::vector<double>(width));
      const std::size_t at = h * width;
      double length = 0, agreement = 0;
      std::vector<double> kappa(width), a(width), k(width), kept(width);
      for (std::size_t c = 0; c < width; ++c) {
        a[c] = sigmoid_of(rate[t][at + c]);
        kappa[c] = key[t][at + c] * xi[at + c], length += kappa[c] * kappa[c];
        k[c] = key[t][at + c] + key[t][at + c] * (a[c] - 1) * alpha[at + c];
        kept[c] = std::exp(-sigmoid_of(decay[t][at + c] + bias[at + c]) / std::exp(0.5));
        agreement += r[t][at + c] * k[c] * rho[at + c];
      }
      for (double& c : kappa) c /= std::max(std::sqrt(length), 1e-12);
      for (std::size_t j = 0; j < width; ++j) {
        if (s.real[t]) {
          const double held = dot(state[j], kappa);
          for (std::size_t c = 0; c < width; ++c)
            state[j][c] = state[j][c] * kept[c] - held * a[c] * kappa[c] + v[t][at + j] * k[c];
        }
        for (std::size_t c = 0; c < width; ++c) o[t][at + j] += state[j][c] * r[t][at + c];
        own[t][at + j] = agreement * v[t][at + j];
      }
    }
  }
  return dense(l, "out", product(plus(norm_of(l, "norm", "layer", l.real("norm_eps"), o, heads), own), gate));
}

const bool registered = register_reference("rwkv7", rwkv7);

}  // namespace

}  // namespace sluice::testing
