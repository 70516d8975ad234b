// Shared by the rungs on tensor cores: tiles of bf16 in shared memory, and products of a warp with them. A warp has 16
// rows. Of rows g and g + 8, lane 4g + t holds columns 8c + 2t and 8c + 2t + 1 for each c.
#pragma once

#include <sluice/cuda/attention/policies.h>
#include <sluice/cuda/vectors.cuh>

namespace sluice::cuda {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
constexpr int kMmaWarps = 4, kMmaRows = 16 * kMmaWarps, kMmaThreads = kMmaWarps * kWarp;

/// Rows of D numbers. The numbers of the 16-byte pieces of a row are XORed with the row's number, so that the eight
/// rows that ldmatrix reads at once lie in different banks.
template <int D> struct MmaRows {
  /// The place of piece `piece` (8 numbers) of a row.
  static __device__ int at(int row, int piece) { return row * D + 8 * (piece ^ (row % 8)); }

  /// Starts to copy `rows` rows from row `first` on; zeros where valid(row) does not hold.
  template <int rows, class Valid>
  static __device__ void copy(Shared<BFloat16> to, const BFloat16* from, int first, Valid valid) {
    for (int e = static_cast<int>(threadIdx.x); e < rows * (D / 8); e += kMmaThreads) {
      const int r = e / (D / 8), piece = e % (D / 8);
      const bool there = valid(first + r);
      cp_async_16(to + at(r, piece), from + (there ? std::ptrdiff_t{first + r} * D + 8 * piece : 0), there);
    }
  }
};

/// s [16, cols] = a · xᵀ with x of `cols` rows; own(d, f) gives the fragment of columns 16d to 16d + 15 of a.
template <int D, int cols, class Own> __device__ void mma_dots(float (&s)[cols / 8][4], Own own, Shared<BFloat16> x) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int c = 0; c < cols / 8; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[c][e] = 0;
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    uint32_t a[4];
    own(d, a);
#pragma unroll
    for (int c = 0; c < cols / 8; c += 2) {
      uint32_t f[4];  // rows 8c to 8c + 15 of x by columns 16d to 16d + 15
      ldmatrix(f, x + MmaRows<D>::at(8 * c + lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2));
      mma_m16n8k16(s[c], a, f[0], f[1]);
      mma_m16n8k16(s[c + 1], a, f[2], f[3]);
    }
  }
}

/// Rounds the result of an mma to bf16, as the left operand of the next one.
template <int cols> __device__ void pack_fragments(uint32_t (&w)[cols / 16][4], const float (&s)[cols / 8][4]) {
#pragma unroll
  for (int c = 0; c < cols / 8; ++c)
#pragma unroll
    for (int r = 0; r < 2; ++r) w[c / 2][c % 2 * 2 + r] = pack_bf16(s[c][2 * r], s[c][2 * r + 1]);
}

/// Not 0 if a number of the pair is a NaN or an infinity: adding 1 to an exponent of ones carries into the sign's
/// place.
__device__ inline uint32_t has_exponent_of_ones(uint32_t pair) {
  return ((pair & 0x7f807f80) + 0x00800080) & 0x80008000;
}

/// True if none of `cols` rows of x has a NaN or an infinity; the same for the whole warp.
template <int D, int cols> __device__ bool mma_finite(Shared<BFloat16> x) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t bad = 0;
#pragma unroll 1
  for (int j = 0; j < cols; j += 16)
#pragma unroll 1
    for (int d = 0; d < D / 8; d += 2) {
      uint32_t f[4];
      ldmatrix(f, x + MmaRows<D>::at(j + lane % 16, d + lane / 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) bad |= has_exponent_of_ones(f[i]);
    }
  return !__any_sync(kAllLanes, bad != 0);
}

/// acc [16, D] += w · x number by number, without the zeros of w; x(j, d, e) is number 8d + e of row j. `mine`: shared
/// memory of the warp for its 16·cols weights.
template <int D, int cols, class Number>
__device__ void mma_add_by_numbers(float (&acc)[D / 8][4], const uint32_t (&w)[cols / 16][4], Number x,
                                   Shared<BFloat16> mine) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  __syncwarp();  // earlier weights have been read
#pragma unroll
  for (int j = 0; j < cols / 16; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        BFloat16 weight;
        weight.bits = static_cast<uint16_t>(w[j][i] >> (16 * e));
        mine[(g + i % 2 * 8) * cols + 16 * j + i / 2 * 8 + 2 * t + e] = weight;
      }
  __syncwarp();
#pragma unroll 1
  for (int j = 0; j < cols; ++j) {
    const float low = to_float(mine[g * cols + j]), high = to_float(mine[(g + 8) * cols + j]);
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float y = x(j, d, 2 * t + e);
        acc[d][e] += low == 0 ? 0.0f : low * y;
        acc[d][2 + e] += high == 0 ? 0.0f : high * y;
      }
  }
}

/// acc [16, D] += w · x with x of `cols` rows. If `guarded` and x is not all finite, zeros of w are left out: the mask
/// made them, and 0·NaN is NaN.
template <int D, int cols>
__device__ void mma_add(float (&acc)[D / 8][4], const uint32_t (&w)[cols / 16][4], Shared<BFloat16> x, bool guarded,
                        Shared<BFloat16> mine) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (!guarded || mma_finite<D, cols>(x)) {
#pragma unroll
    for (int j = 0; j < cols / 16; ++j)
#pragma unroll
      for (int d = 0; d < D / 8; d += 2) {
        uint32_t f[4];  // rows 16j to 16j + 15 of x by columns 8d to 8d + 15
        ldmatrix<true>(f, x + MmaRows<D>::at(16 * j + lane % 16, d + lane / 16));
        mma_m16n8k16(acc[d], w[j], f[0], f[1]);
        mma_m16n8k16(acc[d + 1], w[j], f[2], f[3]);
      }
    return;
  }
  mma_add_by_numbers<D, cols>(
      acc, w, [=](int j, int d, int e) { return to_float(x[MmaRows<D>::at(j, d) + e]); }, mine);
}

// -- the forward pass: a lane's values of its rows g and g + 8 -----------------------------------------------------

/// Softmax: the largest score so far (times log2 e), and the sum of this lane's weights.
struct MmaStatistics {
  float largest[2], sum[2];

  template <class Weighting, class Problem> __device__ void begin(const Problem& p, int head) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = kMinusInfinity, sum[r] = 0;
      if (Weighting::online && p.sink && p.sink[head] != kMinusInfinity)
        largest[r] = p.sink[head] * kLog2E, sum[r] = t == 0;
    }
  }
};

/// What a mask hides of a tile of `cols` columns. The same for all lanes of a warp.
template <int cols> struct TileMask {
  static constexpr int words = ceil_div(cols, kWarp);
  static constexpr uint32_t all = cols < kWarp ? (1u << cols % kWarp) - 1 : ~0u;  // bits of a word
  bool cut = false, masked = false;  // by the interval that a row sees; by the key mask, too
  uint32_t keys[words];              // bit j of word i: key 32i + j is seen

  /// `edge`: not all rows see the whole tile, whose first key is `first` of n; `seen`: the key mask, or null.
  __device__ void look(bool edge, const uint8_t* seen, int first, int n) {
    cut = edge, masked = false;
    if (!seen) return;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < words; ++i) {
      const int j = first + kWarp * i + lane;
      keys[i] = __ballot_sync(kAllLanes, j < n && seen[j]) & all, masked |= keys[i] != all;
    }
  }
  __device__ bool any() const { return cut || masked; }
};

/// Sets the numbers of row g + 8r of s [16, cols] outside columns [span.begin, span.end) to `value`. All columns are
/// constants: two comparisons a number.
template <int cols> __device__ void mma_hide(float (&s)[cols / 8][4], int r, float value, KeySpan span) {
  const int own = static_cast<int>(threadIdx.x) % 4 * 2, begin = span.begin - own, end = span.end - own;
#pragma unroll
  for (int c = 0; c < cols / 8; ++c)
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (8 * c + e < begin || 8 * c + e >= end) s[c][2 * r + e] = value;
}
/// The same for columns whose bits in `seen` are 0.
template <int cols>
__device__ void mma_hide(float (&s)[cols / 8][4], int r, float value, const uint32_t (&seen)[TileMask<cols>::words]) {
#pragma unroll
  for (int i = 0; i < TileMask<cols>::words; ++i) {
    const uint32_t own = seen[i] >> (static_cast<int>(threadIdx.x) % 4 * 2);
#pragma unroll
    for (int j = 0; j < (cols < kWarp ? cols / 4 : 8); ++j)
      if (!(own >> (j / 2 * 8 + j % 2) & 1)) s[4 * i + j / 2][2 * r + j % 2] = value;
  }
}

/// Turns scores s [16, cols] into weights; `scale` is above 0; keep[r] is the factor for the sums of earlier tiles. Of
/// a tile that the mask cuts, row g + 8r sees columns of the interval span_of(r).
template <class Weighting, int cols, class SpanOf>
__device__ void mma_weigh(float (&s)[cols / 8][4], float scale, MmaStatistics& rows, float (&keep)[2],
                          const TileMask<cols>& mask, SpanOf span_of) {
  constexpr float hidden = Weighting::online ? kMinusInfinity : 0.0f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if constexpr (!Weighting::online)
#pragma unroll
      for (int c = 0; c < cols / 8; ++c)
#pragma unroll
        for (int e = 0; e < 2; ++e) s[c][2 * r + e] = Weighting::weight(s[c][2 * r + e] * scale);
    if (mask.cut) mma_hide<cols>(s, r, hidden, span_of(r));
    if (mask.masked) mma_hide<cols>(s, r, hidden, mask.keys);
    if constexpr (Weighting::online) {  // 2^(s·scale·log2 e − top), a multiply-add and an exponential a number
      const float unit = scale * kLog2E;
      float top = kMinusInfinity;
#pragma unroll
      for (int c = 0; c < cols / 8; ++c)
#pragma unroll
        for (int e = 0; e < 2; ++e) top = fmaxf(top, s[c][2 * r + e]);
      top = fmaxf(rows.largest[r], max_over_lanes<4>(top) * unit);
      const float shift = top == kMinusInfinity ? 0.0f : top;
      keep[r] = exp2_approx(rows.largest[r] - shift);
      rows.largest[r] = top, rows.sum[r] *= keep[r];
#pragma unroll
      for (int c = 0; c < cols / 8; ++c)
#pragma unroll
        for (int e = 0; e < 2; ++e) rows.sum[r] += s[c][2 * r + e] = exp2_approx(fmaf(s[c][2 * r + e], unit, -shift));
    }
  }
}
template <class Weighting, int D> __device__ void mma_shrink(float (&acc)[D / 8][4], const float (&keep)[2]) {
  if constexpr (Weighting::online) {
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[d][e] *= keep[e / 2];
  }
}

__device__ inline void store_pair(BFloat16* to, float x, float y) {
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(x, y);
}
/// `to`: a multiple of 8 bytes.
__device__ inline void store_pair(float* to, float x, float y) {
  struct alignas(8) Pair {
    float x, y;
  };
  *reinterpret_cast<Pair*>(to) = {x, y};
}

/// w[j] of lane t of each four becomes w[t] of lane j.
__device__ inline void transpose_quads(uint32_t (&w)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int step = 1; step < 4; step *= 2)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j & step) continue;
      const bool odd = t & step;
      const uint32_t got = __shfl_xor_sync(kAllLanes, odd ? w[j] : w[j + step], step);
      w[j] = odd ? got : w[j], w[j + step] = odd ? w[j + step] : got;
    }
}

/// Divides, gates and writes the rows of queries first + g and first + g + 8, if they exist.
template <class Weighting, class Gate, int D, class Out>
__device__ void mma_finish(const AttentionProblem<BFloat16, Out>& p, const AttentionHead<BFloat16, D, D, Out>& h,
                           int first, const float (&acc)[D / 8][4], const MmaStatistics& rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  // Stores of 16 bytes in place of four of 4. At D = 64 ptxas would put more between the products of rung 4.
  constexpr bool may_be_whole = std::is_same_v<Out, BFloat16>;
  [[maybe_unused]] const bool whole =
      p.columns >= D &&
      (reinterpret_cast<std::uintptr_t>(h.out) | static_cast<std::uintptr_t>(h.out_row) * 2) % 16 == 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = first + 8 * r + g;
    float norm = 1;
    if constexpr (Weighting::online) {
      const float total = sum_over_lanes<4>(rows.sum[r]);
      norm = total == 0 ? 0.0f : 1 / total;
      if (p.lse && t == 0 && i < p.m)
        p.lse[h.row + i] = total == 0 ? kMinusInfinity : rows.largest[r] * kLn2 + math::log(total);
    }
    [[maybe_unused]] uint32_t z[D / 8];
    if constexpr (Gate::any) Gate::load(z, p.gate, h.row + (i < p.m ? i : p.m - 1), t);
    const auto number = [&](int d, int e) {
      float y = acc[d][2 * r + e] * norm;
      if constexpr (Gate::any) y *= Gate::factor(z, d, e);
      return y;
    };
    Out* const to = h.out + i * h.out_row;
    if constexpr (may_be_whole)
      if (whole) {  // the same for all lanes, which exchange their words, also those without a row
#pragma unroll
        for (int d = 0; d < D / 8; d += 4) {  // lane t gets columns 8(d + t) to 8(d + t) + 7
          uint32_t w[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) w[j] = pack_bf16(number(d + j, 0), number(d + j, 1));
          transpose_quads(w);
          if (i < p.m) *reinterpret_cast<Bytes16<uint32_t>*>(to + 8 * (d + t)) = {w[0], w[1], w[2], w[3]};
        }
        continue;
      }
    if (i >= p.m) continue;
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
      if (8 * d + 2 * t < p.columns) store_pair(to + 8 * d + 2 * t, number(d, 0), number(d, 1));
  }
}

}  // namespace sluice::cuda
