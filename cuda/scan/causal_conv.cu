// y_t = φ(p_t), p_t = Σ_j w_j ⊙ x_{t+j−(width−1)} + bias, and its gradients (ops/scan/causal_conv.cpp has the
// formulas). A thread walks along a piece of a channel and keeps the last `width` rows, so that it reads x and g
// once, several rows before it needs the first of them. Of bf16 it takes two neighbouring channels at a time where it
// can: else it has more instructions for a number than memory has time. Limited by memory.
#include <sluice/core/number/dual.h>
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>
#include <sluice/ops/elementwise/formulas.h>

namespace sluice::cuda {

using sluice::detail::Computed;

namespace {

constexpr int kAhead = 8;          // loads under way in a thread: one, of 2 bytes in bf16, would leave memory idle
constexpr int64_t kMostRows = 64;  // of a walk
#ifdef __CUDACC__
constexpr int64_t kWalks = 100'000;  // walks are shorter where there would be fewer: a device has 270,000 threads
#else
constexpr int64_t kWalks = 100;  // so that small tests have walks of all lengths
#endif
static_assert(kAhead >= kernel::kCausalConvWidth);  // rows before a walk are all of x, or none is

/// The numbers of a thread's channels in one row, as they are stored; one instruction reads or writes them.
template <class S, int channels> struct alignas(sizeof(S) * channels) Stored { S x[channels]; };
/// The same, as they are computed with.
template <class T, int channels> struct Neighbours {
  T x[channels] = {};
  template <class F> static __device__ Neighbours of(F f) {
    Neighbours y;
#pragma unroll
    for (int l = 0; l < channels; ++l) y.x[l] = f(l);
    return y;
  }
  __device__ void add_product(const Neighbours& a, const Neighbours& b) {
#pragma unroll
    for (int l = 0; l < channels; ++l) x[l] += a.x[l] * b.x[l];
  }
};
template <class S, int channels> __device__ Stored<S, channels> stored(const S* at) {
  return *reinterpret_cast<const Stored<S, channels>*>(at);
}
template <class S, int channels> __device__ Neighbours<Computed<S>, channels> number(const Stored<S, channels>& from) {
  return Neighbours<Computed<S>, channels>::of(
      [&](int l) { return load<Computed<S>>(from.x, l, std::is_same_v<S, BFloat16>); });
}
template <class S, int channels> __device__ void store(S* at, const Neighbours<Computed<S>, channels>& x) {
  Stored<S, channels> y;
#pragma unroll
  for (int l = 0; l < channels; ++l) y.x[l] = S(x.x[l]);
  *reinterpret_cast<Stored<S, channels>*>(at) = y;
}

/// The last `width` rows.
template <class Row, int width> struct LastRows {
  Row last[width] = {};
  __device__ void push(const Row& x) {
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

/// What one thread works on: channels from k on of rows from … from + rows − 1 of sequence i, and what it needs of
/// them.
template <class S, int width, int channels> struct Walk {
  using Row = Neighbours<Computed<S>, channels>;
  int64_t c, k, piece, i, from, first;  // first: where its first number stands in x
  int rows, behind;                     // behind: rows after it that need its last ones
  Row weights[width], start;
  LastRows<Row, width> last;  // before the walk those before `from`

  __device__ Walk(const Convolution<S, width>& o, int64_t index)
      : c(o.c), k(index % (c / channels) * channels), piece(index / (c / channels)), i(piece / o.pieces),
        from(piece % o.pieces * o.piece), first((i * o.n + from) * c + k) {
    const int64_t left = o.n - from;
    rows = static_cast<int>(left < o.piece ? left : o.piece);
    behind = static_cast<int>(left - rows < width - 1 ? left - rows : width - 1);
#pragma unroll
    for (int j = 0; j < width; ++j) weights[j] = row(o.w + j * c + k);
    if (o.bias) start = row(o.bias + k);
    const S* const before = from > 0  ? o.x + first - (width - 1) * c
                            : o.early ? o.early + i * (width - 1) * c + k
                                      : nullptr;
    if (!before) return;
#pragma unroll
    for (int j = 0; j + 1 < width; ++j) last.push(row(before + j * c));
  }
  static __device__ Row row(const S* at) { return number(stored<S, channels>(at)); }
  /// The channels' numbers in the next rows, of which there are `left`; 0 in those behind them.
  template <int ahead> __device__ void read(Stored<S, channels> (&next)[ahead], const S* from, int left) const {
#pragma unroll
    for (int e = 0; e < ahead; ++e) next[e] = e < left ? stored<S, channels>(from + e * c) : Stored<S, channels>{};
  }
  /// p of the last row.
  __device__ Row sum() const {
    Row p = start;
#pragma unroll
    for (int j = 0; j < width; ++j) p.add_product(weights[j], last.last[j]);
    return p;
  }
};

/// body(i) for 0 ≤ i < n, as for_each(); Body::blocks of a kernel find room on a multiprocessor, and so enough loads
/// are under way.
template <class Body>
__global__ void __launch_bounds__(kThreads, Body::blocks) for_each_walk_kernel(Body body, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) body(i);
}
template <class Body> void for_each_walk(int64_t n, const Body& body) {
  launch(for_each_walk_kernel<Body>, grid_of(std::min(ceil_div(n, kThreads), kMostBlocks)), dim3(kThreads), 0, body, n);
}

template <class S, int width, int channels> struct ConvolutionForward {
  static constexpr int blocks = channels == 1 && sizeof(S) < 8 ? 5 : 4;
  Convolution<S, width> o;
  S* y;
  __device__ void operator()(int64_t index) const {
    using T = Computed<S>;
    using Row = Neighbours<T, channels>;
    Walk<S, width, channels> walk(o, index);
    const S* from = o.x + walk.first;
    S* to = y + walk.first;
#pragma unroll 1
    for (int left = walk.rows; left > 0; left -= kAhead, from += kAhead * o.c, to += kAhead * o.c) {
      Stored<S, channels> next[kAhead];
      walk.read(next, from, left);
#pragma unroll
      for (int e = 0; e < kAhead; ++e) {
        walk.last.push(number(next[e]));
        const Row p = walk.sum();
        const Row v = o.silu ? Row::of([&](int l) { return formula::Silu()(Value<T>{p.x[l], {}}).v; }) : p;
        if (e < left) store<S, channels>(to + e * o.c, v);
      }
    }
  }
};

/// dx_s is known when h_{s+width−1} is. Sums of dw and dbias over a piece go to part [piece, width + 1, c].
template <class S, int width, int channels> struct ConvolutionBackward {
  using T = Computed<S>;
  using Row = Neighbours<T, channels>;
  static constexpr int ahead = kAhead / 2;  // of x and of g
  static constexpr int blocks = sizeof(S) == 8 ? 2 : channels == 1 ? 4 : 3;
  Convolution<S, width> o;
  const S* g;
  S *dx, *dearly;  // null if not wanted
  double* part;    // null if not wanted
  __device__ void operator()(int64_t index) const {
    Walk<S, width, channels> walk(o, index);
    LastRows<Row, width> h;
    Row sums[width + 1];
    // Where row 0 of the gradients of the walk's rows would stand, and of those before them.
    S* const own = dx ? dx + walk.first : nullptr;
    S* const before = walk.from > 0 || !dearly ? nullptr : dearly + (walk.i + 1) * (width - 1) * o.c + walk.k;
#pragma unroll 1
    for (int row = 0; row < walk.rows + width - 1; row += ahead) {
      Stored<S, channels> next[ahead], slope[ahead];
      const int64_t at = walk.first + row * o.c;
      walk.read(next, o.x + at, walk.rows + walk.behind - row);
      walk.read(slope, g + at, walk.rows + walk.behind - row);
#pragma unroll
      for (int e = 0; e < ahead; ++e) {
        walk.last.push(number(next[e]));
        h.push(row + e < walk.rows + walk.behind ? slope_times(number(slope[e]), walk) : Row());
        if (row + e < walk.rows) {
#pragma unroll
          for (int j = 0; j < width; ++j) sums[j].add_product(h.last[width - 1], walk.last.last[j]);
#pragma unroll
          for (int l = 0; l < channels; ++l) sums[width].x[l] += h.last[width - 1].x[l];
        }
        const int to = row + e - (width - 1);  // the row whose gradient is known now
        S* const there = to >= 0 ? own : before;
        if (!there || to >= walk.rows) continue;
        Row d;
#pragma unroll
        for (int j = 0; j < width; ++j) d.add_product(walk.weights[j], h.last[width - 1 - j]);
        store<S, channels>(there + to * o.c, d);
      }
    }
    if (!part) return;
#pragma unroll
    for (int j = 0; j <= width; ++j)
#pragma unroll
      for (int l = 0; l < channels; ++l)
        part[(walk.piece * (width + 1) + j) * o.c + walk.k + l] = static_cast<double>(sums[j].x[l]);
  }

 private:
  /// h_t = g_t · φ'(p_t) of the last row
  __device__ Row slope_times(const Row& gradient, const Walk<S, width, channels>& walk) const {
    if (!o.silu) return gradient;
    const Row p = walk.sum();
    return Row::of([&](int l) { return gradient.x[l] * formula::Silu()(Dual<T, 1>::variable(p.x[l], 0, T(1))).d[0]; });
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

/// True if channels 2i and 2i + 1 of all tensors [..., c] are neighbours, at a multiple of four bytes in bf16.
bool in_pairs(int64_t c, std::initializer_list<const Tensor*> tensors) {
  return c % 2 == 0 && std::all_of(tensors.begin(), tensors.end(), [](const Tensor* x) {
           return !x->defined() || reinterpret_cast<std::uintptr_t>(address_of(*x)) % sizeof(Stored<BFloat16, 2>) == 0;
         });
}
/// Calls f<S, width, channels>, where numbers are stored as S and a thread takes `channels` channels.
template <class F> void dispatch_width(DType dtype, int64_t width, bool pairs, F f) {
  static_assert(kernel::kCausalConvWidth == 4);
  const auto with_width = [&]<class S, int channels>() {
    if (width == 1) f.template operator()<S, 1, channels>();
    if (width == 2) f.template operator()<S, 2, channels>();
    if (width == 3) f.template operator()<S, 3, channels>();
    if (width == 4) f.template operator()<S, 4, channels>();
  };
  if (dtype == bf16 && pairs) with_width.template operator()<BFloat16, 2>();
  else if (dtype == bf16) with_width.template operator()<BFloat16, 1>();
  else dispatch_float("causal_conv1d", dtype, [&]<class T>() { with_width.template operator()<T, 1>(); });
}

/// `channels`: of a thread.
template <class S, int width>
Convolution<S, width> operands(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before,
                               bool silu, int channels) {
  const int64_t wanted = x.numel() / channels / kWalks / kAhead * kAhead;
  const int64_t n = x.dim(-2), piece = std::clamp(wanted, int64_t{kAhead}, kMostRows);
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
  const bool pairs = in_pairs(x.dim(-1), {&x, &weight, &bias, &before, &y});
  dispatch_width(x.dtype(), weight.dim(0), pairs, [&]<class S, int width, int channels>() {
    const auto o = operands<S, width>(x, weight, bias, before, silu, channels);
    for_each_walk(x.numel() / channels / o.n * o.pieces, ConvolutionForward<S, width, channels>{o, data_of<S>(y)});
  });
}

void causal_conv_backward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before,
                          const Tensor& g, bool silu, Tensor& dx, Tensor& dweight, Tensor& dbias, Tensor& dbefore) {
  const bool pairs = in_pairs(x.dim(-1), {&x, &weight, &bias, &before, &g, &dx, &dbefore});
  dispatch_width(x.dtype(), weight.dim(0), pairs, [&]<class S, int width, int channels>() {
    const auto o = operands<S, width>(x, weight, bias, before, silu, channels);
    const int64_t pieces = x.numel() / o.c / o.n * o.pieces, sums = (width + 1) * o.c;
    const bool wanted = dweight.defined() || dbias.defined();
    const Scratch<double> part(static_cast<std::size_t>(wanted ? pieces * sums : 0));
    for_each_walk(pieces * o.c / channels,
                  ConvolutionBackward<S, width, channels>{o, data_of<S>(g), data_or_null<S>(dx),
                                                          width > 1 ? data_or_null<S>(dbefore) : nullptr,
                                                          wanted ? part.get() : nullptr});
    if (wanted)
      reduce_to<SumOf<double>>({1, pieces, sums}, LoadPart<double>{part.get()},
                               StoreParameters<S>{data_or_null<S>(dweight), data_or_null<S>(dbias), width * o.c});
  });
}

}  // namespace sluice::cuda
