// Shared by the kernels of attention.cu: attention with every option, forward and backward, for any sizes. As in rung 2
// (simt.cuh) a warp has 16 rows and takes 32 columns at a time, and a thread 4×4 pairs. A block has up to four such
// warps, which share the columns. Widths are split into pieces that fit shared memory.
#pragma once

#include <sluice/core/number/philox.h>
#include <sluice/cuda/attention/mask.cuh>
#include <sluice/cuda/attention/parts.cuh>
#include <sluice/cuda/vectors.cuh>
#include <sluice/ops/attention/attention_kernels.h>

#include <cmath>
#include <limits>

namespace sluice::cuda {

// Rows or columns of a thread, threads of a row, columns of a tile.
constexpr int kEach = 4, kAcross = 8, kCols = kEach * kAcross;
constexpr int kRowsOfWarp = kWarp / kAcross * kEach;
constexpr int kWidthPiece = 64;  // the part of a width that a product sums at once

/// A call of attention, for kernels.
template <class T> struct AttentionView {
  int64_t batch, heads, kv_heads, group, m, n, d, dv;  // group: query heads of a key head
  HeadRows<const T> q, k, v, g;                        // g: gradient of the output
  MaskView mask;
  Weighting weighting;
  T scale, softcap;
  const T *relative = nullptr, *sink = nullptr;
  const void *bias = nullptr, *row_scale = nullptr;  // T, or bf16 if narrow
  bool narrow_bias = false, narrow_scale = false;
  int64_t bias_stride[4] = {}, relative_head = 0, row_scale_stride[3] = {}, sink_head = 0;
  bool plain;  // scores are scale · q·k: no cap, no biases, no ρ
  bool drops;  // dropout
  detail::Dropping<T> drop;
  RandomBlocks words_at;
  const T *lse = nullptr, *delta = nullptr;

  AttentionView(const sluice::detail::AttentionCall& c, const MaskView& seen)
      : batch(c.q.dim(0)), heads(c.q.dim(1)), kv_heads(c.k.dim(1)), group(heads / std::max<int64_t>(1, kv_heads)),
        m(c.q.dim(2)), n(c.k.dim(2)), d(c.q.dim(3)), dv(c.v.dim(3)), q(c.q), k(c.k), v(c.v), mask(seen),
        weighting(c.options.weighting), scale(T(*c.options.scale)), softcap(T(c.options.softcap)),
        drops(c.options.dropout > 0), drop(c.options.dropout),
        words_at(drops ? blocks_of("attention with dropout", c.from) : RandomBlocks{}) {
    const AttentionOptions& o = c.options;
    if (o.bias.defined()) {
      const Layout l = o.bias.layout().expanded({batch, heads, m, n});
      std::copy_n(l.strides.begin(), 4, bias_stride), bias = address_of(o.bias), narrow_bias = o.bias.dtype() == bf16;
    }
    if (o.row_scale.defined()) {
      const Layout l = o.row_scale.layout().expanded({batch, heads, m});
      std::copy_n(l.strides.begin(), 3, row_scale_stride), row_scale = address_of(o.row_scale);
      narrow_scale = o.row_scale.dtype() == bf16;
    }
    relative = data_or_null<T>(o.relative_bias), sink = data_or_null<T>(o.sink);
    if (relative && o.relative_bias.dim(0) > 1) relative_head = o.relative_bias.strides()[0];
    if (sink && o.sink.dim(0) > 1) sink_head = o.sink.strides()[0];
    plain = softcap == T(0) && !bias && !relative && !row_scale;
  }

  __device__ int64_t row_of(int64_t b, int64_t h, int64_t i) const { return (b * heads + h) * m + i; }
  __device__ const T* sink_of(int64_t h) const { return sink ? sink + h * sink_head : nullptr; }
  __device__ T rho(int64_t b, int64_t h, int64_t i) const {
    if (!row_scale) return T(1);
    return load<T>(row_scale, b * row_scale_stride[0] + h * row_scale_stride[1] + i * row_scale_stride[2],
                   narrow_scale);
  }
  /// cap'(scale · q·k).
  __device__ T slope(T dot) const {
    if (softcap == T(0)) return T(1);
    const T y = math::tanh(dot * scale / softcap);
    return 1 - y * y;
  }
  /// ρ (cap(scale · q·k) + bias) of a pair.
  __device__ T score(int64_t b, int64_t h, int64_t i, int64_t j, T dot) const {
    T s = dot * scale;
    if (softcap != T(0)) s = softcap * math::tanh(s / softcap);
    if (bias)
      s +=
          load<T>(bias, b * bias_stride[0] + h * bias_stride[1] + i * bias_stride[2] + j * bias_stride[3], narrow_bias);
    if (relative) s += relative[h * relative_head + m - 1 + j - i];  // entry n − 1 + p_j − p_i
    return row_scale ? s * rho(b, h, i) : s;
  }
  /// Dropout's words for keys 4⌊j/4⌋ … of a query.
  __device__ sluice::detail::PhiloxWords words(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return words_at(static_cast<uint64_t>(row_of(b, h, i) * ceil_div(n, 4) + j / 4));
  }
  /// Dropout's factor for key j of four.
  __device__ T kept(const sluice::detail::PhiloxWords& w, int64_t j) const {  // an index would move w out of registers
    const uint32_t word = j & 2 ? (j & 1 ? w.word[3] : w.word[2]) : (j & 1 ? w.word[1] : w.word[0]);
    return drop(word);
  }
};

/// A call whose options are f32, which kernels read one by one, but for biases of pairs and factors of rows.
inline sluice::detail::AttentionCall with_wide_options(sluice::detail::AttentionCall c) {
  const sluice::detail::Widening copies(false);
  for (Tensor* x : {&c.options.relative_bias, &c.options.sink})
    if (x->defined()) *x = copies.operand(*x);
  return c;
}

/// φ(s) and φ'(s) of an elementwise weighting.
template <class T> __device__ Dual<T, 1> weight_and_slope(Weighting weighting, T s) {
  const auto x = Dual<T, 1>::variable(s, 0, T(1));
  switch (weighting) {
    case Weighting::relu2: return formula::Relu2{}(x);
    case Weighting::laplace: return formula::Laplace{}(x);
    case Weighting::sigmoid: return formula::Sigmoid{}(x);
    default: return formula::Identity{}(x);
  }
}

/// weight = P ⊙ Z and ds = ρ dS of a visible pair, from its score, dP without dropout, and dropout's factor.
template <class T> struct PairGradient {
  T weight, ds;
  __device__ PairGradient(const AttentionView<T>& a, T score, T dp, T keep, T lse, T delta, T rho) {
    if (a.weighting == Weighting::softmax) {
      const T p = math::exp(score - (lse == -std::numeric_limits<T>::infinity() ? T(0) : lse));
      weight = p * keep, ds = rho * p * (dp * keep - delta);
    } else {
      const Dual<T, 1> y = weight_and_slope(a.weighting, score);
      weight = y.v * keep, ds = dp * keep * rho * y.d[0];
    }
  }
};

/// Bit 4·x + y is set if query + x sees key + y, for x < queries and y < keys. Sets `holes` if one of these pairs is
/// hidden.
template <class T>
__device__ unsigned seen_pairs(const AttentionView<T>& a, int64_t b, int64_t h, int64_t query, int64_t key, int queries,
                               int keys, bool& holes) {
  unsigned seen = 0;
  for (int i = 0; i < kEach; ++i)
    for (int j = 0; j < kEach; ++j) {
      if (i >= queries || j >= keys) continue;
      if (a.mask.allowed(b, h, query + i, key + j)) seen |= 1u << (kEach * i + j);
      else holes = true;
    }
  return seen;
}

/// S becomes P ⊙ Z for one query and keys from `key` on; `seen` are the query's four bits. Softmax also updates μ and l
/// of the row, and scales its O.
template <class T, int own>
__device__ void weigh(const AttentionView<T>& a, int64_t b, int64_t h, int64_t query, int64_t key, unsigned seen,
                      T (&s)[kEach], T& largest, T& sum, T (&o)[own]) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  const bool softmax = a.weighting == Weighting::softmax;
  sluice::detail::PhiloxWords words{};
  if (a.drops && seen) words = a.words(b, h, query, key);
  T top = largest;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const bool mine = seen >> j & 1;
    s[j] = mine ? a.score(b, h, query, key + j, s[j]) : -inf;
    if (!softmax) s[j] = mine ? weight_and_slope(a.weighting, s[j]).v : T(0);
    if (s[j] > top) top = s[j];
  }
  if (softmax) {
    top = max_over_lanes<kAcross>(top);
    const T shift = top == -inf ? T(0) : top, keep = math::exp(largest - shift);
    largest = top, sum *= keep;
#pragma unroll
    for (int j = 0; j < kEach; ++j) sum += s[j] = math::exp(s[j] - shift);
#pragma unroll
    for (int c = 0; c < own; ++c) o[c] *= keep;
  }
  if (a.drops)
#pragma unroll
    for (int j = 0; j < kEach; ++j) s[j] *= a.kept(words, j);
}

/// S(j) becomes the factor of the result's row for one query and keys from `key` on: P ⊙ Z for dv, else ρ dS ⊙ cap'.
/// S(j) and dP(j) give the numbers; `bias`, if not null, receives ρ dS of the keys.
template <class T, bool needs_dp, class S, class DP>
__device__ void weigh_gradients(const AttentionView<T>& a, int64_t b, int64_t h, int64_t query, int64_t key,
                                unsigned seen, S s, DP dp, T* bias) {
  const bool softmax = a.weighting == Weighting::softmax;
  sluice::detail::PhiloxWords words{};
  if (a.drops && seen) words = a.words(b, h, query, key);
  const int64_t row = a.row_of(b, h, query);
  const T lse = seen && softmax ? a.lse[row] : T(0), delta = seen && softmax ? a.delta[row] : T(0);
  const T rho = seen ? a.rho(b, h, query) : T(0);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    T& value = s(j);
    if (seen >> j & 1) {
      const PairGradient<T> p(a, a.score(b, h, query, key + j, value), dp(j), a.drops ? a.kept(words, j) : T(1), lse,
                              delta, rho);
      value = needs_dp ? p.ds * a.slope(value) : p.weight;
      if (bias) bias[row * a.n + key + j] = p.ds;
    } else {
      value = 0;
    }
  }
}

/// The place of a thread in its block, for the work on a tile.
struct TileThread {
  int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  int lane = thread % kWarp, warp = thread / kWarp, warps = threads / kWarp;
  int tx = thread % kAcross, ty = thread / kAcross;
  int rows = threads / kAcross * kEach;  // of the block
};

/// Rows of a matrix. The rows in `real` exist; the others count as zeros.
template <class T> struct Lines {
  const T* at;
  int64_t stride;
  Span real;
};
/// Rows from `row` on of a head of tensors of In, with which a kernel computes in T.
template <class In, class T>
__device__ Lines<In> lines_of(const HeadRows<const T>& x, int64_t b, int64_t head, int64_t row, int real) {
  const In* const base = reinterpret_cast<const In*>(x.base);
  return {base + b * x.batch + head * x.head + row * x.row, x.row, {0, real}};
}
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));  // numbers in 16 bytes, one read of shared memory
template <class T> SLUICE_FN int padded(int64_t width) {
  return static_cast<int>(ceil_div(width, kVector<T>)) * kVector<T>;
}
/// Leading dimension of pieces of this width: odd in vectors, so that eight rows lie in different banks.
template <class T> SLUICE_FN int piece_stride(int64_t width) {
  return (padded<T>(width < kWidthPiece ? width : kWidthPiece) / kVector<T> | 1) * kVector<T>;
}
/// The place of `row` in a tile: rows that neighbouring threads read at once lie side by side.
__device__ inline int place_of(int row, int quarter) { return row % kEach * quarter + row / kEach; }

/// Copies `rows` rows of x, columns [col, col + width) and zeros up to whole vectors, to shared memory. quarter: a
/// fourth of the rows, to place them by place_of; 0 keeps their order. Rows of whole vectors at multiples of 16 bytes
/// are read in these, four loads of a thread at once, since a step of decoding waits for memory; others number by
/// number, a warp for each row. (For f64 the registers of attention_tiles do not suffice.)
template <class T, class In>
__device__ void load(const TileThread& t, Shared<T> to, int ld, const Lines<In>& x, int rows, int64_t col, int width,
                     int quarter = 0) {
  const In* const from = x.at + col;
  const auto bytes = reinterpret_cast<std::uintptr_t>(from) | static_cast<std::uintptr_t>(x.stride) * sizeof(In);
  if (sizeof(In) <= 4 && width % kVector<In> == 0 && bytes % 16 == 0) {
    const int pieces = width / kVector<In>;
#pragma unroll 4
    for (int e = t.thread; e < rows * pieces; e += t.threads) {
      const int r = e / pieces, c = e % pieces * kVector<In>, place = quarter ? place_of(r, quarter) : r;
      Bytes16<In> y{};
      if (x.real.holds(r)) y = *reinterpret_cast<const Bytes16<In>*>(from + r * x.stride + c);
#pragma unroll
      for (int i = 0; i < kVector<In>; i += kVector<T>) {
        T z[kVector<T>];
#pragma unroll
        for (int k = 0; k < kVector<T>; ++k) z[k] = sluice::detail::convert<T>(y.x[i + k]);
        store_16(to + (place * ld + c + i), z);
      }
    }
    return;
  }
  for (int r = t.warp; r < rows; r += t.warps) {
    const int place = quarter ? place_of(r, quarter) : r;
    for (int c = t.lane; c < padded<T>(width); c += kWarp)
      to[place * ld + c] = x.real.holds(r) && c < width ? sluice::detail::convert<T>(from[r * x.stride + c]) : T(0);
  }
}

/// s[r][c] = x_{4ty + r} · y_{4tx + c}; with `diagonal` y_{4ty + r + 4tx + c}. `a` and `b` are shared memory for a
/// piece of each. All warps load; only those with `busy` compute.
template <bool diagonal, class T, class In = T>
__device__ void dot_products(const TileThread& t, T (&s)[kEach][kEach], Shared<T> a, Shared<T> b, const Lines<In>& x,
                             const Lines<In>& y, int64_t width, bool busy) {
  constexpr int ys = diagonal ? 2 * kEach - 1 : kEach, vector = kVector<T>;
  const int ld = piece_stride<T>(width), x_quarter = t.rows / kEach, y_quarter = (diagonal ? x_quarter : 0) + kAcross;
  const int y_first = t.tx + (diagonal ? t.ty : 0);
#pragma unroll
  for (int r = 0; r < kEach; ++r)
#pragma unroll
    for (int c = 0; c < kEach; ++c) s[r][c] = 0;
  for (int64_t col = 0; col < width; col += kWidthPiece) {
    const int piece = static_cast<int>(width - col < kWidthPiece ? width - col : kWidthPiece);
    __syncthreads();  // all threads have used the previous piece
    load(t, a, ld, x, t.rows, col, piece, x_quarter);
    load(t, b, ld, y, diagonal ? t.rows + kCols - 1 : kCols, col, piece, y_quarter);
    __syncthreads();
    if (!busy) continue;
    for (int e = 0; e < piece; e += vector) {
      T u[kEach][vector];
#pragma unroll
      for (int r = 0; r < kEach; ++r) load_16(u[r], a + ((r * x_quarter + t.ty) * ld + e));
#pragma unroll
      for (int line = 0; line < ys; ++line) {
        T w[vector];
        load_16(w, b + ((line % kEach * y_quarter + y_first + line / kEach) * ld + e));
#pragma unroll
        for (int r = 0; r < kEach; ++r) {
          const int c = diagonal ? line - r : line;
          if (c < 0 || c >= kEach) continue;
#pragma unroll
          for (int i = 0; i < vector; ++i) s[r][c] += u[r][i] * w[i];
        }
      }
    }
  }
}

/// True if `mine` is true in any thread of the block. All threads must call it. It has a barrier before and after.
__device__ inline bool any_of_block(const TileThread& t, bool mine) {
  struct Votes;
  const Shared<int> votes = static_shared<int, 4, Votes>();
  __syncthreads();
  const bool of_warp = __any_sync(kAllLanes, mine);
  if (t.lane == 0) votes[t.warp] = of_warp;
  __syncthreads();
  bool any = false;
  for (int w = 0; w < t.warps; ++w) any |= votes[w] != 0;
  return any;
}

}  // namespace sluice::cuda
