// Derivatives of functions of one tensor: directional ones by two walks, the Jacobian by one walk a row.
#include <sluice/autograd/function.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>

namespace sluice {

namespace {

/// Throws unless f is a function and v can be a direction at x.
void check_direction(const char* op, const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& v) {
  if (!f) fail<ValueError>(op, ": the function is empty");
  detail::check_defined(op, {{"x", x}, {"v", v}});
  detail::check_float(op, x);
  if (v.shape() != x.shape()) fail(op, ": v=", v, " must have the shape of x=", x);
  if (v.dtype() != x.dtype()) fail<DTypeError>(op, ": v is ", v.dtype(), v, ", x is ", x.dtype(), x);
}

/// f(x), which must have gradients.
Tensor value_of(const char* op, const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  Tensor y = f(x);
  if (!y.defined()) fail<ValueError>(op, ": the function returned an undefined tensor");
  if (!is_float(y.dtype())) fail<DTypeError>(op, ": the function must return f32, f64 or bf16 — got ", y.dtype(), y);
  return y;
}

/// The gradient of <g, v> by x for a gradient g that was recorded; zeros where g does not depend on x.
Tensor differentiated(const Tensor& g, const Tensor& x, const Tensor& v) {
  Tensor result;
  if (g.defined() && g.requires_grad()) result = grad(g, x, {.allow_unused = true, .grad_outputs = {v}});
  return result.defined() ? result : zeros_like(x);
}

}  // namespace

Tensor jvp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& v) {
  check_direction("jvp", f, x, v);
  // g(u) = Jᵀu is linear in u, and d/du <g(u), v> = J·v.
  Tensor in = x.detach().requires_grad_();
  GradMode on(true);
  const Tensor y = value_of("jvp", f, in), u = zeros_like(y).requires_grad_();
  Tensor g;
  if (y.requires_grad()) g = grad(y, in, {.create_graph = true, .allow_unused = true, .grad_outputs = {u}});
  return differentiated(g, u, v);
}

Tensor hvp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& v) {
  check_direction("hvp", f, x, v);
  Tensor in = x.detach().requires_grad_();
  GradMode on(true);
  const Tensor y = value_of("hvp", f, in);
  if (y.numel() != 1) fail("hvp: needs a function with one element — got f(x)=", y, " for x=", x);
  Tensor g;
  if (y.requires_grad()) g = grad(y, in, {.create_graph = true, .allow_unused = true});
  return differentiated(g, in, v);
}

Tensor jacobian(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  if (!f) fail<ValueError>("jacobian: the function is empty");
  detail::check_defined("jacobian", x), detail::check_float("jacobian", x);
  Tensor in = x.detach().requires_grad_();
  GradMode on(true);
  const Tensor y = value_of("jacobian", f, in);
  detail::check_rank("jacobian", y.rank() + x.rank(), x);
  Shape shape = y.shape();
  for (int64_t size : x.shape()) shape.push_back(size);
  Tensor rows = zeros({y.numel(), x.numel()}, y.options());
  for (int64_t i = 0; i < y.numel() && y.requires_grad(); ++i) {
    NoGrad guard;
    Tensor pick = zeros({y.numel()}, y.options()), one = narrow(pick, 0, i, 1), row = select(rows, 0, i);
    fill_(one, 1);
    const Tensor g =
        grad(y, in, {.retain_graph = true, .allow_unused = true, .grad_outputs = {reshape(pick, y.shape())}});
    if (g.defined()) copy_(row, reshape(g, {x.numel()}));
  }
  return reshape(rows, shape);
}

}  // namespace sluice
