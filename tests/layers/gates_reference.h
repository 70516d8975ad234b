// What the tests of gated layers share: attention as loops over one sequence and one head, and gradient checks of
// a layer in its input and every parameter. Matrices come from gau_reference.h.
#pragma once

#include "layers/gau_reference.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/autograd/gradcheck.h>

namespace sluice::testing {

inline double logistic(double x) { return 1 / (1 + std::exp(-x)); }

/// Softmax attention over the pairs that `sees` allows, scores q·k/√d; a row that sees nothing is 0.
inline Matrix softmax_attention(const Matrix& q, const Matrix& k, const Matrix& v,
                                const std::function<bool(std::size_t, std::size_t)>& sees) {
  Matrix out = matrix(static_cast<int64_t>(q.size()), v.empty() ? 0 : static_cast<int64_t>(v[0].size()));
  for (std::size_t i = 0; i < q.size(); ++i) {
    double total = 0;
    for (std::size_t j = 0; j < k.size(); ++j) {
      if (!sees(i, j)) continue;
      double s = 0;
      for (std::size_t c = 0; c < q[i].size(); ++c) s += q[i][c] * k[j][c];
      const double p = std::exp(s / std::sqrt(static_cast<double>(q[i].size())));
      total += p;
      for (std::size_t c = 0; c < out[i].size(); ++c) out[i][c] += p * v[j][c];
    }
    if (total > 0)
      for (double& o : out[i]) o /= total;
  }
  return out;
}

inline std::function<bool(std::size_t, std::size_t)> sees_causal(bool causal, const std::vector<bool>& real) {
  return [causal, real](std::size_t i, std::size_t j) { return real[j] && (!causal || j <= i); };
}

inline Matrix with_sigmoid(Matrix m) {
  for (auto& row : m)
    for (double& v : row) v = logistic(v);
  return m;
}

/// f(row matrices of x [batch, n, ·], its real tokens) for every sequence, stacked again.
inline Tensor each_sequence(const Tensor& x, const Tensor& key_mask,
                            const std::function<Matrix(const Matrix&, const std::vector<bool>&)>& f) {
  std::vector<double> all;
  int64_t width = 0;
  for (int64_t b = 0; b < x.dim(0); ++b) {
    std::vector<bool> real(static_cast<std::size_t>(x.dim(1)), true);
    if (key_mask.defined()) {
      const auto row = select(key_mask, 0, b).to_vector<bool>();
      real.assign(row.begin(), row.end());
    }
    for (const auto& row : f(matrix_of(select(x, 0, b)), real)) {
      all.insert(all.end(), row.begin(), row.end());
      width = static_cast<int64_t>(row.size());
    }
  }
  return Tensor::from(all, {x.dim(0), x.dim(1), width});
}

/// Every parameter becomes random, so that nothing is 0 or 1 by default.
template <class L>
L randomised(L layer, Rand& rand, double spread = 0.7) {
  for (NamedTensor& p : parameters(layer)) {
    double* at = p.tensor.template mutable_data<double>();
    for (int64_t i = 0; i < p.tensor.numel(); ++i) at[i] = rand.uniform(-spread, spread);
  }
  return layer;
}

/// The layer with its parameters replaced, in the order of parameters().
template <class L>
L with_parameters(const L& layer, const std::vector<Tensor>& values, std::size_t first = 0) {
  L copy = layer;
  for (const auto& slot : detail::members(copy).slots)
    if (slot.tensor->requires_grad()) *slot.tensor = values[first++];
  return copy;
}

/// gradcheck, and gradgradcheck if `twice`, of call(layer, x) in x and every element of every parameter.
template <class L>
void check_layer_gradients(const L& layer, const std::vector<Tensor>& xs,
                           const std::function<Tensor(const L&, const std::vector<Tensor>&)>& call, bool twice = true) {
  std::vector<Tensor> inputs;
  for (const Tensor& x : xs) inputs.push_back(x.detach().requires_grad_());
  for (const NamedTensor& p : parameters(layer)) inputs.push_back(p.tensor);
  const std::size_t given = xs.size();
  const TensorFunction f = [&](const std::vector<Tensor>& v) {
    const std::vector<Tensor> operands(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(given));
    return call(with_parameters(layer, v, given), operands);
  };
  const GradcheckResult first = gradcheck(f, inputs);
  INFO(first.message);
  CHECK(first.ok);
  if (!twice) return;
  const GradcheckResult second = gradgradcheck(f, inputs, {.tolerance = 1e-5});
  INFO(second.message);
  CHECK(second.ok);
}

/// The outputs of x fed in pieces of the given sizes, repeated until it ends.
template <class L>
Tensor streamed(const L& layer, const Tensor& x, const std::vector<int64_t>& sizes) {
  std::vector<Tensor> outputs;
  typename L::State state;
  int64_t at = 0;
  for (std::size_t i = 0; at < x.dim(1); ++i) {
    const int64_t size = std::min(sizes[i % sizes.size()], x.dim(1) - at);
    auto [y, next] = layer.step(narrow(x, 1, at, size), std::move(state));
    CHECK_FALSE(y.requires_grad());
    outputs.push_back(y), state = std::move(next), at += size;
  }
  return cat(outputs, 1);
}

/// y[:, t:] of the layer may change with x[:, t], y[:, :t] must not, bit by bit.
template <class L>
void check_causal(const L& layer, const Tensor& x) {
  const Tensor y = layer(x);
  for (int64_t t : {int64_t{1}, x.dim(1) / 2, x.dim(1) - 1}) {
    const Tensor other = cat({narrow(x, 1, 0, t), narrow(x, 1, t, x.dim(1) - t) * 2.0 + 1.0}, 1), z = layer(other);
    CHECK(same_bits(narrow(y, 1, 0, t), narrow(z, 1, 0, t)));
    CHECK_FALSE(same_bits(narrow(y, 1, t, 1), narrow(z, 1, t, 1)));
  }
}

/// Padded rows, holding NaN, change nothing about the real ones, in values and in gradients.
template <class L>
void check_padding(const L& layer, const Tensor& x, int64_t real) {
  const int64_t n = x.dim(1);
  const Tensor mask = prefix_mask(n, real, n), alone = narrow(narrow(x, 0, 0, 1), 1, 0, real);
  Tensor dirty = where(unsqueeze(mask, -1), x, Tensor::from(std::vector<double>{NAN}, {1}));
  dirty = dirty.detach().requires_grad_();
  const Tensor y = layer(dirty, mask);
  CHECK(max_abs_diff(narrow(narrow(y, 0, 0, 1), 1, 0, real), layer(alone)) < 1e-12);
  CHECK(max_abs_diff(narrow(y, 0, 1, 1), layer(narrow(x, 0, 1, 1))) < 1e-12);
  const TensorFn total = [&](const std::vector<Tensor>& v) {
    return std::vector<Tensor>{real_rows(layer(v[0], mask), mask)};
  };
  const Tensor cotangent = Tensor::from(std::vector<double>(static_cast<std::size_t>(y.numel()), 1.0), y.shape());
  const Tensor g = library_gradient(total, {dirty}, {cotangent})[0];
  for (double v : g.to_vector<double>()) CHECK(std::isfinite(v));
  CHECK(max_abs(narrow(narrow(g, 0, 0, 1), 1, real, n - real)) == 0);
}

}  // namespace sluice::testing
