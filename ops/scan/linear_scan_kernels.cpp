// Goes chunk by chunk, with the state S [m, e] in cache. Within a chunk of steps 0 … c−1, L_t = g_0 + … + g_t:
//
//   o_t = (q_t ∘ e^{L_t}) S + Σ_{j <= t} (q_t ∘ e^{L_t − L_j}) k_jᵀ v_j
//   S  ← e^{L_end} ∘ S + Σ_j (k_j ∘ e^{L_end − L_j})ᵀ v_j
//
// If exclusive, j < t. Exponents are <= 0, so nothing grows. With a scalar decay the second term of o is one masked
// product; with a decay per channel decay_blocks.h has its parts.
//
// The reverse scan is the same scan of the sequence read backwards, with the decays moved by one step: from j to
// t < j it passes g_{t+1} … g_j. Without decay, or with a scalar one, operands are read where they lie.
#include <sluice/ops/scan/linear_scan.h>

#include <sluice/core/number/math.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/scan/decay_blocks.h>
#include <sluice/ops/scan/rows_ahead.h>
#include <sluice/ops/scan/scan_operands.h>
#include <sluice/ops/scan/thin_scan.h>
#include <sluice/ops/scan/triangle.h>

#include <algorithm>

namespace sluice {

namespace detail {

namespace {

template <class T> struct Scan : ScanOperands<T> {
  using Base = ScanOperands<T>;
  using Base::o, Base::q, Base::k, Base::v, Base::out, Base::decay, Base::heads, Base::group, Base::n, Base::m, Base::e,
      Base::thin, Base::by_channel, Base::row_of, Base::decays;

  bool weighted = decay == ScanDecay::scalar, by_keys = decay == ScanDecay::keys;
  int64_t blocks, width;  // value columns are split into blocks: columns of S are independent
  int64_t together = 1;   // heads of a group that go through the chunks together and share q_t·k_j
  /// With a decay per channel, exponentials take most of the time: bf16 would lose accuracy and gain no speed.
  Precision precision = by_channel ? Precision::f32 : sluice::precision();
  int64_t chunk = steps_together(std::min(o.chunk, n), precision, n, m);

  Scan(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& g_, const LinearScanOptions& options,
       Tensor& y)
      : Base(q_, k_, v_, g_, options, y) {
    const int64_t tasks = std::max<int64_t>(1, q_.dim(0) * heads);
    const int64_t wanted = std::clamp<int64_t>(16 / tasks, 1, std::max<int64_t>(1, e / 64));
    width = round_up(ceil_div(e, wanted), 16), blocks = ceil_div(e, width);
    if (!by_channel && !thin) together = group / detail::parts_of_group(q_.dim(0) * heads / group, group);
  }

  struct Memory : DecayBuffers<T> {
    Scratch<T> floats;
    Scratch<double> doubles;
    T *states, *q, *k, *v, *o, *a, *queries;  // states of the heads that are together; queries: q ∘ e^L
    T* state;                                 // that of the head
    RowsAhead<T> ahead;                       // of the next chunk
    T* pairs;                                 // the chunk's q_t·k_j, of all heads that are together
    Memory(int64_t m, int64_t width, int64_t most, int64_t c, int64_t together)
        : floats({{states, together * m * width},
                  {pairs, together > 1 ? c * c : 0},
                  {q, c * m},
                  {k, c * m},
                  {v, c * width},
                  {o, c * width},
                  {a, c * c},
                  {queries, c * m},
                  {this->step, c * most},
                  {this->carried, c * most},
                  {this->factor, c * most},
                  {this->part, kDecayBlock * most},
                  {this->border, most}}),
          doubles((c + 1) * most) {
      std::fill_n(doubles.data(), most, 0.0), this->sums = doubles.data() + most;
    }
  };

  void run(int64_t batch) {
    parallel_for(batch * (heads / together) * blocks, 1, [&](int64_t from, int64_t to) {
      Memory w(m, width, std::max(m, width), chunk, together);
      for (int64_t task = from; task < to; ++task) {
        const int64_t row = task / blocks * together, b = row / heads, col = task % blocks * width;
        const int64_t cols = std::min(width, e - col), chunks = ceil_div(n, chunk);
        const auto begin_of = [&](int64_t i) { return (o.reverse ? chunks - 1 - i : i) * chunk; };
        for (int64_t i = 0; i < chunks; ++i)
          for (int64_t place = 0; place < together; ++place) {
            const int64_t h = row % heads + place, begin = begin_of(i), steps = std::min(chunk, n - begin);
            const bool last = place + 1 == together;
            w.ahead.begin(begin_of(last ? i + 1 : i), chunk, n, thin ? 1 : 4);  // 3 parts within the pieces
            w.ahead.add(b, last ? row % heads : h + 1, col, cols, v, out);
            if (last) w.ahead.add(b, h / group, 0, m, q, k);
            w.state = w.states + place * m * width;
            if (together > 1 && place == 0) weights(w.pairs, in_chunk(b, h, begin), steps, o.reverse);
            const TotalDecays<T> total{decays(b, h), Base::channels};
            each_piece(total, begin, begin + steps, o.reverse, [&](int64_t first, int64_t count) {
              const ScanPiece p{b, h, first, count, col, cols};
              const int64_t end = first + count;
              const bool start = o.reverse ? end == n || total(end) : first == 0 || total(first);
              if (start) std::fill_n(w.state, m * cols, T(0));
              w.ahead.fetch();
              if (thin) {
                thin_scan(*this, p, w.state, w.sums, w.step);
              } else if (by_channel) {
                channel_piece(w, p, start);
              } else {
                if (together > 1) copy_pairs(w.pairs, steps, first - begin, count, w.a);
                else weights(w.a, in_chunk(b, h, first), count, o.reverse);
                scalar_piece(w, p, start, o.reverse ? first == 0 : end == n);
              }
            });
          }
      }
    });
  }

  void load(Memory& w, const ScanPiece& p) {
    const int64_t local = local_channels(p);
    for (int64_t i = 0; i < p.count; ++i) {
      const int64_t row = row_of(p, i), step = row + (o.reverse ? 1 : 0);
      std::copy_n(q.at(p.b, p.h / group, row), m, w.q + i * m);
      std::copy_n(k.at(p.b, p.h / group, row), m, w.k + i * m);
      std::copy_n(v.at(p.b, p.h, row) + p.col, p.cols, w.v + i * p.cols);
      double *const sum = w.sums + i * local, *const before = sum - local;
      T* const steps = w.step + i * local;
      if (step == n) std::fill_n(steps, local, T(0));
      else
        std::transform(decays(p, step), decays(p, step) + local, steps, [](T x) { return std::max(x, T(kForgotten)); });
      for (int64_t c = 0; c < local; ++c) sum[c] = before[c] + double(steps[c]);
    }
  }
  int64_t local_channels(const ScanPiece& p) const { return by_keys ? m : p.cols; }

  /// Rows of queries and keys from a step on, and how far apart they are.
  struct Steps {
    const T *queries, *keys;
    int64_t q_row, k_row;
  };
  Steps in_chunk(int64_t b, int64_t h, int64_t first) const {
    return {q.at(b, h / group, first), k.at(b, h / group, first), q.row, k.row};
  }
  /// a_tj = q_t·k_j for the pairs that count, j <= t; in reverse j >= t, in the order of the tensors. 0 for other
  /// pairs.
  void weights(T* a, const Steps& of, int64_t count, bool reverse) const {
    pair_products(reverse ? Pairs::later : Pairs::earlier, count, m, of.queries, of.q_row, of.keys, of.k_row, a,
                  precision);
    for (int64_t t = 0; t < count; ++t) {
      T* line = a + t * count;
      std::fill(line, line + (reverse ? t : 0), T(0)), std::fill(line + (reverse ? count : t + 1), line + count, T(0));
    }
    drop_own(a, count);
  }
  void drop_own(T* a, int64_t count) const {
    for (int64_t t = 0; o.exclusive && t < count; ++t) a[t * count + t] = T(0);
  }

  /// A piece without decay or with a scalar one, whose weights() are in w.a; its steps are in the order of the tensors.
  /// This function and channel_piece() are not inlined: parallel_for() would compile all of them for each instruction
  /// set, which only their long loops need.
  [[gnu::noinline]] void scalar_piece(Memory& w, const ScanPiece& p, bool start, bool last) {
    const int64_t count = p.count, cols = p.cols;
    const auto [queries, keys, q_row, k_row] = in_chunk(p.b, p.h, p.first);
    const T* const values = v.at(p.b, p.h, p.first) + p.col;
    T* const y = out.at(p.b, p.h, p.first) + p.col;
    double* const sums = w.sums;  // Σ g to each step from the piece's first step, in reverse from its second
    double whole = 0;             // the sum of all g that the state passes in the piece
    if (weighted) {
      const T* const steps = decays(p, p.first);
      for (int64_t i = 0; i < count; ++i)
        whole += i == 0 && o.reverse ? 0 : std::max(double(steps[i]), kForgotten), sums[i] = whole;
      if (o.reverse && p.first + count < n) whole += std::max(double(steps[count]), kForgotten);
    }
    // to_i = x_i e^{sums_i}; without up_to, x_i e^{whole − sums_i}.
    const auto scaled = [&](const T* x, int64_t ld, T* to, bool up_to) {
      vectorised([&, factor = w.step] {
        for (int64_t i = 0; i < count; ++i) factor[i] = math::exp(T(up_to ? sums[i] : whole - sums[i]));
        for (int64_t i = 0; i < count; ++i)
          for (int64_t c = 0; c < m; ++c) to[i * m + c] = x[i * ld + c] * factor[i];
      });
      return to;
    };
    w.ahead.fetch();
    if (!start)
      gemm(Trans::no, Trans::no, count, cols, m, T(1), weighted ? scaled(queries, q_row, w.q, !o.reverse) : queries,
           weighted ? m : q_row, w.state, cols, T(0), y, out.row, precision);
    if (weighted) vectorised([&] { weigh(w, count); });
    w.ahead.fetch();
    masked_product(Trans::no, o.reverse ? Pairs::later : Pairs::earlier, count, cols, w.a, values, v.row, !start, y,
                   out.row, precision);
    if (last) return;
    w.ahead.fetch();
    const T factor = math::exp(T(whole));
    for (int64_t i = 0; weighted && !start && i < m * cols; ++i) w.state[i] *= factor;
    gemm(Trans::yes, Trans::no, m, cols, count, T(1), weighted ? scaled(keys, k_row, w.k, o.reverse) : keys,
         weighted ? m : k_row, values, v.row, T(!start), w.state, cols, precision);
  }

  /// a_tj ← a_tj e^{L_t − L_j} for the pairs that count. Goes through whole vectors: some other pairs become 0.
  void weigh(Memory& w, int64_t count) const {
    for (int64_t t = 0; t < count; ++t) {
      const double here = w.sums[t], sign = o.reverse ? -1 : 1;
      const int64_t begin = o.reverse ? t / 16 * 16 : 0, end = o.reverse ? count : std::min(round_up(t + 1, 16), count);
      for (int64_t j = begin; j < end; ++j)
        w.a[t * count + j] *= (o.reverse ? j >= t : j <= t) ? math::exp_low(T(sign * (here - w.sums[j]))) : T(0);
    }
  }

  /// A piece with a decay per channel; its steps are copied into the order of the scan.
  [[gnu::noinline]] void channel_piece(Memory& w, const ScanPiece& p, bool start) {
    const int64_t count = p.count, cols = p.cols;
    load(w, p);
    const DecayQueries<T> queries{w.q, w.a, w.queries};
    const DecayedSum<T> sums{w.a, w.o};
    if (by_keys) weights_by_keys<T>(w, std::span(&queries, 1), w.k, m, count, precision), drop_own(w.a, count);
    else weights(w.a, {w.q, w.k, m, m}, count, false);
    w.ahead.fetch();
    std::fill_n(w.o, count * cols, T(0));
    if (!start)
      gemm(Trans::no, Trans::no, count, cols, m, T(1), by_keys ? w.queries : w.q, m, w.state, cols, T(0), w.o, cols,
           precision);
    w.ahead.fetch();
    if (by_keys) masked_product(Trans::no, Pairs::earlier, count, cols, w.a, w.v, cols, true, w.o, cols, precision);
    else sum_by_values<T>(w, std::span(&sums, 1), w.v, cols, count, precision);
    for (int64_t i = 0; i < count; ++i) std::copy_n(w.o + i * cols, cols, out.at(p.b, p.h, row_of(p, i)) + p.col);
    to_state(w, p);
  }

  /// S ← e^{L_end} ∘ S + (k ∘ e^{L_end − L})ᵀ v, or kᵀ (v ∘ e^{L_end − L}); the product with the decay is w.carried.
  void to_state(Memory& w, const ScanPiece& p) {
    w.ahead.fetch();
    const int64_t local = local_channels(p);
    const double* const last = w.sums + (p.count - 1) * local;
    for (int64_t c = 0; c < local; ++c) w.border[c] = math::exp(T(last[c]));
    for (int64_t c = 0; c < m; ++c)
      for (int64_t j = 0; j < p.cols; ++j) w.state[c * p.cols + j] *= w.border[by_keys ? c : j];
    gemm(Trans::yes, Trans::no, m, p.cols, p.count, T(1), by_keys ? w.carried : w.k, m, by_keys ? w.v : w.carried,
         p.cols, T(1), w.state, p.cols, precision);
  }
};

void linear_scan_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o,
                     Tensor& out) {
  dispatch_float("linear_scan", q.dtype(), [&]<class T>() { Scan<T>(q, k, v, g, o, out).run(q.dim(0)); });
}

}  // namespace

}  // namespace detail

// Counts the recurrence, k_tᵀ v_t and q_t S_t, but not the pairs within chunks: their number is a choice of the kernel.
constinit decltype(kernel::linear_scan) kernel::linear_scan{
    "linear_scan", &detail::linear_scan_cpu,
    [](const Tensor& q, const Tensor&, const Tensor& v, const Tensor&, const LinearScanOptions&, Tensor&) {
      return Work{.flops = 4 * checked_mul("linear_scan", v.numel(), q.dim(3))};
    }};

}  // namespace sluice
