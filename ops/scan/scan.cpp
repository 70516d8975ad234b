// y_i = Σ_{j<=i} x_j (exclusive: j < i).   dx_j = Σ_{i>=j} g_i (exclusive: i > j): the same scan of g, run
// in the other direction.
#include <sluice/ops/scan/scan.h>

#include <sluice/core/number/arithmetic.h>
#include <sluice/core/node.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>

#include <algorithm>

namespace sluice {

namespace {

/// `runs` runs of n neighbouring entries, n apart, together: a sum waits for the one before it. They go from x and y on
/// up, or down if step is −1.
template <int runs, class T, class Sum> void scan_runs(const T* x, T* y, int64_t n, int64_t step, bool exclusive) {
  Sum sum[runs] = {};
  for (int64_t i = 0; i < n; ++i)
    for (int r = 0; r < runs; ++r) {
      const Sum before = sum[r];
      sum[r] = detail::sum_of(before, static_cast<Sum>(x[r * n + i * step]));
      y[r * n + i * step] = static_cast<T>(exclusive ? before : sum[r]);
    }
}

/// `width` neighbouring runs side by side, so that memory is read in rows.
constexpr int64_t kWidth = 64;
template <class T, class Sum>
void scan_columns(const T* x, T* y, int64_t n, int64_t step, int64_t width, bool exclusive) {
  Sum sum[kWidth] = {};
  const auto store = [&](T* __restrict__ to) {
    for (int64_t c = 0; c < width; ++c) to[c] = static_cast<T>(sum[c]);
  };
  const auto add = [&](const T* __restrict__ from) {
    for (int64_t c = 0; c < width; ++c) sum[c] = detail::sum_of(sum[c], static_cast<Sum>(from[c]));
  };
  detail::vectorised([&] {
    for (int64_t i = 0; i < n; ++i, x += step, y += step) {
      if (exclusive) store(y);
      add(x);
      if (!exclusive) store(y);
    }
  });
}

/// x and y contiguous; the scan runs along dim.
void cumsum_cpu(const Tensor& x, Tensor& y, int dim, CumsumOptions options) {
  int64_t outer = 1, inner = 1;
  const int64_t n = x.shape()[dim];
  for (int d = 0; d < x.rank(); ++d)
    if (d != dim) (d < dim ? outer : inner) *= x.shape()[d];
  const int64_t blocks = ceil_div(inner, kWidth), work = std::max<int64_t>(1, n * std::min(inner, kWidth));
  const int64_t start = options.reverse ? (n - 1) * inner : 0, step = options.reverse ? -inner : inner;
  auto run = [&]<class T, class Sum>() {
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    parallel_for(outer * blocks, std::max<int64_t>(1, (1 << 14) / work), [&](int64_t begin, int64_t end) {
      int64_t task = begin;
      for (; inner == 1 && task + 4 <= end; task += 4)
        scan_runs<4, T, Sum>(in + task * n + start, out + task * n + start, n, step, options.exclusive);
      for (; task < end; ++task) {
        const int64_t first = task % blocks * kWidth, at = task / blocks * n * inner + start + first;
        if (inner == 1) scan_runs<1, T, Sum>(in + at, out + at, n, step, options.exclusive);
        else scan_columns<T, Sum>(in + at, out + at, n, step, std::min(kWidth, inner - first), options.exclusive);
      }
    });
  };
  if (x.dtype() == i64) run.template operator()<int64_t, int64_t>();
  else if (x.dtype() == i32) run.template operator()<int32_t, int32_t>();
  else dispatch_float("cumsum", x.dtype(), [&]<class T>() { run.template operator()<T, double>(); });
}

}  // namespace

constinit decltype(kernel::cumsum) kernel::cumsum{"cumsum", &cumsum_cpu};

Tensor cumsum(const Tensor& x_in, int64_t dim, CumsumOptions options) {
  const int d = dim_of("cumsum", dim, x_in);
  const Tensor x = x_in.dtype() == boolean ? to(x_in, i64) : x_in;
  Tensor y = empty_like(x);
  if (y.numel() > 0) kernel::cumsum(contiguous(x.detach()), y, d, options);
  return record("cumsum", std::move(y), {x}, {}, [d, options](const Tensor& g) {
    return cumsum(g, d, {.exclusive = options.exclusive, .reverse = !options.reverse});
  });
}

Tensor cumprod(const Tensor& x, int64_t dim) {
  const int d = dim_of("cumprod", dim, x);
  // Fractions in f64, whose range holds what some factors give before the others bring it back.
  Tensor y = x.dtype() == boolean ? to(x, i64) : x.dtype() == f32 || x.dtype() == bf16 ? to(x, f64) : clone(x);
  // After the step of s, y_i is the product of the last 2s entries up to i (Hillis & Steele 1986).
  for (int64_t s = 1, n = x.shape()[d]; s < n; s *= 2) y = y * pad(narrow(y, d, 0, n - s), d, s, 0, 1);
  return is_float(x.dtype()) ? to(y, x.dtype()) : y;
}

}  // namespace sluice
