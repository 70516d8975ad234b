// Gathering, writing and adding at indices. In a gather a thread takes an element, and neighbouring threads read
// neighbouring elements unless the index scatters them; memory limits it. Sums use no atomics: additions go in the
// order of the index, as on the CPU.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/order.cuh>
#include <sluice/cuda/rows/rows.cuh>

namespace sluice::cuda {

using sluice::detail::convert;
using sluice::detail::sum_of;
using sluice::detail::StridedRange;

namespace {

void check_indices(const char* op, const Tensor& index, int64_t size) {
  const int64_t *p = data_of<int64_t>(index), n = index.numel(), bad = first_outside(p, n, 0, size, 0);
  if (bad < n)
    fail<ValueError>(op, ": index ", value_at(p + bad), " is outside [0, ", size, ") — got it at element ", bad,
                     " of an index of shape ", index);
}

/// Offsets in x of the elements of `box`, all at position 0 of dim.
StridedRange walk_of(const Shape& box, const Tensor& x, int dim) {
  Layout layout(box, x.strides(), 0);
  layout.strides[dim] = 0;
  return StridedRange(layout);
}

/// Calls f.operator()<T>() with the unsigned type of an element's size; copies need only the size.
template <class F> void dispatch_size(DType t, F f) {
  switch (size_of(t)) {
    case 1: return f.template operator()<uint8_t>();
    case 2: return f.template operator()<uint16_t>();
    case 4: return f.template operator()<uint32_t>();
    default: return f.template operator()<uint64_t>();
  }
}

/// y_i = x at i's position in all dims but dim, and at the index in dim. Each element has an index; with `slices`, each
/// slice of `inner` elements.
template <class T> void gather_as(const Tensor& x, int dim, const int64_t* index, Tensor& y, bool slices) {
  const StridedRange walk = walk_of(y.shape(), x, dim);
  const int64_t along = x.strides()[dim];
  const ReduceShape s = ReduceShape::along(y.shape(), dim);
  const T* in = data_of<T>(x);
  T* out = data_of<T>(y);
  for_each(y.numel(), [=] __device__(int64_t i) {
    out[i] = in[offset_at(walk, i) + index[slices ? i / s.inner % s.n : i] * along];
  });
}

/// Copies slices that are contiguous, as in an embedding: a team copies a slice, in units of T.
template <class T> struct CopySlice {
  const T* x;
  const int64_t* index;
  T* y;
  StridedRange outer;  // of x
  int64_t n, inner, along;
  template <int threads> __device__ void operator()(int64_t row) const {
    const T* from = x + offset_at(outer, row / n) + index[row % n] * along;
    T* const to = y + row * inner;
    int64_t i = rank_in_team<threads>();
    for (; i + 3 * threads < inner; i += 4 * threads) {  // y might be x, so a compiler loads nothing before a store
      const T a = from[i], b = from[i + threads], c = from[i + 2 * threads], d = from[i + 3 * threads];
      to[i] = a, to[i + threads] = b, to[i + 2 * threads] = c, to[i + 3 * threads] = d;
    }
    for (; i < inner; i += threads) to[i] = from[i];
  }
};
/// False if slices are short, not contiguous, or not aligned to T.
template <class T> bool copy_slices(const Tensor& x, int dim, const int64_t* index, Tensor& y) {
  const ReduceShape s = ReduceShape::along(y.shape(), dim);
  const int64_t unit = static_cast<int64_t>(sizeof(T)) / size_of(x.dtype());
  Layout slice, outer;
  for (int d = dim + 1; d < x.rank(); ++d) slice.shape.push_back(x.shape()[d]), slice.strides.push_back(x.strides()[d]);
  bool fits = s.inner >= kWarp * unit && s.inner % unit == 0 && slice.is_contiguous();
  for (int d = 0; d <= dim; ++d) fits &= x.strides()[d] % unit == 0;
  for (const Tensor* t : {&x, static_cast<const Tensor*>(&y)})
    fits &= reinterpret_cast<std::uintptr_t>(address_of(*t)) % sizeof(T) == 0;
  if (!fits) return false;
  for (int d = 0; d < dim; ++d) outer.shape.push_back(x.shape()[d]), outer.strides.push_back(x.strides()[d] / unit);
  for_each_row(s.outer * s.n, s.inner / unit,
               CopySlice<T>{data_of<T>(x), index, data_of<T>(y), StridedRange(outer), s.n, s.inner / unit,
                            x.strides()[dim] / unit});
  return true;
}

/// An index [outer, n, inner] in lanes. A lane is the positions that differ only in the middle: n of them.
struct LaneIndex {
  const int64_t* index;
  ReduceShape s;
  int64_t count() const { return s.outer * s.inner; }
  /// Where the k-th number of a lane lies.
  __device__ int64_t place(int64_t lane, int64_t k) const {
    return (lane / s.inner * s.n + k) * s.inner + lane % s.inner;
  }
  __device__ int64_t target(int64_t lane, int64_t k) const { return index[place(lane, k)]; }
  /// The lane of the i-th number of the index, and the number's place in it.
  __device__ int64_t lane_of(int64_t i) const { return i / s.inner / s.n * s.inner + i % s.inner; }
  __device__ int64_t in_lane(int64_t i) const { return i / s.inner % s.n; }
  /// The targets as keys to sort by.
  __device__ uint64_t operator()(int64_t lane, int64_t k) const { return static_cast<uint64_t>(target(lane, k)); }
};
/// The places of each lane, sorted by target.
struct SortedLanes : Scratch<Entry> {
  explicit SortedLanes(const LaneIndex& x) : Scratch<Entry>(static_cast<std::size_t>(x.count() * x.s.n)) {
    sort_rows(x.count(), x.s.n, x, StoreEntry{get(), x.s.n});
  }
};
/// What a scatter along dim reads, src of elements S, and writes, y. Lanes have distinct targets.
template <class T, class S = T> struct Lanes : LaneIndex {
  StridedRange starts;  // of the lanes in y
  int64_t along, size;  // of y
  const S* in;
  T* out;
  Lanes(Tensor& y, int dim, const Tensor& at, const Tensor& src)
      : LaneIndex{data_of<int64_t>(at), ReduceShape::along(src.shape(), dim)}, along(y.strides()[dim]),
        size(y.shape()[dim]), in(data_of<S>(src)), out(data_of<T>(y)) {
    Shape lanes = src.shape();
    lanes[dim] = 1;
    starts = walk_of(lanes, y, dim);
  }
  __device__ T* start(int64_t lane) const { return out + offset_at(starts, lane); }
};

/// put(element of y, element of src) for all positions of the index: a thread takes a lane, one number after the other.
/// It reads some ahead: behind a store, which src might see, the compiler moves no load.
template <class T, class S, class Put> void put_lanes(const Lanes<T, S>& x, Put put) {
  for_each(x.count(), [=] __device__(int64_t lane) {
    constexpr int ahead = 4;
    T* const to = x.start(lane);
    int64_t k = 0;
    for (; k + ahead <= x.s.n; k += ahead) {
      int64_t target[ahead];
      S from[ahead];
#pragma unroll
      for (int e = 0; e < ahead; ++e) {
        const int64_t at = x.place(lane, k + e);
        target[e] = x.index[at], from[e] = x.in[at];
      }
#pragma unroll
      for (int e = 0; e < ahead; ++e) put(to[target[e] * x.along], from[e]);
    }
    for (; k < x.s.n; ++k) {
      const int64_t at = x.place(lane, k);
      put(to[x.index[at] * x.along], x.in[at]);
    }
  });
}
struct AddNumber {
  template <class T, class S> __device__ void operator()(T& to, S from) const { to = sum_of(to, convert<T>(from)); }
};
struct WriteNumber {
  template <class T> __device__ void operator()(T& to, T from) const { to = from; }
};

/// For short lanes of bf16, whose sums are f32: a thread takes a lane, and adds all of a target where it first meets
/// it. It reads the index of a lane again for each of them.
void scatter_add_by_target(const Lanes<BFloat16>& x) {
  for_each(x.count(), [=] __device__(int64_t lane) {
    BFloat16* const first = x.start(lane);
    for (int64_t k = 0; k < x.s.n; ++k) {
      const int64_t target = x.target(lane, k);
      int64_t met = 0;
      while (x.target(lane, met) != target) ++met;
      if (met < k) continue;
      BFloat16& to = first[target * x.along];
      float sum = convert<float>(to);
      for (int64_t j = k; j < x.s.n; ++j)
        if (x.target(lane, j) == target) sum = sum_of(sum, convert<float>(x.in[x.place(lane, j)]));
      to = convert<BFloat16>(sum);
    }
  });
}

/// For few long lanes, which would not fill the device, and for large results of bf16, of which a copy in f32 would
/// cost more: a lane is sorted by target, and a thread adds all of a target.
template <class Sum, class T> void scatter_add_sorted(const Lanes<T>& x) {
  const int64_t n = x.s.n;
  const SortedLanes sorted(x);
  const Entry* entries = sorted.get();
  for_each(x.count() * n, [=] __device__(int64_t i) {
    const int64_t lane = i / n;
    const uint64_t target = entries[i].key;
    if (i % n > 0 && entries[i - 1].key == target) return;  // only the first entry of a target adds
    T& to = x.start(lane)[static_cast<int64_t>(target) * x.along];
    Sum sum = convert<Sum>(to);
    for (int64_t k = i; k < lane * n + n && entries[k].key == target; ++k)
      sum = sum_of(sum, convert<Sum>(x.in[x.place(lane, entries[k].place)]));
    to = convert<T>(sum);
  });
}

/// The same for large results: a lane is sorted by target, and the last entry of a target is written.
template <class T> void scatter_sorted(const Lanes<T>& x) {
  const int64_t n = x.s.n;
  const SortedLanes sorted(x);
  const Entry* entries = sorted.get();
  for_each(x.count() * n, [=] __device__(int64_t i) {
    const uint64_t target = entries[i].key;
    if (i % n + 1 < n && entries[i + 1].key == target) return;
    x.start(i / n)[static_cast<int64_t>(target) * x.along] = x.in[x.place(i / n, entries[i].place)];
  });
}

/// For few long lanes, which would not fill the device: finds the last number of each target, which then is written.
/// atomicMax gives the same in any order. It takes 8 bytes of memory for each number of the result.
template <class T> void scatter_last(const Lanes<T>& x) {
  using Place = unsigned long long;  // in a lane, and 1 more; 0: nothing is written there
  const int64_t targets = x.count() * x.size, numbers = x.count() * x.s.n;
  const Scratch<Place> places(static_cast<std::size_t>(targets));
  Place* const last = places.get();
  for_each(targets, [=] __device__(int64_t i) { last[i] = 0; });
  for_each(numbers, [=] __device__(int64_t i) {
    atomicMax(last + x.lane_of(i) * x.size + x.index[i], static_cast<Place>(x.in_lane(i) + 1));
  });
  for_each(numbers, [=] __device__(int64_t i) {
    const int64_t lane = x.lane_of(i);
    if (last[lane * x.size + x.index[i]] == static_cast<Place>(x.in_lane(i) + 1))
      x.start(lane)[x.index[i] * x.along] = x.in[i];
  });
}

/// Slices are sorted by target. The first slice of a target adds all of them and writes the sum once: a thread has
/// `count` neighbouring columns. A target of many slices is one long chain of additions, limited by the latency of its
/// reads: a thread reads some slices before it adds one.
template <class T, class Sum, int count> struct IndexAdd {
  static constexpr int kAhead = 4;
  const Entry* entries;
  const T* src;
  T* y;
  ReduceShape s;  // of src
  int64_t size;
  /// i: a place in the shape of src, in units of `count` columns.
  __device__ void operator()(int64_t i) const {
    const Divided slice = divided(i, s.inner / count), row = divided(slice.quotient, s.n);
    const int64_t column = slice.rest * count, at = row.rest;
    const Entry first = entries[at];
    if (at > 0 && entries[at - 1].key == first.key) return;
    T* const to = y + (row.quotient * size + static_cast<int64_t>(first.key)) * s.inner + column;
    const T* const from = src + row.quotient * s.n * s.inner + column;
    T old[count], next[kAhead][count];
    load_neighbours(old, to), load_neighbours(next[0], from + first.place * s.inner);
    Sum sum[count];
#pragma unroll
    for (int e = 0; e < count; ++e) sum[e] = sum_of(convert<Sum>(old[e]), convert<Sum>(next[0][e]));
    int64_t k = at + 1;
    for (; k + kAhead <= s.n && entries[k + kAhead - 1].key == first.key; k += kAhead) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) load_neighbours(next[a], from + entries[k + a].place * s.inner);
#pragma unroll
      for (int a = 0; a < kAhead; ++a) add(sum, next[a]);
    }
    for (; k < s.n && entries[k].key == first.key; ++k)
      load_neighbours(next[0], from + entries[k].place * s.inner), add(sum, next[0]);
#pragma unroll
    for (int e = 0; e < count; ++e) old[e] = convert<T>(sum[e]);
    store_neighbours(to, old);
  }
  __device__ static void add(Sum (&sum)[count], const T (&x)[count]) {
#pragma unroll
    for (int e = 0; e < count; ++e) sum[e] = sum_of(sum[e], convert<Sum>(x[e]));
  }
};

template <class F> void dispatch_add(const char* op, DType t, F f) {
  if (t == bf16) f.template operator()<BFloat16, double>();
  else dispatch_sum(op, t, f);
}

constexpr int64_t kShortLane = 256;       // additions up to which a thread takes a lane alone
constexpr int64_t kShortNarrowLane = 16;  // the same of bf16, whose targets are compared with each other
constexpr int64_t kManyLanes = 8192;      // lanes from which on a thread takes a lane of any length
constexpr int64_t kMostCopied = 4;        // numbers of a result for each of src, up to which it has a wider copy

}  // namespace

void gather(const Tensor& x, int dim, const Tensor& index, Tensor& y) {
  check_indices("gather", index, x.shape()[dim]);
  dispatch_size(x.dtype(), [&]<class T>() { gather_as<T>(x, dim, data_of<int64_t>(index), y, false); });
}

void index_select(const char* op, const Tensor& x, int dim, const Tensor& index, Tensor& y) {
  check_indices(op, index, x.shape()[dim]);
  const int64_t* at = data_of<int64_t>(index);
  if (y.numel() == 0 || copy_slices<Bytes16<uint32_t>>(x, dim, at, y)) return;
  dispatch_size(x.dtype(), [&]<class T>() {
    if (!copy_slices<T>(x, dim, at, y)) gather_as<T>(x, dim, at, y, true);
  });
}

void scatter_add(Tensor& y, int dim, const Tensor& index, const Tensor& src) {
  check_indices("scatter_add", index, y.shape()[dim]);
  if (index.numel() == 0) return;
  const int64_t n = src.shape()[dim];
  const bool alone = n <= kShortLane || src.numel() / n >= kManyLanes;
  dispatch_add("scatter_add", y.dtype(), [&]<class T, class>() {
    const Lanes<T> x(y, dim, index, src);
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (n <= kShortNarrowLane) return scatter_add_by_target(x);
      if (!alone || y.numel() > kMostCopied * src.numel()) return scatter_add_sorted<float>(x);
      Tensor sums = empty(y.shape(), {f32, y.device()});
      copy(y, sums), put_lanes(Lanes<float, T>(sums, dim, index, src), AddNumber()), copy(sums, y);
    } else {
      if (alone) put_lanes(x, AddNumber());
      else scatter_add_sorted<T>(x);
    }
  });
}

void scatter(Tensor& y, int dim, const Tensor& index, const Tensor& src) {
  check_indices("scatter", index, y.shape()[dim]);
  if (index.numel() == 0) return;
  const int64_t n = src.shape()[dim];
  const bool alone = n <= kShortLane || src.numel() / n >= kManyLanes;
  dispatch_size(y.dtype(), [&]<class T>() {
    const Lanes<T> x(y, dim, index, src);
    if (alone) put_lanes(x, WriteNumber());  // the last of a target stays
    else if (y.numel() > kMostCopied * src.numel()) scatter_sorted(x);
    else scatter_last(x);
  });
}

void index_add(Tensor& y, int dim, const Tensor& index, const Tensor& src) {
  check_indices("index_add", index, y.shape()[dim]);
  if (src.numel() == 0) return;
  const ReduceShape s = ReduceShape::along(src.shape(), dim);
  const SortedLanes sorted({data_of<int64_t>(index), {1, s.n, 1}});
  dispatch_add("index_add", y.dtype(), [&]<class T, class Sum>() {
    const auto add = [&]<int count>() {
      for_each(src.numel() / count,
               IndexAdd<T, Sum, count>{sorted.get(), data_of<T>(src), data_of<T>(y), s, y.dim(dim)});
    };
    constexpr int wide = 32 / sizeof(T);  // columns of a thread: their reads are enough under way
    if (s.inner % wide == 0 && is_aligned_16(data_of<T>(src)) && is_aligned_16(data_of<T>(y)))
      add.template operator()<wide>();
    else add.template operator()<1>();
  });
}

}  // namespace sluice::cuda
