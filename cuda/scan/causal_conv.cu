// y_t = φ(p_t), p_t = Σ_j w_j ⊙ x_{t+j−(width−1)} + bias, and its gradients (ops/scan/causal_conv.cpp has the
// formulas). A thread walks along a piece of one channel and keeps the last `width` rows, so that it reads x and g
// once. Limited by memory.
#include <sluice/core/number/dual.h>
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>
#include <sluice/ops/elementwise/formulas.h>

namespace sluice::cuda {

namespace {

constexpr int64_t kPiece = 64;  // rows of a walk

/// The last `width` numbers of a column.
template <class T, int width> struct Window {
  T last[width] = {};
  __device__ void push(T x) {
#pragma unroll
    for (int j = 0; j + 1 < width; ++j) last[j] = last[j + 1];
    last[width - 1] = x;
  }
};

template <class T, int width> struct Convolution {
  Numbers<T> x, w, bias, early;  // bias, early: null where missing
  int64_t n, c, pieces;
  bool silu;

  /// x of row t of sequence i, also before its first.
  __device__ T at(int64_t i, int64_t t, int64_t k) const {
    if (t >= 0) return x[(i * n + t) * c + k];
    return early ? early[((i + 1) * (width - 1) + t) * c + k] : T(0);
  }
  __device__ T sum(const T (&weights)[width], T start, const Window<T, width>& rows) const {
#pragma unroll
    for (int j = 0; j < width; ++j) start += weights[j] * rows.last[j];
    return start;
  }
};

/// What one thread works on: channel k of rows from … to − 1 of sequence i, and what it needs of them.
template <class T, int width> struct Walk {
  int64_t k, piece, i, from, to;
  T weights[width], start;
  Window<T, width> rows;  // those before `from`

  __device__ Walk(const Convolution<T, width>& o, int64_t index)
      : k(index % o.c), piece(index / o.c), i(piece / o.pieces), from(piece % o.pieces * kPiece), to(from + kPiece) {
    if (to > o.n) to = o.n;
    for (int j = 0; j < width; ++j) weights[j] = o.w[j * o.c + k];
    start = o.bias ? o.bias[k] : T(0);
    for (int64_t t = from - (width - 1); t < from; ++t) rows.push(o.at(i, t, k));
  }
};

template <class T, int width> struct ConvolutionForward {
  Convolution<T, width> o;
  Numbers<T> y;
  __device__ void operator()(int64_t index) const {
    Walk<T, width> walk(o, index);
#pragma unroll 2
    for (int64_t t = walk.from; t < walk.to; ++t) {
      walk.rows.push(o.at(walk.i, t, walk.k));
      const T p = o.sum(walk.weights, walk.start, walk.rows);
      y.set({(walk.i * o.n + t) * o.c + walk.k}, o.silu ? formula::Silu()(Value<T>{p, {}}).v : p);
    }
  }
};

/// dx_s is known when h_{s+width−1} is. Sums of dw and dbias over a piece go to part [piece, width + 1, c].
template <class T, int width> struct ConvolutionBackward {
  Convolution<T, width> o;
  Numbers<T> g, dx, dearly;  // dx, dearly: null if not wanted
  double* part;              // null if not wanted
  __device__ void operator()(int64_t index) const {
    Walk<T, width> walk(o, index);
    Window<T, width> h;
    T sums[width + 1] = {};
#pragma unroll 1
    for (int64_t t = walk.from; t < walk.to + width - 1; ++t) {
      h.push(t < o.n ? next_h(walk, t) : T(0));
      if (t < walk.to) {
#pragma unroll
        for (int j = 0; j < width; ++j) sums[j] += h.last[width - 1] * walk.rows.last[j];
        sums[width] += h.last[width - 1];
      }
      const int64_t s = t - (width - 1);
      if (s >= 0 ? s < walk.from || !dx : walk.from > 0 || !dearly) continue;
      T d = 0;
#pragma unroll
      for (int j = 0; j < width; ++j) d += walk.weights[j] * h.last[width - 1 - j];
      if (s >= 0) dx.set({(walk.i * o.n + s) * o.c + walk.k}, d);
      else dearly.set({((walk.i + 1) * (width - 1) + s) * o.c + walk.k}, d);
    }
    if (!part) return;
#pragma unroll
    for (int j = 0; j <= width; ++j) part[(walk.piece * (width + 1) + j) * o.c + walk.k] = static_cast<double>(sums[j]);
  }

 private:
  /// h_t = g_t · φ'(p_t)
  __device__ T next_h(Walk<T, width>& walk, int64_t t) const {
    walk.rows.push(o.at(walk.i, t, walk.k));
    const T slope = g[(walk.i * o.n + t) * o.c + walk.k];
    if (!o.silu) return slope;
    return slope * formula::Silu()(Dual<T, 1>::variable(o.sum(walk.weights, walk.start, walk.rows), 0, T(1))).d[0];
  }
};

template <class T> struct StoreParameters {
  Numbers<T> dw, dbias;  // null if not wanted
  int64_t weights;       // numbers of dw
  __device__ void operator()(int64_t i, double total) const {
    if (i < weights && dw) dw.set({i}, static_cast<T>(total));
    if (i >= weights && dbias) dbias.set({i - weights}, static_cast<T>(total));
  }
};

/// Calls f<T, width>.
template <class F> void dispatch_width(DType dtype, int64_t width, F f) {
  static_assert(kernel::kCausalConvWidth == 4);
  dispatch_float("causal_conv1d", computed(dtype), [&]<class T>() {
    if (width == 1) f.template operator()<T, 1>();
    if (width == 2) f.template operator()<T, 2>();
    if (width == 3) f.template operator()<T, 3>();
    if (width == 4) f.template operator()<T, 4>();
  });
}

template <class T, int width>
Convolution<T, width> operands(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before,
                               bool silu) {
  const int64_t n = x.dim(-2);
  return {.x = Numbers<T>(x),
          .w = Numbers<T>(weight),
          .bias = Numbers<T>(bias),
          .early = Numbers<T>(width > 1 ? before : Tensor()),
          .n = n,
          .c = x.dim(-1),
          .pieces = ceil_div(n, kPiece),
          .silu = silu};
}

}  // namespace

void causal_conv(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before, bool silu,
                 Tensor& y) {
  dispatch_width(x.dtype(), weight.dim(0), [&]<class T, int width>() {
    const auto o = operands<T, width>(x, weight, bias, before, silu);
    for_each(x.numel() / o.n * o.pieces, ConvolutionForward<T, width>{o, Numbers<T>(y)});
  });
}

void causal_conv_backward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before,
                          const Tensor& g, bool silu, Tensor& dx, Tensor& dweight, Tensor& dbias, Tensor& dbefore) {
  dispatch_width(x.dtype(), weight.dim(0), [&]<class T, int width>() {
    const auto o = operands<T, width>(x, weight, bias, before, silu);
    const int64_t walks = x.numel() / o.n * o.pieces, sums = (width + 1) * o.c;
    const bool wanted = dweight.defined() || dbias.defined();
    const Scratch<double> part(static_cast<std::size_t>(wanted ? walks * (width + 1) : 0));
    for_each(walks,
             ConvolutionBackward<T, width>{o, Numbers<T>(g), Numbers<T>(dx), Numbers<T>(width > 1 ? dbefore : Tensor()),
                                           wanted ? part.get() : nullptr});
    if (wanted)
      reduce_to<SumOf<double>>({1, walks / o.c, sums}, LoadPart<double>{part.get()},
                               StoreParameters<T>{Numbers<T>(dweight), Numbers<T>(dbias), width * o.c});
  });
}

}  // namespace sluice::cuda
