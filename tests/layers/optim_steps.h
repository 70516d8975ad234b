// Leaves and gradients of optimisers' tests.
#pragma once

#include <sluice/layers/train/optim.h>

#include <sluice/ops/shape/create.h>

#include <cmath>
#include <vector>

namespace sluice::testing {

using Doubles = std::vector<double>;

inline Tensor leaf(const Doubles& values, const Shape& shape, DType dtype = f64) {
  Tensor t = to(Tensor::from(values, shape), dtype);
  return t.requires_grad_();
}
/// Values in (−1, 1) without a pattern that an update rule could share.
inline Doubles numbers(std::size_t n, double seed) {
  Doubles v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = std::sin(seed + 1.7 * static_cast<double>(i * i % 101));
  return v;
}
/// A gradient that depends on the weights, so that an error in one step is carried into the next.
inline Doubles gradient(const Doubles& w, int t) {
  Doubles g = numbers(w.size(), 10 + t);
  for (std::size_t i = 0; i < w.size(); ++i) g[i] = 0.3 * g[i] + w[i] - 0.2;
  return g;
}
inline void one_step(Optimizer& o, int t) {
  for (NamedTensor p : o.parameters())
    p.tensor.set_grad(to(Tensor::from(gradient(p.tensor.to_vector<double>(), t), p.tensor.shape()), p.tensor.dtype()));
  o.step();
}

}  // namespace sluice::testing
