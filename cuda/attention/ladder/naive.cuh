// Rung 1: a warp takes a query and one key after the other. The row of q and the output stay in the registers of the
// warp, D/32 numbers a lane. The lanes sum the dot product of a score by shuffles. Softmax is computed online, so that
// no row of scores is stored. Any D and DV up to 256, f32.
// What limits it: every key and value is read from memory (at best from a cache) once for each query, 8·D bytes for 4·D
// operations, and each score waits for five shuffles that depend on each other.
#pragma once

#include <sluice/cuda/attention/policies.h>

namespace sluice::cuda {

constexpr int kNaiveWarps = 4;

/// grid (⌈m / 4⌉, heads, batch), blocks of 128 threads, no shared memory.
template <int D, int DV, class Weighting, class Mask, class Gate>
__global__ void __launch_bounds__(128) attention_naive(AttentionProblem<float> p, Mask mask) {
  static_assert(D <= 256 && DV <= 256);
  constexpr int per_lane = ceil_div(D, kWarp), v_per_lane = ceil_div(DV, kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int i = static_cast<int>(blockIdx.x) * kNaiveWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (i >= p.m) return;  // the whole warp
  const int head = static_cast<int>(blockIdx.y);
  const AttentionHead<float, D, DV> h(p, static_cast<int>(blockIdx.z), head);

  float q[per_lane], acc[v_per_lane] = {};
#pragma unroll
  for (int c = 0; c < per_lane; ++c) {
    const int at = c * kWarp + lane;
    q[c] = at < D ? h.q[std::ptrdiff_t{i} * D + at] * p.scale : 0.0f;
  }
  float largest = kMinusInfinity, sum = 0;
  if (Weighting::online && p.sink && p.sink[head] > kMinusInfinity) largest = p.sink[head], sum = 1;

  const KeySpan span = mask.of(position_of(p, i), p.n);
  for (int j = span.begin; j < span.end; ++j) {
    if (h.keys && !h.keys[j]) continue;
    float dot = 0;
#pragma unroll
    for (int c = 0; c < per_lane; ++c) {
      const int at = c * kWarp + lane;
      if (at < D) dot += q[c] * h.k[std::ptrdiff_t{j} * D + at];
    }
    const float s = sum_over_lanes(dot);
    float w, keep = 1;
    if constexpr (Weighting::online) {
      const float before = largest;
      largest = fmaxf(largest, s);
      const float shift = largest == kMinusInfinity ? 0.0f : largest;  // a score of −∞ has weight 0
      keep = math::exp(before - shift), w = math::exp(s - shift);
      sum = sum * keep + w;
    } else {
      w = Weighting::weight(s);
    }
#pragma unroll
    for (int c = 0; c < v_per_lane; ++c) {
      const int at = c * kWarp + lane;
      if (at < DV) acc[c] = acc[c] * keep + w * h.v[std::ptrdiff_t{j} * DV + at];
    }
  }

  float norm = 1;
  if constexpr (Weighting::online) {
    norm = sum == 0 ? 0.0f : 1 / sum;
    if (p.lse && lane == 0) p.lse[h.row + i] = sum == 0 ? kMinusInfinity : largest + math::log(sum);
  }
#pragma unroll
  for (int c = 0; c < v_per_lane; ++c) {
    const int at = c * kWarp + lane;
    if (at >= DV) continue;
    float y = acc[c] * norm;
    if constexpr (Gate::any) y *= Gate::factor(p.gate, h.row + i, DV, at);
    h.out[std::ptrdiff_t{i} * DV + at] = y;
  }
}

/// Runs attention_naive over a whole problem.
template <int D, int DV, class Weighting, class Mask, class Gate>
void run_attention_naive(const AttentionProblem<float>& p, Mask mask) {
  launch(attention_naive<D, DV, Weighting, Mask, Gate>, grid_of(ceil_div(p.m, kNaiveWarps), p.heads, p.batch),
         dim3(kNaiveWarps * kWarp), 0, p, mask);
}

}  // namespace sluice::cuda
