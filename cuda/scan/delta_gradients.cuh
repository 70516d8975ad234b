// The gradients of q, k, e and of the decays for a tile of the delta rule, once u, dw, S before the tile and X = dL/dS
// behind it are there: ops/scan/scan_backward.cpp. A block for each tile of each key head takes the value heads
// of that one after another, so that their sums need no atomics. What limits it: as simt.cuh; u, dw and do are read for
// every N channels.
//
// With decays of keys a sum over the steps of other blocks goes from block to block: acc ← acc ∘ e^{G_J} + the rows of
// block J, with G_J the sum of its decays. Rows are there from the border that acc has reached, so exponents are <= 0.
#pragma once

#include <sluice/cuda/scan/delta_sweep.cuh>

namespace sluice::cuda {

/// What the kernel reads beside the view, and its results. u and the states count value heads of the launch.
template <class T> struct DeltaGradients {
  HeadRows<const T> dout, dwrite;
  const T* u;                // [span, n, dv]
  const T *states, *behind;  // [span, tiles, dk, dv]: S before each tile, X behind it
  HeadRows<T> dq, dk, derase;
  T* dg;  // [batch, heads, n, channels]
};

/// Offsets in shared memory.
template <int N, ScanDecay decay> struct DeltaGradientsTile : DeltaTile<N, decay> {
  static constexpr int size = DeltaTile<N, decay>::size;
  static constexpr int x = 0, y = size, z = 2 * size, a = 3 * size, p = 4 * size, up = 5 * size, down = up + N,
                       inner = down + N, own = inner + DeltaTile<N, decay>::threads, between = own + N,
                       end = between + DeltaTile<N, decay>::between;
};

/// sum[r] += Σ_t d_tj x_t ∘ e^{L_t − L_j} over t >= j of a block, for j = first + r.
template <class Tile, class T>
__device__ void add_later_steps(T (&sum)[4][4], Shared<T> d, Shared<T> x, Shared<T> factor, int first, int count) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int j = first + r;
    T w[4] = {1, 1, 1, 1};
    for (int t = j; t < count; ++t) {
      T y[4];
      if (t > j) {
        load_4(y, factor + t * Tile::ld);
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = forget(w[i], y[i]);
      }
      const T weight = d[t * Tile::ld_a + j];
      load_4(y, x + t * Tile::ld);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[r][i] += weight * (w[i] * y[i]);
    }
  }
}
/// acc[r] ← acc[r] ∘ e^{L_end − L_j}, from the end of a block to its step j = first + r.
template <class Tile, class T> __device__ void carry_back(T (&acc)[4][4], Shared<T> factor, int first, int count) {
#pragma unroll
  for (int r = 0; r < 4; ++r)
    for (int t = first + r + 1; t < count; ++t) {
      T y[4];
      load_4(y, factor + t * Tile::ld);
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[r][i] = forget(acc[r][i], y[i]);
    }
}

/// x_t ← x_t ∘ e^{L_t}; 16 steps, each with `parts` threads.
template <class Tile, class T> __device__ void carry_from_start(Shared<T> x, Shared<T> factor, int count, int columns) {
  const int t = static_cast<int>(threadIdx.x) / Tile::parts,
            from = static_cast<int>(threadIdx.x) % Tile::parts * Tile::part;
  if (t >= count) return;
  for (int c = from; c < from + Tile::part && c < columns; c += 4) {
    T y[4], e[4];
    load_4(y, x + t * Tile::ld + c);
    for (int s = t; s >= 0; --s) {
      load_4(e, factor + s * Tile::ld + c);
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = forget(y[i], e[i]);
    }
    store_4(x + t * Tile::ld + c, y);
  }
}

/// The gradient of a log decay; none where it is −∞ or near it.
template <class T>
__device__ void store_decay(const DeltaView<T>& s, const DeltaGradients<T>& o, const DeltaHead& at, int64_t step,
                            int64_t channel, T x) {
  o.dg[(at.head * s.n + step) * s.channels + channel] = s.log_decay(at.head, step, channel) > T(-1e3) ? x : T(0);
}

template <class T> __device__ void scale_rows(T (&acc)[4][4], Shared<T> factor) {
  T w[4];
  load_4(w, factor);
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int d = 0; d < 4; ++d) acc[r][d] *= w[d];
}

/// Decays of keys: de, dq ← e^{L_t} ∘ (de, dq) + Σ_j (dA, dP)_tj e^{L_t − L_j} ∘ k_j for the thread's numbers from row
/// t0 and column c0 on. k is there twice; `copy` is carried to the ends of blocks. Fills `between`. All threads call
/// it.
template <class Tile, class T>
__device__ void add_to_reads(T (&de)[4][4], T (&dq)[4][4], Shared<T> a, Shared<T> p, Shared<T> k, Shared<T> copy,
                             Shared<T> factor, Shared<T> between, int t0, int c0, int count, int channels) {
  constexpr int ld = Tile::ld, block = Tile::block;
  const int here = t0 / block, row = here * block, own = steps_of_block<Tile>(here, count), corner = row * ld + row;
  fill_between<Tile>(between, factor, count, channels);
  for (int b = 0; b * block < count; ++b)
    carry_to_end<Tile>(copy + b * block * ld, factor + b * block * ld, steps_of_block<Tile>(b, count), channels);
  __syncthreads();  // k is there from the end of each block
  if (t0 >= count || c0 >= channels) return;
  for (int b = 0; b < here; ++b) {
    const Shared<T> kept = between + between_at<Tile>(b + 1, b) + c0;
    scale_rows(de, kept), scale_rows(dq, kept);
    multiply_state<Tile>(de, a + b * block, copy + b * block * ld + c0, t0, block);
    multiply_state<Tile>(dq, p + b * block, copy + b * block * ld + c0, t0, block);
  }
  add_by_values<Tile>(de, a + corner, k + row * ld + c0, factor + row * ld + c0, t0 - row, own);
  add_by_values<Tile>(dq, p + corner, k + row * ld + c0, factor + row * ld + c0, t0 - row, own);
}

/// Decays of keys: dk ← e^{L_end − L_j} ∘ dk + Σ_t e^{L_t − L_j} ∘ (dA_tj e_t + dP_tj q_t). e and q are carried from
/// the starts of blocks. All threads call it.
template <class Tile, class T>
__device__ void add_to_writes(T (&dk)[4][4], Shared<T> a, Shared<T> p, Shared<T> e, Shared<T> q, Shared<T> factor,
                              Shared<T> between, int t0, int c0, int count, int channels) {
  constexpr int ld = Tile::ld, block = Tile::block;
  const int here = t0 / block, row = here * block, own = steps_of_block<Tile>(here, count), corner = row * ld + row;
  const bool busy = t0 < count && c0 < channels;
  T near[4][4] = {};
  if (busy) {
    add_later_steps<Tile>(near, a + corner, e + row * ld + c0, factor + row * ld + c0, t0 - row, own);
    add_later_steps<Tile>(near, p + corner, q + row * ld + c0, factor + row * ld + c0, t0 - row, own);
  }
  __syncthreads();  // all threads have used e and q
  for (int b = 0; b * block < count; ++b) {
    const int at_block = b * block * ld, steps = steps_of_block<Tile>(b, count);
    carry_from_start<Tile>(e + at_block, factor + at_block, steps, channels);
    carry_from_start<Tile>(q + at_block, factor + at_block, steps, channels);
  }
  __syncthreads();  // they are there from the start of each block
  if (!busy) return;
  for (int b = (count - 1) / block; b > here; --b) {
    scale_rows(dk, between + between_at<Tile>(b + 1, b) + c0);
    const int at_block = b * block * ld, steps = steps_of_block<Tile>(b, count);
    multiply_columns<Tile>(dk, a + at_block + t0, e + at_block + c0, steps);
    multiply_columns<Tile>(dk, p + at_block + t0, q + at_block + c0, steps);
  }
  carry_back<Tile>(dk, factor + row * ld + c0, t0 - row, own);
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int d = 0; d < 4; ++d) dk[r][d] += near[r][d];
}

/// A block's threads, each with 4×4 numbers from row `t0` and column 4 tx on. Does not step by gridDim: heads_at_once()
/// and memory keep the blocks below 2^31.
template <class T, int N, ScanDecay decay>
__global__ void __launch_bounds__(DeltaTile<N, decay>::threads, N == 64 ? 1 : 4)
    delta_gradients_kernel(DeltaView<T> s, DeltaGradients<T> o) {
  using Tile = DeltaGradientsTile<N, decay>;
  constexpr int ld = Tile::ld;
  const int thread = static_cast<int>(threadIdx.x), tx = thread % Tile::across, t0 = thread / Tile::across * 4,
            c0 = 4 * tx;
  const Shared<T> memory = dynamic_shared<T>();
  const Shared<T> x = memory + Tile::x, y = memory + Tile::y, z = memory + Tile::z, a = memory + Tile::a,
                  p = memory + Tile::p;
  const Shared<T> up = memory + Tile::up, down = memory + Tile::down, inner = memory + Tile::inner,
                  own = memory + Tile::own, between = memory + Tile::between;
  const Shared<double> sums = static_shared<double, N, Tile>();
  const int64_t tile = blockIdx.x % s.cut.tiles, first = s.cut.first(tile), size = s.dk * s.dv;
  const int count = s.cut.count(tile);
  for (int value = 0; value < s.group; ++value) {
    const DeltaHead at = s.at(blockIdx.x / s.cut.tiles * s.group + value);
    const int64_t states = s.of_tile(at, tile) * size;
    const auto turned = [&](Shared<T> to, const T* from, int64_t channel, int64_t col, int channels, int cols) {
      fill_turned<Tile>(to, channels, cols, rows_from(from + channel * s.dv + col, s.dv));
    };
    const auto fill_columns = [&](Shared<T> to, HeadRows<const T> from, int64_t col, int cols, T sign) {
      const T* const start = from.at(at.b, at.h, first) + col;
      const int64_t stride = from.row;
      fill_rows<Tile>(to, count, cols, [=](int i, int c) { return sign * start[i * stride + c]; });
    };
    __syncthreads();  // the head before is done
    if (decay == ScanDecay::scalar && thread < kWarp) {
      const double sum =
          running_sums(sums, count, [&](int i) { return static_cast<double>(s.log_decay(at.head, first + i, 0)); });
      for (int i = thread; i < up_to_4(count); i += kWarp) {
        const double so_far = i < count ? double(sums[i]) : sum;
        up[i] = math::exp(static_cast<T>(so_far)), down[i] = math::exp(static_cast<T>(sum - so_far));
      }
    }
    T d_erase[4][4] = {}, d_q[4][4] = {};  // dA and dP
    for (int c = 0; c < s.col_tiles; ++c) {
      const int64_t col = int64_t{c} * N;
      const int cols = s.template columns_of<N>(c);
      fill_columns(y, o.dwrite, col, cols, T(-1)), fill_columns(z, o.dout, col, cols, T(1));
      fill_turned<Tile>(x, count, cols, rows_from(o.u + s.row(at, first) * s.dv + col, s.dv));
      __syncthreads();  // the columns are complete
      if (t0 < count && c0 < count) {
        multiply_state<Tile>(d_erase, y, x + c0, t0, cols);
        multiply_state<Tile>(d_q, z, x + c0, t0, cols);
      }
      __syncthreads();  // all threads have used them
    }
    if (t0 < count && c0 < count) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int d = 0; d < 4; ++d) {
          const int t = t0 + r, j = c0 + d;
          T weight = 1;
          if (decay == ScanDecay::scalar && j <= t && t < count)
            weight = math::exp(static_cast<T>(double(sums[t]) - double(sums[j])));
          if (j == t && t < count) own[t] = d_q[r][d];  // the gradient of a decay leaves it out
          d_erase[r][d] = j < t ? d_erase[r][d] * weight : T(0), d_q[r][d] = j < t ? d_q[r][d] * weight : T(0);
        }
      store_tile<Tile>(a + c0, d_erase, t0, count), store_tile<Tile>(p + c0, d_q, t0, count);
    }
    T of_steps[4] = {}, of_state[4] = {}, whole = 0;  // Σ_c x ⊙ dx − k ⊙ dk of a step; Σ S_after ⊙ X in two parts

    for (int piece = 0; piece < s.key_tiles; ++piece) {
      const int64_t channel = int64_t{piece} * N;
      const int channels = s.template channels_of<N>(piece);
      const bool busy = t0 < count && c0 < channels;
      T de[4][4] = {}, dq[4][4] = {}, dk[4][4] = {}, dots = 0;  // dots: of a row of S and X
      for (int c = 0; c < s.col_tiles; ++c) {
        const int64_t col = int64_t{c} * N;
        const int cols = s.template columns_of<N>(c);
        fill_columns(y, o.dwrite, col, cols, T(-1)), fill_columns(z, o.dout, col, cols, T(1));
        turned(x, o.states + states, channel, col, channels, cols);
        __syncthreads();  // dw, do and S are complete
        if (busy) multiply_state<Tile>(de, y, x + c0, t0, cols), multiply_state<Tile>(dq, z, x + c0, t0, cols);
        __syncthreads();  // all threads have read dw and do
        fill_rows<Tile>(y, count, cols, rows_from(o.u + s.row(at, first) * s.dv + col, s.dv));
        turned(z, o.behind + states, channel, col, channels, cols);
        __syncthreads();  // u and X are complete
        if (busy) multiply_state<Tile>(dk, y, z + c0, t0, cols);
        if (decay != ScanDecay::none && thread % N < channels)
          for (int d = thread / N; d < cols; d += Tile::threads / N)
            dots += x[d * ld + thread % N] * z[d * ld + thread % N];
        __syncthreads();  // all threads have used them
      }
      const auto of = [&](HeadRows<const T> from, int head) {
        const T* const start = from.at(at.b, head, first) + channel;
        const int64_t stride = from.row;
        return [start, stride](int i, int c) { return start[i * stride + c]; };
      };
      const auto of_q = of(s.q, at.key), of_k = of(s.k, at.key), of_erase = of(s.erase, at.h);
      const auto each = [&](auto f) {
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int d = 0; d < 4; ++d)
            if (t0 + r < count && c0 + d < channels) f(r, d, t0 + r, c0 + d);
      };
      // What every decay of the tile scales: Σ S_after ⊙ X = e^{L_end} Σ S ⊙ X + Σ (k ∘ e^{L_end − L}) ⊙ u Xᵀ.
      const int64_t ends = s.of_tile(at, tile) * s.dk + channel;
      const auto of_carried = rows_from(s.carried + s.row(at, first) * s.dk + channel, s.dk);
      T behind = 0;  // keys: of channel `thread`
      if constexpr (decay == ScanDecay::scalar) {
        if (thread % N < channels) whole += (s.whole[ends] + s.rest[ends]) * dots;
        each([&](int r, int d, int t, int c) { of_state[r] += of_carried(t, c) * dk[r][d]; });
      }
      if constexpr (decay == ScanDecay::keys) {
        T later[4][4] = {};
        each([&](int r, int d, int t, int c) { later[r][d] = of_carried(t, c) * dk[r][d]; });
        inner[thread] = dots;
        if (busy) store_tile<Tile>(x + c0, later, t0, count);
        __syncthreads();  // what channels add up is complete
        if (thread < channels) {
          for (int i = thread; i < Tile::threads; i += N) behind += inner[i];
          behind *= s.whole[ends + thread] + s.rest[ends + thread];
          for (int t = 0; t < count; ++t) behind += x[t * ld + thread];
        }
        __syncthreads();  // the sums are done
      }
      const auto add = [&](T& to, T x) { to = value > 0 ? to + x : x; };
      T steps[4][4] = {};  // keys: x ⊙ dx − k ⊙ dk
      const auto add_step = [&](int r, int d, T x) {
        if constexpr (decay == ScanDecay::scalar) of_steps[r] += x;
        if constexpr (decay == ScanDecay::keys) steps[r][d] += x;
      };
      const auto store_reads = [&] {
        each([&](int r, int d, int t, int c) {
          o.derase.at(at.b, at.h, first + t)[channel + c] = de[r][d];
          add(o.dq.at(at.b, at.key, first + t)[channel + c], dq[r][d] + T(own[t]) * of_k(t, c));
          add(o.dk.at(at.b, at.key, first + t)[channel + c], T(own[t]) * of_q(t, c));
          if (decay != ScanDecay::none) add_step(r, d, of_erase(t, c) * de[r][d] + of_q(t, c) * dq[r][d]);
        });
      };
      fill_rows<Tile>(x, count, channels, of_k);
      if constexpr (decay == ScanDecay::keys) {
        fill_rows<Tile>(z, count, channels, of_k);
        fill_rows<Tile>(y, count, channels,
                        [&](int i, int c) { return forgetting(s.log_decay(at.head, first + i, channel + c)); });
        __syncthreads();  // k and the decays are complete
        add_to_reads<Tile>(de, dq, a, p, x, z, y, between, t0, c0, count, channels);
        store_reads();
        __syncthreads();  // all threads have used k
      }
      const Shared<T> e_rows = decay == ScanDecay::keys ? x : y;
      fill_rows<Tile>(e_rows, count, channels, of_erase), fill_rows<Tile>(z, count, channels, of_q);
      __syncthreads();  // e and q are complete
      if constexpr (decay == ScanDecay::keys) {
        add_to_writes<Tile>(dk, a, p, x, z, y, between, t0, c0, count, channels);
      } else if (busy) {
        if constexpr (decay == ScanDecay::scalar) {
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const T so_far = up[t0 + r], to_end = down[t0 + r];
#pragma unroll
            for (int d = 0; d < 4; ++d) de[r][d] *= so_far, dq[r][d] *= so_far, dk[r][d] *= to_end;
          }
        }
        multiply_state<Tile>(de, a, x + c0, t0, count), multiply_state<Tile>(dq, p, x + c0, t0, count);
        multiply_columns<Tile>(dk, a + t0, y + c0, count), multiply_columns<Tile>(dk, p + t0, z + c0, count);
        store_reads();
      }
      each([&](int r, int d, int t, int c) {
        o.dk.at(at.b, at.key, first + t)[channel + c] += dk[r][d];
        if (decay != ScanDecay::none) add_step(r, d, -(of_k(t, c) * dk[r][d]));
      });
      __syncthreads();  // all threads have used the piece
      if constexpr (decay == ScanDecay::keys) {
        if (busy) store_tile<Tile>(x + c0, steps, t0, count);
        __syncthreads();  // what channels add up is complete
        if (thread < channels)
          for (int t = count - 1; t >= 0; --t)
            store_decay(s, o, at, first + t, channel + thread, behind += x[t * ld + thread]);
        __syncthreads();  // the sums are done
      }
    }
    if constexpr (decay == ScanDecay::scalar) {
      whole = sum_over_lanes(whole);
      if (thread % kWarp == 0) inner[thread / kWarp] = whole;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        of_steps[r] = sum_over_lanes<Tile::across>(of_steps[r]),
        of_state[r] = sum_over_lanes<Tile::across>(of_state[r]);
        if (tx == 0 && t0 + r < count) up[t0 + r] = of_steps[r], down[t0 + r] = of_state[r];
      }
      __syncthreads();  // what steps add up is complete
      if (thread < count) {
        T sum = 0;
        for (int i = 0; i < Tile::threads / kWarp; ++i) sum += inner[i];
        for (int t = 0; t < count; ++t) sum += down[t] + (t >= thread ? T(up[t]) : T(0));
        store_decay(s, o, at, first + thread, 0, sum);
      }
    }
  }
}

template <class T, int N, ScanDecay decay> void delta_gradients(const DeltaView<T>& s, const DeltaGradients<T>& o) {
  using Tile = DeltaGradientsTile<N, decay>;
  launch(delta_gradients_kernel<T, N, decay>, grid_of(s.span / s.group * s.cut.tiles), dim3(Tile::threads),
         Tile::end * sizeof(T), s, o);
}

}  // namespace sluice::cuda
