// The chunked scan on tensor cores: operands in bf16, sums and the state in f32, without decay or with a scalar one
// (formulae: simt.cuh). cp.async copies chunks of 64 steps into one of two buffers while the block uses the
// other one.
//
// A block has 64 or 128 columns of S, and its warps form a 4×1 or 4×2 grid. In registers a warp has 64 columns of the
// outputs of 16 steps of a chunk, and M/4 rows of the same columns of S. Weights A go from one product into the next in
// registers; q S reads a copy of S rounded to bf16. Two barriers a chunk: after the chunk has arrived, and after all
// have read the copy.
// What limits it: at M = 128 a multiprocessor has one block, whose warps wait for each other twice a chunk; the two
// halves of 128 columns each compute A; mma.sync instead of wgmma.
#pragma once

#include <sluice/cuda/attention/mma_tiles.cuh>
#include <sluice/cuda/scan/pieces.cuh>

namespace sluice::cuda {

constexpr int kScanMmaSteps = 64;

/// The tile of M channels of keys and 64·halves columns. Offsets of its parts in shared memory count bf16 numbers.
template <int M, int halves> struct ScanMmaTile {
  static constexpr int steps = kScanMmaSteps, columns = 64 * halves, threads = 4 * halves * kWarp;
  static constexpr int q = 0, k = q + 2 * steps * M, v = k + 2 * steps * M, state = v + 2 * steps * columns;
  static constexpr int by_numbers = state + M * columns, end = by_numbers + 4 * halves * 256;
  static constexpr std::size_t bytes = end * sizeof(BFloat16);
};

/// Decays of a chunk: L_t, e^{L_t}, e^{L_end − L_t}, and e^{L_end} in two parts. Shared memory has two buffers of them.
struct ScanMmaDecays {
  Shared<double> sums;
  Shared<float> up, down, end;

  template <class Tag> static __device__ ScanMmaDecays of(int buffer) {
    constexpr int floats = 2 * kScanMmaSteps + 2;
    const Shared<double> sums = static_shared<double, 2 * kScanMmaSteps, Tag>() + buffer * kScanMmaSteps;
    const Shared<float> up = static_shared<float, 2 * floats, Tag>() + buffer * floats;
    return {sums, up, up + kScanMmaSteps, up + 2 * kScanMmaSteps};
  }
  /// Fills the buffer; one warp must call it. low and high: g of steps `lane` and `lane` + 32. Returns L_end.
  __device__ double fill(float low, float high) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const double all =
        running_sums(sums, kScanMmaSteps, [&](int i) { return static_cast<double>(i < kWarp ? low : high); });
    for (int i = lane; i < kScanMmaSteps; i += kWarp) {
      const double here = sums[i];
      up[i] = math::exp(static_cast<float>(here)), down[i] = math::exp(static_cast<float>(all - here));
    }
    const ScanFactor<float> f(static_cast<float>(all));
    if (lane == 0) end[0] = f.whole, end[1] = f.rest;
    return all;
  }
};

/// Starts to copy 64 steps into rows of D numbers; zeros beyond `count` steps and `width` numbers.
template <int D, int threads>
__device__ void scan_copy(Shared<BFloat16> to, const BFloat16* from, int64_t row, int count, int width) {
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x); e < kScanMmaSteps * (D / 8); e += threads) {
    const int r = e / (D / 8), piece = e % (D / 8);
    const bool there = r < count && 8 * piece < width;
    cp_async_16(to + MmaRows<D>::at(r, piece), there ? from + r * row + 8 * piece : from, there);
  }
}

/// The place of the piece that lies `pieces` after the one at `place`, in a row of MmaRows. The number of the piece at
/// `place` and `pieces` must have no bits in common.
__device__ inline int pieces_on(int place, int pieces) { return place ^ (8 * pieces); }
/// The numbers of a pair of bf16.
__device__ inline float first_of(uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }
__device__ inline float second_of(uint32_t pair) { return __builtin_bit_cast(float, pair & 0xffff0000); }
/// Multiplies a pair of bf16 by x and y.
__device__ inline uint32_t scale_pair(uint32_t pair, float x, float y) {
  return pack_bf16(first_of(pair) * x, second_of(pair) * y);
}
/// True if the rows of y begin at even places, so that pairs can be stored.
template <class T> bool in_pairs(const HeadRows<T>& y) {
  return reinterpret_cast<std::uintptr_t>(y.base) % (2 * sizeof(T)) == 0 && (y.batch | y.head | y.row) % 2 == 0;
}
__device__ inline void store_number(float* to, float x) { *to = x; }
__device__ inline void store_number(BFloat16* to, float x) { to->bits = static_cast<uint16_t>(pack_bf16(x, 0)); }

/// acc [16, 8 wide] += A v for 16×16 weights A and the rows of v from `row` on, its pieces from `piece` on. `place`:
/// the place of this lane's row in the first two pieces, for row = 0. On the diagonal A is 0 for steps that do not
/// count; their v may be NaN, and must not count.
template <int columns, bool diagonal, int wide>
__device__ void scan_add_weighted(float (&acc)[wide][4], const uint32_t (&w)[1][4], Shared<BFloat16> v, int place,
                                  int row, int piece, Shared<BFloat16> mine) {
  uint32_t f[wide / 2][4], bad = 0;
#pragma unroll
  for (int d = 0; d < wide / 2; ++d) {
    ldmatrix<true>(f[d], v + (pieces_on(place, 2 * d) + row * columns));
#pragma unroll
    for (int i = 0; i < 4; ++i) bad |= has_exponent_of_ones(f[d][i]);
  }
  if constexpr (diagonal)
    if (__any_sync(kAllLanes, bad != 0))
      return mma_add_by_numbers<8 * wide, 16>(
          acc, w, [=](int j, int d, int e) { return to_float(v[MmaRows<columns>::at(row + j, piece + d) + e]); }, mine);
#pragma unroll
  for (int d = 0; d < wide / 2; ++d)
    mma_m16n8k16(acc[2 * d], w[0], f[d][0], f[d][1]), mma_m16n8k16(acc[2 * d + 1], w[0], f[d][2], f[d][3]);
}
template <int columns, bool diagonal>
__device__ void scan_add_weighted(float (&acc)[8][4], const float (&low)[4], const float (&high)[4], Shared<BFloat16> v,
                                  int place, int row, int piece, Shared<BFloat16> mine) {
  const uint32_t w[1][4] = {
      {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]), pack_bf16(high[2], high[3])}};
  scan_add_weighted<columns, diagonal>(acc, w, v, place, row, piece, mine);
}

/// f(two numbers, row, column) for this lane's numbers of S, counted from the lane's first row and column. The two
/// numbers are neighbours in their row.
template <int N, class F> __device__ void scan_each_pair(float (&state)[N][8][4], F f) {
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int d = 0; d < 8; ++d) f(state[i][d][2 * r], state[i][d][2 * r + 1], 16 * i + 8 * r, 8 * d);
}
/// S ← e^{L_end} S; e^{L_end} comes in two parts.
template <int N> __device__ void scan_shrink(float (&state)[N][8][4], float whole, float rest) {
  scan_each_pair(state, [=](float& x, float& y, int, int) {
    x = decayed(x, whole, rest, 0.0f), y = decayed(y, whole, rest, 0.0f);
  });
}
/// Writes S, rounded, to rows of `columns` numbers. `place`: that of this lane's first number.
template <int columns, int N>
__device__ void scan_round_state(Shared<uint32_t> to, float (&state)[N][8][4], int place) {
  scan_each_pair(state, [=](float x, float y, int row, int column) {
    to[(pieces_on(place, column / 8) + row * columns) / 2] = pack_bf16(x, y);
  });
}
/// S += Σ_j (k_j factors_j)ᵀ v_j over `count` steps. of_k, of_v: places of this lane's rows of k, transposed, and of v.
/// `factors` is read only if `weighted`.
template <int M, int columns, bool weighted>
__device__ void scan_add_to_state(float (&state)[M / 64][8][4], Shared<BFloat16> k, Shared<BFloat16> v, int of_k,
                                  int of_v, Shared<float> factors, int count) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll 1
  for (int j = 0; j < count; j += 16) {
    uint32_t f[4][4];
#pragma unroll
    for (int d = 0; d < 4; ++d) ldmatrix<true>(f[d], v + (pieces_on(of_v, 2 * d) + j * columns));
#pragma unroll
    for (int i = 0; i < M / 64; ++i) {
      uint32_t a[4];  // kᵀ: 16 channels by 16 steps
      ldmatrix<true>(a, k + (pieces_on(of_k, 2 * i) + j * M));
      if constexpr (weighted) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int step = j + e / 2 * 8 + 2 * t;
          a[e] = scale_pair(a[e], factors[step], factors[step + 1]);
        }
      }
#pragma unroll
      for (int d = 0; d < 4; ++d)
        mma_m16n8k16(state[i][2 * d], a, f[d][0], f[d][1]), mma_m16n8k16(state[i][2 * d + 1], a, f[d][2], f[d][3]);
    }
  }
}

/// Writes row g + 8r of acc to columns `col` … of y, which has `width`. `pairs`: its rows begin at even places.
template <int wide, class Out>
__device__ void scan_store_row(Out* y, int col, int width, const float (&acc)[wide][4], int r, bool pairs) {
#pragma unroll
  for (int d = 0; d < wide; ++d) {
    const int c = col + 8 * d + static_cast<int>(threadIdx.x) % 4 * 2;
    if (pairs && c + 1 < width) {
      store_pair(y + c, acc[d][2 * r], acc[d][2 * r + 1]);
    } else {
      if (c < width) store_number(y + c, acc[d][2 * r]);
      if (c + 1 < width) store_number(y + c + 1, acc[d][2 * r + 1]);
    }
  }
}

/// A block for each 64·halves columns of each head and piece. Rows of operands must be 16-byte aligned and padded with
/// zeros to multiples of 8. `pairs`: rows of y begin at even places.
template <int M, int halves, bool weighted, class Out>
__global__ void __launch_bounds__(128 * halves, 1) scan_mma(ScanView<BFloat16, Out, float> s, bool pairs) {
  using Tile = ScanMmaTile<M, halves>;
  constexpr int steps = Tile::steps, columns = Tile::columns;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp, g = lane / 4,
            t = lane % 4;
  const int rows = warp % 4, half = warp / 4, channel = M / 4 * rows + g;  // of S: channel + 16 i + 8 r
  const Shared<BFloat16> memory = dynamic_shared<BFloat16>(), copy = memory + Tile::state;
  const Shared<uint32_t> copy_pairs = dynamic_shared<uint32_t>() + Tile::state / 2;
  // Places of this lane's rows for ldmatrix (queries, 16 keys, the keys transposed, columns), and of its numbers of S.
  const int of_q = MmaRows<M>::at(16 * rows + lane % 16, lane / 16), row_of_k = lane / 16 * 8 + lane % 8;
  const int of_k = MmaRows<M>::at(row_of_k, lane / 8 % 2),
            of_k_transposed = MmaRows<M>::at(row_of_k, M / 32 * rows + lane / 8 % 2);
  const int of_columns = MmaRows<columns>::at(lane % 16, 8 * half + lane / 16);
  const int of_state = MmaRows<columns>::at(channel, 8 * half) + 2 * t;
  const ScanPlace at(s);
  const int tile_col = at.col_tile * columns, col = tile_col + 64 * half, wide = static_cast<int>(s.e),
            last = static_cast<int>(at.end);
  const bool writes = s.writes();
  const auto count_of = [&](int chunk) {
    const int64_t left = s.n - int64_t{chunk} * steps;
    return left < steps ? static_cast<int>(left) : steps;
  };
  const auto start_copies = [&](int chunk) {
    const int buffer = chunk % 2, count = count_of(chunk);
    const int64_t first = int64_t{chunk} * steps;
    if (writes)
      scan_copy<M, Tile::threads>(memory + (Tile::q + buffer * steps * M), s.q.at(at.b, at.h / s.share, first), s.q.row,
                                  count, static_cast<int>(s.m));
    scan_copy<M, Tile::threads>(memory + (Tile::k + buffer * steps * M), s.k.at(at.b, at.h / s.share, first), s.k.row,
                                count, static_cast<int>(s.m));
    scan_copy<columns, Tile::threads>(memory + (Tile::v + buffer * steps * columns),
                                      s.v.at(at.b, at.h, first) + tile_col, s.v.row, count, wide - tile_col);
  };
  const auto decay_of = [&](int chunk, int i) {
    return i < count_of(chunk) ? s.log_decay(at.head, int64_t{chunk} * steps + i, 0) : 0.0f;
  };

  float state[M / 64][8][4];
  bool has_state = writes && at.piece > 0;
  /// f(number, its address in s.states) for this lane's numbers of S; the address is null outside.
  const auto each_kept = [&](auto f) {
#pragma unroll
    for (int i = 0; i < M / 64; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = channel + 16 * i + 8 * r, left = wide - col - 2 * t;
        float* const from = row < s.m && s.states ? s.kept(at, row, col + 2 * t) : nullptr;
#pragma unroll
        for (int d = 0; d < 8; ++d)
#pragma unroll
          for (int e = 0; e < 2; ++e) f(state[i][d][2 * r + e], from && 8 * d + e < left ? from + 8 * d + e : nullptr);
      }
  };
  each_kept([&](float& x, const float* from) { x = has_state && from ? *from : 0.0f; });
  if (has_state) scan_round_state<columns>(copy_pairs, state, of_state);
  const int begin = static_cast<int>(at.begin);
  start_copies(begin);
  cp_async_commit();
  double total = 0;  // Σg of the piece, in warp 0
  if (weighted && warp == 0)
    total = ScanMmaDecays::of<Tile>(begin % 2).fill(decay_of(begin, lane), decay_of(begin, lane + kWarp));

  for (int chunk = begin; chunk < last; ++chunk) {
    const int buffer = chunk % 2, count = count_of(chunk);
    const Shared<BFloat16> q = memory + (Tile::q + buffer * steps * M), k = memory + (Tile::k + buffer * steps * M);
    const Shared<BFloat16> v = memory + (Tile::v + buffer * steps * columns);
    const ScanMmaDecays decays = ScanMmaDecays::of<Tile>(buffer);
    cp_async_wait<0>();
    __syncthreads();  // all threads see the chunk and the copy of S; the other buffer is free
    const bool more = chunk + 1 < last;
    float next_low = 0, next_high = 0;
    if (more) {
      start_copies(chunk + 1);
      if (weighted && warp == 0) next_low = decay_of(chunk + 1, lane), next_high = decay_of(chunk + 1, lane + kWarp);
    }
    cp_async_commit();

    if (writes) {
      float acc[8][4] = {}, w[8][4] = {};
#pragma unroll 1
      for (int c = 0; c < M / 16; ++c) {
        uint32_t a[4], f[4];
        ldmatrix(a, q + pieces_on(of_q, 2 * c));
        if (has_state) {
#pragma unroll
          for (int d = 0; d < 8; d += 2) {
            ldmatrix<true>(f, copy + (pieces_on(of_columns, d) + 16 * c * columns));
            mma_m16n8k16(acc[d], a, f[0], f[1]), mma_m16n8k16(acc[d + 1], a, f[2], f[3]);
          }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (j <= rows) {  // this warp's steps see these 16
            ldmatrix(f, k + (pieces_on(of_k, 2 * c) + 16 * j * M));
            mma_m16n8k16(w[2 * j], a, f[0], f[1]), mma_m16n8k16(w[2 * j + 1], a, f[2], f[3]);
          }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int step = 16 * rows + 8 * r + g;
        if constexpr (weighted) {
          const float up = decays.up[step];
#pragma unroll
          for (int d = 0; d < 8; ++d) acc[d][2 * r] *= up, acc[d][2 * r + 1] *= up;
        }
#pragma unroll
        for (int j = 0; j < 8; ++j)
          if (j / 2 <= rows) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int other = 8 * j + 2 * t + e;
              float& x = w[j][2 * r + e];
              if constexpr (weighted)
                x *= exp2_approx(static_cast<float>(double(decays.sums[step]) - double(decays.sums[other])) * kLog2E);
              if (other > step) x = 0;
            }
          }
      }
      float low[4] = {}, high[4] = {};  // the weights on the diagonal
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (j == rows) low[e] = w[2 * j][e], high[e] = w[2 * j + 1][e];
        if (j < rows)
          scan_add_weighted<columns, false>(acc, w[2 * j], w[2 * j + 1], v, of_columns, 16 * j, 8 * half, memory);
      }
      scan_add_weighted<columns, true>(acc, low, high, v, of_columns, 16 * rows, 8 * half,
                                       memory + (Tile::by_numbers + 256 * warp));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int step = 16 * rows + 8 * r + g;
        if (step >= count) continue;
        scan_store_row(s.y.at(at.b, at.h, int64_t{chunk} * steps + step), col, wide, acc, r, pairs);
      }
      if (!more) break;  // S is not needed any more
    }

    if constexpr (weighted) scan_shrink(state, decays.end[0], decays.end[1]);
    scan_add_to_state<M, columns, weighted>(state, k, v, of_k_transposed, of_columns, decays.down, count);
    has_state = true;
    if (weighted && warp == 0 && more) total += ScanMmaDecays::of<Tile>(1 - buffer).fill(next_low, next_high);
    if (!writes) continue;
    __syncthreads();  // all threads have read the copy
    scan_round_state<columns>(copy_pairs, state, of_state);
  }

  if (writes) return;
  each_kept([](float x, float* to) {
    if (to) *to = x;
  });
  if (weighted && threadIdx.x == 0) *s.total(at, 0) = total;  // several blocks write the same bits
}

}  // namespace sluice::cuda
