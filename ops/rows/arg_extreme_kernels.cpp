// The loops of argmax and argmin.
#include <sluice/ops/kernels.h>

#include <sluice/core/number/math.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/rows/extremes.h>

#include <algorithm>
#include <type_traits>
#include <vector>

namespace sluice {

namespace {

using namespace detail::reduction;

/// True if a comes before b: NaN before numbers, then the larger (or smaller) number. False if they are equal.
template <bool largest, class T> bool before(T a, T b) { return ((largest ? a > b : a < b) | (a != a)) & (b == b); }
template <class T> T pick(bool first, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return math::select(first, a, b);
  else return first ? a : b;
}

/// Place of the first best of n numbers: the best of each block, then its place in the best block.
template <bool largest, class T> int64_t best_of_run(const T* p, int64_t n) {
  if (n < kLanes) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; ++i) best = before<largest>(p[i], p[best]) ? i : best;
    return best;
  }
  int64_t at = 0;
  T best = p[0];
  for (int64_t b = 0; b < n && best == best; b += kBlock) {
    const T of_block = extreme_of_run<ExtremeOp<largest>>(p + b, std::min(kBlock, n - b));
    if (before<largest>(of_block, best)) best = of_block, at = b;
  }
  if (best != best) {
    while (p[at] == p[at]) ++at;
    return at;
  }
  for (; at + kLanes <= n; at += kLanes) {
    int found = 0;
    for (int k = 0; k < kLanes; ++k) found += p[at + k] == best;
    if (found > 0) break;
  }
  while (p[at] != best) ++at;
  return at;
}

/// Places of the first best of each of m columns, at most kLanes, of x [n, inner].
template <bool largest, class T>
void best_of_columns(const T* x, int64_t n, int64_t inner, int64_t m, int64_t first, int64_t* out) {
  using Place = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;  // as wide as T, for the vectoriser
  T best[kLanes];
  Place place[kLanes] = {};
  std::copy_n(x, m, best);
  for (int64_t r = 1; r < n; ++r) {
    const T* row = x + r * inner;
    for (int64_t k = 0; k < m; ++k) {
      const bool better = before<largest>(row[k], best[k]);
      best[k] = pick(better, row[k], best[k]);
      place[k] = better ? static_cast<Place>(r) : place[k];
    }
  }
  for (int64_t k = 0; k < m; ++k) out[k] = first + place[k];
}

/// Finds the places in pieces of x, in parallel, and then the best of these.
template <bool largest, class T> void arg_extreme(const T* x, int64_t* out, ReduceShape s) {
  constexpr int64_t task = 1 << 15;
  const int64_t strip = std::min<int64_t>(s.inner, kLanes), strips = ceil_div(s.inner, strip);
  const int64_t length = s.n * strip > 2 * task ? task / strip : s.n, pieces = ceil_div(s.n, length);
  if (s.inner == 1 && pieces == 1)
    return parallel_for(s.outer, ceil_div(task, s.n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = best_of_run<largest>(x + i * s.n, s.n);
    });
  std::vector<int64_t> part(static_cast<std::size_t>(pieces > 1 ? s.outer * pieces * s.inner : 0));
  int64_t* places = pieces > 1 ? part.data() : out;  // [outer, pieces, inner]
  parallel_for(s.outer * pieces * strips, ceil_div(task, length * strip), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = i / strips, column = i % strips * strip, first = block % pieces * length;
      const int64_t n = std::min(length, s.n - first);
      const T* from = x + (block / pieces * s.n + first) * s.inner + column;
      int64_t* to = places + block * s.inner + column;
      if (s.inner == 1) *to = first + best_of_run<largest>(from, n);
      else best_of_columns<largest>(from, n, s.inner, std::min(strip, s.inner - column), first, to);
    }
  });
  for (int64_t i = 0; pieces > 1 && i < s.outer * s.inner; ++i) {
    const int64_t o = i / s.inner, column = i % s.inner;
    const T* from = x + o * s.n * s.inner + column;
    int64_t best = places[o * pieces * s.inner + column];
    for (int64_t piece = 1; piece < pieces; ++piece) {
      const int64_t other = places[(o * pieces + piece) * s.inner + column];
      if (before<largest>(from[other * s.inner], from[best * s.inner])) best = other;
    }
    out[i] = best;
  }
}

void arg_extreme_cpu(bool largest, const Tensor& x, Tensor& index, ReduceShape s) {
  int64_t* out = index.mutable_data<int64_t>();
  dispatch_all(x.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, BFloat16>) {  // bf16 comes widened (core/kernel/kernel.h)
      using Number = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
      const auto* in = reinterpret_cast<const Number*>(x.data<T>());
      if (largest) arg_extreme<true>(in, out, s);
      else arg_extreme<false>(in, out, s);
    }
  });
}

}  // namespace

constinit decltype(kernel::arg_extreme) kernel::arg_extreme{"arg_extreme", &arg_extreme_cpu};

}  // namespace sluice
