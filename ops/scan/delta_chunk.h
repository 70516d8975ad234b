// A chunk of delta_scan, as forward and backward compute it. Within a chunk of steps 0 … c−1, L_t = g_0 + … + g_t:
//
//   A_tj = Σ_c e_tc k_jc e^{L_tc − L_jc}, j < t        P_tj = Σ_c q_tc k_jc e^{L_tc − L_jc}, j <= t
//   u = (I + A)⁻¹ (w − (e ∘ e^L) S)
//
// Exponents are <= 0. The rows of e, then those of q, form one matrix x [2c, key_width], so that one product serves
// both. A decay of whole states is a factor of each row. Products with S leave it out; it scales their result, or their
// other operand. A decay by channel stands inside their sums and needs copies of x and k of its own.
// (The system is the WY form of a product of Householder-like factors: Yang et al. 2024, "Parallelizing Linear
// Transformers with the Delta Rule over Sequence Length", section 3.)
#pragma once

#include <sluice/core/kernel/vectorise.h>
#include <sluice/core/number/math.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/rows/rows.h>
#include <sluice/ops/scan/decay_blocks.h>
#include <sluice/ops/scan/rows_ahead.h>
#include <sluice/ops/scan/triangle.h>
#include <sluice/ops/scan/unit_lower.h>

#include <algorithm>
#include <span>

namespace sluice::detail {

enum class DeltaDecay { none, scalar, channels };

/// The operands of a call, and the work on a chunk that forward and backward share. Without e they are linear_scan's.
template <class T> struct DeltaOperands {
  static constexpr int64_t kFewSteps = 4;  // for at most so many steps, products of matrices take longer
  HeadView<const T> q, k, erase, write;    // q is k where only u is wanted
  const T* g;                              // [batch, value_heads, n, channels]
  DeltaDecay decay;
  int64_t batch, heads, group, n, key_width, value_width, chunk, chunks;  // group: value heads of a key head
  bool erases;                                                            // false: linear_scan, whose u are the values
  int64_t sides;                                                          // how many of e and q there are
  Precision precision;
  int64_t steps;  // of a part of a chunk: those that are computed together; a state is kept for each chunk

  DeltaOperands(const Tensor& q_, const Tensor& k_, const Tensor& e, const Tensor& w, const Tensor& g_, int64_t chunk_)
      : q(q_.defined() ? q_ : k_), k(k_), erase(e.defined() ? e : k_), write(w),
        g(g_.defined() ? g_.data<T>() : nullptr), decay(!g_.defined()    ? DeltaDecay::none
                                                        : g_.rank() == 3 ? DeltaDecay::scalar
                                                                         : DeltaDecay::channels),
        batch(k_.dim(0)), heads(w.dim(1)), group(heads / k_.dim(1)), n(k_.dim(2)), key_width(k_.dim(3)),
        value_width(w.dim(3)), chunk(std::min(chunk_, n)), chunks((n - 1) / chunk + 1), erases(e.defined()),
        sides(erases + q_.defined()),
        // With decays by channel, exponentials take most of the time; and u, on which later steps build, must not
        // drift.
        precision(decay == DeltaDecay::channels || !q_.defined() ? Precision::f32 : sluice::precision()),
        steps(erases ? steps_together(chunk, precision) : steps_together(chunk, precision, n, key_width)) {
    if (!erases) chunk = steps, chunks = (n - 1) / chunk + 1;
  }

  struct Memory : DecayBuffers<T> {
    Scratch<T> floats;
    Scratch<double> doubles;
    RowsAhead<T> ahead;
    T* x;       // [2c, key_width]: e, then q
    T* far;     // [2c, key_width]: x ∘ e^L; decays by channel only
    T* keys;    // [c, key_width]
    T* pairs;   // [2c, c]: A, then P
    T* weight;  // [c, c], e^{L_t − L_j} or 0 for j > t; decays of whole states only, as the next two
    T* here;    // [c], e^{L_t}
    T* left;    // [c], e^{L_end − L_t}
    T* u;       // [c, value_width]
    T* r;       // [2c, value_width]
    T* inverses;
    T* solver;
    T* end;                    // [key_width], e^{L_end}; decays by channel only
    const T* known = nullptr;  // [known_steps, known_steps]: q_t·k_j of the chunk in which enter()'s steps begin at
    int64_t known_steps, at;   // `at`; null if enter() has to compute them
    explicit Memory(const DeltaOperands& o)
        : floats({{x, 2 * o.steps * o.key_width},
                  {far, 2 * o.steps * o.key_width},
                  {keys, o.steps * o.key_width},
                  {pairs, 2 * o.steps * o.steps},
                  {weight, o.steps * o.steps},
                  {here, o.steps},
                  {left, o.steps},
                  {u, o.steps * o.value_width},
                  {r, 2 * o.steps * o.value_width},
                  {end, o.key_width},
                  {inverses, corner_inverses(o.steps)},
                  {solver, kUnitBlock * o.value_width},
                  {this->step, o.steps * o.key_width},
                  {this->carried, o.steps * o.key_width},
                  {this->factor, o.steps * o.key_width},
                  {this->part, kDecayBlock * o.key_width},
                  {this->border, o.key_width}}),
          doubles((o.steps + 1) * o.key_width) {
      std::fill_n(doubles.data(), o.key_width, 0.0), this->sums = doubles.data() + o.key_width;
      std::fill_n(here, o.steps, T(1)), std::fill_n(left, o.steps, T(1));
    }
  };

  const T* decay_at(int64_t b, int64_t h, int64_t t) const {
    return g + ((b * heads + h) * n + t) * (decay == DeltaDecay::channels ? key_width : 1);
  }
  TotalDecays<T> total_decays(int64_t b, int64_t h) const { return {g ? decay_at(b, h, 0) : nullptr, channels()}; }
  int64_t channels() const { return decay == DeltaDecay::channels ? key_width : 1; }

  /// The rows that a product with S takes for x ∘ e^L and for k ∘ e^{L_end − L}. With a decay of whole states they lack
  /// their factors `here` and `left`.
  const T* far_rows(const Memory& m) const { return decay == DeltaDecay::channels ? m.far : m.x; }
  const T* carried_rows(const Memory& m) const { return decay == DeltaDecay::channels ? m.carried : m.keys; }

  /// Copies the rows of a chunk. Computes its sums L, and from them A, P and the factors of its rows.
  void enter(Memory& m, int64_t b, int64_t h, int64_t first, int64_t count) const {
    load(m.keys, k, key_width, b, h / group, first, count), load_decays(m, b, h, first, count);
    if (erases) load(m.x, erase, key_width, b, h, first, count);
    m.ahead.fetch();
    T *const queries = m.x + (sides - 1) * count * key_width, *const p = m.pairs + (sides - 1) * count * count;
    if (!erases || sides == 2) load(queries, q, key_width, b, h / group, first, count);
    if (decay == DeltaDecay::channels) {
      const DecayQueries<T> both[] = {{m.x, m.pairs, m.far}, {queries, p, m.far + count * key_width}};
      weights_by_keys<T>(m, std::span(both, static_cast<std::size_t>(sides)), m.keys, key_width, count, precision);
      std::copy_n(m.border, key_width, m.end);
    } else {
      if (m.known) copy_pairs(m.known, m.known_steps, m.at, count, m.pairs);
      else
        for (int64_t side = 0; side < sides; ++side)
          pair_products(Pairs::earlier, count, key_width, m.x + side * count * key_width, key_width, m.keys, key_width,
                        m.pairs + side * count * count, precision);
      if (g) vectorised([&] { weigh(m, count); });
    }
    for (int64_t side = 0; side < sides; ++side) {  // pairs that do not count; 0·NaN of a later step would not be 0
      const int64_t own = erases && side == 0 ? 0 : 1;
      for (int64_t t = 0; t < count; ++t) {
        T* const line = m.pairs + (side * count + t) * count;
        std::fill(line + t + own, line + count, T(0));
      }
    }
  }

  /// Lets m.ahead fetch what steps [first, first + steps) read, in `parts` parts.
  void look_ahead(Memory& m, int64_t b, int64_t h, int64_t first, int64_t parts) const {
    m.ahead.begin(first, steps, n, parts);
    m.ahead.add(b, h / group, 0, key_width, k), m.ahead.add(b, h, 0, value_width, write);
    if (!erases || sides == 2) m.ahead.add(b, h / group, 0, key_width, q);
    if (erases) m.ahead.add(b, h, 0, key_width, erase);
  }

  static void load(T* to, const HeadView<const T>& from, int64_t width, int64_t b, int64_t h, int64_t first,
                   int64_t count) {
    for (int64_t t = 0; t < count; ++t) std::copy_n(from.at(b, h, first + t), width, to + t * width);
  }

  void load_decays(Memory& m, int64_t b, int64_t h, int64_t first, int64_t count) const {
    if (!g) return;
    vectorised([=, given = decay_at(b, h, first), width = channels(), step = m.step, sums = m.sums] {
      for (int64_t i = 0; i < count * width; ++i) step[i] = std::max(given[i], T(kForgotten));
      for (int64_t t = 0; t < count; ++t) {
        const T* const row = step + t * width;
        double *const sum = sums + t * width, *const before = sum - width;
        for (int64_t c = 0; c < width; ++c) sum[c] = before[c] + double(row[c]);
      }
    });
    if (decay == DeltaDecay::scalar)
      vectorised([&] {
        for (int64_t t = 0; t < count; ++t)
          m.here[t] = math::exp(T(m.sums[t])), m.left[t] = math::exp(T(m.sums[count - 1] - m.sums[t]));
      });
  }

  /// Multiplies the pairs of a chunk by their decays, for a decay of whole states.
  void weigh(Memory& m, int64_t count) const {
    for (int64_t t = 0; t < count; ++t) {
      T* const weight = m.weight + t * count;
      const int64_t end = whole_vectors(t + 1, count);
      for (int64_t j = 0; j < end; ++j) weight[j] = j <= t ? math::exp_low(T(m.sums[t] - m.sums[j])) : T(0);
      for (int64_t side = 0; side < sides; ++side)
        for (int64_t j = 0; j < end; ++j) m.pairs[(side * count + t) * count + j] *= weight[j];
    }
  }
  static bool is_zero(const T* x, int64_t size) {
    return std::all_of(x, x + size, [](T value) { return value == T(0); });
  }

  /// Rounds `used` numbers of a line of `count` up to whole vectors: a loop over part of a vector would take them one
  /// by one.
  static int64_t whole_vectors(int64_t used, int64_t count) { return std::min(round_up(used, 16), count); }

  /// Multiplies the rows of y [count, width] by their factors, for a decay of whole states.
  void scale_rows(const T* factor, T* y, int64_t count, int64_t width) const {
    if (decay != DeltaDecay::scalar) return;
    vectorised([&] {
      for (int64_t t = 0; t < count; ++t) {
        const T by = factor[t];
        for (int64_t c = 0; c < width; ++c) y[t * width + c] *= by;
      }
    });
  }

  /// c [rows, columns] = a · state, or a · stateᵀ, for a [rows, depth]. A null state counts as zeros.
  void product(Memory& m, Trans trans, int64_t rows, int64_t columns, int64_t depth, const T* a, const T* state,
               T* c) const {
    m.ahead.fetch();
    if (!state) std::fill_n(c, rows * columns, T(0));
    else gemm(Trans::no, trans, rows, columns, depth, T(1), a, depth, state, value_width, T(0), c, columns, precision);
  }

  /// S ← e^{L_end} ∘ S + aᵀ b, for a [rows, key_width] and b [rows, value_width].
  void next_state(Memory& m, T* state, int64_t count, int64_t rows, const T* a, const T* b) const {
    m.ahead.fetch();
    const T whole = m.here[count - 1];  // beta of the product may scale S, but not by 0, as 0·NaN is NaN
    const bool apart = decay == DeltaDecay::channels || whole == T(0);
    if (apart)
      vectorised([&] {
        for (int64_t c = 0; c < key_width; ++c) {
          const T kept = decay == DeltaDecay::channels ? m.end[c] : whole;
          for (int64_t j = 0; j < value_width; ++j) state[c * value_width + j] *= kept;
        }
      });
    gemm(Trans::yes, Trans::no, key_width, value_width, rows, T(1), a, key_width, b, value_width, apart ? T(1) : whole,
         state, value_width, precision);
  }

  /// Computes `rows` rows of r = (x ∘ e^L) S without the factors `here`, for a state that may be null as in product().
  /// Then computes u = (I + A)⁻¹ (w − here ∘ r), with the rows of r that belong to e.
  void solve(Memory& m, int64_t b, int64_t h, int64_t first, int64_t count, const T* state, int64_t rows) const {
    product(m, Trans::no, rows, value_width, key_width, far_rows(m), state, m.r);
    vectorised([&] {
      for (int64_t t = 0; t < count; ++t) {
        const T *written = write.at(b, h, first + t), *known = m.r + t * value_width, kept = m.here[t];
        T* const u = m.u + t * value_width;
        for (int64_t c = 0; c < value_width; ++c) u[c] = written[c] - kept * known[c];
      }
    });
    m.ahead.fetch();
    invert_corners(count, m.pairs, m.inverses);
    solve_unit_lower(Trans::no, count, m.pairs, m.inverses, m.u, value_width, value_width, m.solver);
  }
};

}  // namespace sluice::detail
