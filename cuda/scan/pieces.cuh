// Shared by the chunked scans: a sequence is split into pieces of chunks.
//
// A block goes through a piece chunk by chunk and carries the state S. With enough heads to fill the device, a sequence
// is one piece, and every number is read once. Else it is split: the first launch computes what each piece adds to the
// state, and its decay; a short pass over the pieces computes the states at their starts; a second launch uses these.
//
// A reverse scan reads the rows backwards, by views with negative strides.
#pragma once

#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/rows.cuh>
#include <sluice/ops/scan/linear_scan.h>

namespace sluice::cuda {

enum class ScanDecay { none, scalar, keys, values };

#ifdef __CUDACC__
constexpr int64_t kScanStates = int64_t{1} << 30;  // bytes of states that a turn over some heads takes
#else
constexpr int64_t kScanStates = int64_t{1} << 18;  // so that tests reach several turns
#endif

/// How n steps form chunks of up to `length` steps, which a kernel takes at once, and chunks form pieces.
struct ScanCut {
  int64_t n, length, chunks, chunks_of_piece, pieces = 1;

  /// at_once: blocks that a multiprocessor runs at a time.
  ScanCut(int64_t n, int64_t length, int64_t blocks_of_piece, int64_t at_once = 1)
      : n(n), length(length), chunks(ceil_div(n, length)), chunks_of_piece(chunks) {
    const int64_t places = kMultiprocessors * at_once;
    if (2 * blocks_of_piece >= places) return;  // splitting costs 1.5 times
    const int64_t wanted = std::clamp<int64_t>(places / blocks_of_piece, 1, std::max<int64_t>(1, n / kShortest));
    chunks_of_piece = ceil_div(chunks, wanted);
    pieces = ceil_div(chunks, chunks_of_piece);
  }
  /// The first step of a chunk, and its number of steps.
  __device__ int64_t first(int64_t chunk) const { return chunk * length; }
  __device__ int count(int64_t chunk) const {
    const int64_t left = n - first(chunk);
    return static_cast<int>(left < length ? left : length);
  }

  static constexpr int64_t kMultiprocessors = 132;  // of an H100 and an H200
  static constexpr int64_t kShortest = 256;  // steps of a piece; its state costs as much traffic as this many rows
};

/// The part of a call that a block computes.
struct ScanPlace {
  int col_tile, head, b, h, piece;
  int64_t begin, end;  // chunks of its piece
  template <class View> __device__ explicit ScanPlace(const View& s) {
    const int block = static_cast<int>(blockIdx.x), inside = block % s.blocks_of_piece;
    piece = block / s.blocks_of_piece, col_tile = inside % s.col_tiles, head = inside / s.col_tiles;
    b = head / s.heads, h = head % s.heads, begin = piece * s.cut.chunks_of_piece;
    end = begin + s.cut.chunks_of_piece < s.cut.chunks ? begin + s.cut.chunks_of_piece : s.cut.chunks;
  }
};

/// e^x is 0 in f32 and f64 from the least decay on, and sums of it are finite.
template <class T> __device__ T finite_decay(T x) { return x < T(-1e3) ? T(-1e3) : x; }

/// A call, with its rows in the order of the scan. T: type of the operands; Out: of y; State: of the arithmetic.
template <class T, class Out = T, class State = T> struct ScanView {
  HeadRows<const T> q{}, k{}, v{};
  HeadRows<Out> y{};  // null: only states and totals are computed
  const State* g;     // log decays, from step 0 on [batch, heads, n, channels]
  int64_t g_row, n, m, e, channels;
  int heads, share, col_tiles, blocks_of_piece, blocks = 0;  // `share` heads of v read a head of q and k
  ScanCut cut;
  State* states;   // [batch, heads, pieces, m, e]: at the starts of pieces, or without y their sums; null: one piece
  double* totals;  // [batch, heads, pieces, channels]: Σg of each piece, without y

  __device__ bool writes() const { return y.base != nullptr; }
  __device__ State* kept(const ScanPlace& at, int64_t row, int64_t column) const {
    return states + ((at.head * cut.pieces + at.piece) * m + row) * e + column;
  }
  __device__ double* total(const ScanPlace& at, int64_t channel) const {
    return totals + (at.head * cut.pieces + at.piece) * channels + channel;
  }
  /// The log decay from step i − 1 to step i; 0 for the first step.
  __device__ State log_decay(int head, int64_t i, int64_t channel) const {
    return i == 0 ? State(0) : finite_decay(g[int64_t{head} * n * channels + i * g_row + channel]);
  }
};

/// x with its rows from the last to the first.
template <class T> HeadRows<T> backwards(HeadRows<T> x, int64_t n) {
  if (x.base) x.base += (n - 1) * x.row, x.row = -x.row;
  return x;
}

/// The view of a call without its operands q, k, v and y.
template <class View, class State>
View view_of(const Tensor& q, const Tensor& v, const Tensor& g, const LinearScanOptions& o, int width, int steps,
             int at_once) {
  const int64_t n = q.dim(2), e = v.dim(3), channels = g.defined() && g.rank() == 4 ? g.dim(3) : 1;
  const int64_t col_tiles = ceil_div(e, width), blocks = v.dim(0) * v.dim(1) * col_tiles;
  if (blocks > INT32_MAX) fail<ValueError>("linear_scan: too large for a GPU's grid — q=", q, ", v=", v);
  View s{.g = data_or_null<State>(g),
         .g_row = channels,
         .n = n,
         .m = q.dim(3),
         .e = e,
         .channels = channels,
         .heads = static_cast<int>(v.dim(1)),
         .share = static_cast<int>(v.dim(1) / q.dim(1)),
         .col_tiles = static_cast<int>(col_tiles),
         .blocks_of_piece = static_cast<int>(blocks),
         .cut = ScanCut(n, steps, blocks, at_once),
         .states = nullptr,
         .totals = nullptr};
  // A reverse scan goes from j to t < j and applies the decays of steps t + 1 … j.
  if (o.reverse && s.g) s.g += n * channels, s.g_row = -channels;
  return s;
}

/// Gives the view its operands.
template <class T, class Out, class View>
void set_rows(View& s, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v, HeadRows<Out> y, bool reverse) {
  s.q = q, s.k = k, s.v = v, s.y = y;
  if (reverse) s.q = backwards(q, s.n), s.k = backwards(k, s.n), s.v = backwards(v, s.n), s.y = backwards(y, s.n);
}

/// e^g = whole + rest, where whole is 1 unless the decay is strong (g < −0.7). A rounded factor near 1 would multiply
/// the state many times, with an error always in the same direction.
template <class T> struct ScanFactor {
  T whole, rest;
  __device__ explicit ScanFactor(T g) {
    g = finite_decay(g);
    whole = g < T(-0.7) ? T(0) : T(1), rest = g < T(-0.7) ? math::exp(g) : math::expm1(g);
  }
};
/// x e^g + y
template <class T> __device__ T decayed(T x, T whole, T rest, T y) { return x * whole + (x * rest + y); }

/// sums[i] = x(0) + … + x(i), i < count, by the lanes of a warp. Returns the last sum. A lane may read its own sums, of
/// steps lane, lane + 32, …, without a barrier.
template <class X> __device__ double running_sums(Shared<double> sums, int count, X x) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double before = 0;
  for (int from = 0; from < count; from += kWarp) {
    const int i = from + lane;
    const double sum = running_over_lanes(i < count ? x(i) : 0.0, Add());
    if (i < count) sums[i] = before + sum;
    before += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  return before;
}

/// Turns `states` from the sum that each piece adds into the state at the start of each piece.
template <class T>
void scan_pieces(T* states, const double* totals, int64_t heads, int64_t pieces, int64_t m, int64_t e,
                 ScanDecay decay) {
  const int64_t channels = decay == ScanDecay::keys ? m : decay == ScanDecay::values ? e : 1;
  for_each(heads * m * e, [=] __device__(int64_t i) {
    const int64_t head = i / (m * e), c = i / e % m, d = i % e,
                  channel = decay == ScanDecay::keys     ? c
                            : decay == ScanDecay::values ? d
                                                         : 0;
    T* at = states + head * pieces * m * e + i % (m * e);
    T sum = 0, next = *at;
    for (int64_t p = 0; p < pieces; ++p, at += m * e) {
      const T adds = next;
      if (p + 2 < pieces) next = at[m * e];  // no piece follows the last one
      *at = sum;
      const ScanFactor<T> f(decay == ScanDecay::none ? T(0) : T(totals[(head * pieces + p) * channels + channel]));
      sum = decayed(sum, f.whole, f.rest, adds);
    }
  });
}

/// Calls run(view) once, or, with more than one piece, for each of the two launches.
template <class View, class Run> void scan_in_pieces(View s, ScanDecay decay, Run run) {
  const auto with_blocks = [&](View x, int64_t pieces) {
    x.blocks = static_cast<int>(s.blocks_of_piece * pieces);
    run(x);
  };
  const int64_t pieces = s.cut.pieces, heads = s.blocks_of_piece / s.col_tiles;
  if (pieces == 1) return with_blocks(s, 1);
  using State = std::remove_pointer_t<decltype(s.states)>;
  const Scratch<State> states(static_cast<std::size_t>(heads * pieces * s.m * s.e));
  const Scratch<double> totals(static_cast<std::size_t>(heads * pieces * s.channels));
  s.states = states.get(), s.totals = totals.get();
  View adds = s;
  adds.y.base = nullptr;
  with_blocks(adds, pieces - 1);
  scan_pieces(states.get(), totals.get(), heads, pieces, s.m, s.e, decay);
  with_blocks(s, pieces);
}

}  // namespace sluice::cuda
