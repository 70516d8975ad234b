// The reference of Mamba: token by token, with the state of each channel as a row.
#include "layers/nn_reference.h"

namespace sluice::testing {

namespace {

Matrix mamba(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t inner = l.size("inner"), width = l.size("state"), rank = l.size("dt_rank"), n = s.x.size();
  const Matrix map = dense(l, "in", s.x), z = columns(map, inner, inner);
  Matrix x = columns(map, 0, inner);
  x = l.size("short_conv") > 0 ? short_convolution_reference(l.part("conv"), "silu", x, s.real, s.documents)
                               : activated(x, "silu");
  for (std::size_t t = 0; t < n; ++t)
    if (!s.real[t]) x[t].assign(inner, 0.0);
  const Matrix chosen = dense(l, "select", x);
  const auto normed = [&](const std::string& name, std::size_t from, std::size_t count) {
    return norm_of(l, name, l.text("norm"), l.real("norm_eps"), columns(chosen, from, count));
  };
  const Matrix step = dense(l, "dt", normed("dt_norm", 0, rank)), b = normed("b_norm", rank, width),
               c = normed("c_norm", rank + width, width);
  const std::vector<double> bias = l.values("dt_bias"), a_log = l.values("a_log"), d = l.values("d");
  Matrix state = matrix(static_cast<int64_t>(inner), static_cast<int64_t>(width));
  Matrix y = matrix(static_cast<int64_t>(n), static_cast<int64_t>(inner));
  for (std::size_t t = 0; t < n; ++t)
    for (std::size_t h = 0; h < inner; ++h) {
      if (t > 0 && !s.documents.empty() && s.documents[t] != s.documents[t - 1]) state[h].assign(width, 0.0);
      if (!s.real[t]) continue;
      const double dt = softplus_of(step[t][h] + bias[h]);
      y[t][h] = d[h] * x[t][h];
      for (std::size_t i = 0; i < width; ++i) {
        state[h][i] = std::exp(-dt * std::exp(a_log[h * width + i])) * state[h][i] + dt * b[t][i] * x[t][h];
        y[t][h] += c[t][i] * state[h][i];
      }
    }
  return dense(l, "out", product(y, activated(z, "silu")));
}

const bool registered = register_reference("mamba", mamba);

}  // namespace

}  // namespace sluice::testing
