// Running sums along the middle of [outer, n, inner], summed in f64 for floats, as on the CPU. A team scans a row
// (inner = 1); a thread scans a column. With too few of them to fill the device they are split into pieces: first the
// sums of the pieces, then running sums of these, then all pieces at once. Limited by memory: one read and one write,
// two reads with pieces.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>
#include <sluice/ops/scan/scan.h>

namespace sluice::cuda {

using sluice::detail::convert;

namespace {

template <class T, class Sum> struct Scan {
  const T* x;
  T* y;
  const Sum* start;  // of each piece, [outer, pieces, inner]; null: 0
  ReduceShape s;
  Split split;
  bool exclusive, reverse;

  /// The place of the k-th element of a column in the order of the scan.
  __device__ int64_t place(int64_t o, int64_t k, int64_t i) const {
    return (o * s.n + (reverse ? s.n - 1 - k : k)) * s.inner + i;
  }
  __device__ int64_t end(int64_t from) const { return from + split.length < s.n ? from + split.length : s.n; }
};

template <class T, class Sum> struct ScanColumn {
  Scan<T, Sum> c;
  __device__ void operator()(int64_t column) const {
    const int64_t i = column % c.s.inner, piece = column / c.s.inner % c.split.count,
                  o = column / c.s.inner / c.split.count;
    const int64_t from = piece * c.split.length, end = c.end(from);
    Sum sum = c.start ? c.start[column] : Sum(0);
#pragma unroll 4
    for (int64_t k = from; k < end; ++k) {
      const int64_t at = c.place(o, k, i);
      const Sum before = sum;
      sum = Add()(sum, convert<Sum>(c.x[at]));
      c.y[at] = convert<T>(c.exclusive ? before : sum);
    }
  }
};

template <class T, class Sum> struct ScanRow {
  Scan<T, Sum> c;
  template <int threads> __device__ void operator()(int64_t row) const {
    const int64_t o = row / c.split.count, from = row % c.split.count * c.split.length, end = c.end(from);
    const int rank = rank_in_team<threads>(), lane = rank % kWarp, warp = rank / kWarp;
    const Shared<Sum> of_warp = static_shared<Sum, threads / kWarp, Scan<T, Sum>>();
    Sum before = c.start ? c.start[row] : Sum(0);  // sum of all elements before the team's present ones
    for (int64_t k = from; k < end; k += threads) {
      const int64_t at = k + rank < end ? c.place(o, k + rank, 0) : -1;
      Sum sum = at < 0 ? Sum(0) : convert<Sum>(c.x[at]);
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const Sum left = __shfl_up_sync(kAllLanes, sum, step);
        if (lane >= step) sum = Add()(left, sum);
      }
      const Sum left = __shfl_up_sync(kAllLanes, sum, 1);
      Sum others = lane == 0 ? Sum(0) : left, total;
      if constexpr (threads == kWarp) {
        total = __shfl_sync(kAllLanes, sum, kWarp - 1);
      } else {
        __syncthreads();  // the last sums have been read
        if (lane == kWarp - 1) of_warp[warp] = sum;
        __syncthreads();
        Sum warps = 0;
        for (int w = 0; w < threads / kWarp; ++w) {
          if (w == warp) others = Add()(warps, others), sum = Add()(warps, sum);
          warps = Add()(warps, Sum(of_warp[w]));
        }
        total = warps;
      }
      if (at >= 0) c.y[at] = convert<T>(Add()(before, c.exclusive ? others : sum));
      before = Add()(before, total);
    }
  }
};

/// Elements in the order of the scan, for the sums of its pieces.
template <class T, class Sum> struct ScanOrder {
  Scan<T, Sum> c;
  __device__ Sum operator()(int64_t at, int64_t k, int64_t i) const {
    return convert<Sum>(c.x[c.place(at / c.s.inner / c.s.n, k, i)]);
  }
};

template <class T, class Sum> void scan_pieces(const Scan<T, Sum>& c) {
  const int64_t walks = c.s.outer * c.split.count * c.s.inner;
  if (c.s.inner == 1) for_each_row(walks, c.split.length, ScanRow<T, Sum>{c});
  else for_each(walks, ScanColumn<T, Sum>{c});
}

template <class T, class Sum> void scan(const Tensor& x, Tensor& y, ReduceShape s, CumsumOptions options) {
  const int64_t walks = s.outer * s.inner;
  const Split split(s.n, s.inner == 1 ? walks : ceil_div(walks, kThreads), s.inner == 1 ? 8192 : 256);
  Scan<T, Sum> whole{data_of<T>(x), data_of<T>(y), nullptr, s, split, options.exclusive, options.reverse};
  if (split.count == 1) return scan_pieces(whole);
  const auto parts = static_cast<std::size_t>(walks * split.count);
  const Scratch<Sum> sums(parts), start(parts);
  reduce_pieces<SumOf<Sum>>(s, split, ScanOrder<T, Sum>{whole}, StorePart<Sum>{sums.get()});
  const ReduceShape rest{s.outer, split.count, s.inner};
  scan_pieces(
      Scan<Sum, Sum>{sums.get(), start.get(), nullptr, rest, Split(split.count, kWantedBlocks, 1), true, false});
  whole.start = start.get();
  scan_pieces(whole);
}

}  // namespace

void cumsum(const Tensor& x, Tensor& y, int dim, CumsumOptions options) {
  const auto run = [&, s = ReduceShape::along(x.shape(), dim)]<class T, class Sum>() {
    scan<T, Sum>(x, y, s, options);
  };
  if (x.dtype() == bf16) run.operator()<BFloat16, double>();
  else dispatch_sum("cumsum", x.dtype(), run);
}

}  // namespace sluice::cuda
