// Goes chunk by chunk, with the state S [m, e] in cache. Within a chunk of steps 0 … c−1, L_t = g_0 + … + g_t:
//
//   o_t = (q_t ∘ e^{L_t}) S + Σ_{j <= t} (q_t ∘ e^{L_t − L_j}) k_jᵀ v_j
//   S  ← e^{L_end} ∘ S + Σ_j (k_j ∘ e^{L_end − L_j})ᵀ v_j
//
// Exponents are <= 0, so nothing grows. With a scalar decay the second term of o is one masked product. With a decay
// per channel the weight cannot be taken out of the sum over channels, so steps are split into blocks of 16, and
// factors refer to the border before a block, E_t = e^{L_t − L_border}:
//
//   earlier blocks: q_t ∘ E_t and k_j ∘ e^{L_border − L_j}, which is carried on from block to block
//   the own block:  q_t ∘ E_t and k_j / E_j up to the first step where E is small; from that step on, running products
//                   of e^g instead
//
// The choice for a step depends on no later step. (The factors for earlier blocks are the secondary chunking of Yang et
// al. 2024, Gated Linear Attention Transformers, section 4.3.)
//
// The reverse scan is the same scan of the sequence read backwards, with the decays moved by one step: from j to
// t < j it passes g_{t+1} … g_j. Without decay, or with a scalar one, operands are read where they lie.
#include <sluice/ops/scan/linear_scan.h>

#include <sluice/core/math.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows.h>

#include <algorithm>
#include <cmath>

namespace sluice {

namespace detail {

namespace {

constexpr int64_t kBlock = 16;
constexpr double kMild = 4096;  // k is divided by E where E and 1 / E are at most this, which costs as much range

enum class Decay { none, scalar, keys, values };

template <class T>
struct Scan {
  const LinearScanOptions& o;
  HeadView<const T> q, k, v;
  HeadView<T> out;
  const T* g;  // [batch, heads, n, channels]
  Decay decay;
  int64_t heads, n, m, e, chunk, channels;  // channels of g: 1, m or e
  int64_t blocks, width;                    // value columns are split into blocks: columns of S are independent
  /// With decays per channel exponentials set the pace: bf16 would lose exactness and gain no speed.
  Precision precision = decay == Decay::none || decay == Decay::scalar ? sluice::precision() : Precision::f32;
  bool narrow = !o.chunks_only && (m == 1 || e == 1) && (decay == Decay::none || decay == Decay::scalar);

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
    T *state, *q, *k, *v, *o, *a;
    T *step;     // g [chunk, local channels]
    T *scaled;   // k or v, carried to a border [chunk, …]
    T *queries;  // q ∘ e^L
    T *factor, *part, *border;  // E and a product of one block; e^{L_border}
    double* sums;               // L [chunk, local channels]
    Memory(const Scan& s, int64_t c)
        : floats(s.m * s.width + 3 * c * s.m + 2 * c * s.width + c * c + 2 * c * s.most() + 2 * kBlock * s.most() + s.most()),
          doubles(c * s.most()) {
      T* p = floats.data();
      auto take = [&p](int64_t count) { T* at = p; p += count; return at; };
      state = take(s.m * s.width), q = take(c * s.m), k = take(c * s.m), v = take(c * s.width), o = take(c * s.width);
      a = take(c * c), step = take(c * s.most()), scaled = take(c * s.most()), queries = take(c * s.m);
      factor = take(kBlock * s.most()), part = take(kBlock * s.most()), border = take(s.most());
      sums = doubles.data();
    }
  };
  int64_t most() const { return std::max(m, width); }

  void run(int64_t batch) {
    parallel_for(batch * heads * blocks, 1, [&](int64_t begin, int64_t end) {
      Memory w(*this, chunk);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t b = task / blocks / heads, h = task / blocks % heads, col = task % blocks * width;
        const int64_t cols = std::min(width, e - col), chunks = (n + chunk - 1) / chunk;
        std::fill_n(w.state, m * cols, T(0));
        for (int64_t i = 0; i < chunks; ++i) {
          const int64_t first = (o.reverse ? chunks - 1 - i : i) * chunk, count = std::min(chunk, n - first);
          if (narrow) one_by_one(w, b, h, first, count, col, cols);
          else if (decay == Decay::none || decay == Decay::scalar) in_place(w, b, h, first, count, col, cols, i == 0, i + 1 == chunks);
          else one_chunk(w, b, h, first, count, col, cols, i == 0);
        }
      }
    });
  }

  /// The row of the tensors that is step i of a chunk.
  int64_t row_of(int64_t first, int64_t count, int64_t i) const { return o.reverse ? first + count - 1 - i : first + i; }

  void load(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, int64_t col, int64_t cols) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = row_of(first, count, i);
      std::copy_n(q.at(b, h, row), m, w.q + i * m);
      std::copy_n(k.at(b, h, row), m, w.k + i * m);
      std::copy_n(v.at(b, h, row) + col, cols, w.v + i * cols);
    }
    const int64_t local = local_channels(cols), at = decay == Decay::values ? col : 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = row_of(first, count, i) + (o.reverse ? 1 : 0);
      double* sum = w.sums + i * local;
      T* steps = w.step + i * local;
      for (int64_t c = 0; c < local; ++c) {
        // Below −10⁴ e^g is 0 in either precision, and differences of sums of −∞ would be NaN.
        const T step = row >= n ? T(0) : std::max(g[((b * heads + h) * n + row) * channels + at + c], T(-1e4));
        sum[c] = (i > 0 ? sum[c - local] : 0.0) + static_cast<double>(step);
        steps[c] = step;
      }
    }
  }
  int64_t local_channels(int64_t cols) const { return decay == Decay::keys ? m : cols; }

  /// to = from ∘ e^{L_i}; with to_end, from ∘ e^{L_end − L_i}.
  void rescale(const Memory& w, const T* from, T* to, int64_t count, int64_t columns, bool to_end) {
    const double* last = w.sums + (count - 1) * columns;
    for (int64_t i = 0; i < count; ++i) {
      const T* x = from + i * columns;
      T* y = to + i * columns;
      const double* here = w.sums + i * columns;
      if (to_end)
        for (int64_t c = 0; c < columns; ++c) y[c] = x[c] * math::exp(T(last[c] - here[c]));
      else
        for (int64_t c = 0; c < columns; ++c) y[c] = x[c] * math::exp(T(here[c]));
    }
  }

  /// A chunk without decay or with a scalar one, for a state of one row or column, step by step without matrix
  /// products: denominators of linear attention, and their gradients.
  void one_by_one(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, int64_t col, int64_t cols) {
    const T* decays = decay == Decay::scalar ? g + (b * heads + h) * n : nullptr;
    double* const state = w.sums;
    const int64_t size = m * cols;
    std::copy_n(w.state, size, state);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = row_of(first, count, i), step = row + (o.reverse ? 1 : 0);
      const T *query = q.at(b, h, row), *key = k.at(b, h, row), *value = v.at(b, h, row) + col;
      T* const y = out.at(b, h, row) + col;
      const double kept = decays && step < n ? std::exp(double(decays[step])) : 1;
      if (cols == 1) {
        for (int64_t c = 0; c < size; ++c) state[c] = state[c] * kept + double(key[c]) * double(value[0]);
        y[0] = T(row_total<double>(size, [=](int64_t c) { return double(query[c]) * state[c]; }));
      } else {
        for (int64_t c = 0; c < size; ++c) state[c] = state[c] * kept + double(key[0]) * double(value[c]);
        for (int64_t c = 0; c < size; ++c) y[c] = T(double(query[0]) * state[c]);
      }
    }
    std::copy_n(state, size, w.state);
  }

  /// A chunk without decay or with a scalar one, its steps in the order of the tensors.
  void in_place(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, int64_t col, int64_t cols, bool start, bool last) {
    const T *queries = q.at(b, h, first), *keys = k.at(b, h, first), *values = v.at(b, h, first) + col;
    T* const y = out.at(b, h, first) + col;
    double* const sums = w.sums;  // of g from the chunk's first step, in reverse from its second step, to each step
    double whole = 0;             // the sum of all g that the state passes in the chunk
    if (decay == Decay::scalar) {
      const T* steps = g + (b * heads + h) * n + first;
      for (int64_t i = 0; i < count; ++i) whole += i == 0 && o.reverse ? 0 : std::max(double(steps[i]), -1e4), sums[i] = whole;
      if (o.reverse && first + count < n) whole += std::max(double(steps[count]), -1e4);
    }
    /// to_i = x_i e^{sums_i}; without up_to, x_i e^{whole − sums_i}.
    const auto scaled = [&](const T* x, int64_t ld, T* to, bool up_to) {
      for (int64_t i = 0; i < count; ++i) {
        const T factor = math::exp(T(up_to ? sums[i] : whole - sums[i]));
        for (int64_t c = 0; c < m; ++c) to[i * m + c] = x[i * ld + c] * factor;
      }
      return to;
    };
    const bool weighted = decay == Decay::scalar, finite = o.chunks_only || all_finite(values, count, cols, v.row);
    if (!start)
      gemm(Read::plain, Read::plain, count, cols, m, T(1), weighted ? scaled(queries, q.row, w.q, !o.reverse) : queries,
           weighted ? m : q.row, w.state, cols, T(0), y, out.row, precision);
    else if (!finite || o.chunks_only)
      for (int64_t i = 0; i < count; ++i) std::fill_n(y + i * out.row, cols, T(0));
    if (!o.chunks_only) {
      gemm(Read::plain, Read::transposed, count, count, m, T(1), queries, q.row, keys, k.row, T(0), w.a, count, precision);
      for (int64_t t = 0; t < count; ++t) {
        T* line = w.a + t * count;
        const int64_t begin = o.reverse ? t : 0, end = o.reverse ? count : t + 1;
        std::fill(line, line + begin, T(0)), std::fill(line + end, line + count, T(0));
        if (!weighted) continue;
        const double here = sums[t], sign = o.reverse ? -1 : 1;
        for (int64_t j = begin; j < end; ++j) line[j] *= math::exp(T(sign * (here - sums[j])));
      }
      // A later step may hold NaN, which 0·NaN would pass on to earlier steps.
      if (finite)
        gemm(Read::plain, Read::plain, count, cols, count, T(1), w.a, count, values, v.row, T(!start), y, out.row, precision);
      else sparse_product(Read::plain, count, cols, count, T(1), w.a, count, values, v.row, y, out.row);
    }
    if (last) return;
    if (weighted && !start) {
      const T factor = math::exp(T(whole));
      for (int64_t i = 0; i < m * cols; ++i) w.state[i] *= factor;
    }
    gemm(Read::transposed, Read::plain, m, cols, count, T(1), weighted ? scaled(keys, k.row, w.k, o.reverse) : keys,
         weighted ? m : k.row, values, v.row, T(!start), w.state, cols, precision);
  }

  /// A chunk with a decay per channel.
  void one_chunk(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, int64_t col, int64_t cols, bool start) {
    load(w, b, h, first, count, col, cols);
    const bool by_keys = decay == Decay::keys && !o.chunks_only, by_values = decay == Decay::values && !o.chunks_only;
    if (by_keys) weights_by_keys(w, count);  // and q ∘ e^L, k ∘ e^{L_end − L}
    std::fill_n(w.o, count * cols, T(0));
    if (!start) {
      const T* queries = by_keys ? w.queries : w.q;
      if (decay == Decay::keys && !by_keys) rescale(w, w.q, w.queries, count, m, false), queries = w.queries;
      gemm(Read::plain, Read::plain, count, cols, m, T(1), queries, m, w.state, cols, T(0), w.o, cols, precision);
      if (decay == Decay::values && !by_values) rescale(w, w.o, w.o, count, cols, false);
    }
    if (!o.chunks_only) {
      if (!by_keys) weights(w, count);
      if (by_values) sum_by_values(w, count, cols);  // and v ∘ e^{L_end − L}
      else weigh(w, count, cols);
    }
    for (int64_t i = 0; i < count; ++i) std::copy_n(w.o + i * cols, cols, out.at(b, h, row_of(first, count, i)) + col);
    to_state(w, count, cols, by_keys || by_values);
  }

  /// S ← e^{L_end} ∘ S + (k ∘ e^{L_end − L})ᵀ v. carried: w.scaled already holds k, or v, times e^{L_end − L}.
  void to_state(Memory& w, int64_t count, int64_t cols, bool carried) {
    const T *keys = w.k, *values = w.v;
    const double* last = w.sums + (count - 1) * local_channels(cols);
    if (decay == Decay::keys) {
      for (int64_t c = 0; c < m; ++c) {
        const T factor = math::exp(T(last[c]));
        for (int64_t j = 0; j < cols; ++j) w.state[c * cols + j] *= factor;
      }
    } else {
      for (int64_t j = 0; j < cols; ++j) w.border[j] = math::exp(T(last[j]));
      for (int64_t c = 0; c < m; ++c)
        for (int64_t j = 0; j < cols; ++j) w.state[c * cols + j] *= w.border[j];
    }
    if (decay == Decay::values) {
      if (!carried) rescale(w, w.v, w.scaled, count, cols, true);
      values = w.scaled;
    } else {
      if (!carried) rescale(w, w.k, w.scaled, count, m, true);
      keys = w.scaled;
    }
    gemm(Read::transposed, Read::plain, m, cols, count, T(1), keys, m, values, cols, T(1), w.state, cols, precision);
  }

  /// o += a v. A later step may hold NaN, which 0·NaN would pass on to earlier steps.
  void weigh(Memory& w, int64_t count, int64_t cols) {
    if (all_finite(w.v, count, cols, cols))
      gemm(Read::plain, Read::plain, count, cols, count, T(1), w.a, count, w.v, cols, T(1), w.o, cols, precision);
    else
      sparse_product(Read::plain, count, cols, count, T(1), w.a, count, w.v, cols, w.o, cols);
  }

  /// a_tj = (q_t·k_j), j <= t.
  void weights(Memory& w, int64_t count) {
    gemm(Read::plain, Read::transposed, count, count, m, T(1), w.q, m, w.k, m, T(0), w.a, count, precision);
    for (int64_t t = 0; t < count; ++t) std::fill(w.a + t * count + t + 1, w.a + (t + 1) * count, T(0));
  }

  /// Runs over blocks [begin, end) of a chunk's steps. For `multiply(begin, end, mild)`, w.factor holds E, w.border
  /// e^{L_border}, and w.scaled three groups of rows: x before `begin`, carried to the border; then x / E in `mild`
  /// rows; then zeros. multiply returns the number of steps that it finished. For the other steps t of the block,
  /// `carefully(j, t, weight)` gets weight = x_j ∘ e^{L_t − L_j}, begin <= j <= t.
  /// Finally w.scaled = x ∘ e^{L_end − L}.
  template <class Multiply, class Carefully>
  void by_blocks(Memory& w, const T* x, int64_t columns, int64_t count, Multiply multiply, Carefully carefully) {
    std::fill_n(w.border, columns, T(1));
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, count);
      const double* start = begin > 0 ? w.sums + (begin - 1) * columns : nullptr;
      int64_t mild = 0;
      for (int64_t i = begin; i < end; ++i) {
        const double* here = w.sums + i * columns;
        T *e = w.factor + (i - begin) * columns, *y = w.scaled + i * columns;
        if (start)
          for (int64_t c = 0; c < columns; ++c) e[c] = math::exp(T(here[c] - start[c]));
        else
          for (int64_t c = 0; c < columns; ++c) e[c] = math::exp(T(here[c]));
        int outside = 0;
        for (int64_t c = 0; c < columns; ++c) outside |= (e[c] < T(1 / kMild)) | (e[c] > T(kMild));
        if (mild == i - begin && !outside) {
          for (int64_t c = 0; c < columns; ++c) y[c] = x[i * columns + c] / e[c];
          if (all_finite(y, 1, columns, columns)) ++mild;
        }
        if (mild <= i - begin) std::fill_n(y, columns, T(0));
      }
      const int64_t from = begin + multiply(begin, end, mild);
      if (from < end) {
        T *weight = w.part, *alpha = w.part + columns;
        for (int64_t j = begin; j < end; ++j) {
          std::copy_n(x + j * columns, columns, weight);
          for (int64_t t = j; t < end; ++t) {
            if (t > j) {
              const T* step = w.step + t * columns;
              for (int64_t c = 0; c < columns; ++c) alpha[c] = math::exp(step[c]);
              for (int64_t c = 0; c < columns; ++c) weight[c] *= alpha[c];
            }
            if (t >= from) carefully(j, t, weight);
          }
        }
      }
      const T* last = w.factor + (end - begin - 1) * columns;
      const double* there = w.sums + (end - 1) * columns;
      for (int64_t i = 0; i < end; ++i) {
        T* y = w.scaled + i * columns;
        if (i < from)
          for (int64_t c = 0; c < columns; ++c) y[c] *= last[c];
        else
          for (int64_t c = 0; c < columns; ++c) y[c] = x[i * columns + c] * math::exp(T(there[c] - w.sums[i * columns + c]));
      }
      for (int64_t c = 0; c < columns; ++c) w.border[c] *= last[c];
    }
  }

  /// a_tj = Σ_c q_tc k_jc e^{L_tc − L_jc}, j <= t; w.queries = q ∘ e^L.
  void weights_by_keys(Memory& w, int64_t count) {
    T* a = w.a;
    by_blocks(w, w.k, m, count, [&](int64_t begin, int64_t end, int64_t mild) {
      for (int64_t t = begin; t < end; ++t) {
        const T *q = w.q + t * m, *e = w.factor + (t - begin) * m;
        T *near = w.part + (t - begin) * m, *far = w.queries + t * m;
        for (int64_t c = 0; c < m; ++c) near[c] = q[c] * e[c], far[c] = near[c] * w.border[c];
      }
      gemm(Read::plain, Read::transposed, end - begin, end, m, T(1), w.part, m, w.scaled, m, T(0), a + begin * count, count,
           precision);
      for (int64_t t = begin; t < end; ++t) std::fill(a + t * count + t + 1, a + (t + 1) * count, T(0));
      return mild;  // the terms of these products are those of a_tj: they overflow only if a_tj does
    }, [&](int64_t j, int64_t t, const T* weight) { a[t * count + j] = row_dot(w.q + t * m, weight, m); });
  }

  /// o_t = e^{L_t} ∘ o_t + Σ_{j <= t} a_tj v_j ∘ e^{L_t − L_j}
  void sum_by_values(Memory& w, int64_t count, int64_t cols) {
    by_blocks(w, w.v, cols, count, [&](int64_t begin, int64_t end, int64_t mild) {
      gemm(Read::plain, Read::plain, end - begin, cols, end, T(1), w.a + begin * count, count, w.scaled, cols, T(0), w.part, cols,
           precision);
      int64_t used = 0;  // a sum may overflow before it is multiplied by E
      while (used < mild && all_finite(w.part + used * cols, 1, cols, cols)) ++used;
      if (const int64_t left = end - begin - used)  // earlier blocks alone
        gemm(Read::plain, Read::plain, left, cols, begin, T(1), w.a + (begin + used) * count, count, w.scaled, cols, T(0),
             w.part + used * cols, cols, precision);
      for (int64_t t = begin; t < end; ++t) {
        const T *e = w.factor + (t - begin) * cols, *part = w.part + (t - begin) * cols;
        T* y = w.o + t * cols;
        for (int64_t c = 0; c < cols; ++c) y[c] = (y[c] * w.border[c] + part[c]) * e[c];
      }
      return used;
    }, [&](int64_t j, int64_t t, const T* weight) {
      const T score = w.a[t * count + j];
      T* y = w.o + t * cols;
      for (int64_t c = 0; c < cols; ++c) y[c] += score * weight[c];
    });
  }
};

void linear_scan_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o, Tensor& out) {
  dispatch_float("linear_scan", q.dtype(), [&]<class T>() { Scan<T>(q, k, v, g, o, out).run(q.dim(0)); });
}

}  // namespace

}  // namespace detail

// Counts the recurrence, k_tᵀ v_t and q_t S_t. The pairs within chunks are not counted, because their number is a
// choice of the kernel; the count for attention ignores causality likewise.
constinit decltype(kernel::linear_scan) kernel::linear_scan{
    "linear_scan", &detail::linear_scan_cpu,
    [](const Tensor& q, const Tensor&, const Tensor& v, const Tensor&, const LinearScanOptions&, Tensor&) {
      return Work{.flops = 4 * checked_mul("linear_scan", q.numel(), v.dim(3))};
    }};

}  // namespace sluice
