// Attention over parts of the keys: few queries, as in a step of decoding, give too few blocks, so each block takes a
// part of the keys, and the results of the parts are joined in their order (split-KV; Dao et al. 2023).
#pragma once

#include <sluice/cuda/tensors.h>

#include <cmath>
#include <limits>

namespace sluice::cuda {

/// What blocks leave of each query [batch, heads, m] and part: the largest score, the sum of the weights, and dv sums
/// of weighted values. Softmax counts weights and values from the largest score on.
template <class T> struct PartsOfKeys {
  int64_t batch, heads, m, dv, parts;
  T* found;
  bool softmax;
  const T* sink;      // the score of one more key of a head, or null
  int64_t sink_head;  // its stride
  T* lse;             // of each query, or null

  __device__ T* at(int64_t row, int64_t part) const { return found + (row * parts + part) * (dv + 2); }
  /// Numbers that found has room for.
  std::size_t size() const { return static_cast<std::size_t>(batch * heads * m * parts * (dv + 2)); }
};

/// The end of a row of softmax: adds the sink (if not null), and gives the factor of the row's sum and lse.
template <class T> struct RowEnd {
  T factor = 1, lse = 0;
  __device__ RowEnd(const T* sink, T top, T total) {
    constexpr T inf = std::numeric_limits<T>::infinity();
    if (sink) {
      const T extra = *sink, now = extra > top ? extra : top, shift = now == -inf ? T(0) : now;
      factor = top == -inf ? T(0) : math::exp(top - shift);
      total = total * factor + math::exp(extra - shift), top = now;
    }
    factor = total == T(0) ? T(0) : factor / total;
    lse = total == T(0) ? -inf : (top == -inf ? T(0) : top) + math::log(total);
  }
};

constexpr int kJoinThreads = 128;
/// Joins the results of a row from its parts; a block takes a row.
template <class T, class Out>
__global__ void __launch_bounds__(kJoinThreads) join_parts(PartsOfKeys<T> p, HeadRows<Out> to) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  for (int64_t row = blockIdx.x; row < p.batch * p.heads * p.m; row += gridDim.x) {
    const int64_t b = row / p.m / p.heads, h = row / p.m % p.heads, i = row % p.m;
    T top = -inf, total = 0, factor = 1;
    if (p.softmax) {
#pragma unroll 4
      for (int64_t part = 0; part < p.parts; ++part) top = p.at(row, part)[0] > top ? p.at(row, part)[0] : top;
      const T shift = top == -inf ? T(0) : top;
#pragma unroll 4
      for (int64_t part = 0; part < p.parts; ++part)
        total += p.at(row, part)[1] * math::exp(p.at(row, part)[0] - shift);
      const RowEnd<T> end(p.sink ? p.sink + h * p.sink_head : nullptr, top, total);
      factor = end.factor, top = shift;
      if (p.lse && threadIdx.x == 0) p.lse[row] = end.lse;
    }
    for (int64_t c = threadIdx.x; c < p.dv; c += kJoinThreads) {
      T sum = 0;
#pragma unroll 4
      for (int64_t part = 0; part < p.parts; ++part)
        sum += p.at(row, part)[2 + c] * (p.softmax ? math::exp(p.at(row, part)[0] - top) : T(1));
      to.at(b, h, i)[c] = sluice::detail::convert<Out>(sum * factor);
    }
  }
}
template <class T, class Out> void run_join_parts(const PartsOfKeys<T>& p, HeadRows<Out> to) {
  launch(join_parts<T, Out>, grid_of(p.batch * p.heads * p.m), dim3(kJoinThreads), 0, p, to);
}

/// How blocks share n keys: in parts of multiples of `step` keys, none of fewer than `least`. With these parts `blocks`
/// blocks for each part end first, if `at_once` of them run at a time. A round that is not full costs as much as a full
/// one, and a part as much as `cost` keys beside its own.
struct PartSizes {
  int64_t step, least, cost;
  int64_t parts_of(int64_t n, int64_t blocks, int64_t at_once) const {
    const int64_t most = std::clamp<int64_t>(n / least, 1, at_once);
    int64_t best = 1, shortest = std::numeric_limits<int64_t>::max();
    for (int64_t parts = 1; parts <= most; ++parts) {
      const int64_t time = ceil_div(blocks * parts, at_once) * (round_up(ceil_div(n, parts), step) + cost);
      if (time < shortest) best = parts, shortest = time;
    }
    return best;
  }
};

}  // namespace sluice::cuda
