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

constexpr int64_t kShortSum = 32;        // elements up to which a thread sums alone
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

/// A block reduces `width` neighbouring columns, and kThreads / width threads share a column.
template <class Op, class Source, class Sink>
__global__ void __launch_bounds__(kThreads, 3)
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
#pragma unroll 4
      for (int64_t k = from + row; k < end; k += rows) total = Op()(total, source((o * s.n + k) * s.inner + i, k, i));
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

template <class Op, class Source, class Sink> void reduce_pieces(ReduceShape s, Split split, Source source, Sink sink) {
  if (s.inner == 1)
    return for_each_row(s.outer * split.count, split.length, ReduceRow<Op, Source, Sink>{source, sink, s.n, split});
  const int64_t columns = s.outer * s.inner;
  const auto width =
      static_cast<int>(std::min<int64_t>(kWarp, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(columns)))));
  const int64_t tiles = ceil_div(columns, width);
  launch(reduce_columns_kernel<Op, Source, Sink>, grid_of(tiles * split.count), dim3(kThreads), 0, source, sink, s,
         split, tiles, width);
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
  const Split split(s.n, s.inner == 1 ? s.outer : ceil_div(results, kWarp), s.inner == 1 ? 8192 : 256);
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
