#include "support/approx.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace sluice::testing {

Device test_device() {
  static const char* name = std::getenv("SLUICE_TEST_DEVICE");
  return name && std::string_view(name) == "cuda" ? Device::cuda() : cpu;
}

Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype, Device device) {
  Tensor x = empty(shape, {dtype});
  dispatch_all(dtype, [&]<class T>() {
    T* p = x.mutable_data<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, BFloat16>) p[i] = BFloat16(static_cast<float>(values[i]));
      else p[i] = static_cast<T>(values[i]);
    }
  });
  return to(x, device);
}

Tensor random_tensor(const Shape& shape, DType dtype, Rand& rand, double lo, double hi) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (double& x : v) x = static_cast<float>(rand.uniform(lo, hi));
  return tensor_of(v, shape, dtype);
}

double max_abs_diff(const Tensor& a, const Tensor& b) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  if (a.shape() != b.shape()) return none;
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i]) continue;
    const double e = std::abs(x[i] - y[i]);
    if (!std::isfinite(e)) return none;
    worst = std::max(worst, e);
  }
  return worst;
}

double relative_distance(const Tensor& got, const Tensor& want) {
  if (got.shape() != want.shape()) return std::numeric_limits<double>::quiet_NaN();
  const auto y = to(to(got.detach(), cpu), f64).to_vector<double>(),
             x = to(to(want.detach(), cpu), f64).to_vector<double>();
  double error = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) error += (y[i] - x[i]) * (y[i] - x[i]), size += x[i] * x[i];
  return std::sqrt(size == 0 ? error : error / size);
}

double max_abs(const Tensor& a) {
  double worst = 0;
  for (double v : a.to_vector<double>()) {
    if (std::isnan(v)) return v;
    worst = std::max(worst, std::abs(v));
  }
  return worst;
}

/// True when shape and dtype agree, and of every number the bits; with `any_nan` a NaN is like every other.
static bool agree(const Tensor& a, const Tensor& b, bool any_nan) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  return dispatch_all(a.dtype(), [&]<class T>() {
    const auto x = a.to_vector<T>(), y = b.to_vector<T>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const T p = x[i], q = y[i];
      if (any_nan && std::isnan(static_cast<float>(p)) && std::isnan(static_cast<float>(q))) continue;
      if (std::memcmp(&p, &q, sizeof(T)) != 0) return false;
    }
    return true;
  });
}
bool same_bits(const Tensor& a, const Tensor& b) { return agree(a, b, false); }
bool same_numbers(const Tensor& a, const Tensor& b) { return agree(a, b, true); }

Closeness all_close(const std::vector<double>& got, const std::vector<double>& want,
                    const std::vector<double>& allowed) {
  if (got.size() != want.size() || allowed.size() != want.size())
    return {1e300, 1e300, str(got.size(), " values, ", want.size(), " wanted, ", allowed.size(), " bounds")};
  Closeness c;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    const double e = std::abs(got[i] - want[i]);
    double used = e / allowed[i];
    if (!(used < 1e300) || std::isinf(allowed[i])) used = 1e300;  // NaN, nothing allowed, or all
    c.error = std::max(c.error, std::isnan(e) ? 1e300 : e);
    if (used > c.used) {
      c.used = used;
      c.text = str("element ", int64_t(i), ": got ", got[i], ", want ", want[i], ", allowed error ", allowed[i]);
    }
  }
  return c;
}

Closeness all_close(const Tensor& got, const Tensor& want, double tolerance, double scale) {
  if (got.shape() != want.shape()) return {1e300, 1e300, str("shape ", got.shape(), " instead of ", want.shape())};
  const auto y = want.to_vector<double>();
  std::vector<double> allowed;
  for (double v : y) allowed.push_back(tolerance * (std::abs(v) + scale));
  return all_close(got.to_vector<double>(), y, allowed);
}

std::vector<Tensor> fresh_leaves(const std::vector<Tensor>& xs) {
  std::vector<Tensor> out;
  for (const Tensor& x : xs) {
    out.push_back(tensor_of(x.to_vector<double>(), x.shape(), x.dtype()));
    if (x.requires_grad()) out.back().requires_grad_();
  }
  return out;
}

std::vector<Tensor> random_cotangents(const std::vector<Tensor>& outputs, Rand& rand) {
  std::vector<Tensor> out;
  for (const Tensor& y : outputs)
    if (is_float(y.dtype())) out.push_back(random_tensor(y.shape(), y.dtype(), rand, -1, 1));
  return out;
}

std::vector<Tensor> library_gradient(const TensorFn& f, const std::vector<Tensor>& xs,
                                     const std::vector<Tensor>& cotangents, bool create_graph) {
  std::vector<Tensor> wanted, roots;
  GradOptions options{.create_graph = create_graph, .allow_unused = true};
  for (const Tensor& x : xs)
    if (x.requires_grad()) wanted.push_back(x);
  std::size_t k = 0;
  for (const Tensor& y : f(xs)) {
    if (!is_float(y.dtype())) continue;
    const Tensor& c = cotangents.at(k++);
    if (!y.requires_grad()) continue;
    roots.push_back(y);
    options.grad_outputs.push_back(c);
  }
  std::vector<Tensor> grads(wanted.size());
  if (!roots.empty()) grads = grad(roots, wanted, options);
  for (std::size_t i = 0; i < grads.size(); ++i)
    if (!grads[i].defined())
      grads[i] = tensor_of(std::vector<double>(static_cast<std::size_t>(wanted[i].numel())), wanted[i].shape(),
                           wanted[i].dtype(), wanted[i].device());
  return grads;
}

std::vector<Tensor> central_difference(const TensorFn& f, const std::vector<Tensor>& xs,
                                       const std::vector<Tensor>& cotangents, double h) {
  std::vector<std::vector<double>> weights;
  for (const Tensor& c : cotangents) weights.push_back(c.to_vector<double>());
  std::vector<Tensor> at;
  for (const Tensor& x : xs) {
    at.push_back(tensor_of(x.to_vector<double>(), x.shape(), x.dtype(), cpu));
    if (x.requires_grad()) at.back().requires_grad_();
  }
  auto objective = [&] {
    long double total = 0;
    std::size_t k = 0;
    for (const Tensor& y : f(at)) {
      if (!is_float(y.dtype())) continue;
      const auto v = y.to_vector<double>();
      const auto& w = weights.at(k++);
      for (std::size_t i = 0; i < v.size(); ++i) total += static_cast<long double>(w[i]) * v[i];
    }
    return total;
  };
  std::vector<Tensor> result;
  for (Tensor& x : at) {
    if (!x.requires_grad()) continue;
    double* p = x.mutable_data<double>();
    std::vector<double> slopes;
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double centre = p[i];
      auto shifted = [&](double by) {
        p[i] = centre + by;
        return objective();
      };
      const long double d = (shifted(-2 * h) - 8 * shifted(-h)) + (8 * shifted(h) - shifted(2 * h));
      p[i] = centre;
      slopes.push_back(static_cast<double>(d / (12 * static_cast<long double>(h))));
    }
    result.push_back(tensor_of(slopes, x.shape(), f64));
  }
  return result;
}

}  // namespace sluice::testing
