// A scan with a decay per channel goes through a chunk in blocks. Its weights e^{L_t − L_j} differ by channel: none can
// be taken out of a sum over channels. So factors refer to the border before a block, E_t = e^{L_t − L_border}:
//
//   earlier blocks: q_t ∘ E_t and x_j ∘ e^{L_border − L_j}, which is carried on from block to block
//   the own block:  q_t ∘ E_t and x_j / E_j up to the first step where E is small; from that step on, running products
//                   of e^g instead
//
// The choice for a step depends on no later step. (The factors for earlier blocks are the secondary chunking of Yang et
// al. 2024, Gated Linear Attention Transformers, section 4.3.)
#pragma once

#include <sluice/core/kernel/vectorise.h>
#include <sluice/core/number/math.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace sluice::detail {

constexpr int64_t kDecayBlock = 16;  // steps
/// A decay g below this is replaced by it: e^g is 0 in either precision, and differences of sums of −∞ would be NaN.
constexpr double kForgotten = -1e3;

/// The steps of one head whose decay leaves nothing of earlier steps. A scan begins anew there, so not even NaN passes.
template <class T> struct TotalDecays {
  const T* g = nullptr;  // [n, channels]; null: none
  int64_t channels = 1;
  bool operator()(int64_t t) const {
    const auto forgotten = [](T decay) { return decay <= T(kForgotten); };
    return g && std::all_of(g + t * channels, g + (t + 1) * channels, forgotten);
  }
};
/// Calls f(first, count) for the pieces into which total decays cut steps [begin, end); in reverse, the last one first.
template <class T> void each_piece(const TotalDecays<T>& total, int64_t begin, int64_t end, bool reverse, auto f) {
  for (int64_t done = 0, count = 1; done < end - begin; done += count, count = 1)
    if (reverse) {
      const int64_t last = end - done;
      while (last - count > begin && !total(last - count)) ++count;
      f(last - count, count);
    } else {
      const int64_t first = begin + done;
      while (first + count < end && !total(first + count)) ++count;
      f(first, count);
    }
}

/// How many of `rows` rows, from the first on, pass fit(first, count). Tests all at once first: usually all pass.
int64_t fitting(int64_t rows, auto fit) {
  int64_t count = fit(int64_t{0}, rows) ? rows : 0;
  while (count < rows && fit(count, int64_t{1})) ++count;
  return count;
}

/// The decays between the steps of a chunk, in `columns` channels. Rows are contiguous.
template <class T> struct DecayBuffers {
  T* step;       // g [chunk, columns]
  double* sums;  // L = g_0 + … + g_t [chunk, columns], behind a row of zeros
  T* border;     // [columns], e^{L_border}: what is left of the chunk's start
  T* factor;     // [chunk, columns], E
  T* carried;    // [chunk, columns], see DecayBlocks
  T* part;       // [block, columns], scratch of the loop over blocks; each_pair() overwrites it
};

/// for (DecayBlocks b(buffers, x, columns, count); b.enter(); b.leave(done)) goes through blocks [begin, end) of
/// `count` steps. x [count, columns] are the rows that decay, k or v. In the loop `carried` has three groups of rows:
///
///   j < begin          x_j ∘ e^{L_border − L_j}
///   begin <= j < mild  x_j / E_j
///   mild <= j < end    0
///
/// After the last block, carried = x ∘ e^{L_end − L}.
template <class T> struct DecayBlocks : DecayBuffers<T> {
  using DecayBuffers<T>::step, DecayBuffers<T>::sums, DecayBuffers<T>::border, DecayBuffers<T>::factor,
      DecayBuffers<T>::carried, DecayBuffers<T>::part;
  const T* x;
  int64_t columns, count, begin = 0, end = 0;
  int64_t mild = 0;  // the first step of the block where E, 1 / E or x / E is too large

  DecayBlocks(const DecayBuffers<T>& buffers, const T* rows, int64_t width, int64_t steps)
      : DecayBuffers<T>(buffers), x(rows), columns(width), count(steps) {
    std::fill_n(border, columns, T(1));
  }

  /// True if E and 1 / E are at most 2²⁴: so much range may be lost.
  static bool in_range(const T* e, int64_t numbers) {
    constexpr double most = 1 << 24;
    int outside = 0;
    for (int64_t i = 0; i < numbers; ++i) outside |= (e[i] < T(1 / most)) | (e[i] > T(most));
    return !outside;
  }

  /// False after the last block.
  bool enter() {
    begin = end, end = std::min(begin + kDecayBlock, count);
    vectorised([&, width = columns] {
      const double* start = sums + (begin - 1) * width;
      for (int64_t i = begin; i < end; ++i) {
        const double* here = sums + i * width;
        T *e = factor + i * width, *y = carried + i * width;
        for (int64_t c = 0; c < width; ++c) {
          const double sum = here[c] - start[c];
          e[c] = math::exp(T(sum)), e[c] += e[c] * T(sum - double(T(sum)));  // a sum of 16 in f32 is off by 1e-6
        }
        for (int64_t c = 0; c < width; ++c) y[c] = x[i * width + c] / e[c];
      }
      mild = begin + fitting(end - begin, [&](int64_t first, int64_t rows) {
               const int64_t at = (begin + first) * width;
               return in_range(factor + at, rows * width) && all_finite(carried + at, rows, width, width);
             });
      std::fill(carried + mild * width, carried + end * width, T(0));
    });
    return begin < end;
  }

  /// Calls f(j, t, x_j ∘ e^{L_t − L_j}) for the block's pairs of steps j <= t with t >= from.
  void each_pair(int64_t from, auto f) const {
    if (from >= end) return;
    T *weight = part, *kept = part + columns;  // e^g from the second step on
    const T* const steps = step + (begin + 1) * columns;
    for (int64_t i = 0; i < (end - begin - 1) * columns; ++i) kept[i] = math::exp(steps[i]);
    for (int64_t j = begin; j < end; ++j) {
      std::copy_n(x + j * columns, columns, weight);
      for (int64_t t = j; t < end; ++t) {
        for (int64_t c = 0; t > j && c < columns; ++c) weight[c] *= kept[(t - begin - 1) * columns + c];
        if (t >= from) f(j, t, static_cast<const T*>(weight));
      }
    }
  }

  /// Carries x on to the border after the block: rows before step `done` from what enter() made, others from x itself.
  void leave(int64_t done) {
    const T* last = factor + (end - 1) * columns;
    const double* there = sums + (end - 1) * columns;
    vectorised([&, width = columns] {
      for (int64_t i = 0; i < end; ++i) {
        T* y = carried + i * width;
        if (i < done)
          for (int64_t c = 0; c < width; ++c) y[c] *= last[c];
        else
          for (int64_t c = 0; c < width; ++c) y[c] = x[i * width + c] * math::exp(T(there[c] - sums[i * width + c]));
      }
      for (int64_t c = 0; c < width; ++c) border[c] *= last[c];
    });
  }
};

/// Queries [count, m] and what weights_by_keys() makes of them.
template <class T> struct DecayQueries {
  const T* q;
  T* a;        // [count, count], a_tj = Σ_c q_tc k_jc e^{L_tc − L_jc}, 0 for j > t
  T* decayed;  // [count, m], q ∘ e^L
};

/// Fills in a and `decayed` of each of `queries`, for k [count, m]. w.carried becomes k ∘ e^{L_end − L}, and w.border
/// e^{L_end}.
template <class T>
void weights_by_keys(DecayBuffers<T>& w, std::span<const DecayQueries<T>> queries, const T* k, int64_t m, int64_t count,
                     Precision precision) {
  // The terms of the products are those of a_tj: they overflow only if a_tj does.
  for (DecayBlocks<T> b(w, k, m, count); b.enter(); b.leave(b.mild)) {
    for (const DecayQueries<T>& of : queries) {
      vectorised([&b, q = of.q, decayed = of.decayed, m] {
        for (int64_t t = b.begin; t < b.end; ++t) {
          const T *query = q + t * m, *e = b.factor + t * m;
          T *near = b.part + (t - b.begin) * m, *far = decayed + t * m;
          for (int64_t c = 0; c < m; ++c) near[c] = query[c] * e[c], far[c] = near[c] * b.border[c];
        }
      });
      gemm(Trans::no, Trans::yes, b.end - b.begin, b.end, m, T(1), b.part, m, b.carried, m, T(0),
           of.a + b.begin * count, count, precision);
      for (int64_t t = b.begin; t < b.end; ++t) std::fill(of.a + t * count + t + 1, of.a + (t + 1) * count, T(0));
    }
    vectorised([&] {
      b.each_pair(b.mild, [&](int64_t j, int64_t t, const T* key) {
        for (const auto& [q, a, decayed] : queries) a[t * count + j] = row_dot(q + t * m, key, m);
      });
    });
  }
}

/// The weights a [count, count] of a sum over pairs of steps, and the rows [count, columns] that it is added to.
template <class T> struct DecayedSum {
  const T* a;
  T* o;
};

/// o_t ← e^{L_t} ∘ o_t + Σ_{j <= t} a_tj v_j ∘ e^{L_t − L_j} of each of `sums`, for v [count, columns]. w.carried
/// becomes v ∘ e^{L_end − L}.
template <class T>
void sum_by_values(DecayBuffers<T>& w, std::span<const DecayedSum<T>> sums, const T* v, int64_t columns, int64_t count,
                   Precision precision) {
  for (DecayBlocks<T> b(w, v, columns, count); b.enter(); b.leave(b.mild))
    for (const DecayedSum<T>& of : sums) {
      const auto multiply = [&](int64_t from, int64_t keys) {  // rows from … of Σ_{j < keys} a_tj carried_j
        gemm(Trans::no, Trans::no, b.end - from, columns, keys, T(1), of.a + from * count, count, b.carried, columns,
             T(0), b.part + (from - b.begin) * columns, columns, precision);
      };
      multiply(b.begin, b.end);
      // A sum may overflow before it is multiplied by E.
      const int64_t done = b.begin + fitting(b.mild - b.begin, [&](int64_t first, int64_t rows) {
                             return all_finite(b.part + first * columns, rows, columns, columns);
                           });
      if (done < b.end) multiply(done, b.begin);  // earlier blocks alone
      vectorised([&b, a = of.a, o = of.o, columns, count, done] {
        for (int64_t t = b.begin; t < b.end; ++t) {
          const T *e = b.factor + t * columns, *part = b.part + (t - b.begin) * columns;
          T* y = o + t * columns;
          for (int64_t c = 0; c < columns; ++c) y[c] = (y[c] * b.border[c] + part[c]) * e[c];
        }
        b.each_pair(done, [=](int64_t j, int64_t t, const T* value) {
          const T score = a[t * count + j];
          T* y = o + t * columns;
          for (int64_t c = 0; c < columns; ++c) y[c] += score * value[c];
        });
      });
    }
}

/// Weights a [count, count] and rows x [count, columns] of a sum over pairs, and memory [count, columns].
template <class T> struct LaterRows {
  const T *a, *x;
  T* carried;
};

/// o_j ← e^{L_end − L_j} ∘ o_j + Σ_{t >= j} a_tj x_t ∘ e^{L_t − L_j}, summed over `rows`, for o [count, columns]. From
/// the last block to the first, with the E that weights_by_keys() or sum_by_values() left of the same decays:
///
///   the own block:  x_t ∘ E_t, and 1 / E_j; from the first step on where E is small, running products of e^g
///   later blocks:   x_t ∘ e^{L_t − L_end}, carried on, and E_end / E_j
template <class T>
void sum_by_keys(DecayBuffers<T>& w, std::span<const LaterRows<T>> rows, int64_t columns, int64_t count, T* o,
                 Precision precision) {
  std::fill_n(w.border, columns, T(1));  // e^{L_end − L_last} from the block's last step to the chunk's end
  for (int64_t end = count, begin; end > 0; end = begin) {
    begin = (end - 1) / kDecayBlock * kDecayBlock;
    const int64_t steps = end - begin, at = begin * columns;
    const T *const e = w.factor + at, *const last = e + (steps - 1) * columns;
    T* const y = o + at;
    const auto multiply = [&](int64_t keys, int64_t first, int64_t later) {  // w.part = Σ_t a_tj carried_t
      for (const LaterRows<T>& r : rows)
        gemm(Trans::yes, Trans::no, keys, columns, later, T(1), r.a + first * count + begin, count,
             r.carried + first * columns, columns, T(&r != rows.data()), w.part, columns, precision);
    };
    multiply(steps, end, count - end);
    vectorised([&, border = w.border, part = w.part] {
      for (int64_t i = 0; i < steps; ++i)
        for (int64_t c = 0; c < columns; ++c)
          y[i * columns + c] = y[i * columns + c] * border[c] + part[i * columns + c];
      for (const auto& [a, x, carried] : rows) {
        for (int64_t i = at; i < end * columns; ++i) carried[i] = x[i] * w.factor[i];
        for (int64_t t = end; t < count; ++t)
          for (int64_t c = 0; c < columns; ++c) carried[t * columns + c] *= last[c];
      }
      for (int64_t c = 0; c < columns; ++c) border[c] *= last[c];
    });
    const bool finite = std::all_of(rows.begin(), rows.end(), [&](const LaterRows<T>& r) {
      return all_finite(r.carried + at, steps, columns, columns);
    });
    const int64_t mild = !finite ? 0 : fitting(steps, [&](int64_t first, int64_t some) {
      return DecayBlocks<T>::in_range(e + first * columns, some * columns);
    });
    multiply(mild, begin, steps);
    vectorised([&, part = w.part] {
      for (int64_t i = 0; i < mild; ++i)
        for (int64_t c = 0; c < columns; ++c) {
          T& to = y[i * columns + c];
          to = (to * last[c] + part[i * columns + c]) / e[i * columns + c];
        }
      if (mild == steps) return;
      const T* const decays = w.step + at + columns;  // of the second step and on
      for (int64_t i = 0; i < (steps - 1) * columns; ++i) part[i] = math::exp(decays[i]);
      for (int64_t j = mild; j < steps; ++j) {
        T* const to = y + j * columns;
        for (int64_t t = steps - 1; t >= j; --t) {
          for (const auto& [a, x, carried] : rows) {
            const T weight = a[(begin + t) * count + begin + j];
            for (int64_t c = 0; c < columns; ++c) to[c] += weight * x[at + t * columns + c];
          }
          for (int64_t c = 0; t > j && c < columns; ++c) to[c] *= part[(t - 1) * columns + c];
        }
      }
    });
  }
}

}  // namespace sluice::detail
