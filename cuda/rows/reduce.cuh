// Reductions over the middle of [outer, n, inner]. The operation is a struct with the type of its totals, a start value
// and an associative, commutative operator(). source(at, k, i), at = (o·n + k)·inner + i, gives the elements and is
// called once for each; sink(result, total) takes the totals. Three kernels: a thread for each result if n is short, a
// team for each row if inner is 1, else a block for neighbouring columns. With too few results to fill the device, long
// sums are split into pieces. Limited by memory: one read of the source.
#pragma once

#include <sluice/cuda/rows/rows.cuh>
#include <sluice/ops/kernels.h>

#include <bit>

namespace sluice::cuda {

constexpr int64_t kShortSum = 32;  // elements up to which a thread sums alone
constexpr int kEights = 8;         // threads side by side that take eight columns each: a line of bf16, two of f32
constexpr int64_t kWantedBlocks = 1024;  // sums are split into pieces to get this many blocks

/// How the middle is split into pieces.
struct Split {
  int64_t count = 1, length;
  /// `blocks`: the number of blocks without splitting; `least`: the fewest elements of a piece.
  Split(int64_t n, int64_t blocks, int64_t least) : length(n) {
    const int64_t wanted = std::min(ceil_div(n, least), ceil_div(kWantedBlocks, blocks));
    if (wanted <= 1) return;
    length = ceil_div(n, wanted);
    count = ceil_div(n, length);
  }
};

template <class Op, class Source, class Sink> struct ReduceAlone {
  Source source;
  Sink sink;
  ReduceShape s;
  __device__ void operator()(int64_t result) const {
    const int64_t i = result % s.inner, first = result / s.inner * s.n * s.inner + i;
    typename Op::Total total = Op::start();
    for (int64_t k = 0; k < s.n; ++k) total = Op()(total, source(first + k * s.inner, k, i));
    sink(result, total);
  }
};

template <class Op, class Source, class Sink> struct ReduceRow {
  Source source;
  Sink sink;
  int64_t n;
  Split split;
  template <int threads> __device__ void operator()(int64_t row) const {
    const int64_t first = row / split.count * n, from = row % split.count * split.length;
    const int64_t end = from + split.length < n ? from + split.length : n;
    typename Op::Total total = Op::start();
#pragma unroll 4
    for (int64_t k = from + rank_in_team<threads>(); k < end; k += threads)
      total = Op()(total, source(first + k, k, 0));
    total = over_team<threads>(total, Op());
    if (rank_in_team<threads>() == 0) sink(row, total);
  }
};

/// An operation may add several totals at once: several(total, x).
template <class Op, int n>
concept AddsSeveral = requires(typename Op::Total total, const typename Op::Total (&x)[n]) {
  Op::several(total, x);
};

/// Eight columns as one. One column a thread leaves too few bytes under way.
template <class Op> struct EightOf {
  struct Total {
    typename Op::Total x[kNeighbours];
  };
  __device__ static Total start() {
    Total y;
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) y.x[e] = Op::start();
    return y;
  }
  __device__ Total operator()(const Total& a, const Total& b) const {
    Total y;
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) y.x[e] = Op()(a.x[e], b.x[e]);
    return y;
  }
  template <int n> __device__ static Total several(Total y, const Total (&rows)[n]) {
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) {
      typename Op::Total column[n];
#pragma unroll
      for (int r = 0; r < n; ++r) column[r] = rows[r].x[e];
      if constexpr (AddsSeveral<Op, n>) y.x[e] = Op::several(y.x[e], column);
      else
        for (int r = 0; r < n; ++r) y.x[e] = Op()(y.x[e], column[r]);
    }
    return y;
  }
};
/// Rows that a thread reads before it adds one; of single columns the compiler reads some ahead by itself.
template <class Op, class Source> constexpr int kRowsAhead = 1;
/// Blocks of a multiprocessor, which set how many registers a thread may have.
template <class Op, class Source> constexpr int kBlocksAtOnce = 3;
template <class S, class Op, class Source> struct EightColumns {
  Source source;
  __device__ typename EightOf<Op>::Total operator()(int64_t at, int64_t k, int64_t) const {
    typename EightOf<Op>::Total y;
    source.template eight<S>(kNeighbours * at, k, y.x);
    return y;
  }
};
template <class Op, class S, class Source>
constexpr int kRowsAhead<EightOf<Op>, EightColumns<S, Op, Source>> = Source::kOperands * sizeof(S) > sizeof(float) ? 2
                                                                                                                   : 4;
template <class Op, class S, class Source>
constexpr int kBlocksAtOnce<EightOf<Op>, EightColumns<S, Op, Source>> =
    Source::kOperands * sizeof(S) > sizeof(BFloat16) || sizeof(typename Op::Total) > sizeof(double) ? 2 : 3;
template <class Op, class Sink> struct EightResults {
  Sink sink;
  __device__ void operator()(int64_t i, const typename EightOf<Op>::Total& total) const {
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) sink(kNeighbours * i + e, total.x[e]);
  }
};
/// The source of term(numbers of one or two operands at a place, k). With operands of one dtype that lie in eights, a
/// thread takes eight columns. (Behind a loop over the operands nvcc 13.0 would not unroll the loops of the kernels.)
template <class T, int N, class Term> struct Terms {
  static constexpr int kOperands = N;
  Numbers<T> x[N];
  Term term = {};
  __device__ auto operator()(int64_t at, int64_t k, int64_t) const {
    T v[N] = {x[0][at]};
    if constexpr (N == 2) v[1] = x[1][at];
    return term(v, k);
  }
  bool takes_eights(int64_t inner) const requires std::is_same_v<T, float> {
    const auto fits = [&](const Numbers<T>& y) { return y.narrow == narrow() && y.in_vectors(inner); };
    return std::all_of(x, x + N, fits);
  }
  bool narrow() const { return x[0].narrow; }
  template <class S, class Total> __device__ void eight(int64_t at, int64_t k, Total (&y)[kNeighbours]) const {
    Eight eights[N] = {x[0].template eight<S>(at)};
    if constexpr (N == 2) eights[1] = x[1].template eight<S>(at);
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) {
      float v[N] = {eights[0].x[e]};
      if constexpr (N == 2) v[1] = eights[1].x[e];
      y[e] = term(v, k);
    }
  }
};
template <class Total> struct Itself {
  template <class T> __device__ Total operator()(const T (&x)[1], int64_t) const { return static_cast<Total>(x[0]); }
};
template <class Source>
concept GivesEights = requires(const Source& source) {
  source.takes_eights(int64_t{});
};
template <class Source> bool by_eights(const Source& source, ReduceShape s) {
  if constexpr (GivesEights<Source>) return s.inner > 1 && source.takes_eights(s.inner);
  else return false;
}

/// A block reduces `width` neighbouring columns, and kThreads / width threads share a column.
template <class Op, class Source, class Sink>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<Op, Source>)
    reduce_columns_kernel(Source source, Sink sink, ReduceShape s, Split split, int64_t tiles, int width) {
  using Total = typename Op::Total;
  const Shared<Total> part = static_shared<Total, kThreads, Op>();
  const int thread = static_cast<int>(threadIdx.x), row = thread / width, rows = kThreads / width;
  for (int64_t b = blockIdx.x; b < tiles * split.count; b += gridDim.x) {
    const int64_t piece = b % split.count, column = b / split.count * width + thread % width;
    const int64_t o = column / s.inner, i = column % s.inner, from = piece * split.length;
    const int64_t end = from + split.length < s.n ? from + split.length : s.n;
    const bool inside = column < s.outer * s.inner;
    Total total = Op::start();
    if (inside) {
      constexpr int ahead = kRowsAhead<Op, Source>;
      const auto read = [&](int64_t k) { return source((o * s.n + k) * s.inner + i, k, i); };
      int64_t k = from + row;
      if constexpr (ahead > 1) {
        for (; k + (ahead - 1) * rows < end; k += ahead * rows) {
          Total next[ahead];
#pragma unroll
          for (int e = 0; e < ahead; ++e) next[e] = read(k + e * rows);
          total = Op::several(total, next);
        }
        for (; k < end; k += rows) total = Op()(total, read(k));
      } else {  // with braces: nvcc 13.0 takes an unrolled loop behind a discarded statement for a part of that
#pragma unroll 4
        for (; k < end; k += rows) total = Op()(total, read(k));
      }
    }
    part[thread] = total;
    for (int half = rows / 2; half > 0; half /= 2) {
      __syncthreads();
      if (row < half) part[thread] = total = Op()(total, Total(part[thread + half * width]));
    }
    if (row == 0 && inside) sink((o * split.count + piece) * s.inner + i, total);
    __syncthreads();  // only a grid of 2^31 blocks comes here twice
  }
}

/// `most`: columns of a block.
template <class Op, class Source, class Sink>
void reduce_columns(ReduceShape s, Split split, int64_t most, Source source, Sink sink) {
  const int64_t columns = s.outer * s.inner;
  const auto width =
      static_cast<int>(std::min<int64_t>(most, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(columns)))));
  const int64_t tiles = ceil_div(columns, width);
  launch(reduce_columns_kernel<Op, Source, Sink>, grid_of(tiles * split.count), dim3(kThreads), 0, source, sink, s,
         split, tiles, width);
}
template <class Op, class Source, class Sink> void reduce_pieces(ReduceShape s, Split split, Source source, Sink sink) {
  if (s.inner == 1)
    return for_each_row(s.outer * split.count, split.length, ReduceRow<Op, Source, Sink>{source, sink, s.n, split});
  if constexpr (GivesEights<Source>)
    if (by_eights(source, s)) {
      const auto reduce = [&]<class S>() {
        reduce_columns<EightOf<Op>>({s.outer, s.n, s.inner / kNeighbours}, split, kEights,
                                    EightColumns<S, Op, Source>{source}, EightResults<Op, Sink>{sink});
      };
      return source.narrow() ? reduce.template operator()<BFloat16>() : reduce.template operator()<float>();
    }
  reduce_columns<Op>(s, split, kWarp, source, sink);
}

template <class T, class Total> struct StoreAs {
  Numbers<T> y;
  __device__ void operator()(int64_t i, Total total) const { y.set(Place<1>{i}, static_cast<T>(total)); }
};
template <class Total> struct StorePart {
  Total* part;
  __device__ void operator()(int64_t i, Total total) const { part[i] = total; }
};
template <class Total> struct LoadPart {
  const Total* part;
  __device__ Total operator()(int64_t at, int64_t, int64_t) const { return part[at]; }
};

/// Reduces every column: outer·inner results. All lengths in `s` must be at least 1.
template <class Op, class Source, class Sink> void reduce_to(ReduceShape s, Source source, Sink sink) {
  using Total = typename Op::Total;
  const int64_t results = s.outer * s.inner;
  if (s.n <= kShortSum) return for_each(results, ReduceAlone<Op, Source, Sink>{source, sink, s});
  const int64_t columns = by_eights(source, s) ? kEights * kNeighbours : kWarp;  // of a block
  const Split split(s.n, s.inner == 1 ? s.outer : ceil_div(results, columns), s.inner == 1 ? 8192 : 256);
  if (split.count == 1) return reduce_pieces<Op>(s, split, source, sink);
  const Scratch<Total> part(static_cast<std::size_t>(results * split.count));
  reduce_pieces<Op>(s, split, source, StorePart<Total>{part.get()});
  const ReduceShape rest{s.outer, split.count, s.inner};
  reduce_pieces<Op>(rest, Split(split.count, kWantedBlocks, 1), LoadPart<Total>{part.get()}, sink);
}

/// The operations. Floats are summed and multiplied in f64: that takes no longer, because reading memory limits it.
template <class T> struct SumOf : Add {
  using Total = std::conditional_t<std::is_floating_point_v<T>, double, T>;
  __device__ static Total start() { return Total(0); }
};
struct Multiply {
  template <class T> __device__ T operator()(T a, T b) const { return a * b; }
};
template <class T> struct ProductOf : Multiply {
  using Total = typename SumOf<T>::Total;
  __device__ static Total start() { return Total(1); }
};
template <class T> struct MaxOf {
  using Total = T;
  __device__ static T start() { return -std::numeric_limits<T>::infinity(); }
  __device__ T operator()(T a, T b) const { return math::max(a, b); }
};
template <class T> struct MinOf {
  using Total = T;
  __device__ static T start() { return std::numeric_limits<T>::infinity(); }
  __device__ T operator()(T a, T b) const { return math::min(a, b); }
};

}  // namespace sluice::cuda
