// The gradients of linear_scan for values of one channel, with a decay for each key channel (Mamba), step by step. From
// the first step to the last, then from the last to the first, with x = dL/dh:
//
//   h_t = e^{g_t} ∘ h_{t−1} + v_t k_t           o_t = q_t·h_t
//   x_t = e^{g_{t+1}} ∘ x_{t+1} + do_t q_t
//   dq_t = do_t h_t      dk_t = v_t x_t      dv_t = k_t·x_t      dg_t = x_t ∘ e^{g_t} ∘ h_{t−1}
//
// No term of dg cancels another. h and x are f64. A first sweep keeps h before each chunk only.
#pragma once

#include <sluice/core/kernel/vectorise.h>
#include <sluice/core/number/math.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/rows/rows.h>
#include <sluice/ops/scan/decay_blocks.h>

#include <algorithm>
#include <type_traits>

namespace sluice::detail {

/// e^g of `count` log decays. Those below kForgotten, −∞ too, give 0.
template <class T> void decay_factors(const T* g, T* factors, int64_t count) {
  for (int64_t i = 0; i < count; ++i) factors[i] = math::exp(std::max(g[i], T(kForgotten)));
}

/// Calls f(width), with Mamba's usual width as a constant: loops of a known length need no rest.
template <class F> void with_width(int64_t width, F f) {
  if (width == 16) f(std::integral_constant<int64_t, 16>());
  else f(width);
}

/// Σ_c a_c b_c in f64. `width` may be a constant.
template <class T, class Width> double wide_dot(const T* a, const double* b, Width width) {
  if constexpr (std::is_same_v<Width, int64_t>)
    return row_total<double>(width, [=](int64_t c) { return double(a[c]) * b[c]; });
  else {
    double sum[Width::value];
    for (int64_t c = 0; c < width; ++c) sum[c] = double(a[c]) * b[c];
    for (int64_t half = width / 2; half > 0; half /= 2)
      for (int64_t c = 0; c < half; ++c) sum[c] += sum[c + half];
    return sum[0];
  }
}

template <class T> struct ColumnBackward {
  HeadView<const T> q, k, v, dout;
  HeadView<T> dq, dk, dv;
  const T* g;  // [batch, heads, n, m]
  T* dg;       // the same shape, or null
  int64_t heads, group, n, m, chunk;
  int64_t summed;  // number of heads that share dq and dk

  ColumnBackward(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& g_, const Tensor& dout_,
                 int64_t chunk_, const Tensor& dq_, const Tensor& dk_, const Tensor& dv_, T* dg_)
      : q(q_), k(k_), v(v_), dout(dout_), dq(dq_), dk(dk_), dv(dv_), g(g_.data<T>()), dg(dg_), heads(v_.dim(1)),
        group(heads / k_.dim(1)), n(v_.dim(2)), m(k_.dim(3)), chunk(std::min(chunk_, n)), summed(heads / dq_.dim(1)) {}

  struct Memory {
    Scratch<T> numbers;
    Scratch<double> doubles;
    T* kept;         // [chunk, m], e^g
    double* before;  // [chunks, m], h before each chunk
    double* states;  // [chunk + 1, m], h before the chunk's first step, and after each of its steps
    double* x;       // [m], e^{g_{t+1}} ∘ x_{t+1}
    explicit Memory(const ColumnBackward& o)
        : numbers({{kept, o.chunk * o.m}}),
          doubles({{before, ceil_div(o.n, o.chunk) * o.m}, {states, (o.chunk + 1) * o.m}, {x, o.m}}) {}
  };

  void run(int64_t batch) const {
    parallel_for(batch * heads / summed, 1, [&](int64_t begin, int64_t end) {
      Memory w(*this);
      for (int64_t task = begin * summed; task < end * summed; ++task) one_head(w, task / heads, task % heads);
    });
  }

  [[gnu::noinline]] void one_head(Memory& w, int64_t b, int64_t h) const {
    vectorised([&] {
      with_width(m, [&](auto width) {
        const int64_t chunks = ceil_div(n, chunk);
        std::fill_n(w.states, m, 0.0), std::fill_n(w.x, m, 0.0);
        for (int64_t i = 0; i < chunks; ++i) {
          std::copy_n(w.states, m, w.before + i * m);
          if (i + 1 < chunks) forward(w, b, h, i * chunk, chunk, width, false);
        }
        for (int64_t i = chunks - 1; i >= 0; --i) {
          const int64_t count = std::min(chunk, n - i * chunk);
          std::copy_n(w.before + i * m, m, w.states);
          forward(w, b, h, i * chunk, count, width, true);
          backward(w, b, h, i * chunk, count, width);
        }
      });
    });
  }

  /// The states of a chunk's steps: all of them if `all`, otherwise the last one in place of the first.
  template <class Width>
  void forward(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, Width width, bool all) const {
    decay_factors(g + ((b * heads + h) * n + first) * m, w.kept, count * m);
    for (int64_t t = 0; t < count; ++t) {
      const T *const key = k.at(b, h / group, first + t), *const kept = w.kept + t * width;
      const auto value = double(*v.at(b, h, first + t));
      const double* const old = w.states + (all ? t * width : 0);
      double* const state = w.states + (all ? (t + 1) * width : 0);
      for (int64_t c = 0; c < width; ++c) state[c] = passed(old[c], kept[c]) + value * double(key[c]);
    }
  }

  template <class Width>
  void backward(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, Width width) const {
    const int64_t of = h / summed;
    const bool more = h % summed > 0;
    double* const x = w.x;
    for (int64_t t = count - 1; t >= 0; --t) {
      const int64_t row = first + t;
      const T *const query = q.at(b, h / group, row), *const key = k.at(b, h / group, row);
      const T* const kept = w.kept + t * width;
      T *const to_q = dq.at(b, of, row), *const to_k = dk.at(b, of, row);
      const auto gy = double(*dout.at(b, h, row)), value = double(*v.at(b, h, row));
      const double *const old = w.states + t * width, *const state = old + width;
      for (int64_t c = 0; c < width; ++c) x[c] += gy * double(query[c]);
      for (int64_t c = 0; c < width; ++c) to_q[c] = (more ? to_q[c] : T(0)) + T(gy * state[c]);
      for (int64_t c = 0; c < width; ++c) to_k[c] = (more ? to_k[c] : T(0)) + T(value * x[c]);
      *dv.at(b, h, row) = T(wide_dot(key, x, width));
      for (int64_t c = 0; c < width; ++c) x[c] = passed(x[c], kept[c]);
      if (!dg) continue;
      T* const to_g = dg + ((b * heads + h) * n + row) * m;
      for (int64_t c = 0; c < width; ++c) to_g[c] = T(kept[c] == T(0) ? 0.0 : x[c] * old[c]);
    }
  }

  /// What a decay leaves of x: nothing, even of NaN, if it is total.
  static double passed(double x, T kept) { return kept == T(0) ? 0.0 : x * double(kept); }
};

}  // namespace sluice::detail
