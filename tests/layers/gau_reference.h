// GAU written as plain loops over one sequence. Of the library it uses only the option
// names and the weights.
#pragma once

#include "support/approx.h"

#include <sluice/layers/gau/gau.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace sluice::testing {

using Matrix = std::vector<std::vector<double>>;

inline Matrix matrix(int64_t rows, int64_t cols) {
  return Matrix(static_cast<std::size_t>(rows), std::vector<double>(static_cast<std::size_t>(cols), 0.0));
}
inline Matrix matrix_of(const Tensor& t) {
  Matrix m = matrix(t.dim(0), t.dim(1));
  const std::vector<double> flat = t.to_vector<double>();
  std::size_t at = 0;
  for (auto& row : m)
    for (double& v : row) v = flat[at++];
  return m;
}
inline Matrix times(const Matrix& a, const Matrix& b) {
  Matrix c = matrix(static_cast<int64_t>(a.size()), b.empty() ? 0 : static_cast<int64_t>(b[0].size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < c[i].size(); ++j)
      for (std::size_t k = 0; k < b.size(); ++k) c[i][j] += a[i][k] * b[k][j];
  return c;
}
/// Columns first … first + width − 1.
inline Matrix columns(const Matrix& a, std::size_t first, std::size_t width) {
  Matrix c;
  for (const auto& row : a) {
    const auto from = row.begin() + static_cast<std::ptrdiff_t>(first);
    c.emplace_back(from, from + static_cast<std::ptrdiff_t>(width));
  }
  return c;
}

/// The root of the mean square: the deviation of initial values, whose mean is 0.
inline double spread(const Tensor& t) { return std::sqrt(mean(square(t)).item()); }

/// gau_attention with b and the mask of keys beside the options.
inline Tensor gau_attention(const Tensor& q, const Tensor& k, const Tensor& v, GauAttentionOptions o,
                            const Tensor& bias, const Tensor& key_mask = {}, Rng* rng = nullptr) {
  o.bias = bias, o.mask.keys = key_mask;
  return sluice::gau_attention(q, k, v, o, rng);
}

using PairRule = std::function<bool(std::size_t, std::size_t)>;

/// A·V of every kind. Query i of m sees key j when real[j], if causal j <= i + n − m, and sees(i, j). L = n counts it
/// when real[j] and counts(i, j).
inline Matrix attention_reference(const Matrix& q, const Matrix& k, const Matrix& v, const GauAttentionOptions& o,
                                  const Matrix& bias, const std::vector<bool>& real, const PairRule& sees = {},
                                  const PairRule& counts = {}) {
  const std::size_t m = q.size(), n = k.size(), s = q.empty() ? 1 : q[0].size();
  Matrix a = matrix(static_cast<int64_t>(m), static_cast<int64_t>(n));
  for (std::size_t i = 0; i < m; ++i) {
    std::vector<std::size_t> visible;
    double counted = 0;
    for (std::size_t j = 0; j < n; ++j) {
      counted += real[j] && (!counts || counts(i, j));
      const auto ahead = static_cast<int64_t>(j + m) - static_cast<int64_t>(i + n);  // p_j − p_i
      const bool near = o.mask.window == 0 || std::abs(ahead) < o.mask.window;
      if (real[j] && near && (!o.mask.causal || ahead <= 0) && (!sees || sees(i, j))) visible.push_back(j);
    }
    double length = static_cast<double>(o.constant_length);
    if (o.length == GauLength::n) length = counted;
    if (o.length == GauLength::visible) length = static_cast<double>(visible.size());
    length = std::max(length, 1.0);
    const double least = static_cast<double>(o.min_length);  // κ > 0: 0·(−∞) is NaN
    const double kappa = std::max(std::log(std::max(length, least)) / std::log(512.0), 1e-30);
    std::vector<double> x(n, 0.0);
    for (std::size_t j : visible) {
      double t = 0;
      for (std::size_t c = 0; c < s; ++c) t += q[i][c] * k[j][c];
      const double b = bias.empty() ? 0 : bias[i][j], root = std::sqrt(static_cast<double>(s));
      switch (o.kind) {
        case GauKind::su:
        case GauKind::rownorm:
        case GauKind::softmax: x[j] = t / root + b; break;
        case GauKind::softmax_plus: x[j] = kappa * (t / root + b); break;
        case GauKind::paper_eq: x[j] = t + b; break;
        case GauKind::paper_code: x[j] = t / length + b; break;
        case GauKind::lucid:
        case GauKind::laplace: x[j] = (t + b) / length; break;
      }
    }
    if (o.top_k > 0 && visible.size() > static_cast<std::size_t>(o.top_k)) {
      std::stable_sort(visible.begin(), visible.end(), [&](std::size_t f, std::size_t g) { return x[f] > x[g]; });
      const auto kept = static_cast<std::size_t>(o.top_k);
      visible.resize(kept);
    }
    double total = 0;
    for (std::size_t j : visible) {
      const double up = std::max(x[j], 0.0);
      switch (o.kind) {
        case GauKind::su: a[i][j] = up * up / length; break;
        case GauKind::softmax:
        case GauKind::softmax_plus: a[i][j] = std::exp(x[j]); break;
        case GauKind::laplace: {
          const double sigma = std::sqrt(1 / (4 * std::acos(-1.0)));
          a[i][j] = 0.5 * std::erfc((std::sqrt(0.5) - x[j]) / (sigma * std::sqrt(2.0)));
          break;
        }
        default: a[i][j] = up * up; break;
      }
      total += a[i][j];
    }
    if (o.kind == GauKind::rownorm || o.kind == GauKind::softmax || o.kind == GauKind::softmax_plus)
      for (double& w : a[i]) w = total > 0 ? w / total : 0;
  }
  Matrix out = matrix(static_cast<int64_t>(m), v.empty() ? 0 : static_cast<int64_t>(v[0].size()));
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j)
      if (a[i][j] != 0)
        for (std::size_t c = 0; c < out[i].size(); ++c) out[i][c] += a[i][j] * v[j][c];
  return out;
}

/// Row p of x rotated by position p + offset.
inline Matrix rope_reference(Matrix x, const RopeOptions& o) {
  for (std::size_t p = 0; p < x.size(); ++p) {
    const std::size_t dim = o.rot_dim ? static_cast<std::size_t>(o.rot_dim) : x[p].size(), half = dim / 2;
    for (std::size_t c = 0; c < half; ++c) {
      const double position = static_cast<double>(p) + static_cast<double>(o.offset);
      const double frequency = o.frequencies.empty()
                                   ? std::pow(o.base, -static_cast<double>(c) / static_cast<double>(half))
                                   : o.frequencies[c];
      const double angle = position * frequency, share = static_cast<double>(c) / static_cast<double>(half);
      const double by = o.xpos == 0 ? o.factor : o.factor * std::pow((share + 0.4) / 1.4, position / o.xpos);
      const bool halves = o.pairing == RopePairing::half;
      double &f = x[p][halves ? c : 2 * c], &g = x[p][halves ? c + half : 2 * c + 1];
      const double u = f * std::cos(angle) - g * std::sin(angle), w = g * std::cos(angle) + f * std::sin(angle);
      f = u * by, g = w * by;
    }
  }
  return x;
}

/// T5's bucket by the usual floating-point formula, which agrees with the exact one for |rel| < 300.
inline int t5_reference(int rel, bool causal, int buckets = 32, int max_distance = 128) {
  int count = causal ? buckets : buckets / 2, first = 0, distance = -rel;
  if (causal) distance = std::max(distance, 0);
  else first = rel > 0 ? count : 0, distance = std::abs(distance);
  const int exact = count / 2;
  if (distance < exact) return first + distance;
  const double share = std::log(1.0 * distance / exact) / std::log(1.0 * max_distance / exact);
  return first + std::min(exact + static_cast<int>(std::floor(share * (count - exact) + 1e-9)), count - 1);
}

inline double activation_reference(Act act, double x) {
  switch (act) {
    case Act::identity: return x;
    case Act::relu: return std::max(x, 0.0);
    case Act::relu2: return std::max(x, 0.0) * std::max(x, 0.0);
    case Act::silu: return x / (1 + std::exp(-x));
    case Act::gelu: return x * 0.5 * std::erfc(-x / std::sqrt(2.0));  // 1 + erf cancels
    case Act::tanh: return std::tanh(x);
    case Act::sigmoid: return 1 / (1 + std::exp(-x));
    case Act::ns_sigmoid: return 0.5 + 0.5 / (1 + std::exp(-x));
    case Act::softplus: return std::log1p(std::exp(x));
    case Act::leaky_relu: return x > 0 ? x : 0.01 * x;
    case Act::elu: return x > 0 ? x : std::expm1(x);
    case Act::elu1: return x > 0 ? x + 1 : std::exp(x);
    case Act::gelu_tanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Act::laplace: return 0.5 * std::erfc((std::sqrt(0.5) - x) / std::sqrt(1 / (2 * std::acos(-1.0))));
  }
  return NAN;
}

// -- samples ------------------------------------------------------------------------------------------------

constexpr GauKind kGauKinds[] = {GauKind::su,      GauKind::paper_eq, GauKind::paper_code,   GauKind::lucid,
                                 GauKind::rownorm, GauKind::softmax,  GauKind::softmax_plus, GauKind::laplace};
constexpr GauLength kGauLengths[] = {GauLength::n, GauLength::visible, GauLength::constant};
constexpr GauBias kGauBiases[] = {GauBias::none, GauBias::toeplitz, GauBias::rope, GauBias::t5};

/// Every parameter becomes random, so that nothing is 0 or 1 by default.
template <class L> L randomised(L layer, Rand& rand, double spread = 0.7) {
  for (NamedTensor& p : parameters(layer)) {
    double* at = p.tensor.template mutable_data<double>();
    for (int64_t i = 0; i < p.tensor.numel(); ++i) at[i] = rand.uniform(-spread, spread);
  }
  return layer;
}

/// A layer in f64 with random parameters.
inline Gau random_gau(GauOptions o, Rand& rand, double spread = 0.7) {
  o.dtype = f64;
  Rng rng(1);
  return randomised(Gau(o, rng), rand, spread);
}

/// The rows of real tokens; what a layer returns for padded ones is not specified, and counts as 0 here.
inline Tensor real_rows(const Tensor& y, const Tensor& key_mask) {
  return key_mask.defined() ? masked_fill(y, unsqueeze(logical_not(key_mask), -1), 0) : y;
}

/// bool [2, n]: the first sequence keeps `a` tokens, the second `b`.
inline Tensor prefix_mask(int64_t n, int64_t a, int64_t b) {
  std::vector<bool> m;
  for (int64_t length : {a, b})
    for (int64_t j = 0; j < n; ++j) m.push_back(j < length);
  return Tensor::from(m, {2, n});
}

}  // namespace sluice::testing
