// y_i = Π_{j<=i} x_j.   dx_j = y_{j−1} R_j with R_j = g_j + x_{j+1} R_{j+1}: no division, so zeros are no special case.
#include <sluice/ops/rows/products.h>

#include <sluice/core/memory/thread_memory.h>
#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/runs.h>

#include <algorithm>
#include <vector>

namespace sluice::detail {

/// After the step of s, y_i is the product of the last 2s entries up to i (Hillis & Steele 1986).
Tensor composed_cumprod(Tensor y, int d) {
  for (int64_t s = 1, n = y.shape()[d]; s < n; s *= 2) y = y * pad(narrow(y, d, 0, n - s), d, s, 0, 1);
  return y;
}

namespace {

/// Continues running products of runs from y_{−1} in `kept`; `before` receives y_{j−1}.
template <class T, class Width, class Apart>
void products_before(const T* __restrict__ x, double* __restrict__ before, int64_t n, int64_t step, Width width,
                     Apart apart, double* kept) {
  double y[kRuns];
  std::copy_n(kept, int64_t{width}, y);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t c = 0; c < width; ++c) {
      before[j * width + c] = y[c];
      y[c] *= double(x[j * step + c * apart]);
    }
  std::copy_n(y, int64_t{width}, kept);
}
/// dx of runs, from the last entry to the first. `before` holds y_{j−1}. `kept` holds x_n R_n and becomes x_0 R_0.
/// Without `each` only the last entry has a gradient, and `kept` begins with it.
template <bool each, class T, class Width, class Apart>
void cumprod_backward_runs(const T* __restrict__ x, const T* __restrict__ g, T* __restrict__ dx, int64_t n,
                           int64_t step, Width width, Apart apart, const double* __restrict__ before, double* kept) {
  double r[kRuns];
  std::copy_n(kept, int64_t{width}, r);
  for (int64_t j = n - 1; j >= 0; --j)
    for (int64_t c = 0; c < width; ++c) {
      const int64_t at = j * step + c * apart;
      const double all = each ? double(g[at]) + r[c] : r[c];
      dx[at] = static_cast<T>(before[j * width + c] * all);
      r[c] = double(x[at]) * all;
    }
  std::copy_n(r, int64_t{width}, kept);
}

struct Before;  // of a thread's memory; within the function below each instantiation would have its own

/// Goes upwards piece by piece for the products before each piece, then downwards.
template <bool each, class T> void cumprod_backward(const T* x0, const T* g0, T* dx0, ReduceShape s) {
  constexpr int64_t kPiece = 256;
  const int64_t pieces = ceil_div(s.n, kPiece), step = s.inner;
  for_each_block<2>(s, [=](int64_t at, auto width, auto apart) {
    auto* before = static_cast<double*>(thread_memory<Before, 1>(0, kPiece * kRuns * sizeof(double)));
    std::vector<double> starts(static_cast<std::size_t>(pieces * width), 1.0);
    // Without `each` the gradients of rows are neighbours.
    const T* g = each ? g0 + at : g0 + at / (s.n * step) * step + at % (s.n * step);
    double r[kRuns];
    for (int64_t c = 0; c < width; ++c) r[c] = each ? 0 : double(g[c]);
    const auto upwards = [&](int64_t first, int64_t m, double* y) {
      products_before(x0 + at + first * step, before, m, step, width, apart, y);
    };
    double* y = starts.data();
    for (int64_t first = 0; first + kPiece < s.n; first += kPiece, y += width) {
      std::copy_n(y, int64_t{width}, y + width);
      upwards(first, kPiece, y + width);
    }
    for (int64_t first = (pieces - 1) * kPiece; first >= 0; first -= kPiece, y -= width) {
      const int64_t m = std::min(kPiece, s.n - first), from = at + first * step;
      upwards(first, m, y);
      cumprod_backward_runs<each>(x0 + from, g0 + (each ? from : 0), dx0 + from, m, step, width, apart, before, r);
    }
  });
}

void cumprod_backward_cpu(const Tensor& x, const Tensor& g, Tensor& dx, int dim) {
  const ReduceShape s = ReduceShape::along(x.shape(), dim);
  dispatch_float("cumprod", x.dtype(), [&]<class T>() {
    if (g.shape()[dim] == s.n) cumprod_backward<true>(x.data<T>(), g.data<T>(), dx.mutable_data<T>(), s);
    else cumprod_backward<false>(x.data<T>(), g.data<T>(), dx.mutable_data<T>(), s);
  });
}

/// Fractions in f64: products of some of the factors may leave the range of f32 where the whole does not.
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
  if (grad_enabled()) return to(composed_cumprod_vjp(in_wide_range(x), in_wide_range(g), d), x.dtype());
  Tensor dx = empty(x.shape(), x.options());
  kernel::cumprod_backward(contiguous(x), contiguous(g), dx, d);
  return dx;
}

}  // namespace sluice::detail

namespace sluice {

constinit decltype(kernel::cumprod_backward) kernel::cumprod_backward{"cumprod backward",
                                                                      &detail::cumprod_backward_cpu};

}  // namespace sluice
