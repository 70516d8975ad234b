// y_i = Σ_{j<=i} x_j (exclusive: j < i).   dx_j = Σ_{i>=j} g_i (exclusive: i > j): the same scan of g, run
// in the other direction.
// y_i = Π_{j<=i} x_j, whose gradient is in ops/rows/products.cpp.
#include <sluice/ops/scan/scan.h>

#include <sluice/core/number/arithmetic.h>
#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/products.h>
#include <sluice/ops/rows/runs.h>

#include <algorithm>
#include <utility>

namespace sluice {

namespace {

using detail::kRuns;

struct Sums {
  template <class T> static T start() { return T(0); }
  template <class T> static T join(T a, T x) { return detail::sum_of(a, x); }
};
struct Products {
  template <class T> static T start() { return T(1); }
  template <class T> static T join(T a, T x) { return detail::product_of(a, x); }
};

/// Scans `width` runs, which are `apart`; each has n entries, `step` from one to the next. Runs are scanned together,
/// because a sum waits for the one before it.
template <class Op, class Total, class T, class Width, class Apart>
void scan_runs(const T* __restrict__ x, T* __restrict__ y, int64_t n, int64_t step, Width width, Apart apart,
               bool exclusive) {
  Total total[kRuns];
  std::fill_n(total, int64_t{width}, Op::template start<Total>());
  const auto store = [&] {
    for (int64_t c = 0; c < width; ++c) y[c * apart] = static_cast<T>(total[c]);
  };
  for (int64_t i = 0; i < n; ++i, x += step, y += step) {
    if (exclusive) store();
    for (int64_t c = 0; c < width; ++c) total[c] = Op::join(total[c], static_cast<Total>(x[c * apart]));
    if (!exclusive) store();
  }
}

/// x and y contiguous; the scan runs along dim.
template <class Op, class T, class Total> void scan(const T* x, T* y, ReduceShape s, CumsumOptions o) {
  const int64_t start = o.reverse ? (s.n - 1) * s.inner : 0, step = o.reverse ? -s.inner : s.inner;
  detail::for_each_block(s, [=](int64_t at, auto width, auto apart) {
    scan_runs<Op, Total>(x + at + start, y + at + start, s.n, step, width, apart, o.exclusive);
  });
}

template <class Op> void scan_cpu(const char* op, const Tensor& x, Tensor& y, int dim, CumsumOptions options) {
  dispatch_sum(op, x.dtype(), [&, s = ReduceShape::along(x.shape(), dim)]<class T, class Total>() {
    scan<Op, T, Total>(x.data<T>(), y.mutable_data<T>(), s, options);
  });
}
void cumsum_cpu(const Tensor& x, Tensor& y, int dim, CumsumOptions options) {
  scan_cpu<Sums>("cumsum", x, y, dim, options);
}
void cumprod_cpu(const Tensor& x, Tensor& y, int dim) { scan_cpu<Products>("cumprod", x, y, dim, {}); }

}  // namespace

constinit decltype(kernel::cumsum) kernel::cumsum{"cumsum", &cumsum_cpu};
constinit decltype(kernel::cumprod) kernel::cumprod{"cumprod", &cumprod_cpu};

Tensor cumsum(const Tensor& x_in, int64_t dim, CumsumOptions options) {
  detail::check_defined("cumsum", {{"x", x_in}});
  const int d = wrap_dim("cumsum", dim, x_in.rank());
  if (x_in.rank() == 0) return squeeze(cumsum(unsqueeze(x_in, 0), 0, options), 0);
  const Tensor x = x_in.dtype() == boolean ? to(x_in, i64) : x_in;
  Tensor y = empty(x.shape(), x.options(), "cumsum");
  if (y.numel() > 0) kernel::cumsum(contiguous(x.detach()), y, d, options);
  return record("cumsum", std::move(y), {x}, {}, [d, options](const Tensor& g) {
    return cumsum(g, d, {.exclusive = options.exclusive, .reverse = !options.reverse});
  });
}

Tensor cumprod(const Tensor& x_in, int64_t dim) {
  detail::check_defined("cumprod", {{"x", x_in}});
  const int d = wrap_dim("cumprod", dim, x_in.rank());
  if (x_in.rank() == 0) return squeeze(cumprod(unsqueeze(x_in, 0), 0), 0);
  const Tensor x = x_in.dtype() == boolean ? to(x_in, i64) : x_in;
  if (!is_float(x.dtype()) && x.device() != cpu) return detail::composed_cumprod(clone(x), d);
  Tensor y = empty(x.shape(), x.options(), "cumprod");
  if (y.numel() > 0) kernel::cumprod(contiguous(x.detach()), y, d);
  return record("cumprod", std::move(y), {x}, {x},
                [d](const Node& node, const Tensor& g) { return detail::cumprod_vjp(node.saved(0), g, d); });
}

}  // namespace sluice
