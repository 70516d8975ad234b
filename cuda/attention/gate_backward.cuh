// The gate of rungs 3 and 4, backward. The gated output is y = o ⊙ σ(z), where o is the output of attention. A pass
// over the rows comes before mma_backward.cuh or wgmma_backward.cuh, which need the gradient of o in bf16 and δ anyway:
//
//   do = g ⊙ σ(z), rounded    δ = Σ do ⊙ o = Σ g ⊙ y    dz = g ⊙ y ⊙ (1 − σ(z)), one per row: δ (1 − σ(z))
//
// The pass reads y, which the forward pass has written, so o is not kept, and nothing is divided by σ. A warp takes a
// row. Limited by memory: 16 bytes an element if each has a gate, of bf16 tensors 10.
#pragma once

#include <sluice/cuda/attention/policies.h>
#include <sluice/cuda/tensors.h>

namespace sluice::cuda {

/// g and y [batch, heads, m, D], gate as in AttentionProblem → out [batch, heads, m, D] and delta [batch, heads, m],
/// both contiguous, and dgate [batch, heads, m, D or 1] unless its base is null. T: float or BFloat16.
template <class T> struct GateBackwardProblem {
  HeadRows<const T> g, y;
  const BFloat16* gate;
  BFloat16* out;
  float* delta;
  HeadRows<T> dgate;
  int64_t batch, heads, m;
};

/// grid ⌈batch heads m / 4⌉, blocks of 128 threads.
template <int D, bool headwise, class T>
__global__ void __launch_bounds__(128) attention_gate_backward(GateBackwardProblem<T> p) {
  using Gate = SigmoidGate<headwise>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = int64_t{blockIdx.x} * 4 + threadIdx.x / kWarp, b = row / p.m / p.heads, h = row / p.m % p.heads,
                i = row % p.m;
  if (b >= p.batch) return;  // the whole warp
  const T *g = p.g.at(b, h, i), *y = p.y.at(b, h, i);
  T* dgate = p.dgate.base ? p.dgate.at(b, h, i) : nullptr;
  float sum = 0;
#pragma unroll
  for (int column = 2 * lane; column < D; column += 2 * kWarp) {
    float x[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int at = column + e;
      const float upstream = to_float(g[at]), gy = upstream * to_float(y[at]);
      const float factor = Gate::factor(p.gate, row, D, at);
      sum += gy, x[e] = upstream * factor;
      if constexpr (!headwise)
        if (dgate) dgate[at] = T(gy * (1 - factor));
    }
    *reinterpret_cast<uint32_t*>(p.out + row * D + column) = pack_bf16(x[0], x[1]);
  }
  const float delta = sum_over_lanes(sum);
  if (lane != 0) return;
  p.delta[row] = delta;
  if constexpr (headwise)
    if (dgate) *dgate = T(delta * (1 - Gate::factor(p.gate, row, D, 0)));
}

/// Runs attention_gate_backward over a whole problem.
template <int D, bool headwise, class T> void run_attention_gate_backward(const GateBackwardProblem<T>& p) {
  launch(attention_gate_backward<D, headwise, T>, grid_of(ceil_div(p.batch * p.heads * p.m, 4)), dim3(128), 0, p);
}

}  // namespace sluice::cuda
