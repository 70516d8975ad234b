// References of dense layers, norms, the short convolution and gated residuals.
#include "layers/nn_reference.h"

#include <algorithm>
#include <cmath>

namespace sluice::testing {

static Matrix scaled_glu(const LayerFacts& l, const std::string& kind, const Matrix& x, double gate_scale, double limit,
                         double sparsity = 0) {
  const auto gate = [](const std::string& k) -> const char* {
    if (k == "glu") return "sigmoid";
    if (k == "reglu") return "relu";
    if (k == "geglu") return "gelu";
    if (k == "geglu_tanh") return "gelu_tanh";
    return k == "bilinear" ? "identity" : "silu";  // swiglu, silu_glu
  };
  Matrix value = dense(l, "value", x), map = dense(l, "gate", x);
  for (auto& row : value)
    for (double& v : row) v = std::clamp(v, -limit, limit);
  for (auto& row : map)
    for (double& g : row) g = std::min(g * gate_scale, limit);
  for (auto& row : map) {
    if (sparsity == 0) break;
    const double n = static_cast<double>(row.size());
    const double mean = std::accumulate(row.begin(), row.end(), 0.0) / n;
    double spread = 0;
    for (const double g : row) spread += (g - mean) * (g - mean) / n;
    double z = 0;  // Φ⁻¹(sparsity), by Newton's method
    for (int i = 0; i < 50; ++i)
      z -= (0.5 + std::erf(z / std::sqrt(2)) / 2 - sparsity) * std::sqrt(6.283185307179586) * std::exp(z * z / 2);
    for (double& g : row) g = std::max(0.0, g - mean - z * std::sqrt(spread));
  }
  if (kind == "swiglu_oai") {
    for (std::size_t t = 0; t < map.size(); ++t)
      for (std::size_t c = 0; c < map[t].size(); ++c)
        value[t][c] = (value[t][c] + 1) * map[t][c] / (1 + std::exp(-1.702 * map[t][c]));
    return dense(l, "out", value);
  }
  return dense(l, "out",
               product(activated(value, kind == "silu_glu" ? "silu" : "identity"), activated(map, gate(kind))));
}

Matrix glu_reference(const LayerFacts& l, const std::string& kind, const Matrix& x) {
  return scaled_glu(l, kind, x, 1, INFINITY);
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

MappedRows mapped_rows(const LayerFacts& l, const LayerSequence& s, const std::string& act) {
  MappedRows r{.x = s.x};
  for (std::size_t i = 0; i < r.x.size(); ++i)
    if (!s.real[i]) r.x[i].assign(r.x[i].size(), 0.0);
  r.q = dense(l, "q", r.x), r.k = dense(l, "k", r.x), r.v = dense(l, "v", r.x);
  if (l.size("short_conv") == 0) return r;
  const std::size_t a = r.q[0].size(), b = r.k[0].size(), e = r.v[0].size();
  const Matrix y = short_convolution_reference(l.part("conv"), act, beside(beside(r.q, r.k), r.v), s.real, s.documents);
  r.q = columns(y, 0, a), r.k = columns(y, a, b), r.v = columns(y, a + b, e);
  return r;
}

namespace {

Matrix embedding(const LayerFacts& l, const LayerSequence& s) {
  const Matrix w = l.matrix("weight");
  Matrix y;
  for (const auto& token : s.x) y.push_back(w[static_cast<std::size_t>(token[0])]);
  return y;
}

Matrix mlp(const LayerFacts& l, const LayerSequence& s) {
  Matrix u = dense(l, "in", s.x);
  if (!l.yes("xielu")) return dense(l, "out", activated(u, l.text("activation")));
  const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
  const double p = softplus(l.values("xielu_positive")[0]), n = 0.5 + softplus(l.values("xielu_negative")[0]);
  for (auto& row : u)
    for (double& x : row) x = x / 2 + (x > 0 ? p * x * x : n * (std::exp(std::min(x, -1e-6)) - 1 - x));
  return dense(l, "out", u);
}

Matrix norm(const LayerFacts& l, const LayerSequence& s) {
  return norm_of(l.text("kind"), l.real("eps"), l.values("weight"), l.values("bias"), s.x, l.size("parts"));
}

Matrix gated_short_convolution(const LayerFacts& l, const LayerSequence& s) {
  const Matrix bcx = dense(l, "in", s.x);
  const std::size_t d = l.size("dim");
  const Matrix mixed = short_convolution_reference(
      l.part("conv"), "identity", product(columns(bcx, 0, d), columns(bcx, 2 * d, d)), s.real, s.documents);
  return dense(l, "out", product(columns(bcx, d, d), mixed));
}

Matrix gated_residual(const LayerFacts& l, const LayerSequence& s) {
  Matrix y = s.x;
  const std::vector<double> w = l.values("weight");
  const Matrix g = l.has("map.weight") ? activated(dense(l, "map", s.x), "sigmoid") : Matrix(s.x.size(), w);
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t c = 0; c < y[i].size(); ++c) y[i][c] += g[i][c % g[i].size()] * s.context[i][c];
  return y;
}

std::vector<double> rms(std::vector<double> row, double eps) {
  double total = 0;
  for (double x : row) total += x * x;
  for (double& x : row) x /= std::sqrt(total / static_cast<double>(row.size()) + eps);
  return row;
}

/// The branch is x itself.
Matrix hyper_connection(const LayerFacts& l, const LayerSequence& q) {
  const std::size_t s = l.size("streams"), d = q.x[0].size() / s;
  const double eps = l.real("eps");
  const auto sigma = [](double x) { return 1 / (1 + std::exp(-x)); };
  Matrix y;
  for (const std::vector<double>& h : q.x) {
    std::vector<double> x(d, 0.0), post(s);
    Matrix mixing(s, std::vector<double>(s, 0.0));
    if (l.text("kind") == "gated") {
      const std::vector<double> w = l.values("weight");
      std::vector<double> u;
      for (std::size_t i = 0; i < s; ++i)
        for (double c :
             rms({h.begin() + static_cast<long>(i * d), h.begin() + static_cast<long>(i * d + d)}, l.real("norm_eps")))
          u.push_back(c * w[u.size()]);
      Matrix low = dense(l, "down", {u});
      for (double& c : low[0]) c = c / double(s) * sigma(c / double(s));
      const Matrix gate = dense(l, "up", low), inject = dense(l, "map", {u});
      for (std::size_t i = 0; i < s; ++i) {
        for (std::size_t c = 0; c < d; ++c) x[c] += sigma(gate[0][i * d + c]) * u[i * d + c] / double(s);
        post[i] = 2 * sigma(inject[0][i] / double(s)), mixing[i][i] = 1;
      }
    } else {
      const std::vector<double> u = dense(l, "map", {rms(h, l.real("norm_eps"))})[0], b = l.values("base"),
                                a = l.values("scale");
      for (std::size_t i = 0; i < s; ++i) {
        for (std::size_t c = 0; c < d; ++c) x[c] += (sigma(a[0] * u[i] + b[i]) + eps) * h[i * d + c];
        post[i] = 2 * sigma(a[1] * u[s + i] + b[s + i]);
        double total = 0;
        for (std::size_t j = 0; j < s; ++j) {
          const std::size_t at = 2 * s + i * s + j;
          total += mixing[i][j] = std::exp(a[2] * u[at] + b[at]);
        }
        for (double& m : mixing[i]) m = m / total + eps;
      }
      for (std::size_t step = 0; step + 1 < 2 * l.size("iterations"); ++step)
        for (std::size_t i = 0; i < s; ++i) {  // columns in even steps
          double total = eps;
          for (std::size_t j = 0; j < s; ++j) total += step % 2 ? mixing[i][j] : mixing[j][i];
          for (std::size_t j = 0; j < s; ++j) (step % 2 ? mixing[i][j] : mixing[j][i]) /= total;
        }
    }
    y.emplace_back();
    for (std::size_t i = 0; i < s; ++i)
      for (std::size_t c = 0; c < d; ++c) {
        y.back().push_back(post[i] * x[c]);
        for (std::size_t j = 0; j < s; ++j) y.back().back() += mixing[j][i] * h[j * d + c];
      }
  }
  return y;
}

const bool registered[] = {
    register_reference("linear", [](const LayerFacts& l, const LayerSequence& s) { return dense(l, s.x); }),
    register_reference("embedding", embedding),
    register_reference("mlp", mlp),
    register_reference("glu",
                       [](const LayerFacts& l, const LayerSequence& s) {
                         return scaled_glu(l, l.text("kind"), s.x, l.real("gate_scale"),
                                           l.real("limit") > 0 ? l.real("limit") : INFINITY, l.real("sparsity"));
                       }),
    register_reference("norm", norm),
    register_reference("short_convolution",
                       [](const LayerFacts& l, const LayerSequence& s) {
                         return short_convolution_reference(l, l.text("activation"), s.x, s.real, s.documents);
                       }),
    register_reference("gated_short_convolution", gated_short_convolution),
    register_reference("gated_residual", gated_residual),
    register_reference("hyper_connection", hyper_connection),
};

}  // namespace

}  // namespace sluice::testing
