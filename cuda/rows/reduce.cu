// Sums, norms, maxima and minima and their places (cuda/rows/reduce.cuh).
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>

namespace sluice::cuda {

namespace {

/// For √Σx².
struct Squared {
  template <class T> __device__ double operator()(const T (&x)[1], int64_t) const {
    const double v = static_cast<double>(x[0]);
    return v * v;
  }
};
template <class T> struct StoreRoot {
  Numbers<T> y;
  __device__ void operator()(int64_t i, double total) const { y.set(Place<1>{i}, static_cast<T>(::sqrt(total))); }
};

/// Stores a total, −0 as 0: sums have no −0, and of extremes the order of 0 and −0 must not matter.
template <class T, class Total> struct StoreResult {
  Numbers<T> y;
  __device__ void operator()(int64_t i, Total total) const { y.set(Place<1>{i}, static_cast<T>(total) + T(0)); }
};

template <class T, class Op> void reduce_as(const Tensor& x, Tensor& y, ReduceShape s) {
  using Total = typename Op::Total;
  reduce_to<Op>(s, Terms<T, 1, Itself<Total>>{{Numbers<T>(x)}}, StoreResult<T, Total>{Numbers<T>(y)});
}

/// A value and its place along the reduced dim; place −1: no value yet.
template <class T> struct Placed {
  T value;
  int64_t place;
};
/// The better of two in a total order: NaN before numbers, then the larger (or smaller) value, then the earlier place.
template <class T, bool largest> struct Best {
  using Total = Placed<T>;
  __device__ static Total start() { return {T(0), -1}; }
  __device__ Total operator()(Total a, Total b) const { return a.place < 0 || (b.place >= 0 && before(b, a)) ? b : a; }
  __device__ static bool before(Total a, Total b) {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan;
    if (a_nan || a.value == b.value) return a.place < b.place;
    return largest ? a.value > b.value : a.value < b.value;
  }
};
template <class T> struct PlacedElements {
  const T* x;
  __device__ Placed<T> operator()(int64_t at, int64_t k, int64_t) const { return {x[at], k}; }
};
template <class T> struct StorePlace {
  int64_t* y;
  __device__ void operator()(int64_t i, Placed<T> best) const { y[i] = best.place; }
};

}  // namespace

void reduce(ReduceKind kind, const Tensor& x, Tensor& y, ReduceShape s) {
  if (kind == ReduceKind::sum && x.dtype() == i64) return reduce_as<int64_t, SumOf<int64_t>>(x, y, s);
  dispatch_float("reduce", computed(x.dtype()), [&]<class T>() {
    if (kind == ReduceKind::sum) reduce_as<T, SumOf<T>>(x, y, s);
    else if (kind == ReduceKind::max) reduce_as<T, MaxOf<T>>(x, y, s);
    else if (kind == ReduceKind::min) reduce_as<T, MinOf<T>>(x, y, s);
    else reduce_to<SumOf<T>>(s, Terms<T, 1, Squared>{{Numbers<T>(x)}}, StoreRoot<T>{Numbers<T>(y)});
  });
}

void arg_extreme(bool largest, const Tensor& x, Tensor& index, ReduceShape s) {
  dispatch_all(x.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, BFloat16>) {  // widened (core/kernel/kernel.h)
      const PlacedElements<T> source{data_of<T>(x)};
      const StorePlace<T> sink{data_of<int64_t>(index)};
      if (largest) reduce_to<Best<T, true>>(s, source, sink);
      else reduce_to<Best<T, false>>(s, source, sink);
    }
  });
}

}  // namespace sluice::cuda
