// Access to tensors and kernel launches for slot functions: addresses on the device, strided walks, loops with a thread
// for each of n elements.
#pragma once

#include <sluice/core/kernel/kernel_bf16.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/tensor.h>
#include <sluice/cuda/device.h>
#include <sluice/cuda/recording.h>
#include <sluice/cuda/runtime.h>

#include <algorithm>

namespace sluice::cuda {

using sluice::detail::address_of;
/// Device address of the first element; T is the tensor's dtype.
template <class T> const T* data_of(const Tensor& x) { return reinterpret_cast<const T*>(address_of(x)); }
template <class T> T* data_of(Tensor& x) { return const_cast<T*>(data_of<T>(static_cast<const Tensor&>(x))); }
/// Null for an undefined tensor.
template <class T> const T* data_or_null(const Tensor& x) { return x.defined() ? data_of<T>(x) : nullptr; }
template <class T> T* data_or_null(Tensor& x) { return x.defined() ? data_of<T>(x) : nullptr; }

/// A [batch, heads, rows, width] tensor whose last dim is contiguous.
template <class T> struct HeadRows {
  T* base = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides
  HeadRows() = default;
  HeadRows(T* x, int64_t batch, int64_t head, int64_t row) : base(x), batch(batch), head(head), row(row) {}
  explicit HeadRows(const Tensor& x) {
    if (x.defined())
      base = const_cast<T*>(data_of<std::remove_const_t<T>>(x)), batch = x.strides()[0], head = x.strides()[1],
      row = x.strides()[2];
  }
  __device__ T* at(int64_t b, int64_t h, int64_t r) const { return base + b * batch + h * head + r * row; }
};

/// f(args...) with copies in f32 of all bf16 tensors among the arguments, whose results are rounded: for a slot that
/// takes bf16 in some calls only. `updates`: f also reads its results before it writes them.
template <class... Args> void call_widened(void (*f)(Args...), bool updates, std::type_identity_t<Args>... args) {
  sluice::detail::Widening w(updates);
  [f](auto&&... wide) { f(wide.get()...); }(sluice::detail::Widened<Args>(w, args)...);
  w.finish();
}

/// Elements between the first and element i of a walk, in row-major order. 32 bits divide several times as fast. Each
/// division waits for the one before it, so nvcc's unrolling would triple the code of kernels and gain nothing.
SLUICE_FN int64_t offset_at(const sluice::detail::StridedRange& walk, int64_t at) {
  if (walk.contiguous) return at;
  int64_t offset = 0;
  const auto add = [&](auto i) {
    using Index = decltype(i);
#pragma unroll 1
    for (int d = walk.rank - 1; d > 0; --d) {
      const auto size = static_cast<Index>(walk.shape[d]);
      offset += static_cast<int64_t>(i % size) * walk.strides[d], i /= size;
    }
    offset += static_cast<int64_t>(i) * walk.strides[0];
  };
  if (at >> 32 || walk.wide) add(at);
  else add(static_cast<uint32_t>(at));
  return offset;
}

/// i / n and i % n of numbers that are not negative.
struct Divided {
  int64_t quotient, rest;
};
__device__ inline Divided divided(int64_t i, int64_t n) {
  if ((i | n) >> 32) return {i / n, i % n};
  const auto a = static_cast<uint32_t>(i), b = static_cast<uint32_t>(n);
  return {a / b, a % b};
}

#ifdef __CUDACC__
constexpr int64_t kMostBlocks = 132 * 16;  // of a grid-stride loop: enough to fill the device
#else
constexpr int64_t kMostBlocks = 3;  // the emulator runs blocks one after the other
#endif
constexpr int kThreads = 256;

template <class Body> __global__ void __launch_bounds__(kThreads) for_each_kernel(Body body, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) body(i);
}
/// body(i) for 0 ≤ i < n, in any order; body is a __device__ lambda that captures by value.
template <class Body> void for_each(int64_t n, Body body) {
  if (n == 0) return;
  const int64_t threads = std::min<int64_t>(kThreads, round_up(n, kWarp));
  const int64_t blocks = std::min(ceil_div(n, threads), kMostBlocks);
  launch(for_each_kernel<Body>, grid_of(blocks), dim3(static_cast<unsigned>(threads)), 0, body, n);
}

/// The first of n indices that lies outside [low, limit); n if there is none. Waits for the device. While a graph is
/// recorded it returns n, and each replay checks the indices and sets those outside to `instead`.
int64_t first_outside(const int64_t* index, int64_t n, int64_t low, int64_t limit, int64_t instead);
/// Copies one value from device memory; waits for the device.
template <class T> T value_at(const T* p) {
  T value;
  copy_to_host(&value, p, sizeof(T));
  return value;
}

}  // namespace sluice::cuda
