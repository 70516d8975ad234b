// The order of rows: values become unsigned keys of the same order (cuda/rows/order.cuh), with NaN last in either
// direction.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/order.cuh>

#include <cstring>

namespace sluice::cuda {

namespace {

template <class T> __device__ uint64_t key_of(T v, bool descending) {
  if constexpr (std::is_floating_point_v<T>) {
    if (v != v) return ~uint64_t{0};
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    constexpr Bits sign = Bits{1} << (8 * sizeof(T) - 1);
    v += T(0);  // −0 becomes 0, because the two are equal
    Bits bits;
    memcpy(&bits, &v, sizeof v);
    bits = bits & sign ? ~bits : bits | sign;
    return descending ? static_cast<Bits>(~bits) : bits;
  } else {
    const uint64_t bits = static_cast<uint64_t>(static_cast<int64_t>(v)) ^ uint64_t { 1 } << 63;
    return descending ? ~bits : bits;
  }
}

template <class T> struct KeysOf {
  const T* x;
  int64_t n;
  bool descending;
  __device__ uint64_t operator()(int64_t row, int64_t i) const { return key_of(x[row * n + i], descending); }
};

struct StoreFirst {
  int64_t* index;
  int64_t k;
  __device__ void operator()(int64_t row, int64_t at, Entry e) const {
    if (at < k) index[row * k + at] = e.place;
  }
};

}  // namespace

void argsort(const Tensor& x, Tensor& index, bool descending) {
  const int64_t n = x.dim(-1);
  const StoreFirst sink{data_of<int64_t>(index), index.dim(-1)};
  dispatch_all(x.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, BFloat16>)  // widened (core/kernel/kernel.h)
      sort_rows(x.numel() / n, n, KeysOf<T>{data_of<T>(x), n, descending}, sink);
  });
}

}  // namespace sluice::cuda
