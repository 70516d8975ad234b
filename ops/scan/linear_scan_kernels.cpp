// Chunk by chunk, with the state S [m, e] in cache. Within a chunk of steps 0 … c−1, L_t = g_0 + … + g_t:
//
//   o_t = (q_t ∘ e^{L_t}) S + Σ_{j <= t} (q_t ∘ e^{L_t − L_j}) k_jᵀ v_j
//   S  ← e^{L_end} ∘ S + Σ_j (k_j ∘ e^{L_end − L_j})ᵀ v_j
//
// Every exponent is <= 0. With a scalar decay the second term of o is one masked product. With a decay per
// channel the weight cannot be taken out of the sum over channels, so steps are cut into blocks of 16: between
// blocks both factors are scaled relative to the border between them, e^{L_t − L_border} and
// e^{L_border − L_j}; inside a block the weights are running products of e^g.
//
// The reverse scan is the same on the sequence read backwards, with the decays moved by one step: from j to
// t < j it passes g_{t+1} … g_j.
#include <sluice/ops/scan/linear_scan.h>

#include <sluice/core/math.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/kernels.h>

#include <algorithm>

namespace sluice {

namespace detail {

namespace {

constexpr int64_t kBlock = 16;

enum class Decay { none, scalar, keys, values };

template <class T>
struct Scan {
  const LinearScanOptions& o;
  Heads<const T> q, k, v;
  Heads<T> out;
  const T* g;  // [batch, heads, n, channels]
  Decay decay;
  int64_t heads, n, m, e, chunk, channels;  // channels of g: 1, m or e
  int64_t blocks, width;                    // value columns are cut into blocks: columns of S are independent

  Scan(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& g_, const LinearScanOptions& options, Tensor& y)
      : o(options), q(q_), k(k_), v(v_), out(y), g(g_.defined() ? g_.data<T>() : nullptr),
        decay(!g_.defined() ? Decay::none : g_.rank() == 3 ? Decay::scalar : options.decay_on_values ? Decay::values : Decay::keys),
        heads(q_.dim(1)), n(q_.dim(2)), m(q_.dim(3)), e(v_.dim(3)), chunk(std::min(options.chunk, n)),
        channels(decay == Decay::scalar ? 1 : decay == Decay::keys ? m : e) {
    const int64_t wanted = std::clamp<int64_t>(16 / std::max<int64_t>(1, q_.dim(0) * heads), 1, std::max<int64_t>(1, e / 64));
    width = ((e + wanted - 1) / wanted + 15) / 16 * 16;
    blocks = (e + width - 1) / width;
  }

  struct Memory {
    Scratch<T> floats;
    Scratch<double> doubles;
    T *state, *q, *k, *v, *o, *a, *scaled, *alpha, *product;
    double* sums;  // L [chunk, local channels]
    Memory(const Scan& s, int64_t c)
        : floats(s.m * s.width + 2 * c * s.m + 3 * c * s.width + c * c + 2 * c * std::max(s.m, s.width)),
          doubles(c * std::max(s.m, s.width)) {
      T* p = floats.data();
      auto take = [&p](int64_t count) { T* at = p; p += count; return at; };
      state = take(s.m * s.width), q = take(c * s.m), k = take(c * s.m), v = take(c * s.width), o = take(c * s.width);
      product = take(c * s.width), a = take(c * c), scaled = take(c * std::max(s.m, s.width)), alpha = take(c * std::max(s.m, s.width));
      sums = doubles.data();
    }
  };

  void run(int64_t batch) {
    parallel_for(batch * heads * blocks, 1, [&](int64_t begin, int64_t end) {
      Memory w(*this, chunk);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t b = task / blocks / heads, h = task / blocks % heads, col = task % blocks * width;
        const int64_t cols = std::min(width, e - col), chunks = (n + chunk - 1) / chunk;
        std::fill_n(w.state, m * cols, T(0));
        for (int64_t i = 0; i < chunks; ++i) {
          const int64_t first = (o.reverse ? chunks - 1 - i : i) * chunk;
          one_chunk(w, b, h, first, std::min(chunk, n - first), col, cols, i == 0);
        }
      }
    });
  }

  /// Step i of a chunk as a row of the tensors.
  int64_t row_of(int64_t first, int64_t count, int64_t i) const { return o.reverse ? first + count - 1 - i : first + i; }

  void load(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, int64_t col, int64_t cols) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = row_of(first, count, i);
      std::copy_n(q.at(b, h, row), m, w.q + i * m);
      std::copy_n(k.at(b, h, row), m, w.k + i * m);
      std::copy_n(v.at(b, h, row) + col, cols, w.v + i * cols);
    }
    if (decay == Decay::none) return;
    const int64_t local = local_channels(cols), at = decay == Decay::values ? col : 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = row_of(first, count, i) + (o.reverse ? 1 : 0);
      double* sum = w.sums + i * local;
      T* alpha = w.alpha + i * local;
      for (int64_t c = 0; c < local; ++c) {
        // Below −10⁴ nothing is left in either precision, and sums of −∞ would give NaN.
        const T step = row >= n ? T(0) : std::max(g[((b * heads + h) * n + row) * channels + at + c], T(-1e4));
        sum[c] = (i > 0 ? sum[c - local] : 0.0) + static_cast<double>(step);
        alpha[c] = math::exp(step);
      }
    }
  }
  int64_t local_channels(int64_t cols) const { return decay == Decay::scalar ? 1 : decay == Decay::keys ? m : cols; }

  /// to = from ∘ e^{±(L_i − L_border)} for steps [begin, end): sign +1 leads from the border to a later step,
  /// −1 from an earlier step to the border. border −1 stands for the start of the chunk.
  void rescale(const Memory& w, const T* from, T* to, int64_t begin, int64_t end, int64_t columns, int64_t border, int sign) {
    for (int64_t i = begin; i < end; ++i) {
      const T* x = from + i * columns;
      T* y = to + i * columns;
      if (decay == Decay::scalar) {
        const T factor = math::exp(T(sign * (w.sums[i] - (border < 0 ? 0.0 : w.sums[border]))));
        for (int64_t c = 0; c < columns; ++c) y[c] = x[c] * factor;
      } else if (border < 0) {
        for (int64_t c = 0; c < columns; ++c) y[c] = x[c] * math::exp(T(sign * w.sums[i * columns + c]));
      } else {
        const double *here = w.sums + i * columns, *there = w.sums + border * columns;
        for (int64_t c = 0; c < columns; ++c) y[c] = x[c] * math::exp(T(sign * (here[c] - there[c])));
      }
    }
  }

  void one_chunk(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, int64_t col, int64_t cols, bool start) {
    load(w, b, h, first, count, col, cols);
    std::fill_n(w.o, count * cols, T(0));
    if (!start) from_state(w, count, cols);
    if (!o.chunks_only) within(w, count, cols);
    for (int64_t i = 0; i < count; ++i) std::copy_n(w.o + i * cols, cols, out.at(b, h, row_of(first, count, i)) + col);
    to_state(w, count, cols);
  }

  /// o += (q ∘ e^L) S
  void from_state(Memory& w, int64_t count, int64_t cols) {
    const T* queries = w.q;
    if (decay == Decay::scalar || decay == Decay::keys) rescale(w, w.q, w.scaled, 0, count, m, -1, 1), queries = w.scaled;
    gemm(Read::plain, Read::plain, count, cols, m, T(1), queries, m, w.state, cols, T(0), w.o, cols);
    if (decay == Decay::values) rescale(w, w.o, w.o, 0, count, cols, -1, 1);
  }

  /// S ← e^{L_end} ∘ S + (k ∘ e^{L_end − L})ᵀ v
  void to_state(Memory& w, int64_t count, int64_t cols) {
    const T *keys = w.k, *values = w.v;
    const double* last = w.sums + (count - 1) * local_channels(cols);
    if (decay == Decay::scalar) {
      const T factor = math::exp(T(last[0]));
      for (int64_t i = 0; i < m * cols; ++i) w.state[i] *= factor;
    } else if (decay == Decay::keys) {
      for (int64_t c = 0; c < m; ++c) {
        const T factor = math::exp(T(last[c]));
        for (int64_t j = 0; j < cols; ++j) w.state[c * cols + j] *= factor;
      }
    } else if (decay == Decay::values) {
      for (int64_t j = 0; j < cols; ++j) w.o[j] = math::exp(T(last[j]));  // o was stored: its memory is free
      for (int64_t c = 0; c < m; ++c)
        for (int64_t j = 0; j < cols; ++j) w.state[c * cols + j] *= w.o[j];
    }
    if (decay == Decay::scalar || decay == Decay::keys) rescale(w, w.k, w.scaled, 0, count, m, count - 1, -1), keys = w.scaled;
    if (decay == Decay::values) rescale(w, w.v, w.scaled, 0, count, cols, count - 1, -1), values = w.scaled;
    gemm(Read::transposed, Read::plain, m, cols, count, T(1), keys, m, values, cols, T(1), w.state, cols);
  }

  /// o += a v. A later step may hold NaN, which 0·NaN would hand to earlier ones.
  void weigh(Memory& w, int64_t count, int64_t cols) {
    if (all_finite(w.v, count, cols, cols))
      gemm(Read::plain, Read::plain, count, cols, count, T(1), w.a, count, w.v, cols, T(1), w.o, cols);
    else
      sparse_product(Read::plain, count, cols, count, T(1), w.a, count, w.v, cols, w.o, cols);
  }

  /// o_t += Σ_{j <= t} weight · (q_t·k_j) v_j
  void within(Memory& w, int64_t count, int64_t cols) {
    T* a = w.a;
    if (decay == Decay::keys) {
      for (int64_t begin = 0; begin < count; begin += kBlock) {
        const int64_t end = std::min(begin + kBlock, count);
        if (begin > 0) {
          rescale(w, w.k, w.scaled, 0, begin, m, begin - 1, -1);
          rescale(w, w.q, w.scaled, begin, end, m, begin - 1, 1);  // the rows behind the keys
          gemm(Read::plain, Read::transposed, end - begin, begin, m, T(1), w.scaled + begin * m, m, w.scaled, m, T(0),
               a + begin * count, count);
        }
        for (int64_t j = begin; j < end; ++j) {
          T* weight = w.scaled;  // k_j ∘ running product
          std::copy_n(w.k + j * m, m, weight);
          for (int64_t t = j; t < end; ++t) {
            const T* alpha = w.alpha + t * m;
            if (t > j)
              for (int64_t c = 0; c < m; ++c) weight[c] *= alpha[c];
            a[t * count + j] = row_dot(w.q + t * m, weight, m);
          }
        }
        for (int64_t t = begin; t < end; ++t) std::fill(a + t * count + t + 1, a + (t + 1) * count, T(0));
      }
      weigh(w, count, cols);
      return;
    }
    gemm(Read::plain, Read::transposed, count, count, m, T(1), w.q, m, w.k, m, T(0), a, count);
    for (int64_t t = 0; t < count; ++t) {
      std::fill(a + t * count + t + 1, a + (t + 1) * count, T(0));
      if (decay != Decay::scalar) continue;
      const double here = w.sums[t];
      for (int64_t j = 0; j <= t; ++j) a[t * count + j] *= math::exp(T(here - w.sums[j]));
    }
    if (decay != Decay::values) {
      weigh(w, count, cols);
      return;
    }
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, count);
      if (begin > 0) {
        rescale(w, w.v, w.scaled, 0, begin, cols, begin - 1, -1);
        T* part = w.product + begin * cols;
        gemm(Read::plain, Read::plain, end - begin, cols, begin, T(1), a + begin * count, count, w.scaled, cols, T(0), part, cols);
        rescale(w, w.product, w.product, begin, end, cols, begin - 1, 1);
        for (int64_t i = begin * cols; i < end * cols; ++i) w.o[i] += w.product[i];
      }
      for (int64_t j = begin; j < end; ++j) {
        T* weight = w.scaled;  // v_j ∘ running product
        std::copy_n(w.v + j * cols, cols, weight);
        for (int64_t t = j; t < end; ++t) {
          const T *alpha = w.alpha + t * cols, score = a[t * count + j];
          if (t > j)
            for (int64_t c = 0; c < cols; ++c) weight[c] *= alpha[c];
          for (int64_t c = 0; c < cols; ++c) w.o[t * cols + c] += score * weight[c];
        }
      }
    }
  }
};

void linear_scan_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o, Tensor& out) {
  dispatch_float("linear_scan", q.dtype(), [&]<class T>() { Scan<T>(q, k, v, g, o, out).run(q.dim(0)); });
}

}  // namespace

}  // namespace detail

// The recurrence: k_tᵀ v_t and q_t S_t. As causality does not halve attention, the pairs within chunks are not counted:
// how many there are is a choice of the kernel.
constinit decltype(kernel::linear_scan) kernel::linear_scan{
    "linear_scan", &detail::linear_scan_cpu,
    [](const Tensor& q, const Tensor&, const Tensor& v, const Tensor&, const LinearScanOptions&, Tensor&) {
      return Work{.flops = 4 * checked_mul("linear_scan", q.numel(), v.dim(3))};
    }};

}  // namespace sluice
