// y_i = Π_{j<=i} x_j.   dx_j = y_{j−1} R_j with R_j = g_j + x_{j+1} R_{j+1}: no division, so zeros are no special case.
#include <sluice/ops/rows/products.h>

#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>

namespace sluice::detail {

/// After the step of s, y_i is the product of the last 2s entries up to i (Hillis & Steele 1986).
Tensor composed_cumprod(Tensor y, int d) {
  for (int64_t s = 1, n = y.shape()[d]; s < n; s *= 2) y = y * pad(narrow(y, d, 0, n - s), d, s, 0, 1);
  return y;
}

namespace {

/// Fractions in f64, whose range holds what some factors give before the others bring it back.
Tensor in_wide_range(const Tensor& x) { return is_float(x.dtype()) ? to(x, f64) : x; }

/// dx in ops. After the step of s, r_j has the terms of g_j to g_{j+2s−1}, and a_j is x_{j+1} ⋯ x_{j+2s}.
Tensor composed_cumprod_vjp(const Tensor& x, const Tensor& g, int d) {
  const int64_t n = x.shape()[d];
  Tensor r = pad(g, d, n - g.shape()[d], 0), a = narrow(x, d, 1, n - 1);
  for (int64_t s = 1; s < n; s *= 2) {
    r = cat({narrow(r, d, 0, n - s) + a * narrow(r, d, s, n - s), narrow(r, d, n - s, s)}, d);
    if (2 * s < n) a = narrow(a, d, 0, n - 2 * s) * narrow(a, d, s, n - 2 * s);
  }
  return pad(composed_cumprod(narrow(x, d, 0, n - 1), d), d, 1, 0, 1) * r;
}

}  // namespace

Tensor cumprod_vjp(const Tensor& x, const Tensor& g, int d) {
  if (x.numel() == 0) return zeros_like(x);
  if (grad_enabled() || !kernel::cumprod_backward.installed(x.device()))
    return to(composed_cumprod_vjp(in_wide_range(x), in_wide_range(g), d), x.dtype());
  Tensor dx = empty(x.shape(), x.options());
  kernel::cumprod_backward(contiguous(x), contiguous(g), dx, d);
  return dx;
}

}  // namespace sluice::detail
