// Kernels that take one row after the other. A team computes a row: a warp if rows are short, so that a block has eight
// teams, else a whole block. The threads of a team exchange values by shuffles and, across warps, through shared
// memory. Results do not depend on the schedule.
#pragma once

#include <sluice/core/number/arithmetic.h>
#include <sluice/cuda/tensors.h>

#include <cstring>

namespace sluice::cuda {

constexpr int64_t kShortRow = 1024;  // elements up to which a warp takes a row alone

struct Add {
  template <class T> __device__ T operator()(T a, T b) const { return sluice::detail::sum_of(a, b); }
};
/// __shfl_xor_sync for any T of whole words.
template <class T> __device__ T shuffle_xor(T x, int step) {
  if constexpr (std::is_arithmetic_v<T>) {
    return __shfl_xor_sync(kAllLanes, x, step);
  } else {
    static_assert(sizeof(T) % sizeof(uint32_t) == 0);
    uint32_t words[sizeof(T) / sizeof(uint32_t)];
    memcpy(words, &x, sizeof(T));
#pragma unroll
    for (uint32_t& word : words) word = __shfl_xor_sync(kAllLanes, word, step);
    memcpy(&x, words, sizeof(T));
    return x;
  }
}

/// The running thread's place in its team of `threads`.
template <int threads> __device__ int rank_in_team() { return static_cast<int>(threadIdx.x) % threads; }

/// op over one value from each thread of the team; all get the same bits. op must be associative and commutative.
template <int threads, class T, class Op> __device__ T over_team(T x, Op op) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = op(x, shuffle_xor(x, step));
  if constexpr (threads > kWarp) {
    const Shared<T> of_warp = static_shared<T, threads / kWarp, Op>();
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    __syncthreads();  // the values of the last call have been read
    if (threadIdx.x % kWarp == 0) of_warp[warp] = x;
    __syncthreads();
    x = of_warp[0];
    for (int w = 1; w < threads / kWarp; ++w) x = op(x, T(of_warp[w]));
  }
  return x;
}

template <int threads, class Row>
__global__ void __launch_bounds__(kThreads, 3) for_each_row_kernel(Row body, int64_t rows) {
  const int64_t teams = blockDim.x / threads, team = threadIdx.x / threads;
  for (int64_t row = blockIdx.x * teams + team; row < rows; row += gridDim.x * teams)
    body.template operator()<threads>(row);
}
/// body<threads>(row) for 0 <= row < rows, called by every thread of the row's team. `width`: elements of a row.
template <class Row> void for_each_row(int64_t rows, int64_t width, Row body) {
  if (rows == 0) return;
  const int64_t teams = std::min<int64_t>(rows, kThreads / kWarp);
  if (width <= kShortRow)
    launch(for_each_row_kernel<kWarp, Row>, grid_of((rows + teams - 1) / teams),
           dim3(static_cast<unsigned>(teams * kWarp)), 0, body, rows);
  else launch(for_each_row_kernel<kThreads, Row>, grid_of(rows), dim3(kThreads), 0, body, rows);
}

}  // namespace sluice::cuda
