// The gradients of a chunk of a linear_scan with a learned scalar decay on tensor cores, once S before the chunk and
// X = dL/dS behind it are there (states_mma.cuh):
//
//   A_tj = (do_t·v_j) e^{L_t − L_j}                        P_tj = (q_t·k_j) e^{L_t − L_j}
//   dq_t = Σ_{j <= t} A_tj k_j + e^{L_t} do_t Sᵀ           dk_j = Σ_{t >= j} A_tj q_t + e^{L_end − L_j} v_j Xᵀ
//   dv_j = Σ_{t >= j} P_tj do_t + e^{L_end − L_j} k_j X
//
// g_s enters the weights of all pairs j < s <= t. So its gradient is the sum of
//   A_tj (q_t·k_j) of the pairs in the chunk;        q_t·(e^{L_t} do_t Sᵀ) for t >= s, where j lies before the chunk;
//   k_j·(e^{L_end − L_j} v_j Xᵀ) for j < s, where t lies behind it;        e^{L_end} Σ S ∘ X, where both do
// Only the sum over the pairs of one chunk is a difference, Σ_{t >= s} of their rows less Σ_{j >= s} of their columns,
// in f64 of sums in f32. (Dao & Gu 2024, Transformers are SSMs, section 6; Yang et al. 2024, Gated Linear Attention
// Transformers, appendix: by q ∘ dq − k ∘ dk.)
//
// A block has a chunk, and the heads of v of one part of a group that shares q and k: dq and dk of the part add up in
// registers. Its eight warps form a 4×2 grid of 16 steps by half of the columns. A and P are rounded to bf16 in shared
// memory. Nothing is added by atomics. What limits it: S, X, q, k, v and do come from memory in one wait a head; two
// blocks on a multiprocessor, one for keys and columns both beyond 64; mma.sync.
#pragma once

#include <sluice/cuda/scan/states_mma.cuh>

namespace sluice::cuda {

/// The results beside the call, and the heads of v in a part of a group.
template <class Out> struct ScanGradients {
  ScanChunks of;
  HeadRows<Out> dq, dk, dv;  // dq and dk [batch, parts, n, m]
  float* dg;                 // [batch, heads, n]
  int part;
  bool pairs_of_keys, pairs_of_columns;  // rows of dq and dk, and of dv, begin at even places
};

/// Offsets in shared memory count bf16 numbers.
template <int M, int E> struct ScanGradientsTile {
  static constexpr int steps = kScanMmaSteps, threads = 8 * kWarp;
  static constexpr int q = 0, k = q + steps * M, v = k + steps * M, dout = v + steps * E, before = dout + steps * E,
                       behind = before + M * E, a = behind + M * E, p = a + steps * steps,
                       by_numbers = p + steps * steps, end = by_numbers + threads / kWarp * 256;
  static constexpr std::size_t bytes = end * sizeof(BFloat16);
  static constexpr int blocks = M == 128 && E == 128 ? 1 : 2;  // on a multiprocessor
};

/// The parts of a decay's gradient that warps add up in a chunk.
struct ScanDecaySums {
  Shared<double> later, earlier;  // running sums
  Shared<float> rows, columns;    // of pairs, [4][64]: by blocks of 16 columns; by blocks of 16 rows
  Shared<float> of_q, of_k;       // q·dq and k·dk through S and X, [2][64]: by halves of the channels
  Shared<float> of_states;        // Σ S ∘ X, by warps

  template <class Tag> static __device__ ScanDecaySums get() {
    constexpr int steps = kScanMmaSteps;
    const Shared<double> sums = static_shared<double, 2 * steps, ScanDecaySums>();
    const Shared<float> parts = static_shared<float, 12 * steps + 8, Tag>();
    return {sums, sums + steps, parts, parts + 4 * steps, parts + 8 * steps, parts + 10 * steps, parts + 12 * steps};
  }
  /// The gradient of each of `count` decays by one warp: store(s, gradient). kept: e^{L_end}.
  template <class Store> __device__ void finish(int count, float kept, Store store) const {
    constexpr int steps = kScanMmaSteps;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    running_sums(later, steps, [&](int i) {  // of steps from the last on, so that NaN reaches no later one
      const int t = steps - 1 - i;
      double x = double(of_q[t]) + double(of_q[steps + t]);
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        if (block <= t / 16) x += double(rows[block * steps + t]);
        if (block >= t / 16) x -= double(columns[block * steps + t]);
      }
      return x;
    });
    running_sums(earlier, steps, [&](int j) { return double(of_k[j]) + double(of_k[steps + j]); });
    float dots = 0;
#pragma unroll
    for (int w = 0; w < 8; ++w) dots += of_states[w];
    __syncwarp();  // all lanes see the running sums
    for (int i = lane; i < count; i += kWarp)
      store(i, static_cast<float>(double(later[steps - 1 - i]) + (i > 0 ? double(earlier[i - 1]) : 0.0) +
                                  double(kept * dots)));
  }
};

/// A block for each chunk and part.
template <int M, int E, class Out>
__global__ void __launch_bounds__(8 * kWarp, ScanGradientsTile<M, E>::blocks) scan_gradients(ScanGradients<Out> o) {
  using Tile = ScanGradientsTile<M, E>;
  constexpr int steps = Tile::steps, of_m = M / 16, of_e = E / 16;  // of_m, of_e: 8-column pieces of a half
  const ScanChunks& s = o.of;
  const Shared<BFloat16> memory = dynamic_shared<BFloat16>();
  const Shared<BFloat16> q = memory + Tile::q, k = memory + Tile::k, v = memory + Tile::v, dout = memory + Tile::dout,
                         before = memory + Tile::before, behind = memory + Tile::behind, a = memory + Tile::a,
                         p = memory + Tile::p;
  const auto words = [](int place) { return dynamic_shared<uint32_t>() + place / 2; };
  const ScanDecaySums sums = ScanDecaySums::get<Tile>();
  const ScanMmaDecays decays = ScanMmaDecays::of<Tile>(0);
  const int chunk = static_cast<int>(blockIdx.x), of_part = static_cast<int>(blockIdx.y) * o.part;
  const int first_head = s.first_head + of_part;
  const int count = s.cut.count(chunk);
  const int first = chunk * steps;
  {
    const int b = first_head / s.heads, group = first_head % s.heads / s.share;
    scan_copy<M, Tile::threads>(q, s.q.at(b, group, first), s.q.row, count, static_cast<int>(s.m));
    scan_copy<M, Tile::threads>(k, s.k.at(b, group, first), s.k.row, count, static_cast<int>(s.m));
  }

  float dq[of_m][4] = {}, dk[of_m][4] = {};
#pragma unroll 1
  for (int local = of_part; local < of_part + o.part; ++local) {  // a head of this launch
    const int head = s.first_head + local, b = head / s.heads, h = head % s.heads;
    const int thread = thread_again(), lane = thread % kWarp, warp = thread / kWarp, g = lane / 4, t = lane % 4;
    const int rows = warp % 4, half = warp / 4;
    const Shared<BFloat16> mine = memory + (Tile::by_numbers + 256 * warp);
    // This lane's row and piece for ldmatrix: of 16 rows as they lie; of 16 rows that are columns of the product.
    const int low = lane % 16, piece = lane / 16, low_of_columns = lane / 16 * 8 + lane % 8,
              piece_of_columns = lane / 8 % 2;
    const int64_t state = (local * s.cut.chunks + chunk) * (M * E);
    scan_copy<E, Tile::threads>(v, s.v.at(b, h, first), s.v.row, count, static_cast<int>(s.e));
    scan_copy<E, Tile::threads>(dout, s.dout.at(b, h, first), s.dout.row, count, static_cast<int>(s.e));
#pragma unroll 1
    for (int x = 8 * thread; x < M * E; x += 8 * Tile::threads)
      cp_async_16(before + x, s.before + state + x, true), cp_async_16(behind + x, s.behind + state + x, true);
    cp_async_commit();
    if (warp == 0) decays.fill(s.log_decay(head, chunk, lane), s.log_decay(head, chunk, lane + kWarp));
    cp_async_wait<0>();
    __syncthreads();  // all threads see the operands and the decays

    // A, P and the sums of the pairs: 16×16 of them at a time
#pragma unroll 1
    for (int block = half; block <= rows; block += 2) {
      float x[2][4] = {}, y[2][4] = {};
      uint32_t w[4], f[4];
      const auto multiply = [&]<int width>(float(&to)[2][4], Shared<BFloat16> left, Shared<BFloat16> right) {
        const int of_left = MmaRows<width>::at(16 * rows + low, piece),
                  of_right = MmaRows<width>::at(16 * block + low_of_columns, piece_of_columns);
#pragma unroll 1
        for (int c = 0; c < width / 16; ++c) {
          ldmatrix(w, left + pieces_on(of_left, 2 * c)), ldmatrix(f, right + pieces_on(of_right, 2 * c));
          mma_m16n8k16(to[0], w, f[0], f[1]), mma_m16n8k16(to[1], w, f[2], f[3]);
        }
      };
      multiply.template operator()<E>(x, dout, v), multiply.template operator()<M>(y, q, k);
      float of_columns[2][2] = {};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int step = 16 * rows + 8 * r + g;
        float of_row = 0;
#pragma unroll
        for (int d = 0; d < 2; ++d) {
          float weighted[2], pair[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int other = 16 * block + 8 * d + 2 * t + e;
            const float weight =
                exp2_approx(static_cast<float>(double(decays.sums[step]) - double(decays.sums[other])) * kLog2E);
            const float dot = y[d][2 * r + e];
            weighted[e] = other > step ? 0.0f : x[d][2 * r + e] * weight, pair[e] = other > step ? 0.0f : dot * weight;
            const float both = other < step ? weighted[e] * dot : 0.0f;
            of_row += both, of_columns[d][e] += both;
          }
          const int at = MmaRows<steps>::at(step, 2 * block + d) + 2 * t;
          words(Tile::a + at)[0] = pack_bf16(weighted[0], weighted[1]);
          words(Tile::p + at)[0] = pack_bf16(pair[0], pair[1]);
        }
        of_row = sum_over_lanes<4>(of_row);
        if (t == 0) sums.rows[block * steps + step] = of_row;
      }
#pragma unroll
      for (int d = 0; d < 2; ++d)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float sum = of_columns[d][e];
#pragma unroll
          for (int lanes = 4; lanes < kWarp; lanes *= 2) sum += shuffle_xor(sum, lanes);
          if (g == 0) sums.columns[rows * steps + 16 * block + 8 * d + 2 * t + e] = sum;
        }
    }
    float dots = 0;
#pragma unroll 1
    for (int x = 8 * thread; x < M * E; x += 8 * Tile::threads) {
      uint32_t one[4], other[4];
      load_16(one, words(Tile::before + x)), load_16(other, words(Tile::behind + x));
#pragma unroll
      for (int e = 0; e < 4; ++e)
        dots += first_of(one[e]) * first_of(other[e]) + second_of(one[e]) * second_of(other[e]);
    }
    dots = sum_over_lanes<kWarp>(dots);
    if (lane == 0) sums.of_states[warp] = dots;
    __syncthreads();  // A and P are complete

    /// to += factors ∘ (x Stateᵀ) for this warp's channels. dots_of: what is added, times the rows of bf16 at y.
    const auto add_through_state = [&](float(&to)[of_m][4], Shared<BFloat16> x, Shared<BFloat16> by,
                                       Shared<float> factors, int y, Shared<float> dots_of) {
      const int of_x = MmaRows<E>::at(16 * rows + low, piece),
                of_by = MmaRows<E>::at(8 * half * of_m + low_of_columns, piece_of_columns);
      float dots[2] = {};
#pragma unroll
      for (int from = 0; from < of_m; from += 4) {  // all at once would take too many registers
        float acc[4][4] = {};
#pragma unroll 2
        for (int c = 0; c < E / 16; ++c) {
          uint32_t w[4], f[4];
          ldmatrix(w, x + pieces_on(of_x, 2 * c));
#pragma unroll
          for (int d = 0; d < 4; d += 2) {
            ldmatrix(f, by + (pieces_on(of_by, 2 * c) + 8 * (from + d) * E));
            mma_m16n8k16(acc[d], w, f[0], f[1]), mma_m16n8k16(acc[d + 1], w, f[2], f[3]);
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int step = 16 * rows + 8 * r + g, of_y = MmaRows<M>::at(step, half * of_m) + 2 * t;
          const float factor = factors[step];
#pragma unroll
          for (int d = 0; d < 4; ++d) {
            const uint32_t pair = words(y + pieces_on(of_y, from + d))[0];
            const float one = factor * acc[d][2 * r], other = factor * acc[d][2 * r + 1];
            dots[r] += first_of(pair) * one + second_of(pair) * other;
            to[from + d][2 * r] += one, to[from + d][2 * r + 1] += other;
          }
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float dot = sum_over_lanes<4>(dots[r]);
        if (t == 0) dots_of[half * steps + 16 * rows + 8 * r + g] = dot;
      }
    };
    /// to += Wᵀ x over the steps t >= j of this warp's steps j.
    const auto add_later = [&]<int wide, int columns>(float(&to)[wide][4], Shared<BFloat16> weights,
                                                      Shared<BFloat16> x) {
      const int place = MmaRows<columns>::at(low, half * wide + piece);
      uint32_t w[1][4];
      const auto load = [&](int block) {
        ldmatrix<true>(w[0], weights + MmaRows<steps>::at(16 * block + low_of_columns, 2 * rows + piece_of_columns));
      };
      load(rows);
      scan_add_weighted<columns, true>(to, w, x, place, 16 * rows, half * wide, mine);
#pragma unroll 1
      for (int block = rows + 1; block < 4; ++block) {
        load(block);
        scan_add_weighted<columns, false>(to, w, x, place, 16 * block, half * wide, mine);
      }
    };

    {
      float dv[of_e][4] = {};
      const int of_k = MmaRows<M>::at(16 * rows + low, piece), of_x = MmaRows<E>::at(low, half * of_e + piece);
#pragma unroll 1
      for (int c = 0; c < M / 16; ++c) {
        uint32_t w[4], f[4];
        ldmatrix(w, k + pieces_on(of_k, 2 * c));
#pragma unroll
        for (int d = 0; d < of_e; d += 2) {
          ldmatrix<true>(f, behind + (pieces_on(of_x, d) + 16 * c * E));
          mma_m16n8k16(dv[d], w, f[0], f[1]), mma_m16n8k16(dv[d + 1], w, f[2], f[3]);
        }
      }
#pragma unroll
      for (int d = 0; d < of_e; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) dv[d][e] *= decays.down[16 * rows + 8 * (e / 2) + g];
      add_later.template operator()<of_e, E>(dv, p, dout);
      const int again = head + thread_again() / Tile::threads;  // head: no register keeps b and h
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (const int step = 16 * rows + 8 * r + g; step < count)
          scan_store_row(o.dv.at(again / s.heads, again % s.heads, first + step), 8 * half * of_e,
                         static_cast<int>(s.e), dv, r, o.pairs_of_columns);
    }
    add_through_state(dq, dout, before, decays.up, Tile::q, sums.of_q);
    {
      const int place = MmaRows<M>::at(low, half * of_m + piece);
      uint32_t w[1][4];
      const auto load = [&](int block) { ldmatrix(w[0], a + MmaRows<steps>::at(16 * rows + low, 2 * block + piece)); };
#pragma unroll 1
      for (int block = 0; block < rows; ++block) {
        load(block);
        scan_add_weighted<M, false>(dq, w, k, place, 16 * block, half * of_m, mine);
      }
      load(rows);
      scan_add_weighted<M, true>(dq, w, k, place, 16 * rows, half * of_m, mine);
    }
    add_through_state(dk, v, behind, decays.down, Tile::k, sums.of_k);
    add_later.template operator()<of_m, M>(dk, a, q);
    __syncthreads();  // all have used the head's operands; the sums are complete
    if (warp == 0)
      sums.finish(count, decays.up[steps - 1], [&](int step, float x) {
        // None where e^g is 0, and none for the first step of all, before which there is nothing.
        const bool counts = first + step > 0 && s.log_decay(head, chunk, step) > -1e3f;
        o.dg[int64_t{head} * s.n + first + step] = counts ? x : 0.0f;
      });
  }
  const int b = first_head / s.heads, part = first_head % s.heads / o.part;
  const int thread = thread_again(), rows = thread / kWarp % 4, half = thread / kWarp / 4, g = thread % kWarp / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (const int step = 16 * rows + 8 * r + g; step < count) {
      scan_store_row(o.dq.at(b, part, first + step), 8 * half * of_m, static_cast<int>(s.m), dq, r, o.pairs_of_keys);
      scan_store_row(o.dk.at(b, part, first + step), 8 * half * of_m, static_cast<int>(s.m), dk, r, o.pairs_of_keys);
    }
}

}  // namespace sluice::cuda
