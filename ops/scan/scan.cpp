// y_i = Σ_{j<=i} x_j (exclusive: j < i).   dx_j = Σ_{i>=j} g_i (exclusive: i > j): the same scan of g, run
// in the other direction.
// y_i = Π_{j<=i} x_j; its gradient is in ops/rows/products.cpp.
#include <sluice/ops/scan/scan.h>

#include <sluice/core/number/arithmetic.h>
#include <sluice/core/node.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/memory/thread_memory.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/products.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

namespace sluice {

namespace {

struct Sums {
  template <class T> static T start() { return T(0); }
  template <class T> static T join(T a, T x) { return detail::sum_of(a, x); }
};
struct Products {
  template <class T> static T start() { return T(1); }
  template <class T> static T join(T a, T x) { return detail::product_of(a, x); }
};

constexpr int64_t kWidth = 64;
template <int64_t k> using Fixed = std::integral_constant<int64_t, k>;

/// f(at, width, rows) for blocks of `width` neighbouring runs, at most kWidth, of x [outer, n, inner] along the middle,
/// in parallel. The first run of a block begins at `at`. With `rows` they lie one behind the other, else side by side.
/// Few are counted by the compiler, which keeps their totals in registers.
template <class F> void for_each_block(ReduceShape s, F f) {
  const int64_t blocks = ceil_div(s.inner, kWidth), work = std::max<int64_t>(1, s.n * std::min(s.inner, kWidth));
  parallel_for(s.outer * blocks, std::max<int64_t>(1, (1 << 14) / work), [&](int64_t begin, int64_t end) {
    int64_t task = begin;
    for (; s.inner == 1 && task + 4 <= end; task += 4) f(task * s.n, Fixed<4>(), std::true_type());
    for (; s.inner == 1 && task < end; ++task) f(task * s.n, Fixed<1>(), std::true_type());
    for (; task < end; ++task) {
      const int64_t first = task % blocks * kWidth, at = task / blocks * s.n * s.inner + first;
      const int64_t width = std::min(kWidth, s.inner - first);
      if (width == 1) f(at, Fixed<1>(), std::false_type());
      else if (width == 2) f(at, Fixed<2>(), std::false_type());
      else if (width == 3) f(at, Fixed<3>(), std::false_type());
      else if (width == 4) f(at, Fixed<4>(), std::false_type());
      else f(at, width, std::false_type());
    }
  });
}

/// Pieces of up to four rows of n numbers, where scans of rows take place: numbers are converted in vectors, and memory
/// is read upwards, whatever the direction. The rows of a piece are not a power of two apart, which caches do not like.
constexpr int64_t kPiece = 256, kApart = kPiece + 8;
template <class T> struct Piece {
  T at[4 * kApart];
  template <class From> void load(const From* x, int64_t rows, int64_t n, int64_t m) {
    for (int64_t c = 0; c < rows; ++c)
      for (int64_t i = 0; i < m; ++i) at[c * kApart + i] = static_cast<T>(x[c * n + i]);
  }
  template <class To> void store(To* y, int64_t rows, int64_t n, int64_t m) const {
    for (int64_t c = 0; c < rows; ++c)
      for (int64_t i = 0; i < m; ++i) y[c * n + i] = static_cast<To>(at[c * kApart + i]);
  }
};

/// Goes on from `kept` with the scans of `width` runs, which are `apart`, of n entries, `step` from one to the next:
/// together, because a sum waits for the one before it.
template <class Op, class Total, class T, class Width, class Apart>
void scan_runs(const T* __restrict__ x, T* __restrict__ y, int64_t n, int64_t step, Width width, Apart apart,
               bool exclusive, Total* kept) {
  Total total[kWidth];
  std::copy_n(kept, int64_t{width}, total);
  const auto store = [&] {
    for (int64_t c = 0; c < width; ++c) y[c * apart] = static_cast<T>(total[c]);
  };
  for (int64_t i = 0; i < n; ++i, x += step, y += step) {
    if (exclusive) store();
    for (int64_t c = 0; c < width; ++c) total[c] = Op::join(total[c], static_cast<Total>(x[c * apart]));
    if (!exclusive) store();
  }
  std::copy_n(total, int64_t{width}, kept);
}

/// x and y contiguous; the scan runs along dim.
template <class Op, class T, class Total> void scan(const T* x0, T* y0, ReduceShape s, CumsumOptions o) {
  for_each_block(s, [=](int64_t at, auto width, auto rows) {
    const T* x = x0 + at;
    T* y = y0 + at;
    Total total[kWidth];
    std::fill_n(total, int64_t{width}, Op::template start<Total>());
    if constexpr (rows) {
      Piece<Total> from, to;
      for (int64_t done = 0; done < s.n; done += kPiece) {
        const int64_t m = std::min(kPiece, s.n - done), first = o.reverse ? s.n - done - m : done;
        const int64_t start = o.reverse ? m - 1 : 0, step = o.reverse ? -1 : 1;
        from.load(x + first, width, s.n, m);
        scan_runs<Op>(from.at + start, to.at + start, m, step, width, Fixed<kApart>(), o.exclusive, total);
        to.store(y + first, width, s.n, m);
      }
    } else {
      const int64_t start = o.reverse ? (s.n - 1) * s.inner : 0, step = o.reverse ? -s.inner : s.inner;
      scan_runs<Op>(x + start, y + start, s.n, step, width, Fixed<1>(), o.exclusive, total);
    }
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

/// Goes on from y_{−1} in `kept` with running products of runs: `before` becomes y_{j−1}.
template <class T, class Width, class Apart>
void products_before(const T* __restrict__ x, double* __restrict__ before, int64_t n, int64_t step, Width width,
                     Apart apart, double* kept) {
  double y[kWidth];
  std::copy_n(kept, int64_t{width}, y);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t c = 0; c < width; ++c) {
      before[j * width + c] = y[c];
      y[c] *= double(x[j * step + c * apart]);
    }
  std::copy_n(y, int64_t{width}, kept);
}
/// dx of runs, downwards, from y_{j−1} in `before` and x_n R_n in `kept`, which becomes x_0 R_0. Without `each` only
/// the last entry has a gradient, with which `kept` begins.
template <bool each, class T, class Width, class Apart>
void cumprod_backward_runs(const T* __restrict__ x, const T* __restrict__ g, T* __restrict__ dx, int64_t n,
                           int64_t step, Width width, Apart apart, const double* __restrict__ before, double* kept) {
  double r[kWidth];
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

/// Piece by piece: upwards for the products before each piece, then downwards.
template <bool each, class T> void cumprod_backward(const T* x0, const T* g0, T* dx0, ReduceShape s) {
  const int64_t pieces = ceil_div(s.n, kPiece);
  for_each_block(s, [=](int64_t at, auto width, auto rows) {
    struct Before;
    auto* before = static_cast<double*>(detail::thread_memory<Before, 1>(0, kPiece * kWidth * sizeof(double)));
    const T *x = x0 + at, *g = each ? g0 + at : g0 + at / (s.n * s.inner) * s.inner + at % (s.n * s.inner);
    std::vector<double> starts(static_cast<std::size_t>(pieces * width), 1.0);
    double r[kWidth];
    for (int64_t c = 0; c < width; ++c) r[c] = each ? 0 : double(g[c]);
    Piece<double> px, pg, pdx;
    const auto upwards = [&](int64_t first, int64_t m, double* y) {
      if constexpr (rows) {
        px.load(x + first, width, s.n, m);
        products_before(px.at, before, m, 1, width, Fixed<kApart>(), y);
      } else {
        products_before(x + first * s.inner, before, m, s.inner, width, Fixed<1>(), y);
      }
    };
    double* y = starts.data();
    for (int64_t first = 0; first + kPiece < s.n; first += kPiece, y += width) {
      std::copy_n(y, int64_t{width}, y + width);
      upwards(first, kPiece, y + width);
    }
    for (int64_t first = (pieces - 1) * kPiece; first >= 0; first -= kPiece, y -= width) {
      const int64_t m = std::min(kPiece, s.n - first), from = at + first * s.inner;
      upwards(first, m, y);
      if constexpr (rows) {
        if (each) pg.load(g + first, width, s.n, m);
        cumprod_backward_runs<each>(px.at, pg.at, pdx.at, m, 1, width, Fixed<kApart>(), before, r);
        pdx.store(dx0 + from, width, s.n, m);
      } else {
        cumprod_backward_runs<each>(x0 + from, g0 + (each ? from : 0), dx0 + from, m, s.inner, width, Fixed<1>(),
                                    before, r);
      }
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

}  // namespace

constinit decltype(kernel::cumsum) kernel::cumsum{"cumsum", &cumsum_cpu};
constinit decltype(kernel::cumprod) kernel::cumprod{"cumprod", &cumprod_cpu};
constinit decltype(kernel::cumprod_backward) kernel::cumprod_backward{"cumprod backward", &cumprod_backward_cpu};

Tensor cumsum(const Tensor& x_in, int64_t dim, CumsumOptions options) {
  const int d = wrap_dim("cumsum", dim, x_in.rank());
  if (x_in.rank() == 0) return squeeze(cumsum(unsqueeze(x_in, 0), 0, options), 0);
  const Tensor x = x_in.dtype() == boolean ? to(x_in, i64) : x_in;
  Tensor y = empty_like(x);
  if (y.numel() > 0) kernel::cumsum(contiguous(x.detach()), y, d, options);
  return record("cumsum", std::move(y), {x}, {}, [d, options](const Tensor& g) {
    return cumsum(g, d, {.exclusive = options.exclusive, .reverse = !options.reverse});
  });
}

Tensor cumprod(const Tensor& x_in, int64_t dim) {
  const int d = wrap_dim("cumprod", dim, x_in.rank());
  if (x_in.rank() == 0) return squeeze(cumprod(unsqueeze(x_in, 0), 0), 0);
  const Tensor x = x_in.dtype() == boolean ? to(x_in, i64) : x_in;
  if (!kernel::cumprod.installed(x.device()))
    return to(detail::composed_cumprod(x.dtype() == f32 || x.dtype() == bf16 ? to(x, f64) : clone(x), d), x.dtype());
  Tensor y = empty_like(x);
  if (y.numel() > 0) kernel::cumprod(contiguous(x.detach()), y, d);
  return record("cumprod", std::move(y), {x}, {x},
                [d](const Node& node, const Tensor& g) { return detail::cumprod_vjp(node.saved(0), g, d); });
}

}  // namespace sluice
