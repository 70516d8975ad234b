// Rung 2: tiles. A block of 128 threads computes 64 queries at once and loads 32 keys and values at a time into shared
// memory for all of them. A thread computes 4×4 scores and, for the same four queries, every eighth output column, so
// that a number read from shared memory is used four times. Softmax needs the largest score of a row; the eight threads
// of a row are neighbouring lanes. Any D and DV, f32 only.
// What limits it: 8 reads of shared memory for 16 multiply-adds, from one of 32 banks a lane; no loads are under way
// while it computes; and f32 arithmetic itself, a fifteenth of the rate of tensor cores in bf16.
#pragma once

#include <sluice/cuda/attention/policies.h>

namespace sluice::cuda {

template <int D, int DV> struct SimtTile {
  static constexpr int threads = 128, rows = 64, cols = 32;
  static constexpr int q = 0, k = q + rows * (D + 1), v = k + cols * (D + 1), w = v + cols * DV,
                       end = w + rows * (cols + 1);
  static constexpr std::size_t bytes = end * sizeof(float);
};

/// grid (⌈m / 64⌉, heads, batch), blocks of 128 threads, SimtTile<D, DV>::bytes of shared memory.
template <int D, int DV, class Weighting, class Mask, class Gate>
__global__ void __launch_bounds__(128) attention_simt(AttentionProblem<float> p, Mask mask) {
  using Tile = SimtTile<D, DV>;
  constexpr int rows = Tile::rows, cols = Tile::cols, across = 8, each = 4, v_each = ceil_div(DV, across);
  const Shared<float> memory = dynamic_shared<float>();
  const Shared<float> q = memory + Tile::q, k = memory + Tile::k, v = memory + Tile::v, w = memory + Tile::w;
  const int thread = static_cast<int>(threadIdx.x), tx = thread % across, ty = thread / across;
  const int first = static_cast<int>(blockIdx.x) * rows, last = first + rows < p.m ? first + rows - 1 : p.m - 1;
  const int head = static_cast<int>(blockIdx.y);
  const AttentionHead<float, D, DV> h(p, static_cast<int>(blockIdx.z), head);

  for (int e = thread; e < rows * D; e += Tile::threads) {
    const int i = first + e / D;
    q[e / D * (D + 1) + e % D] = i < p.m ? h.q[std::ptrdiff_t{i} * D + e % D] * p.scale : 0.0f;
  }
  float acc[each][v_each] = {}, largest[each], sum[each];
#pragma unroll
  for (int r = 0; r < each; ++r) {
    largest[r] = kMinusInfinity, sum[r] = 0;
    if (Weighting::online && p.sink && p.sink[head] > kMinusInfinity) largest[r] = p.sink[head], sum[r] = tx == 0;
  }

  const KeySpan low = mask.of(position_of(p, first), p.n), high = mask.of(position_of(p, last), p.n);
  for (int j0 = low.begin / cols * cols; j0 < high.end; j0 += cols) {
    __syncthreads();  // all threads have used the previous tile
    const auto seen = [&](int j) { return j < p.n && (!h.keys || h.keys[j]); };
    for (int e = thread; e < cols * D; e += Tile::threads)
      k[e / D * (D + 1) + e % D] = seen(j0 + e / D) ? h.k[std::ptrdiff_t{j0} * D + e] : 0.0f;
    for (int e = thread; e < cols * DV; e += Tile::threads)
      v[e] = seen(j0 + e / DV) ? h.v[std::ptrdiff_t{j0} * DV + e] : 0.0f;
    __syncthreads();

    float s[each][each] = {};
    for (int d = 0; d < D; ++d) {
      float x[each], y[each];
#pragma unroll
      for (int r = 0; r < each; ++r) x[r] = q[(ty * each + r) * (D + 1) + d], y[r] = k[(tx + across * r) * (D + 1) + d];
#pragma unroll
      for (int r = 0; r < each; ++r)
#pragma unroll
        for (int c = 0; c < each; ++c) s[r][c] += x[r] * y[c];
    }

    // Only a tile on the edge of the mask checks each pair.
    const bool edge = h.keys || j0 < high.begin || j0 + cols > low.end;
#pragma unroll
    for (int r = 0; r < each; ++r) {
      const KeySpan span = mask.of(position_of(p, first + ty * each + r), p.n);
      bool hidden[each];
#pragma unroll
      for (int c = 0; c < each; ++c) {
        const int j = j0 + tx + across * c;
        hidden[c] = edge && (j < span.begin || j >= span.end || !seen(j));
      }
      if constexpr (Weighting::online) {
        float top = largest[r];
#pragma unroll
        for (int c = 0; c < each; ++c) top = fmaxf(top, s[r][c] = hidden[c] ? kMinusInfinity : s[r][c]);
        top = max_over_lanes<across>(top);
        const float shift = top == kMinusInfinity ? 0.0f : top, keep = math::exp(largest[r] - shift);
        largest[r] = top, sum[r] *= keep;
#pragma unroll
        for (int c = 0; c < each; ++c) sum[r] += s[r][c] = math::exp(s[r][c] - shift);
#pragma unroll
        for (int c = 0; c < v_each; ++c) acc[r][c] *= keep;
      } else {
#pragma unroll
        for (int c = 0; c < each; ++c) s[r][c] = hidden[c] ? 0.0f : Weighting::weight(s[r][c]);
      }
#pragma unroll
      for (int c = 0; c < each; ++c) w[(ty * each + r) * (cols + 1) + tx + across * c] = s[r][c];
    }
    __syncwarp();  // the weights of a row stay within its eight lanes

    for (int j = 0; j < cols; ++j) {
      float x[each];
#pragma unroll
      for (int r = 0; r < each; ++r) x[r] = w[(ty * each + r) * (cols + 1) + j];
#pragma unroll
      for (int c = 0; c < v_each; ++c) {
        if (tx + across * c >= DV) continue;
        const float y = v[j * DV + tx + across * c];
#pragma unroll
        for (int r = 0; r < each; ++r) acc[r][c] += edge && x[r] == 0 ? 0.0f : x[r] * y;  // hidden values may be NaN
      }
    }
  }

#pragma unroll
  for (int r = 0; r < each; ++r) {
    const int i = first + ty * each + r;
    float norm = 1;
    if constexpr (Weighting::online) {
      const float total = sum_over_lanes<across>(sum[r]);
      norm = total == 0 ? 0.0f : 1 / total;
      if (p.lse && tx == 0 && i < p.m) p.lse[h.row + i] = total == 0 ? kMinusInfinity : largest[r] + math::log(total);
    }
    if (i >= p.m) continue;
#pragma unroll
    for (int c = 0; c < v_each; ++c) {
      const int at = tx + across * c;
      if (at >= DV) continue;
      float y = acc[r][c] * norm;
      if constexpr (Gate::any) y *= Gate::factor(p.gate, h.row + i, DV, at);
      h.out[std::ptrdiff_t{i} * DV + at] = y;
    }
  }
}

/// Runs attention_simt over a whole problem.
template <int D, int DV, class Weighting, class Mask, class Gate>
void run_attention_simt(const AttentionProblem<float>& p, Mask mask) {
  using Tile = SimtTile<D, DV>;
  launch(attention_simt<D, DV, Weighting, Mask, Gate>, grid_of(ceil_div(p.m, Tile::rows), p.heads, p.batch),
         dim3(Tile::threads), Tile::bytes, p, mask);
}

}  // namespace sluice::cuda
