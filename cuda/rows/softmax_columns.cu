// Softmax along the middle of [outer, n, inner], in two steps: what each column adds up to, as any reduction finds it,
// and one pass over all numbers. logsumexp is the first step alone. Limited by memory: two reads of each operand, the
// second from the cache where all of it fits there, and one write.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>

namespace sluice::cuda {

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
  /// The same for totals of one number each, with one exponential for each of them and one more. Beside +∞ the shift is
  /// 0: e^x without a shift gives the right result.
  template <int n> __device__ static Total several(Total sum, const Total (&x)[n]) requires std::is_same_v<T, float> {
    T top = sum.shift;
#pragma unroll
    for (int e = 0; e < n; ++e) top = x[e].shift > top ? x[e].shift : top;
    const T from = top == std::numeric_limits<T>::infinity() ? T(0) : top;
    sum.total *= static_cast<double>(math::exp(sum.shift - from));
#pragma unroll
    for (int e = 0; e < n; ++e) sum.total += static_cast<double>(math::exp(x[e].shift - from));
    return {top, sum.total};
  }
};
struct AloneInColumn {
  template <class T> __device__ ColumnTotal<T> operator()(const T (&x)[1], int64_t) const { return {x[0], 1}; }
};
template <class T> struct StoreShares {
  T *shift, *by;
  bool log;
  Numbers<T> whole = {};  // log Σ e^x; if it is wanted, it alone
  __device__ void operator()(int64_t i, ColumnTotal<T> sum) const {
    if (whole) return whole.set(Place<1>{i}, static_cast<T>(static_cast<double>(sum.shift) + ::log(sum.total)));
    if (sum.shift == std::numeric_limits<T>::infinity())  // +∞ alone has an infinite term
      sum = {std::numeric_limits<T>::max(), sum.total + INFINITY};
    shift[i] = sum.shift;
    if (sum.total == 0) by[i] = T(0);  // numbers that are all −∞ stay so, and have shares of 0
    else by[i] = static_cast<T>(log ? ::log(sum.total) : 1 / sum.total);
  }
};

/// formula(numbers of a place, numbers of its column) for all places, N and M of them, each alone or eight.
template <class T, int N, int M, class Formula> struct OfColumns {
  Formula formula;
  Numbers<T> in[N], column[M], out;
  ReduceShape s;
  __device__ void operator()(int64_t i) const {
    const Divided row = divided(i, s.inner), slice = divided(row.quotient, s.n);
    const int64_t at = slice.quotient * s.inner + row.rest;
    T x[N], c[M];
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = in[k][i];
#pragma unroll
    for (int k = 0; k < M; ++k) c[k] = column[k][at];
    out.set(Place<1>{i}, formula(x, c));
  }
};
/// The same for eight columns a thread, which goes down a piece of them and reads four rows before it writes one.
template <class S, int N, int M, class Formula> struct DownColumns {
  static constexpr int64_t kPiece = 16;  // rows
  static constexpr int kAhead = 4;
  OfColumns<float, N, M, Formula> all;
  /// i: a piece of eight columns.
  __device__ void operator()(int64_t i) const {
    const ReduceShape& s = all.s;
    const Divided eights = divided(i, s.inner / kNeighbours), pieces = divided(eights.quotient, ceil_div(s.n, kPiece));
    const int64_t column = eights.rest * kNeighbours, first = pieces.rest * kPiece;
    const int64_t end = first + kPiece < s.n ? first + kPiece : s.n;
    Eight c[M];
#pragma unroll
    for (int k = 0; k < M; ++k) c[k] = all.column[k].template eight<float>(pieces.quotient * s.inner + column);
    const auto place = [&](int64_t row) { return (pieces.quotient * s.n + row) * s.inner + column; };
    for (int64_t row = first; row < end; row += kAhead) {
      Packed<S> x[kAhead][N];
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
#pragma unroll
        for (int k = 0; k < N; ++k)
          if (row + a < end) x[a][k] = all.in[k].template packed<S>(place(row + a));
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
        if (row + a < end) write(place(row + a), x[a], c);
    }
  }
  __device__ void write(int64_t at, const Packed<S> (&packed)[N], const Eight (&c)[M]) const {
    Eight x[N];
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = Eight(packed[k]);
    store_vector(static_cast<S*>(all.out.at) + at, all.formula(x, c).x);
  }
};
template <class T, int N, int M, class Formula> void for_each_of_columns(const OfColumns<T, N, M, Formula>& body) {
  const ReduceShape& s = body.s;
  if constexpr (std::is_same_v<T, float>) {
    const auto fits = [&](const Numbers<T>& x) { return x.in_vectors(s.inner) && x.narrow == body.out.narrow; };
    if (std::all_of(body.in, body.in + N, fits) && fits(body.out)) {
      const auto down = [&]<class S>() {
        using Down = DownColumns<S, N, M, Formula>;
        for_each(s.outer * ceil_div(s.n, Down::kPiece) * (s.inner / kNeighbours), Down{body});
      };
      return body.out.narrow ? down.template operator()<BFloat16>() : down.template operator()<float>();
    }
  }
  for_each(s.outer * s.n * s.inner, body);
}

struct Share {
  bool log;
  template <class V> __device__ V operator()(const V (&x)[1], const V (&shift_by)[2]) const {
    const V v = x[0] - shift_by[0];
    if (log) return v - shift_by[1];
    return exp_of(v) * shift_by[1];
  }
};

struct Product {
  template <class T> __device__ double operator()(const T (&x)[2], int64_t) const {
    return static_cast<double>(x[0]) * static_cast<double>(x[1]);
  }
};
struct Gradient {
  bool log;
  template <class V> __device__ V operator()(const V (&y_g)[2], const V (&total)[1]) const {
    if (log) return y_g[1] - exp_of(y_g[0]) * total[0];
    return y_g[0] * (y_g[1] - total[0]);
  }
};

}  // namespace

void logsumexp(const Tensor& x, Tensor& y, ReduceShape s) {
  dispatch_float("logsumexp", computed(x.dtype()), [&]<class T>() {
    reduce_to<AddColumnTotals<T>>(s, Terms<T, 1, AloneInColumn>{{Numbers<T>(x)}},
                                  StoreShares<T>{nullptr, nullptr, true, Numbers<T>(y)});
  });
}

void softmax_columns(const Tensor& x, Tensor& y, ReduceShape s, bool log) {
  dispatch_float("softmax", computed(x.dtype()), [&]<class T>() {
    const Numbers<T> from(x), to(y);
    const int64_t columns = s.outer * s.inner;
    const Scratch<T> of_columns(static_cast<std::size_t>(2 * columns));
    T *const shift = of_columns.get(), *const by = shift + columns;
    reduce_to<AddColumnTotals<T>>(s, Terms<T, 1, AloneInColumn>{{from}}, StoreShares<T>{shift, by, log});
    for_each_of_columns(OfColumns<T, 1, 2, Share>{{log}, {from}, {Numbers<T>(shift), Numbers<T>(by)}, to, s});
  });
}

void softmax_columns_backward(const Tensor& y, const Tensor& g, Tensor& dx, ReduceShape s, bool log) {
  dispatch_float("softmax", computed(y.dtype()), [&]<class T>() {
    const Numbers<T> a(y), b(g), to(dx);
    const Scratch<T> total(static_cast<std::size_t>(s.outer * s.inner));
    const StoreAs<T, double> sums{Numbers<T>(total.get())};
    if (log) reduce_to<SumOf<double>>(s, Terms<T, 1, Itself<double>>{{b}}, sums);
    else reduce_to<SumOf<double>>(s, Terms<T, 2, Product>{{a, b}}, sums);
    for_each_of_columns(OfColumns<T, 2, 1, Gradient>{{log}, {a, b}, {Numbers<T>(total.get())}, to, s});
  });
}

}  // namespace sluice::cuda
