// c = a·b + bias on ordinary cores, operands of any strides. A block computes `tile`×`tile` numbers of c and loads 16
// of k at a time into shared memory. A thread keeps each×each sums in registers, so a number read from shared memory is
// used `each` times.
// What limits it: shared memory, two reads of it for every `each` multiply-adds; large products go to cuBLASLt
// (blas.h). Each element is summed in the order of k, whatever n, m and the batch are.
#pragma once

#include <sluice/core/kernel/strided.h>
#include <sluice/cuda/tensors.h>

namespace sluice::cuda {

template <class T> struct GemmProblem {
  const T *a, *b, *bias;
  T* c;
  int64_t n, m, k, a_row, a_col, b_row, b_col;
  int64_t row_tiles = 0, col_tiles = 0, tiles = 0;  // of c, set by run_gemm(); `tiles`: of the whole batch
  sluice::detail::StridedRange a_batch, b_batch;    // where the matrices of the batch begin
};

/// Copies rows × 16 numbers into to[16][rows + 1]; zeros outside. Neighbouring threads read along the dense dim.
template <class T, int rows, int threads>
__device__ void load_panel(Shared<T> to, const T* from, int64_t first, int64_t row_stride, int64_t col_stride,
                           int64_t n_rows, int64_t depth) {
  for (int e = static_cast<int>(threadIdx.x); e < rows * 16; e += threads) {
    const int r = col_stride == 1 ? e / 16 : e % rows, l = col_stride == 1 ? e % 16 : e / rows;
    const bool inside = first + r < n_rows && l < depth;
    to[l * (rows + 1) + r] = inside ? from[(first + r) * row_stride + l * col_stride] : T(0);
  }
}

template <class T, int tile, int each>
__global__ void __launch_bounds__((tile / each) * (tile / each)) gemm_kernel(GemmProblem<T> p) {
  constexpr int across = tile / each, threads = across * across;
  struct PanelA;
  struct PanelB;
  const Shared<T> a = static_shared<T, 16 * (tile + 1), PanelA>(), b = static_shared<T, 16 * (tile + 1), PanelB>();
  const int tx = static_cast<int>(threadIdx.x) % across, ty = static_cast<int>(threadIdx.x) / across;
  for (int64_t t = blockIdx.x; t < p.tiles; t += gridDim.x) {
    const int64_t matrix = t / (p.row_tiles * p.col_tiles), row = t / p.col_tiles % p.row_tiles * tile,
                  col = t % p.col_tiles * tile;
    const T *from_a = p.a + offset_at(p.a_batch, matrix), *from_b = p.b + offset_at(p.b_batch, matrix);
    T sum[each][each] = {};
    for (int64_t l0 = 0; l0 < p.k; l0 += 16) {
      const int64_t depth = p.k - l0 < 16 ? p.k - l0 : 16;
      load_panel<T, tile, threads>(a, from_a + l0 * p.a_col, row, p.a_row, p.a_col, p.n, depth);
      load_panel<T, tile, threads>(b, from_b + l0 * p.b_row, col, p.b_col, p.b_row, p.m, depth);
      __syncthreads();
      for (int l = 0; l < depth; ++l) {
        T x[each], y[each];
#pragma unroll
        for (int r = 0; r < each; ++r)
          x[r] = a[l * (tile + 1) + ty + across * r], y[r] = b[l * (tile + 1) + tx + across * r];
#pragma unroll
        for (int r = 0; r < each; ++r)
#pragma unroll
          for (int s = 0; s < each; ++s) sum[r][s] += x[r] * y[s];
      }
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < each; ++r)
#pragma unroll
      for (int s = 0; s < each; ++s) {
        const int64_t i = row + ty + across * r, j = col + tx + across * s;
        if (i < p.n && j < p.m) p.c[(matrix * p.n + i) * p.m + j] = sum[r][s] + (p.bias ? p.bias[j] : T(0));
      }
  }
}

/// Runs gemm_kernel over a whole batch.
template <class T, int tile, int each> void run_gemm(GemmProblem<T> p, int64_t batch) {
  p.row_tiles = ceil_div(p.n, tile), p.col_tiles = ceil_div(p.m, tile);
  p.tiles = batch * p.row_tiles * p.col_tiles;
  launch(gemm_kernel<T, tile, each>, grid_of(p.tiles), dim3((tile / each) * (tile / each)), 0, p);
}

}  // namespace sluice::cuda
