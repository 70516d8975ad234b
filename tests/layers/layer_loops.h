// What the references of layers share: dense maps, norms, positions and heads of one sequence, as loops.
#pragma once

#include "layers/gau_reference.h"
#include "support/layer_reference.h"

#include <cmath>
#include <numeric>

namespace sluice::testing {

inline Matrix activated(Matrix m, const std::string& name) {
  const Act act = from_name<Act>(name);
  for (auto& row : m)
    for (double& v : row) v = activation_reference(act, v);
  return m;
}

/// a[i][c] = f(a[i][c], b[i][c])
inline Matrix merged(Matrix a, const Matrix& b, double (*f)(double, double)) {
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t c = 0; c < a[i].size(); ++c) a[i][c] = f(a[i][c], b[i][c]);
  return a;
}
inline Matrix product(Matrix a, const Matrix& b) {
  return merged(std::move(a), b, [](double x, double y) { return x * y; });
}
inline Matrix plus(Matrix a, const Matrix& b) {
  return merged(std::move(a), b, [](double x, double y) { return x + y; });
}

/// x·W + b with the tensors weight and, if there is one, bias; or those of the part `name`.
inline Matrix dense(const LayerFacts& map, const Matrix& x) {
  Matrix y = times(x, map.matrix("weight"));
  const std::vector<double> b = map.values("bias");
  for (auto& row : y)
    for (std::size_t c = 0; c < b.size(); ++c) row[c] += b[c];
  return y;
}
inline Matrix dense(const LayerFacts& l, const std::string& name, const Matrix& x) { return dense(l.part(name), x); }

/// Each of `parts` equal parts of a row, normalised, then scaled and shifted. A weight or bias that is shorter than a
/// row repeats; an empty one is left out.
inline Matrix norm_of(const std::string& kind, double eps, const std::vector<double>& weight,
                      const std::vector<double>& bias, Matrix x, std::size_t parts = 1) {
  if (kind == "none") return x;
  for (auto& row : x)
    for (std::size_t part = 0, width = row.size() / parts; part < parts; ++part) {
      const auto from = row.begin() + static_cast<std::ptrdiff_t>(part * width);
      const auto to = from + static_cast<std::ptrdiff_t>(width);
      const auto d = static_cast<double>(width);
      double mean = 0, square = 0;
      if (kind.starts_with("layer")) mean = std::accumulate(from, to, 0.0) / d;
      for (auto v = from; v != to; ++v) square += (*v - mean) * (*v - mean) / d;
      const double by = kind == "scale_l2" ? std::max(std::sqrt(square), eps) : std::sqrt(square + eps);
      for (std::size_t c = part * width; c < (part + 1) * width; ++c) {
        row[c] = (row[c] - mean) / by;
        if (!weight.empty()) row[c] *= weight[c % weight.size()];
        if (!bias.empty()) row[c] += bias[c % bias.size()];
      }
    }
  return x;
}
/// The norm that is the part `name`.
inline Matrix norm_of(const LayerFacts& l, const std::string& name, const std::string& kind, double eps, Matrix x,
                      std::size_t parts = 1) {
  return norm_of(kind, eps, l.values(name + ".weight"), l.values(name + ".bias"), std::move(x), parts);
}

/// RoPE of the rows of queries, or of keys.
inline Matrix turned(const LayerFacts& l, const Matrix& x, bool keys) {
  RopeOptions o;
  o.base = l.real("rope_base"), o.factor = l.real("rope_factor"), o.frequencies = l.reals("rope_frequencies");
  o.pairing = from_name<RopePairing>(l.text("rope_pairing"));
  o.rot_dim = l.option("rope_rot_dim").get<int64_t>(), o.offset = l.option("rope_offset").get<int64_t>();
  o.xpos = l.real("rope_xpos") * (keys ? -1 : 1);
  return rope_reference(x, o);
}

/// The columns of each of `heads` heads.
inline std::vector<Matrix> heads_of(const Matrix& x, std::size_t heads) {
  std::vector<Matrix> y;
  const std::size_t width = x.empty() ? 0 : x[0].size() / heads;
  for (std::size_t h = 0; h < heads; ++h) y.push_back(columns(x, h * width, width));
  return y;
}
inline Matrix beside(Matrix a, const Matrix& b) {
  if (a.empty()) return b;
  for (std::size_t i = 0; i < a.size(); ++i) a[i].insert(a[i].end(), b[i].begin(), b[i].end());
  return a;
}
inline Matrix joined(const std::vector<Matrix>& heads) {
  Matrix y;
  for (const Matrix& h : heads) y = beside(std::move(y), h);
  return y;
}

/// Each row, or each column, divided by its sum; one of sum 0 becomes 0.
inline void divide_rows(Matrix& m) {
  for (auto& row : m) {
    const double total = std::accumulate(row.begin(), row.end(), 0.0);
    for (double& x : row) x = total == 0 ? 0 : x / total;
  }
}
inline void divide_columns(Matrix& m) {
  for (std::size_t j = 0; !m.empty() && j < m[0].size(); ++j) {
    double total = 0;
    for (const auto& row : m) total += row[j];
    for (auto& row : m) row[j] = total == 0 ? 0 : row[j] / total;
  }
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double s = 0;
  for (std::size_t c = 0; c < a.size(); ++c) s += a[c] * b[c];
  return s;
}

/// q·k/√d
inline double scaled_dot(const std::vector<double>& q, const std::vector<double>& k) {
  return dot(q, k) / std::sqrt(static_cast<double>(q.size()));
}

inline constexpr double kHidden = -INFINITY;
/// Softmax over the keys of score(i, j) beside one more key of score `sink` and value 0. A pair of score kHidden is
/// left out; a row that sees nothing is 0.
inline Matrix softmax_of(std::size_t rows, const Matrix& v,
                         const std::function<double(std::size_t, std::size_t)>& score, double sink = kHidden) {
  Matrix out = matrix(static_cast<int64_t>(rows), v.empty() ? 0 : static_cast<int64_t>(v[0].size()));
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<double> s(v.size());
    for (std::size_t j = 0; j < v.size(); ++j) s[j] = score(i, j);
    double best = sink, total = 0;
    for (double x : s) best = std::max(best, x);
    if (best == kHidden) continue;
    for (std::size_t j = 0; j < v.size(); ++j) {
      const double p = std::exp(s[j] - best);
      total += p;
      for (std::size_t c = 0; c < out[i].size(); ++c) out[i][c] += p * v[j][c];
    }
    total += std::exp(sink - best);
    for (double& x : out[i]) x /= total;
  }
  return out;
}

}  // namespace sluice::testing
