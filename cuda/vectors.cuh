// Eight neighbouring numbers a thread, f32 or bf16, in loads and stores of 16 bytes: the loops of everything that
// memory limits. One number a thread leaves too few bytes under way for Hopper's memory, half as many in bf16.
#pragma once

#include <sluice/cuda/tensors.h>

#include <cstring>
#include <iterator>

namespace sluice::cuda {

constexpr int kNeighbours = 8;

/// 16 bytes, which one instruction reads or writes.
template <class T> struct alignas(16) Bytes16 { T x[16 / sizeof(T)]; };

/// Eight neighbours as they lie in memory, at a multiple of 16.
template <class S> struct Packed { Bytes16<uint32_t> x[kNeighbours * sizeof(S) / 16]; };
__device__ inline void unpack(float (&x)[kNeighbours], const Packed<float>& from) {
#pragma unroll
  for (int e = 0; e < kNeighbours; ++e) x[e] = __builtin_bit_cast(float, from.x[e / 4].x[e % 4]);
}
__device__ inline void unpack(float (&x)[kNeighbours], const Packed<BFloat16>& from) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    x[2 * e] = __builtin_bit_cast(float, from.x[0].x[e] << 16);
    x[2 * e + 1] = __builtin_bit_cast(float, from.x[0].x[e] & 0xffff0000u);
  }
}
template <class S> __device__ void load_vector(float (&x)[kNeighbours], const S* from) {
  const Packed<S> packed = *reinterpret_cast<const Packed<S>*>(from);  // a copy: else it is read word by word
  unpack(x, packed);
}
__device__ inline void store_vector(float* to, const float (&x)[kNeighbours]) {
  auto* at = reinterpret_cast<Bytes16<float>*>(to);
  at[0] = {x[0], x[1], x[2], x[3]}, at[1] = {x[4], x[5], x[6], x[7]};
}
__device__ inline void store_vector(BFloat16* to, const float (&x)[kNeighbours]) {
  store_words(to, {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])});
}
/// Neighbours of any type, bit for bit: one, or as many as fill pieces of 16 bytes at a multiple of 16.
template <class T, int count> __device__ void load_neighbours(T (&x)[count], const T* from) {
  if constexpr (count == 1) {
    x[0] = from[0];
  } else {
    Bytes16<uint32_t> pieces[count * sizeof(T) / 16];
    static_assert(sizeof pieces == sizeof x);
#pragma unroll
    for (std::size_t p = 0; p < std::size(pieces); ++p) pieces[p] = reinterpret_cast<const Bytes16<uint32_t>*>(from)[p];
    memcpy(x, pieces, sizeof x);
  }
}
template <class T, int count> __device__ void store_neighbours(T* to, const T (&x)[count]) {
  if constexpr (count == 1) {
    to[0] = x[0];
  } else {
    uint32_t words[count * sizeof(T) / 16][4];
    static_assert(sizeof words == sizeof x);
    memcpy(words, x, sizeof x);
#pragma unroll
    for (std::size_t p = 0; p < std::size(words); ++p)
      store_words(reinterpret_cast<Bytes16<uint32_t>*>(to) + p, words[p]);
  }
}
inline bool is_aligned_16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % sizeof(Bytes16<float>) == 0; }

/// Element i of memory that holds T or, if narrow, bf16.
template <class T> __device__ T load(const void* from, int64_t i, bool narrow) {
  if constexpr (std::is_same_v<T, float>)
    if (narrow) return to_float(static_cast<const BFloat16*>(from)[i]);
  return static_cast<const T*>(from)[i];
}
template <class T> __device__ void store(void* to, int64_t i, T value, bool narrow) {
  if constexpr (std::is_same_v<T, float>)
    if (narrow) return void(static_cast<BFloat16*>(to)[i] = BFloat16(value));
  static_cast<T*>(to)[i] = value;
}

/// The same for eight neighbours from i on.
__device__ inline void load_vector(float (&x)[kNeighbours], const void* from, int64_t i, bool narrow) {
  if (narrow) load_vector(x, static_cast<const BFloat16*>(from) + i);
  else load_vector(x, static_cast<const float*>(from) + i);
}
__device__ inline void store_vector(void* to, int64_t i, const float (&x)[kNeighbours], bool narrow) {
  if (narrow) store_vector(static_cast<BFloat16*>(to) + i, x);
  else store_vector(static_cast<float*>(to) + i, x);
}

/// True if elements 8i … 8i + 7 are neighbours in memory for every i, each group at a multiple of 16 bytes.
inline bool walks_in_vectors(const sluice::detail::StridedRange& walk, const void* base, std::size_t size) {
  if (!is_aligned_16(base)) return false;
  if (walk.contiguous) return true;
  const int last = walk.rank - 1;
  if (last < 0 || walk.strides[last] != 1 || walk.shape[last] % kNeighbours) return false;
  for (int d = 0; d < last; ++d)
    if (walk.strides[d] * static_cast<int64_t>(size) % 16) return false;
  return true;
}
/// True if elements 8i … 8i + 7 are one element, for every i.
inline bool repeats_in_vectors(const sluice::detail::StridedRange& walk) {
  const int last = walk.rank - 1;
  return last >= 0 && !walk.contiguous && walk.strides[last] == 0 &&
         (walk.rank == 1 || walk.shape[last] % kNeighbours == 0);
}

template <class Body> __global__ void __launch_bounds__(kThreads, 3) for_each_vector_kernel(Body body, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = first; i < n / kNeighbours; i += step) body.vector(kNeighbours * i);
  if (const int64_t i = n / kNeighbours * kNeighbours + first; i < n) body(i);  // fewer than a block has threads
}
/// body.vector(i) for i = 0, 8, 16 … while i + 8 <= n, and body(i) for the rest.
template <class Body> void for_each_vector(int64_t n, const Body& body) {
  if (n < kNeighbours) return for_each(n, body);
  const int64_t blocks = std::min(ceil_div(n / kNeighbours, kThreads), kMostBlocks);
  launch(for_each_vector_kernel<Body>, grid_of(blocks), dim3(kThreads), 0, body, n);
}

}  // namespace sluice::cuda
