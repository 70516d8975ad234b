// The kernel of the chunked scan on ordinary cores, with every option, in f32 and f64, by the parts in simt.cuh.
#pragma once

#include <sluice/cuda/scan/learned.cuh>

namespace sluice::cuda {

/// Blocks of a multiprocessor.
template <int N> constexpr int kScanBlocks = N == 64 ? 2 : 4;
/// A block for each N columns of each head and piece. learned: it stores what a decay's gradient takes, too.
template <class T, int N, ScanDecay decay, bool learned>
__global__ void __launch_bounds__(ScanTile<N, decay>::threads, kScanBlocks<N>)
    scan_simt(ScanView<T> s, ScanLearned<T, decay> parts) {
  using Tile = ScanTile<N, decay>;
  constexpr int rows = Tile::rows, ld = Tile::ld;
  constexpr bool by_pairs = learned && decay == ScanDecay::scalar, by_rows = learned && decay == ScanDecay::values;
  const int thread = static_cast<int>(threadIdx.x), tx = thread % Tile::across, ty = thread / Tile::across;
  const Shared<T> memory = dynamic_shared<T>();
  const Shared<T> q = memory + Tile::q, k = memory + Tile::k, v = memory + Tile::v, a = memory + Tile::a,
                  state = memory + Tile::state;
  const Shared<T> factor = memory + Tile::factor, whole = memory + Tile::whole, rest = memory + Tile::rest;
  const Shared<double> sums = static_shared<double, Tile::steps + N, Tile>();  // L of a scalar decay
  const Shared<double> total = sums + Tile::steps;                             // Σg of each channel in this piece
  const Shared<T> x = memory + Tile::end;                                      // only with by_pairs
  Shared<double> partial = sums;                                               // only if learned
  if constexpr (learned) { partial = static_shared<double, Tile::threads / kWarp * N, ScanLearned<T, decay>>(); }
  const ScanPlace at(s);
  const int64_t col = int64_t{at.col_tile} * N;
  const int cols = static_cast<int>(s.e - col < N ? s.e - col : N);
  const bool writes = s.writes(), own = 4 * tx < cols;
  for (int pass = 0; pass == 0 || pass < s.m; pass += N) {
    const int all = static_cast<int>(s.m - pass < N ? s.m - pass : N);
    const int channels = decay == ScanDecay::keys ? all : decay == ScanDecay::values ? cols : 1;
    const int64_t channel = decay == ScanDecay::keys ? pass : decay == ScanDecay::values ? col : 0;
    bool has_state = writes && at.piece > 0;
    for (int r = thread / N; r < up_to_4(all); r += Tile::threads / N)
      if (const int c = thread % N; c < up_to_4(cols))
        state[r * ld + c] = has_state && r < all && c < cols ? *s.kept(at, pass + r, col + c) : T(0);
    if (thread < N) total[thread] = 0;
    for (int64_t chunk = at.begin; chunk < at.end; ++chunk) {
      int64_t first = s.cut.first(chunk);
      int count = s.cut.count(chunk);
      if constexpr (learned) {
        const int64_t from = first - parts.skip, end = from + Tile::steps < s.n ? from + Tile::steps : s.n;
        first = from > 0 ? from : 0, count = static_cast<int>(end - first);
      }
      if (writes) fill_rows<Tile>(q, count, all, [&](int i, int c) { return s.q.at(at.b, at.h, first + i)[pass + c]; });
      fill_rows<Tile>(k, count, all, [&](int i, int c) { return s.k.at(at.b, at.h, first + i)[pass + c]; });
      fill_rows<Tile>(v, count, cols, [&](int i, int c) { return s.v.at(at.b, at.h, first + i)[col + c]; });
      if constexpr (by_pairs) {
        if (writes)
          fill_rows<Tile>(x, count, cols, [&](int i, int c) { return parts.x.at(at.b, at.h, first + i)[col + c]; });
      }
      load_decays<Tile, decay>(s, at.head, first, count, channel, channels, factor, whole, rest, sums, total);
      __syncthreads();  // the chunk and S are complete
      if (writes) {
        const bool inside = learned && has_state && (!parts.back || chunk + 1 < s.cut.chunks);
        if constexpr (learned) {
          T* const kept = parts.states + (parts.chunk_at(s, at, chunk) * s.m + pass) * s.e + col;
          if (inside && parts.back) {
            double dots[4] = {};
            each_of_state<Tile>(state, s.e, all, cols,
                                [&](T y, int64_t i, int d) { dots[d] += double(y) * double(kept[i]); });
            sum_columns<Tile, N>(partial, dots, [&](int d) { return 4 * tx + d; });
          } else if (inside) {
            each_of_state<Tile>(state, s.e, all, cols, [&](T y, int64_t i, int) { kept[i] = y; });
          }
        }
        if constexpr (decay == ScanDecay::keys) weigh_by_keys<Tile>(q, k, factor, a, count, all);
        else
          weigh<Tile>(q, k, a, count, all, [&](int t, int j) {
            return decay == ScanDecay::scalar ? math::exp(static_cast<T>(double(sums[t]) - double(sums[j]))) : T(1);
          });
        __syncthreads();  // all threads have read k, and A is complete
        if constexpr (learned) {
          if (inside && parts.back && thread < cols) {
            // From S, behind the step before the chunk, to X, at the step behind it: one decay more than this scan has.
            const int c = decay == ScanDecay::scalar ? 0 : thread;
            const double decays =
                double(whole[c] + rest[c]) * double(math::exp(s.log_decay(at.head, first + count, channel + c)));
            add_of_pass(parts.across[parts.chunk_at(s, at, chunk) * s.e + col + thread],
                        decays * column_sum<Tile, N>(partial, thread), pass);
          }
        }
        const int t0 = ty * rows;
        double sum_of_rows[rows] = {};
        if (t0 < count && own) {
          T acc[rows][4] = {};
          if (has_state) multiply_state<Tile>(acc, q, state + 4 * tx, t0, all);
          if constexpr (decay == ScanDecay::scalar) {
#pragma unroll
            for (int r = 0; r < rows; ++r) {
              const T up = t0 + r < count ? T(factor[t0 + r]) : T(0);
#pragma unroll
              for (int d = 0; d < 4; ++d) acc[r][d] *= up;
            }
          }
          if constexpr (by_pairs) {
#pragma unroll
            for (int r = 0; r < rows; ++r) {
              T other[4];
              load_4(other, x + (t0 + r) * ld + 4 * tx);
#pragma unroll
              for (int d = 0; d < 4; ++d) sum_of_rows[r] += double(acc[r][d]) * double(other[d]);
            }
          }
          if constexpr (by_rows) {
            T near[rows][4];
            split_by_values<Tile>(acc, near, a, v + 4 * tx, factor + 4 * tx, t0, count);
#pragma unroll
            for (int r = 0; r < rows; ++r)
#pragma unroll
              for (int d = 0; d < 4; ++d)
                if (const int t = t0 + r; t < count && 4 * tx + d < cols) {
                  const int64_t c = col + 4 * tx + d, place = parts.at(s, at, first + t, c);
                  const T other = parts.x.at(at.b, at.h, first + t)[c];
                  add_of_pass(parts.rows[place], (parts.columns ? acc[r][d] : acc[r][d] + near[r][d]) * other, pass);
                  if (parts.columns) add_of_pass(parts.columns[place], near[r][d] * other, pass);
                  if (parts.own) near[r][d] += a[t * Tile::ld_a + t] * v[t * ld + 4 * tx + d];
                  acc[r][d] += near[r][d];
                }
          } else if constexpr (decay == ScanDecay::values) {
            add_by_values<Tile>(acc, a, v + 4 * tx, factor + 4 * tx, t0, count);
          } else {
            add_weighted<Tile>(acc, a, v + 4 * tx, t0, !learned || parts.own);
          }
          T* y = s.y.at(at.b, at.h, first + t0) + col + 4 * tx;
#pragma unroll
          for (int r = 0; r < rows; ++r, y += s.y.row)
#pragma unroll
            for (int d = 0; d < 4; ++d)
              if (t0 + r < count && 4 * tx + d < cols) y[d] = pass > 0 ? y[d] + acc[r][d] : acc[r][d];
        }
        if constexpr (by_pairs) {
          if (parts.columns) sum_pairs<Tile, N>(sum_of_rows, partial, a, x, v, t0, count, cols);
#pragma unroll
          for (int r = 0; r < rows; ++r) {
            const double sum = sum_over_lanes<Tile::across>(sum_of_rows[r]);
            if (tx == 0 && t0 + r < count) add_of_pass(parts.rows[parts.at(s, at, first + t0 + r, 0)], sum, pass);
          }
          if (parts.columns) {
            __syncthreads();  // the columns of all warps are complete
            if (thread < count)
              add_of_pass(parts.columns[parts.at(s, at, first + thread, 0)], column_sum<Tile, N>(partial, thread),
                          pass);
          }
        }
        if (chunk + 1 == at.end) break;  // S is not needed any more
      }
      if constexpr (decay == ScanDecay::keys) carry_to_end<Tile>(k, factor, count, all);
      if constexpr (decay == ScanDecay::values) {
        __syncthreads();  // all threads have read v
        carry_to_end<Tile>(v, factor, count, cols);
      }
      __syncthreads();  // all threads have read S
      if (4 * ty < all && own) add_to_state<Tile, decay>(state, k, v, factor, whole, rest, count, 4 * ty, 4 * tx);
      has_state = true;
      __syncthreads();  // all threads have used the chunk
    }
    if (!writes) {
      if (4 * ty < all && own)  // this thread's numbers of S
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int d = 0; d < 4; ++d)
            if (4 * ty + r < all && 4 * tx + d < cols)
              *s.kept(at, pass + 4 * ty + r, col + 4 * tx + d) = state[(4 * ty + r) * ld + 4 * tx + d];
      // If several blocks or passes compute the same sum, they write the same bits.
      if (decay != ScanDecay::none && thread < channels) *s.total(at, channel + thread) = total[thread];
    }
    __syncthreads();
  }
}

}  // namespace sluice::cuda
