#include <sluice/autograd/gradcheck.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>

#include <algorithm>
#include <cmath>

namespace sluice {

/// Throws unless there is a function, and an input with a gradient to check.
static void check_call(const char* op, const TensorFunction& f, const std::vector<Tensor>& inputs) {
  if (!f) fail<ValueError>(op, ": the function is empty");
  detail::check_defined(op, inputs);
  if (std::none_of(inputs.begin(), inputs.end(), [](const Tensor& x) { return x.requires_grad(); }))
    fail<AutogradError>(op, ": no input requires a gradient");
}

/// f(xs), which must be f64.
static Tensor value_of(const char* op, const TensorFunction& f, const std::vector<Tensor>& xs) {
  Tensor y = f(xs);
  if (!y.defined()) fail<ValueError>(op, ": the function returned an undefined tensor");
  if (y.dtype() != f64) fail<DTypeError>(op, ": the function must return f64 — got ", y.dtype());
  return y;
}

/// Fresh leaves with the values of `inputs`.
static std::vector<Tensor> fresh(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> xs;
  for (const Tensor& x : inputs) {
    xs.push_back(clone(x.detach()));
    if (!x.requires_grad()) continue;
    if (x.dtype() != f64)
      fail<DTypeError>("gradcheck: inputs that require a gradient must be f64 — got ", x.dtype(), " of shape ", x);
    xs.back().requires_grad_();
  }
  return xs;
}

/// The central difference of value() by element k of the contiguous x.
static double difference(const std::function<double()>& value, const Tensor& x, std::size_t k, double step) {
  Tensor element = alias(x, Layout({}, {}, x.layout().offset + static_cast<int64_t>(k)));
  const auto value_at = [&](double number) {
    kernel::fill(element, number);  // no graph is open, so no new version is needed
    return value();
  };
  const double here = element.item(), h = step * std::max(1.0, std::abs(here));
  const double up = value_at(here + h), down = value_at(here - h);
  kernel::fill(element, here);
  return (up - down) / (2 * h);
}

GradcheckResult gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs, GradcheckOptions o) {
  check_call("gradcheck", f, inputs);
  const GradMode on(true);
  Rng rng(o.seed);
  std::vector<Tensor> xs = fresh(inputs);
  const Tensor y = value_of("gradcheck", f, xs);
  const Tensor sign = where(bernoulli(y.shape(), 0.5, rng, y.device()), like(y, 1), like(y, -1));
  const Tensor v = uniform(y.shape(), 0.5, 1.5, rng, y.options()) * sign;
  std::vector<Tensor> wanted;
  std::vector<std::size_t> places;  // of `wanted` among the inputs
  for (std::size_t i = 0; i < xs.size(); ++i)
    if (xs[i].requires_grad()) wanted.push_back(xs[i]), places.push_back(i);
  std::vector<Tensor> analytic(wanted.size());
  if (y.requires_grad()) analytic = grad({y}, wanted, {.allow_unused = true, .grad_outputs = {v}});

  const auto value = [&] {
    NoGrad guard;
    return sum(f(xs) * v).item();
  };
  GradcheckResult result{true, 0, ""};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::vector<double> a(static_cast<std::size_t>(wanted[i].numel()), 0.0);
    if (analytic[i].defined()) a = analytic[i].to_vector<double>();
    for (std::size_t k = 0; k < a.size(); ++k) {
      const double numeric = difference(value, wanted[i], k, o.step);
      const double error = std::abs(a[k] - numeric) / std::max(1.0, std::abs(numeric));
      if (!(error <= result.max_error) && !std::isnan(result.max_error)) result.max_error = error;  // a NaN stays
      if (!(error <= o.tolerance) && result.ok) {
        result.ok = false;
        result.message =
            str("input ", places[i], " ", wanted[i], ", element ", k, ": analytic ", a[k], ", numeric ", numeric);
      }
    }
  }
  return result;
}

GradcheckResult gradgradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs, GradcheckOptions o) {
  check_call("gradgradcheck", f, inputs);
  // Returns the gradients of all inputs flattened and joined in one tensor, so that every element's error is visible.
  auto first_order = [&f, n = inputs.size()](const std::vector<Tensor>& xv) {
    std::vector<Tensor> xs(xv.begin(), xv.begin() + static_cast<std::ptrdiff_t>(n)), wanted;
    GradMode on(true);
    for (const Tensor& x : xs)
      if (x.requires_grad()) wanted.push_back(x);
    Tensor y = f(xs);
    std::vector<Tensor> g(wanted.size());
    if (y.requires_grad()) g = grad({y}, wanted, {.create_graph = true, .allow_unused = true, .grad_outputs = {xv[n]}});
    std::vector<Tensor> flat;
    for (std::size_t i = 0; i < g.size(); ++i)
      flat.push_back(g[i].defined() ? reshape(g[i], {-1}) : zeros({wanted[i].numel()}, wanted[i].options()));
    return cat(flat);
  };
  Tensor y;
  {
    NoGrad guard;
    y = value_of("gradgradcheck", f, inputs);
  }
  Rng rng(o.seed + 1);
  std::vector<Tensor> xv = inputs;
  xv.push_back(normal(y.shape(), 0, 1, rng, y.options()).requires_grad_());
  return gradcheck(first_order, xv, o);
}

}  // namespace sluice
