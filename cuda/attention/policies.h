// Shared by the rungs of the attention ladder: the problem, and the policies that are template parameters of each rung
// (weighting of scores, mask, gate of the output). Conventions are those of ops/attention/attention.h.
#pragma once

#include <sluice/cuda/device.h>
#include <sluice/ops/elementwise/formulas.h>

#include <limits>

namespace sluice::cuda {

constexpr int64_t kCacheOfKeys = int64_t{32} << 20;  // the part of Hopper's L2 cache (50 MiB) for keys and values

/// q [batch, heads, m, D], k [batch, kv_heads, n, D], v [batch, kv_heads, n, DV] → out [batch, heads, m, DV]. q, k, v
/// and the rows of out must be contiguous. kv_heads must divide heads. Only n may be 0. The scores are scale·q·k; on
/// tensor cores scale must be above 0.
template <class T, class Out = T> struct AttentionProblem {
  const T *q, *k, *v;
  Out* out;
  int batch, heads, kv_heads, m, n;
  float scale;
  const uint8_t* keys = nullptr;  // [batch, n]: 0 hides a key from all queries
  const float* sink = nullptr;    // [heads], softmax only: the score of one more key, whose value is 0
  float* lse = nullptr;           // [batch, heads, m], softmax only: log of the divisor, −∞ where it is 0
  const T* gate = nullptr;        // of the shape of out, or [batch, heads, m]
  std::ptrdiff_t out_batch = 0, out_head = 0, out_row = 0;  // strides of out; all 0: it is contiguous
  int columns = 1 << 30;                                    // columns of out that rungs on tensor cores write; even
  int64_t cache = kCacheOfKeys;                             // bytes; see work_order.h
};

/// One query head of a problem.
template <class T, int D, int DV, class Out = T> struct AttentionHead {
  const T *q, *k, *v;
  Out* out;
  std::ptrdiff_t out_row;
  const uint8_t* keys;
  std::ptrdiff_t row;  // the head's first query, counted over all heads

  __device__ AttentionHead(const AttentionProblem<T, Out>& p, int batch, int head) {
    const std::ptrdiff_t index = std::ptrdiff_t{batch} * p.heads + head;
    const std::ptrdiff_t kv = std::ptrdiff_t{batch} * p.kv_heads + head / (p.heads / p.kv_heads);
    row = index * p.m;
    q = p.q + row * D, out = p.out + (p.out_row ? batch * p.out_batch + head * p.out_head : row * DV);
    out_row = p.out_row ? p.out_row : DV;
    k = p.k + kv * p.n * D, v = p.v + kv * p.n * DV;
    keys = p.keys ? p.keys + std::ptrdiff_t{batch} * p.n : nullptr;
  }
};

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// -- weighting ---------------------------------------------------------------------------------------------
/// e^s divided by the sum of its row. A row keeps its largest score so far and rescales when it grows (online softmax).
struct Softmax {
  static constexpr bool online = true;
};
/// A formula of the score alone; a row needs no state but its sum.
template <class F> struct Elementwise {
  static constexpr bool online = false;
  static __device__ float weight(float s) { return F{}(Value<float>{s, {}}).v; }
  static __device__ Dual<float, 1> weight_and_slope(float s) { return F{}(Dual<float, 1>::variable(s, 0, 1.0f)); }
};
/// σ as formula::Sigmoid, with the exact division: the steps in its place need registers that tiles do not have.
struct ExactSigmoid {
  static __device__ float of(float x) { return math::logistic<float>(x, math::exp(-math::abs(x))); }
  __device__ Value<float> operator()(const Value<float>& x) const { return {of(x.v), {}}; }
  __device__ Dual<float, 1> operator()(const Dual<float, 1>& x) const {
    const float y = of(x.v);
    return {y, {x.d[0] * (y * of(-x.v))}};
  }
};
using Relu2 = Elementwise<formula::Relu2>;
using Laplace = Elementwise<formula::Laplace>;
using SigmoidWeight = Elementwise<ExactSigmoid>;
using LinearWeight = Elementwise<formula::Identity>;

// -- mask: the keys [begin, end) that a query at a position sees; both ends grow with the position ---------------
struct KeySpan {
  int begin, end;
};
struct Full {
  static constexpr bool causal = false;
  __device__ KeySpan of(int, int n) const { return {0, n}; }
};
struct Causal {
  static constexpr bool causal = true;
  __device__ KeySpan of(int position, int n) const { return {0, position + 1 < n ? position + 1 : n}; }
};
/// |p − j| < width, which is at most 2^30; with `causal` only j <= p.
struct Window {
  int width;
  bool causal;
  __device__ KeySpan of(int position, int n) const {
    const int begin = position - width + 1, end = causal ? position + 1 : position + width;
    return {begin > 0 ? begin : 0, end < n ? end : n};
  }
  /// The queries [begin, end) of m that see a key; `query` is the one at the key's position.
  __device__ KeySpan queries_of(int query, int m) const {
    const int begin = causal ? query : query - width + 1, end = query + width;
    return {begin > 0 ? begin : 0, end < m ? end : m};
  }
};
/// The position of a query; the last query has the position of the last key.
template <class Problem> __device__ int position_of(const Problem& p, int query) { return query + p.n - p.m; }

// -- gate: the factor of output element `column` of row `row`, counted over all heads ------------------------------
struct NoGate {
  static constexpr bool any = false;
};
/// σ(g), one g for each element of the output (Qiu et al. 2025), or one for each row of a head.
template <bool headwise> struct SigmoidGate {
  static constexpr bool any = true;
  template <class T> static __device__ float factor(const T* gate, std::ptrdiff_t row, int width, int column) {
    return ExactSigmoid::of(to_float(headwise ? gate[row] : gate[row * width + column]));
  }
  /// The logits of a lane's pairs of columns 8d + 2t, d < `count`, of a row of 8·count: all loads at once.
  template <int count>
  static __device__ void load(uint32_t (&z)[count], const BFloat16* gate, std::ptrdiff_t row, int t) {
    if constexpr (headwise) {
      z[0] = gate[row].bits;
    } else {
#pragma unroll
      for (int d = 0; d < count; ++d)
        z[d] = *reinterpret_cast<const uint32_t*>(gate + row * (8 * count) + 8 * d + 2 * t);
    }
  }
  /// The factor of number e of pair d.
  template <int count> static __device__ float factor(const uint32_t (&z)[count], int d, int e) {
    const uint32_t bits = headwise ? z[0] << 16 : e == 0 ? z[d] << 16 : z[d] & 0xffff0000u;
    return 1 / (1 + exp2_approx(__builtin_bit_cast(float, bits) * -1.44269504f));
  }
};

}  // namespace sluice::cuda
