// y_t = φ(p_t), p_t = Σ_j w_j ⊙ x_{t+j−(width−1)} + bias, and its gradients (ops/scan/causal_conv.cpp has the
// formulas). A thread walks along a piece of one channel and keeps the last `width` rows, so that it reads x and g
// once, several rows before it needs the first of them. Limited by memory.
#include <sluice/core/number/dual.h>
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>
#include <sluice/ops/elementwise/formulas.h>

namespace sluice::cuda {

namespace {

constexpr int kAhead = 8;          // loads under way in a thread: one, of 2 bytes in bf16, would leave memory idle
constexpr int64_t kMostRows = 64;  // of a walk
#ifdef __CUDACC__
constexpr int64_t kWalks = 100'000;  // walks are shorter where there would be fewer: a device has 270,000 threads
#else
constexpr int64_t kWalks = 100;  // so that small tests have walks of all lengths
#endif
static_assert(kAhead >= kernel::kCausalConvWidth);  // rows before a walk are all of x, or none is

/// What numbers stored as S are computed in.
template <class S> using Computed = std::conditional_t<std::is_same_v<S, BFloat16>, float, S>;
template <class S> __device__ Computed<S> number(const S* at) {
  return load<Computed<S>>(at, 0, std::is_same_v<S, BFloat16>);
}

/// The last `width` numbers of a column.
template <class T, int width> struct Window {
  T last[width] = {};
  __device__ void push(T x) {
#pragma unroll
    for (int j = 0; j + 1 < width; ++j) last[j] = last[j + 1];
    last[width - 1] = x;
  }
};

template <class S, int width> struct Convolution {
  const S *x, *w, *bias, *early;  // bias, early: null where missing
  int64_t n, c, pieces, piece;    // piece: rows of a walk
  bool silu;
};

/// What one thread works on: channel k of rows from … from + rows − 1 of sequence i, and what it needs of them.
template <class S, int width> struct Walk {
  using T = Computed<S>;
  int64_t c, k, piece, i, from, first;  // first: where its first number stands in x
  int rows, behind;                     // behind: rows after it that need its last ones
  T weights[width], start;
  Window<T, width> last;  // before the walk those before `from`

  __device__ Walk(const Convolution<S, width>& o, int64_t index)
      : c(o.c), k(index % c), piece(index / c), i(piece / o.pieces), from(piece % o.pieces * o.piece),
        first((i * o.n + from) * c + k) {
    const int64_t left = o.n - from;
    rows = static_cast<int>(left < o.piece ? left : o.piece);
    behind = static_cast<int>(left - rows < width - 1 ? left - rows : width - 1);
#pragma unroll
    for (int j = 0; j < width; ++j) weights[j] = number(o.w + j * c + k);
    start = o.bias ? number(o.bias + k) : T(0);
    const S* const before = from > 0  ? o.x + first - (width - 1) * c
                            : o.early ? o.early + i * (width - 1) * c + k
                                      : nullptr;
    if (!before) return;
#pragma unroll
    for (int j = 0; j + 1 < width; ++j) last.push(number(before + j * c));
  }
  /// The channel's numbers in the next rows, of which there are `left`; 0 in those behind them.
  template <int ahead> __device__ void read(T (&next)[ahead], const S* from, int left) const {
#pragma unroll
    for (int e = 0; e < ahead; ++e) next[e] = e < left ? number(from + e * c) : T(0);
  }
  /// p of the last row.
  __device__ T sum() const {
    T p = start;
#pragma unroll
    for (int j = 0; j < width; ++j) p += weights[j] * last.last[j];
    return p;
  }
};

template <class S, int width> struct ConvolutionForward {
  Convolution<S, width> o;
  S* y;
  __device__ void operator()(int64_t index) const {
    using T = Computed<S>;
    Walk<S, width> walk(o, index);
    const S* from = o.x + walk.first;
    S* to = y + walk.first;
#pragma unroll 1
    for (int left = walk.rows; left > 0; left -= kAhead, from += kAhead * o.c, to += kAhead * o.c) {
      T next[kAhead];
      walk.read(next, from, left);
#pragma unroll
      for (int e = 0; e < kAhead; ++e) {
        walk.last.push(next[e]);
        const T p = walk.sum(), v = o.silu ? formula::Silu()(Value<T>{p, {}}).v : p;
        if (e < left) to[e * o.c] = S(v);
      }
    }
  }
};

/// dx_s is known when h_{s+width−1} is. Sums of dw and dbias over a piece go to part [piece, width + 1, c].
template <class S, int width> struct ConvolutionBackward {
  using T = Computed<S>;
  static constexpr int ahead = kAhead / 2;  // of x and of g
  Convolution<S, width> o;
  const S* g;
  S *dx, *dearly;  // null if not wanted
  double* part;    // null if not wanted
  __device__ void operator()(int64_t index) const {
    Walk<S, width> walk(o, index);
    Window<T, width> h;
    T sums[width + 1] = {};
#pragma unroll 1
    for (int row = 0; row < walk.rows + width - 1; row += ahead) {
      T next[ahead], slope[ahead];
      const int64_t at = walk.first + row * o.c;
      walk.read(next, o.x + at, walk.rows + walk.behind - row);
      walk.read(slope, g + at, walk.rows + walk.behind - row);
#pragma unroll
      for (int e = 0; e < ahead; ++e) {
        walk.last.push(next[e]);
        h.push(row + e < walk.rows + walk.behind ? slope_times(slope[e], walk) : T(0));
        if (row + e < walk.rows) {
#pragma unroll
          for (int j = 0; j < width; ++j) sums[j] += h.last[width - 1] * walk.last.last[j];
          sums[width] += h.last[width - 1];
        }
        const int to = row + e - (width - 1);  // the row whose gradient is known now
        if (to >= walk.rows || (to >= 0 ? !dx : walk.from > 0 || !dearly)) continue;
        T d = 0;
#pragma unroll
        for (int j = 0; j < width; ++j) d += walk.weights[j] * h.last[width - 1 - j];
        if (to >= 0) dx[walk.first + to * o.c] = S(d);
        else dearly[((walk.i + 1) * (width - 1) + to) * o.c + walk.k] = S(d);
      }
    }
    if (!part) return;
#pragma unroll
    for (int j = 0; j <= width; ++j) part[(walk.piece * (width + 1) + j) * o.c + walk.k] = static_cast<double>(sums[j]);
  }

 private:
  /// h_t = g_t · φ'(p_t) of the last row
  __device__ T slope_times(T gradient, const Walk<S, width>& walk) const {
    if (!o.silu) return gradient;
    return gradient * formula::Silu()(Dual<T, 1>::variable(walk.sum(), 0, T(1))).d[0];
  }
};

template <class S> struct StoreParameters {
  S *dw, *dbias;    // null if not wanted
  int64_t weights;  // numbers of dw
  __device__ void operator()(int64_t i, double total) const {
    S* const to = i < weights ? dw : dbias;
    if (to) to[i < weights ? i : i - weights] = S(static_cast<Computed<S>>(total));
  }
};

/// Calls f<S, width>, where numbers are stored as S.
template <class F> void dispatch_width(DType dtype, int64_t width, F f) {
  static_assert(kernel::kCausalConvWidth == 4);
  const auto with_width = [&]<class S>() {
    if (width == 1) f.template operator()<S, 1>();
    if (width == 2) f.template operator()<S, 2>();
    if (width == 3) f.template operator()<S, 3>();
    if (width == 4) f.template operator()<S, 4>();
  };
  if (dtype == bf16) with_width.template operator()<BFloat16>();
  else dispatch_float("causal_conv1d", dtype, with_width);
}

template <class S, int width>
Convolution<S, width> operands(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before,
                               bool silu) {
  const int64_t n = x.dim(-2), piece = std::clamp(x.numel() / kWalks / kAhead * kAhead, int64_t{kAhead}, kMostRows);
  return {.x = data_of<S>(x),
          .w = data_of<S>(weight),
          .bias = data_or_null<S>(bias),
          .early = width > 1 ? data_or_null<S>(before) : nullptr,
          .n = n,
          .c = x.dim(-1),
          .pieces = ceil_div(n, piece),
          .piece = piece,
          .silu = silu};
}

}  // namespace

void causal_conv(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before, bool silu,
                 Tensor& y) {
  dispatch_width(x.dtype(), weight.dim(0), [&]<class S, int width>() {
    const auto o = operands<S, width>(x, weight, bias, before, silu);
    for_each(x.numel() / o.n * o.pieces, ConvolutionForward<S, width>{o, data_of<S>(y)});
  });
}

void causal_conv_backward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before,
                          const Tensor& g, bool silu, Tensor& dx, Tensor& dweight, Tensor& dbias, Tensor& dbefore) {
  dispatch_width(x.dtype(), weight.dim(0), [&]<class S, int width>() {
    const auto o = operands<S, width>(x, weight, bias, before, silu);
    const int64_t walks = x.numel() / o.n * o.pieces, sums = (width + 1) * o.c;
    const bool wanted = dweight.defined() || dbias.defined();
    const Scratch<double> part(static_cast<std::size_t>(wanted ? walks * (width + 1) : 0));
    for_each(walks, ConvolutionBackward<S, width>{o, data_of<S>(g), data_or_null<S>(dx),
                                                  width > 1 ? data_or_null<S>(dbefore) : nullptr,
                                                  wanted ? part.get() : nullptr});
    if (wanted)
      reduce_to<SumOf<double>>({1, walks / o.c, sums}, LoadPart<double>{part.get()},
                               StoreParameters<S>{data_or_null<S>(dweight), data_or_null<S>(dbias), width * o.c});
  });
}

}  // namespace sluice::cuda
