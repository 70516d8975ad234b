#include <sluice/layers/gau/gau_moments.h>

#include <sluice/core/node.h>

#include <cmath>
#include <vector>

namespace sluice {

ActivationMoments activation_moments(Act act, double scale) {
  if (!(scale >= 0)) fail<ValueError>("activation_moments: scale must not be negative — got ", scale);
  // Gauss-Legendre quadrature with 5 nodes in panels of width ¼ from −12 to 12, where the density is about e^−72. The
  // kink of a relu lies between two panels.
  const double root = 2 * std::sqrt(10.0 / 7), w = 13 * std::sqrt(70.0);
  const double node[] = {0, std::sqrt(5 - root) / 3, -std::sqrt(5 - root) / 3, std::sqrt(5 + root) / 3,
                         -std::sqrt(5 + root) / 3};
  const double weight[] = {128 / 225.0, (322 + w) / 900, (322 + w) / 900, (322 - w) / 900, (322 - w) / 900};
  std::vector<double> at, mass;
  for (int panel = -48; panel < 48; ++panel)
    for (int i = 0; i < 5; ++i) {
      const double x = (panel + 0.5 + 0.5 * node[i]) / 4;
      at.push_back(scale * x);
      mass.push_back(weight[i] / 8 * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)));
    }
  NoGrad guard;
  const std::vector<double> y = activate(act, Tensor::from(at)).to_vector<double>();
  ActivationMoments m{0, 0, 0};
  for (std::size_t i = 0; i < y.size(); ++i) {
    m.mean += mass[i] * y[i];
    m.second += mass[i] * y[i] * y[i];
    m.fourth += mass[i] * y[i] * y[i] * y[i] * y[i];
  }
  return m;
}

GauAtInit gau_at_init(int64_t key_dim, int64_t n, Act act) {
  if (key_dim < 1 || n < 1) fail<ValueError>("gau_at_init: sizes must be positive — got key_dim=", key_dim, ", n=", n);
  const ActivationMoments m = activation_moments(act);
  const auto s = static_cast<double>(key_dim), length = static_cast<double>(n);
  const double mu4 = std::pow(m.mean, 4), nu4 = m.second * m.second, nu = std::sqrt(m.second);
  GauAtInit g;
  g.diagonal = (s * nu4 + m.fourth - nu4) / length;  // E (Σ_c z_c²)² = s²ν⁴ + s(E φ⁴ − ν⁴)
  g.off_diagonal = (s * mu4 + nu4 - mu4) / length;   // E (Σ_c z_c z'_c)² = s²μ⁴ + s(ν⁴ − μ⁴)
  g.ratio = g.diagonal / g.off_diagonal;
  g.ratio_limit = nu4 / mu4;
  g.row_over_diagonal = (length - 1) / g.ratio;
  g.output_from_diagonal = m.second * s * nu4 / length;  // rms of u·v is ν²; Wo keeps it
  g.output_from_mean = nu * m.mean * (s * mu4 + nu4 - mu4);
  return g;
}

}  // namespace sluice
