// Running sums and products along the middle of [outer, n, inner], in f64 for floats, as on the CPU; gradients of
// running products; and products of all. A team scans a row (inner = 1); a thread scans a column. With too few of them
// to fill the device they are split into pieces: first the totals of the pieces, then a scan of these, then all pieces
// at once. Limited by memory: one read and one write, two reads with pieces.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/create.h>

namespace sluice::cuda {

namespace {

/// How the columns of a scan are split. A piece of a column is one thread's, which waits for memory every few elements,
/// as the thread that goes through a column's pieces does: both are shortest for about √n pieces.
Split split_of(ReduceShape s) {
  const int64_t walks = s.outer * s.inner;
  return Split(s.n, s.inner == 1 ? walks : ceil_div(walks, kThreads), s.inner == 1 ? 8192 : 96);
}

/// source(at, k) gives the k-th element of a column in the order of the scan, from its place `at`, and sink(at, total)
/// takes the total up to it. Op as for reductions (reduce.cuh), but it need not be commutative.
template <class Op, class Source, class Sink> struct Scan {
  using Total = typename Op::Total;
  Source source;
  Sink sink;
  ReduceShape s;
  Split split;
  bool exclusive, reverse;
  // Of each piece, [outer, pieces, inner]: the total of all before it; and, in place of calls of the sink, its own.
  const Total* start = nullptr;
  Total* own = nullptr;

  /// The place of the k-th element of a column in the order of the scan.
  __device__ int64_t place(int64_t o, int64_t k, int64_t i) const {
    return (o * s.n + (reverse ? s.n - 1 - k : k)) * s.inner + i;
  }
  __device__ int64_t end(int64_t from) const { return from + split.length < s.n ? from + split.length : s.n; }
};

template <class Op, class Source, class Sink> struct ScanColumn {
  using Total = typename Op::Total;
  Scan<Op, Source, Sink> c;
  __device__ void operator()(int64_t column) const {
    const int64_t i = column % c.s.inner, piece = column / c.s.inner % c.split.count,
                  o = column / c.s.inner / c.split.count;
    const int64_t from = piece * c.split.length, end = c.end(from);
    Total total = c.start ? c.start[column] : Op::start();
    [[maybe_unused]] constexpr int ahead = sizeof(Total) > 16 ? 2 : 4;  // more would not fit in registers
#pragma unroll(ahead)
    for (int64_t k = from; k < end; ++k) {
      const int64_t at = c.place(o, k, i);
      const Total before = total;
      total = Op()(total, c.source(at, k));
      if (!c.own) c.sink(at, c.exclusive ? before : total);
    }
    if (c.own) c.own[column] = total;
  }
};

/// What the threads of a team have together, in their order.
template <class Total> struct InTeam {
  Total others, own, all;  // of the threads before this one; with this one; of the team
};
template <int threads, class Op> __device__ InTeam<typename Op::Total> running_over_team(typename Op::Total x, Op op) {
  using Total = typename Op::Total;
  const int lane = rank_in_team<threads>() % kWarp, warp = rank_in_team<threads>() / kWarp;
  InTeam<Total> y;
  y.own = running_over_lanes(x, op);
  const Total left = shuffle_up(y.own, 1);
  y.others = lane == 0 ? Op::start() : left;
  if constexpr (threads == kWarp) {
    y.all = shuffle_from(y.own, kWarp - 1);
  } else {
    const Shared<Total> of_warp = static_shared<Total, threads / kWarp, Op>();
    __syncthreads();  // the last totals have been read
    if (lane == kWarp - 1) of_warp[warp] = y.own;
    __syncthreads();
    y.all = Op::start();
    for (int w = 0; w < threads / kWarp; ++w) {
      if (w == warp) y.others = op(y.all, y.others), y.own = op(y.all, y.own);
      y.all = op(y.all, Total(of_warp[w]));
    }
  }
  return y;
}

template <class Op, class Source, class Sink> struct ScanRow {
  using Total = typename Op::Total;
  Scan<Op, Source, Sink> c;
  template <int threads> __device__ void operator()(int64_t row) const {
    const int64_t o = row / c.split.count, from = row % c.split.count * c.split.length, end = c.end(from);
    const int rank = rank_in_team<threads>();
    Total before = c.start ? c.start[row] : Op::start();  // of all elements before the team's present ones
    for (int64_t k = from; k < end; k += threads) {
      const bool inside = k + rank < end;
      const int64_t at = inside ? c.place(o, k + rank, 0) : 0;
      const InTeam<Total> now = running_over_team<threads>(inside ? c.source(at, k + rank) : Op::start(), Op());
      if (inside && !c.own) c.sink(at, Op()(before, c.exclusive ? now.others : now.own));
      before = Op()(before, now.all);
    }
    if (c.own && rank == 0) c.own[row] = before;
  }
};

/// Running sums of whole rows of S that lie in eights: a thread sums eight neighbours, and the next eight are under
/// way.
template <class S> struct CumsumRow {
  Numbers<float> x, y;
  int64_t n;
  CumsumOptions options;
  template <int threads> __device__ void operator()(int64_t row) const {
    constexpr int step = threads * kNeighbours;
    const bool back = options.reverse;
    const auto place = [&](int64_t k) { return row * n + (back ? n - kNeighbours - k : k); };
    Packed<S> next = {};
    int64_t k = rank_in_team<threads>() * kNeighbours;
    if (k < n) next = x.packed<S>(place(k));
    double before = 0;
    for (int64_t first = 0; first < n; first += step, k += step) {
      const Eight now(next);
      if (k + step < n) next = x.packed<S>(place(k + step));
      double sum[kNeighbours], total = 0;
#pragma unroll
      for (int e = 0; e < kNeighbours; ++e) {
        const double with = total + static_cast<double>(back ? now.x[kNeighbours - 1 - e] : now.x[e]);
        sum[e] = options.exclusive ? total : with, total = with;
      }
      const InTeam<double> team = running_over_team<threads>(k < n ? total : 0.0, SumOf<double>());
      const double others = before + team.others;
      before += team.all;
      if (k >= n) continue;
      const Eight out =
          Eight::of([&](int e) { return static_cast<float>(others + (back ? sum[kNeighbours - 1 - e] : sum[e])); });
      S* const to = static_cast<S*>(y.at) + place(k);
      if constexpr (std::is_same_v<S, float>) store_neighbours(to, out.x);
      else store_vector(to, out.x);
    }
  }
};
/// False if that does not fit: rows in pieces, columns, other dtypes, other addresses.
template <class T> bool cumsum_rows(const Numbers<T>& x, const Numbers<T>& y, ReduceShape s, CumsumOptions options) {
  if constexpr (std::is_same_v<T, float>) {
    const bool fits = s.inner == 1 && x.in_vectors(s.n) && y.in_vectors(s.n) && x.narrow == y.narrow;
    if (!fits || split_of(s).count > 1) return false;
    if (x.narrow) for_each_row(s.outer, s.n, CumsumRow<BFloat16>{x, y, s.n, options});
    else for_each_row(s.outer, s.n, CumsumRow<float>{x, y, s.n, options});
    return true;
  }
  return false;
}

template <class Op, class Source, class Sink> void scan_pieces(const Scan<Op, Source, Sink>& c) {
  const int64_t walks = c.s.outer * c.split.count * c.s.inner;
  if (c.s.inner == 1) for_each_row(walks, c.split.length, ScanRow<Op, Source, Sink>{c});
  else for_each(walks, ScanColumn<Op, Source, Sink>{c});
}

/// Elements in the order of a scan, for the totals of its pieces.
template <class Scan> struct InOrder {
  Scan c;
  __device__ typename Scan::Total operator()(int64_t at, int64_t k, int64_t) const {
    return c.source(c.reverse ? at + (c.s.n - 1 - 2 * k) * c.s.inner : at, k);
  }
};

template <class T, class Total> struct ReadNumbers {
  Numbers<T> x;
  __device__ Total operator()(int64_t at, int64_t) const { return static_cast<Total>(x[at]); }
};

template <class Op, class Source, class Sink>
void scan(ReduceShape s, Source source, Sink sink, CumsumOptions options) {
  using Total = typename Op::Total;
  const int64_t walks = s.outer * s.inner;
  const Split split = split_of(s);
  Scan<Op, Source, Sink> whole{source, sink, s, split, options.exclusive, options.reverse};
  if (split.count == 1) return scan_pieces(whole);
  const auto parts = static_cast<std::size_t>(walks * split.count);
  const Scratch<Total> totals(parts), start(parts);
  if constexpr (std::is_base_of_v<Add, Op>) {  // commutative: a reduction needs fewer exchanges
    reduce_pieces<Op>(s, split, InOrder<Scan<Op, Source, Sink>>{whole}, StorePart<Total>{totals.get()});
  } else {
    whole.own = totals.get();
    scan_pieces(whole);
    whole.own = nullptr;
  }
  scan_pieces(Scan<Op, ReadNumbers<Total, Total>, StoreAs<Total, Total>>{{Numbers<Total>(totals.get())},
                                                                         {Numbers<Total>(start.get())},
                                                                         {s.outer, split.count, s.inner},
                                                                         Split(split.count, kWantedBlocks, 1),
                                                                         /*exclusive=*/true,
                                                                         /*reverse=*/false});
  whole.start = start.get();
  scan_pieces(whole);
}

/// m · 2^e, with |m| in [½, 1], or m 0, ±∞ or NaN. The product of a piece may overflow f64 although the running product
/// does not: as a double it would be ∞, and ∞ · 0 is NaN.
struct Scaled {
  double m;
  int e;
  __device__ static Scaled of(double x) {
    int e = 0;
    if (x != 0 && x - x == 0) x = ::frexp(x, &e);
    return {x, e};
  }
  __device__ Scaled operator*(const Scaled& b) const {
    constexpr int most = 1 << 29;  // beyond it e is not exact, and cannot overflow
    const Scaled p = of(m * b.m);
    const int sum = p.e + e + b.e;
    return {p.m, sum > most ? most : sum < -most ? -most : sum};
  }
  /// This number times y.
  __device__ double times(double y) const { return ::ldexp(m * y, e); }
};
struct ScaledProduct {
  using Total = Scaled;
  __device__ static Scaled start() { return {1, 0}; }
  __device__ Scaled operator()(const Scaled& a, const Scaled& b) const { return a * b; }
};
struct ReadScaled {
  Numbers<double> x;
  __device__ Scaled operator()(int64_t at, int64_t) const { return Scaled::of(x[at]); }
};
struct StoreScaled {
  double* y;
  __device__ void operator()(int64_t at, const Scaled& total) const { y[at] = total.times(1); }
};
void running_products(const Tensor& x, Tensor& y, ReduceShape s, CumsumOptions options) {
  scan<ScaledProduct>(s, ReadScaled{Numbers<double>(x)}, StoreScaled{data_of<double>(y)}, options);
}

/// r ↦ by·r + plus.
struct Affine {
  Scaled by;
  double plus;
};
struct ThenAffine {
  using Total = Affine;
  __device__ static Affine start() { return {ScaledProduct::start(), 0}; }
  __device__ Affine operator()(const Affine& first, const Affine& then) const {
    return {then.by * first.by, then.by.times(first.plus) + then.plus};
  }
};
/// R_j = g_j + x_{j+1} R_{j+1} as a function of R_{j+1}, from the last j on: k = n − 1 − j.
struct SlopeSteps {
  const double *x, *g;
  ReduceShape s;
  bool each;  // g has all entries, not the last alone
  __device__ Affine operator()(int64_t at, int64_t k) const {
    const bool last = k == 0;
    const double own = each ? g[at] : last ? g[at / s.inner / s.n * s.inner + at % s.inner] : 0;
    return {Scaled::of(last ? 1 : x[at + s.inner]), own};
  }
};
/// dx_j = y_{j−1} R_j, where y_{j−1} is.
struct TimesSlope {
  double* dx;
  __device__ void operator()(int64_t at, Affine r) const { dx[at] *= r.plus; }
};

/// f(y) with y in f64: the tensor itself, or one that is rounded to it. Products are rare, so that there are kernels of
/// f64 alone.
template <class F> void in_f64(Tensor& y, F f) {
  if (y.dtype() == f64) return f(y);
  Tensor wide = empty(y.shape(), {f64, y.device()});
  f(wide);
  copy(wide, y);
}

}  // namespace

void cumsum(const Tensor& x, Tensor& y, int dim, CumsumOptions options) {
  dispatch_sum("cumsum", computed(x.dtype()), [&, s = ReduceShape::along(x.shape(), dim)]<class T, class Total>() {
    const Numbers<T> from(x), to(y);
    if (cumsum_rows(from, to, s, options)) return;
    scan<SumOf<Total>>(s, ReadNumbers<T, Total>{from}, StoreAs<T, Total>{to}, options);
  });
}

void prod(const Tensor& x, Tensor& y, ReduceShape s) {
  in_f64(y, [&, wide = converted(x, f64)](Tensor& out) {
    reduce_to<ProductOf<double>>(s, LoadPart<double>{data_of<double>(wide)}, StorePart<double>{data_of<double>(out)});
  });
}

void cumprod(const Tensor& x, Tensor& y, int dim) {
  in_f64(y, [&](Tensor& out) { running_products(converted(x, f64), out, ReduceShape::along(x.shape(), dim), {}); });
}

void cumprod_backward(const Tensor& x_in, const Tensor& g_in, Tensor& dx, int dim) {
  const ReduceShape s = ReduceShape::along(x_in.shape(), dim);
  const Tensor x = converted(x_in, f64), g = converted(g_in, f64);
  const SlopeSteps steps{data_of<double>(x), data_of<double>(g), s, g.dim(dim) == s.n};
  in_f64(dx, [&](Tensor& out) {
    running_products(x, out, s, {.exclusive = true});
    scan<ThenAffine>(s, steps, TimesSlope{data_of<double>(out)}, {.reverse = true});
  });
}

}  // namespace sluice::cuda
