// Softmax along the middle of [outer, n, inner], in two steps: what each column adds up to, as any reduction finds it,
// and one pass over all numbers. logsumexp is the first step alone. Limited by memory: two reads of each operand, the
// second from the cache where all of it fits there, and one write.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>

namespace sluice::cuda {

using sluice::detail::StridedRange;

namespace {

/// total = Σ e^(x − shift), where shift is the largest x.
template <class T> struct ColumnTotal {
  T shift;
  double total;
};
template <class T> struct AddColumnTotals {
  using Total = ColumnTotal<T>;
  __device__ static Total start() { return {std::numeric_limits<T>::lowest(), 0}; }
  __device__ Total operator()(Total a, Total b) const {
    if (b.shift > a.shift) {
      const Total c = a;
      a = b, b = c;
    }
    const T below = b.shift == a.shift ? T(0) : b.shift - a.shift;  // ∞ − ∞ would be NaN
    return {a.shift, a.total + b.total * static_cast<double>(math::exp(below))};
  }
};
template <class T> struct AloneInColumn {
  Numbers<T> x;
  __device__ ColumnTotal<T> operator()(int64_t at, int64_t, int64_t) const { return {x[at], 1}; }
};
template <class T> struct StoreShares {
  T *shift, *by;
  bool log;
  Numbers<T> whole = {};  // log Σ e^x; if it is wanted, it alone
  __device__ void operator()(int64_t i, ColumnTotal<T> sum) const {
    if (whole) return whole.set(Place<1>{i}, static_cast<T>(static_cast<double>(sum.shift) + ::log(sum.total)));
    if (sum.shift == std::numeric_limits<T>::infinity()) sum = {T(0), sum.total + INFINITY};  // Σ e^x, be it NaN
    shift[i] = sum.shift;
    if (sum.total == 0) by[i] = T(0);  // numbers that are all −∞ stay so, and have shares of 0
    else by[i] = static_cast<T>(log ? ::log(sum.total) : 1 / sum.total);
  }
};

/// Calls formula(place of a number, place of its column) for all numbers, by eights where these lie in one row.
template <class Formula> struct OfColumns {
  Formula formula;
  StridedRange column;
  __device__ void operator()(int64_t i) const { formula(Place<1>{i}, Place<1>{offset_at(column, i)}); }
  __device__ void vector(int64_t i) const { formula(Place<kNeighbours>{i}, Place<kNeighbours>{offset_at(column, i)}); }
};
template <class T, class Formula, class... N>
void for_each_of_columns(ReduceShape s, const T* columns, const Formula& formula, const N&... numbers) {
  const OfColumns<Formula> body{formula, StridedRange(Layout({s.outer, s.n, s.inner}, {s.inner, 0, 1}, 0))};
  const int64_t count = s.outer * s.n * s.inner;
  if constexpr (std::is_same_v<T, float>)
    if (s.inner % kNeighbours == 0 && is_aligned_16(columns) && (is_aligned_16(numbers.at) && ...))
      return for_each_vector(count, body);
  for_each(count, body);
}

template <class T> struct Shares {
  Numbers<T> x, y, shift, by;
  bool log;
  template <int width> __device__ void operator()(Place<width> at, Place<width> column) const {
    const auto v = x(at) - shift(column);
    if (log) y.set(at, v - by(column));
    else y.set(at, exp_of(v) * by(column));
  }
};

template <class T> struct GradientTerms {
  Numbers<T> y, g;
  bool log;
  __device__ double operator()(int64_t at, int64_t, int64_t) const {
    const auto slope = static_cast<double>(g[at]);
    return log ? slope : static_cast<double>(y[at]) * slope;
  }
};
template <class T> struct Gradients {
  Numbers<T> y, g, dx, total;
  bool log;
  template <int width> __device__ void operator()(Place<width> at, Place<width> column) const {
    if (log) dx.set(at, g(at) - exp_of(y(at)) * total(column));
    else dx.set(at, y(at) * (g(at) - total(column)));
  }
};

}  // namespace

void logsumexp(const Tensor& x, Tensor& y, ReduceShape s) {
  dispatch_float("logsumexp", computed(x.dtype()), [&]<class T>() {
    reduce_to<AddColumnTotals<T>>(s, AloneInColumn<T>{Numbers<T>(x)},
                                  StoreShares<T>{nullptr, nullptr, true, Numbers<T>(y)});
  });
}

void softmax_columns(const Tensor& x, Tensor& y, ReduceShape s, bool log) {
  dispatch_float("softmax", computed(x.dtype()), [&]<class T>() {
    const Numbers<T> from(x), to(y);
    const int64_t columns = s.outer * s.inner;
    const Scratch<T> of_columns(static_cast<std::size_t>(2 * columns));
    T *const shift = of_columns.get(), *const by = shift + columns;
    reduce_to<AddColumnTotals<T>>(s, AloneInColumn<T>{from}, StoreShares<T>{shift, by, log});
    for_each_of_columns(s, shift, Shares<T>{from, to, Numbers<T>(shift), Numbers<T>(by), log}, from, to);
  });
}

void softmax_columns_backward(const Tensor& y, const Tensor& g, Tensor& dx, ReduceShape s, bool log) {
  dispatch_float("softmax", computed(y.dtype()), [&]<class T>() {
    const Numbers<T> a(y), b(g), to(dx);
    const Scratch<T> total(static_cast<std::size_t>(s.outer * s.inner));
    reduce_to<SumOf<double>>(s, GradientTerms<T>{a, b, log}, StoreAs<T, double>{Numbers<T>(total.get())});
    for_each_of_columns(s, total.get(), Gradients<T>{a, b, to, Numbers<T>(total.get()), log}, a, b, to);
  });
}

}  // namespace sluice::cuda
