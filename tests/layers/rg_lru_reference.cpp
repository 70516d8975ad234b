// The reference of Griffin's recurrent block: token by token, with a state of one number for each channel.
#include "layers/nn_reference.h"

namespace sluice::testing {

namespace {

/// σ(x·W + b), where W has blocks along its diagonal.
Matrix block_gate(const LayerFacts& l, const std::string& name, const Matrix& x) {
  const std::vector<double> weight = l.values(name + "_weight"), bias = l.values(name + "_bias");
  const std::size_t width = bias.size() / l.size("heads");
  Matrix y = x;
  for (std::size_t t = 0; t < x.size(); ++t)
    for (std::size_t c = 0; c < bias.size(); ++c) {
      const std::size_t head = c / width;
      double sum = bias[c];
      for (std::size_t i = 0; i < width; ++i)
        sum += x[t][head * width + i] * weight[(head * width + i) * width + c % width];
      y[t][c] = 1 / (1 + std::exp(-sum));
    }
  return y;
}

Matrix rg_lru(const LayerFacts& l, const LayerSequence& s) {
  Matrix x = dense(l, "in", s.x);
  if (l.size("short_conv") > 0) x = short_convolution_reference(l.part("conv"), "identity", x, s.real, s.documents);
  const Matrix forget = block_gate(l, "forget", x), admit = block_gate(l, "input", x);
  const std::vector<double> lambda = l.values("lambda");
  std::vector<double> h(lambda.size(), 0.0);
  Matrix y = x;
  bool empty = true;
  for (std::size_t t = 0; t < x.size(); ++t) {
    if (t > 0 && !s.documents.empty() && s.documents[t] != s.documents[t - 1]) empty = true;
    for (std::size_t c = 0; c < h.size(); ++c) {
      const double a = empty ? 0 : std::exp(-8 * forget[t][c] * softplus_of(lambda[c]));
      if (s.real[t]) h[c] = a * h[c] + std::sqrt(1 - a * a) * admit[t][c] * x[t][c];
      y[t][c] = h[c];
    }
    if (s.real[t]) empty = false;
  }
  return dense(l, "out", product(y, activated(dense(l, "gate", s.x), "gelu_tanh")));
}

const bool registered = register_reference("rg_lru", rg_lru);

}  // namespace

}  // namespace sluice::testing
