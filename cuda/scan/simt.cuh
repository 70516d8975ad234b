// The chunked scan on ordinary cores, with every option, in f32 and f64. For steps 0 … c−1 of a chunk and
// L_t = g_0 + … + g_t:
//
//   A_tj = Σ_c q_tc k_jc e^{L_tc − L_jc}, j <= t      o_t = (q_t ∘ e^{L_t}) S + Σ_{j <= t} A_tj v_j
//   S ← e^{L_end} ∘ S + Σ_j (k_j ∘ e^{L_end − L_j})ᵀ v_j
//
// For decays of values the factors stand beside v. Exponents are <= 0, so nothing overflows and nothing is divided.
// Without decay or with a scalar one, a chunk has as many steps as the tile has columns. With decays per channel it has
// 16 steps, and a factor e^{L_t − L_j} is a running product of e^g from t down to j. (Chunks: Hua et al. 2022,
// Transformer Quality in Linear Time, section 3.3; Yang et al. 2024, Gated Linear Attention Transformers, section 4.)
//
// A block has N columns of S, with all tiles in shared memory; if S has more than N rows, further passes add to o. A
// thread has 4×4 numbers of S, and Tile::rows rows and 4 columns of o, by 16-byte reads: eight multiply-adds a read.
// What limits it: these reads; and no load is under way while it computes, except in other blocks of the
// multiprocessor.
#pragma once

#include <sluice/cuda/scan/pieces.cuh>

#include <limits>

namespace sluice::cuda {

/// The tile of N columns, for N²/16 threads, and the offsets of its parts in shared memory.
template <int N, ScanDecay decay> struct ScanTile {
  static constexpr bool by_channel = decay == ScanDecay::keys || decay == ScanDecay::values;
  static constexpr int across = N / 4, threads = across * across, steps = by_channel ? 16 : N, rows = steps / across;
  static constexpr int parts = threads / 16, part = N / parts;  // by_channel: threads of a step, channels of each
  static constexpr int ld = N + 4, ld_a = steps + 4;            // so that rows begin in different banks
  static constexpr int q = 0, k = q + steps * ld, v = k + steps * ld, a = v + steps * ld, state = a + steps * ld_a;
  static constexpr int factor = state + N * ld;  // forgetting(g) [steps, ld]; scalar: e^{L_t}, then e^{L_end − L_t}
  static constexpr int whole = factor + (by_channel ? steps * ld : 2 * steps), rest = whole + N, end = rest + N;
};

/// f.operator()<T, N>(): T is the dtype of keys [..., m] and values [..., e], N the columns of their tile.
template <class F> void with_scan_tile(const Tensor& keys, const Tensor& values, F f) {
  if (keys.dtype() == f64) f.template operator()<double, 32>();
  else if (keys.dim(3) <= 32 && values.dim(3) <= 32) f.template operator()<float, 32>();
  else f.template operator()<float, 64>();
}

template <class T> __device__ void load_4(T (&x)[4], Shared<T> from) {
  constexpr int n = 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < 4; i += n) load_16(*reinterpret_cast<T(*)[n]>(x + i), from + i);
}
template <class T> __device__ void store_4(Shared<T> to, const T (&x)[4]) {
  constexpr int n = 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < 4; i += n) store_16(to + i, *reinterpret_cast<const T(*)[n]>(x + i));
}
__device__ inline int up_to_4(int x) { return (x + 3) / 4 * 4; }

/// to[i][c] = number(i, c) for i < count, c < columns; zeros beyond, up to multiples of 4.
template <class Tile, class T, class Number>
__device__ void fill_rows(Shared<T> to, int count, int columns, Number number) {
  constexpr int wide = Tile::ld - 4;
  const int c = static_cast<int>(threadIdx.x) % wide;
  if (c < up_to_4(columns)) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) / wide; i < up_to_4(count); i += Tile::threads / wide)
      to[i * Tile::ld + c] = i < count && c < columns ? number(i, c) : T(0);
  }
}

/// e^g in the form that forget() takes: e^g − 1 if g is near 0. Else the errors of many factors would go in one
/// direction.
template <class T> __device__ T forgetting(T g) {
  if (g <= T(0) && g >= T(-0.7)) return math::expm1(g);
  const T x = math::exp(g);
  return x < std::numeric_limits<T>::min() ? std::numeric_limits<T>::min() : x;  // above 0
}
/// x e^g
template <class T> __device__ T forget(T x, T factor) { return x * factor + (factor > T(0) ? T(0) : x); }

/// x_j ← x_j ∘ e^{L_end − L_j}; 16 steps, each with `parts` threads.
template <class Tile, class T> __device__ void carry_to_end(Shared<T> x, Shared<T> factor, int count, int columns) {
  const int j = static_cast<int>(threadIdx.x) / Tile::parts,
            from = static_cast<int>(threadIdx.x) % Tile::parts * Tile::part;
  if (j >= count) return;
  for (int c = from; c < from + Tile::part && c < columns; c += 4) {
    T y[4], e[4];
    load_4(y, x + j * Tile::ld + c);
    for (int s = j + 1; s < count; ++s) {
      load_4(e, factor + s * Tile::ld + c);
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = forget(y[i], e[i]);
    }
    store_4(x + j * Tile::ld + c, y);
  }
}

/// A_tj with decays of keys, added to `a` if `more`, and q_t ∘ e^{L_t} in place of q_t. Up to 16 steps.
template <class Tile, class T>
__device__ void weigh_by_keys(Shared<T> q, Shared<T> k, Shared<T> factor, Shared<T> a, int count, int channels,
                              bool more = false) {
  const int t = static_cast<int>(threadIdx.x) / Tile::parts, part = static_cast<int>(threadIdx.x) % Tile::parts;
  T w[Tile::part / 4][4], x[4];
#pragma unroll
  for (int p = 0; p < Tile::part / 4; ++p)
    if (const int c = part * Tile::part + 4 * p; t < count && c < channels) load_4(w[p], q + t * Tile::ld + c);
  for (int j = count - 1; j >= 0; --j) {
    T sum = 0;
#pragma unroll
    for (int p = 0; p < Tile::part / 4; ++p) {
      const int c = part * Tile::part + 4 * p;
      if (j > t || t >= count || c >= channels) continue;
      load_4(x, k + j * Tile::ld + c);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += w[p][i] * x[i];
      load_4(x, factor + j * Tile::ld + c);
#pragma unroll
      for (int i = 0; i < 4; ++i) w[p][i] = forget(w[p][i], x[i]);
    }
    sum = sum_over_lanes<Tile::parts>(sum);
    if (part == 0) a[t * Tile::ld_a + j] = more ? a[t * Tile::ld_a + j] + sum : sum;
  }
  if (part == 0)
    for (int j = count; j < up_to_4(count); ++j) a[t * Tile::ld_a + j] = T(0);
#pragma unroll
  for (int p = 0; p < Tile::part / 4; ++p)
    if (const int c = part * Tile::part + 4 * p; t < count && c < channels) store_4(q + t * Tile::ld + c, w[p]);
}

/// sum[r][s] += Σ_c q_tc k_jc for t = first + r and j = tx + s·across < end. scaled(y, j, c) may scale the four numbers
/// y of k_j from channel c on.
template <class Tile, class T, class Scaled>
__device__ void add_dots(T (&sum)[Tile::rows][Tile::rows], Shared<T> q, Shared<T> k, int first, int end, int channels,
                         Scaled scaled) {
  constexpr int rows = Tile::rows;
  const int tx = static_cast<int>(threadIdx.x) % Tile::across;
#pragma unroll 1
  for (int c = 0; c < channels; c += 4) {
    T x[rows][4], y[4];
#pragma unroll
    for (int r = 0; r < rows; ++r) load_4(x[r], q + (first + r) * Tile::ld + c);
#pragma unroll
    for (int s = 0; s < rows; ++s) {
      const int j = tx + s * Tile::across;
      if (j >= end) continue;
      load_4(y, k + j * Tile::ld + c);
      scaled(y, j, c);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[r][s] += x[r][i] * y[i];
    }
  }
}

/// A_tj without decays of keys: weight(t, j) q_t·k_j for j <= t, else 0. Thread (ty, tx) has rows first … first + rows
/// − 1 and columns tx + i·across.
template <class Tile, class T, class Weight>
__device__ void weigh(Shared<T> q, Shared<T> k, Shared<T> a, int count, int channels, Weight weight) {
  constexpr int rows = Tile::rows;
  const int tx = static_cast<int>(threadIdx.x) % Tile::across,
            first = static_cast<int>(threadIdx.x) / Tile::across * rows;
  if (first >= count) return;
  T sum[rows][rows] = {};
  add_dots<Tile>(sum, q, k, first, first + rows, channels, [](T(&)[4], int, int) {});
#pragma unroll
  for (int r = 0; r < rows; ++r)
#pragma unroll
    for (int s = 0; s < rows; ++s) {
      const int t = first + r, j = tx + s * Tile::across;
      if (j < up_to_4(count)) a[t * Tile::ld_a + j] = j <= t && t < count ? sum[r][s] * weight(t, j) : T(0);
    }
}

/// acc[r] += Σ_{j <= first + r} A_tj v_j. Later steps are left out of the sum, because they may be NaN; so is the step
/// itself without `own`.
template <class Tile, class T>
__device__ void add_weighted(T (&acc)[Tile::rows][4], Shared<T> a, Shared<T> v, int first, bool own = true) {
  constexpr int rows = Tile::rows;
  const int last = own ? first : first - 1;  // of the first row
  const auto add = [&](int j, auto whole) {
    T x[rows][4], y[4];
#pragma unroll
    for (int r = 0; r < rows; ++r) load_4(x[r], a + (first + r) * Tile::ld_a + j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_4(y, v + (j + i) * Tile::ld);
#pragma unroll
      for (int r = 0; r < rows; ++r)
        if (whole || j + i <= last + r) {
#pragma unroll
          for (int d = 0; d < 4; ++d) acc[r][d] += x[r][i] * y[d];
        }
    }
  };
  int j = 0;
#pragma unroll 1
  for (; j + 3 <= last; j += 4) add(j, std::true_type());
#pragma unroll 1
  for (; j <= last + rows - 1; j += 4) add(j, std::false_type());
}

/// Loads the decays of a chunk, for `channels` channels from `channel` on: the factors of its steps and of the state
/// (whole and rest). Adds its sums of g to `total`.
template <class Tile, ScanDecay decay, class View, class T>
__device__ void load_decays(const View& s, int head, int64_t first, int count, int64_t channel, int channels,
                            Shared<T> factor, Shared<T> whole, Shared<T> rest, Shared<double> sums,
                            Shared<double> total) {
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (Tile::by_channel) {
    fill_rows<Tile>(factor, count, channels,
                    [&](int i, int c) { return forgetting(s.log_decay(head, first + i, channel + c)); });
    if (thread >= up_to_4(channels)) return;
    double sum = 0;
    if (thread < channels)
      for (int i = 0; i < count; ++i) sum += s.log_decay(head, first + i, channel + thread);
    total[thread] += sum;
    const ScanFactor<T> f(static_cast<T>(sum));
    whole[thread] = f.whole, rest[thread] = f.rest;
  } else if constexpr (decay == ScanDecay::scalar) {
    if (thread >= kWarp) return;
    const double sum =
        running_sums(sums, count, [&](int i) { return static_cast<double>(s.log_decay(head, first + i, 0)); });
    for (int i = thread; i < count; i += kWarp) {
      const double here = sums[i];
      factor[i] = math::exp(static_cast<T>(here)), factor[Tile::steps + i] = math::exp(static_cast<T>(sum - here));
    }
    const ScanFactor<T> f(static_cast<T>(sum));
    if (thread == 0) whole[0] = f.whole, rest[0] = f.rest, total[0] += sum;
  }
}

/// acc[r] = w ∘ acc[r] + Σ_{j <= t} A_tj v_j ∘ e^{L_t − L_j}, t = first + r, w = e^{L_t}: decays of values.
template <class Tile, class T>
__device__ void add_by_values(T (&acc)[Tile::rows][4], Shared<T> a, Shared<T> v, Shared<T> factor, int first,
                              int count) {
#pragma unroll
  for (int r = 0; r < Tile::rows; ++r) {
    if (first + r >= count) continue;
    T w[4] = {1, 1, 1, 1}, own[4] = {}, x[4];
    for (int j = first + r; j >= 0; --j) {
      const T weight = a[(first + r) * Tile::ld_a + j];
      load_4(x, v + j * Tile::ld);
#pragma unroll
      for (int d = 0; d < 4; ++d) own[d] += weight * (w[d] * x[d]);
      load_4(x, factor + j * Tile::ld);
#pragma unroll
      for (int d = 0; d < 4; ++d) w[d] = forget(w[d], x[d]);
    }
#pragma unroll
    for (int d = 0; d < 4; ++d) acc[r][d] = w[d] * acc[r][d] + own[d];
  }
}

/// acc[r] = q_{first + r} S, four columns of it.
template <class Tile, class T>
__device__ void multiply_state(T (&acc)[Tile::rows][4], Shared<T> q, Shared<T> state, int first, int channels) {
#pragma unroll 1
  for (int c = 0; c < channels; c += 4) {
    T x[Tile::rows][4], y[4];
#pragma unroll
    for (int r = 0; r < Tile::rows; ++r) load_4(x[r], q + (first + r) * Tile::ld + c);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_4(y, state + (c + i) * Tile::ld);
#pragma unroll
      for (int r = 0; r < Tile::rows; ++r)
#pragma unroll
        for (int d = 0; d < 4; ++d) acc[r][d] += x[r][i] * y[d];
    }
  }
}

/// S ← e^{L_end} ∘ S + Σ_j k_jᵀ v_j for this thread's 4×4 numbers, from row `row` and column `column` on.
template <class Tile, ScanDecay decay, class T>
__device__ void add_to_state(Shared<T> state, Shared<T> k, Shared<T> v, Shared<T> factor, Shared<T> whole,
                             Shared<T> rest, int count, int row, int column) {
  T sum[4][4] = {};
#pragma unroll 2
  for (int j = 0; j < count; ++j) {
    T x[4], y[4];
    load_4(x, k + j * Tile::ld + row), load_4(y, v + j * Tile::ld + column);
    const T down = decay == ScanDecay::scalar ? T(factor[Tile::steps + j]) : T(1);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (decay == ScanDecay::scalar) x[r] *= down;
#pragma unroll
      for (int d = 0; d < 4; ++d) sum[r][d] += x[r] * y[d];
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    T x[4];
    const int at = (row + r) * Tile::ld + column;
    load_4(x, state + at);
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const int c = decay == ScanDecay::keys ? row + r : decay == ScanDecay::values ? column + d : 0;
      const T f = decay == ScanDecay::none ? T(1) : T(whole[c]), f_rest = decay == ScanDecay::none ? T(0) : T(rest[c]);
      x[d] = decay == ScanDecay::none ? x[d] + sum[r][d] : decayed(x[d], f, f_rest, sum[r][d]);
    }
    store_4(state + at, x);
  }
}

}  // namespace sluice::cuda
