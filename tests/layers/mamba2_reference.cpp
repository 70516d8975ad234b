// The reference of Mamba-2: token by token, with the state of each head as a matrix.
#include "layers/nn_reference.h"

namespace sluice::testing {

namespace {

Matrix mamba2(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t heads = l.size("heads"), channels = l.size("head_dim"), width = l.size("state");
  const std::size_t groups = l.size("groups"), inner = heads * channels, n = s.x.size();
  Matrix map = dense(l, "in", s.x);
  if (const std::vector<double> by = l.reals("in_factors"); !by.empty())
    for (auto& row : map)
      for (std::size_t c = 0; c < row.size(); ++c)
        row[c] *= by[c < 2 * inner                      ? c / inner
                     : c < 2 * (inner + groups * width) ? 2 + (c - 2 * inner) / (groups * width)
                                                        : 4];
  const Matrix z = columns(map, 0, inner);
  Matrix mixed = columns(map, inner, inner + 2 * groups * width);
  const Matrix step = columns(map, 2 * inner + 2 * groups * width, heads);
  mixed = l.size("short_conv") > 0 ? short_convolution_reference(l.part("conv"), "silu", mixed, s.real, s.documents)
                                   : activated(mixed, "silu");
  const std::vector<double> bias = l.values("dt_bias"), a_log = l.values("a_log"), d = l.values("d");
  const std::vector<double> limit = l.reals("dt_limit");
  std::vector<Matrix> state(heads, matrix(static_cast<int64_t>(channels), static_cast<int64_t>(width)));
  Matrix y = matrix(static_cast<int64_t>(n), static_cast<int64_t>(inner));
  for (std::size_t t = 0; t < n; ++t)
    for (std::size_t h = 0; h < heads; ++h) {
      Matrix& m = state[h];
      if (t > 0 && !s.documents.empty() && s.documents[t] != s.documents[t - 1])
        for (auto& row : m) row.assign(width, 0.0);
      if (!s.real[t]) continue;
      const double dt = std::min(std::max(softplus_of(step[t][h] + bias[h]), limit[0]), limit[1]);
      const double kept = std::exp(-std::exp(a_log[h]) * dt);
      const std::size_t b = inner + h / (heads / groups) * width, c = b + groups * width;
      for (std::size_t p = 0; p < channels; ++p) {
        const std::size_t at = h * channels + p;
        const double x = mixed[t][at];
        y[t][at] = d[l.yes("d_per_channel") ? at : h] * x;
        for (std::size_t i = 0; i < width; ++i) {
          m[p][i] = kept * m[p][i] + dt * x * mixed[t][b + i];
          y[t][at] += m[p][i] * mixed[t][c + i];
        }
      }
    }
  const Matrix gate = activated(z, "silu");
  const auto normed = [&](Matrix x) {
    return l.yes("norm") ? norm_of(l, "norm", "rms", l.real("norm_eps"), std::move(x), groups) : x;
  };
  return dense(l, "out", l.yes("norm_before_gate") ? product(normed(y), gate) : normed(product(y, gate)));
}

const bool registered = register_reference("mamba2", mamba2);

}  // namespace

}  // namespace sluice::testing
