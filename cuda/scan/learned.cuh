// The gradient of a decay, by chunks, from two scans over the same pairs, on ordinary cores:
//
//   y_t = Σ_{j <= t} (a_t·b_j) e^{L_t − L_j} ∘ c_j          z_j = Σ_{t >= j} (a_t·b_j) e^{L_t − L_j} ∘ x_t
//
// where x is the gradient of y, or c that of z. g_s enters the weights of all pairs j < s <= t. With S before s's
// chunk, of y, and X behind it, of z, its gradient is the sum of
//   the pairs in the chunk;      x_t ∘ e^{L_t} (a_t S) for t >= s, where j lies before the chunk;
//   c_j ∘ e^{L_end − L_j} (b_j X) for j < s, where t lies behind it;      e^{L_end} Σ S ∘ X, where both do
// Each is as small as g_s makes it, but for the pairs in the chunk: they are a difference, Σ_{t >= s} of their rows
// less Σ_{j >= s} of their columns. With one decay for all channels, rows and columns are sums in f64 of the same
// numbers, so that the difference loses nothing; by channel they are those of 16 steps.
//
// The scan for y stores S before each chunk, and the scan for z, which comes next, multiplies it by X.
#pragma once

#include <sluice/cuda/scan/simt.cuh>

#include <type_traits>

namespace sluice::cuda {

/// What such a scan takes and stores beside its results. `back`: it is the scan for z, with c in place of x. Its chunks
/// are those of the other: its first one lacks `skip` steps. Steps count in the order of the scan for y.
template <class T, ScanDecay decay> struct ScanLearned {
  using Sum = std::conditional_t<decay == ScanDecay::scalar, double, T>;
  HeadRows<const T> x{};     // in the order of the scan
  Sum* rows = nullptr;       // what counts for t >= s; back: for j < s
  Sum* columns = nullptr;    // what rows hold too much for j >= s. Null in the scan that does not find it
  T* states = nullptr;       // [batch, heads, chunks, m, e]
  double* across = nullptr;  // [batch, heads, chunks, e]: e^{L_end} Σ S ∘ X of each column
  int64_t skip = 0;
  bool back = false, own = true;  // own: results have the step's own term

  /// Step i's place in rows and columns [col_tiles, batch, heads, n], by channel [batch, heads, n, e].
  __device__ int64_t at(const ScanView<T>& s, const ScanPlace& place, int64_t i, int64_t column) const {
    const int64_t step = back ? s.n - 1 - i : i;
    if (decay != ScanDecay::scalar) return (place.head * s.n + step) * s.e + column;
    return (int64_t{place.col_tile} * (s.blocks_of_piece / s.col_tiles) + place.head) * s.n + step;
  }
  /// A chunk's number in the order of the scan for y, with the head: an index of states and across.
  __device__ int64_t chunk_at(const ScanView<T>& s, const ScanPlace& place, int64_t chunk) const {
    return place.head * s.cut.chunks + (back ? s.cut.chunks - 1 - chunk : chunk);
  }
};

/// Writes x, or adds it to what earlier passes over the rows of S have written.
template <class Sum> __device__ void add_of_pass(Sum& to, Sum x, int64_t pass) { to = pass > 0 ? to + x : x; }

/// partial[warp][column(d)] = Σ of x[d] over the threads of a warp that have the same tx.
template <class Tile, int N, class Column>
__device__ void sum_columns(Shared<double> partial, const double (&x)[4], Column column) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int d = 0; d < 4; ++d) {
    double sum = x[d];
#pragma unroll
    for (int lanes = Tile::across; lanes < kWarp; lanes *= 2) sum += shuffle_xor(sum, lanes);
    if (thread % kWarp < Tile::across) partial[thread / kWarp * N + column(d)] = sum;
  }
}
/// The sum of a column over all warps, once all have written theirs.
template <class Tile, int N> __device__ double column_sum(Shared<double> partial, int column) {
  double sum = 0;
#pragma unroll
  for (int w = 0; w < Tile::threads / kWarp; ++w) sum += partial[w * N + column];
  return sum;
}

/// For this thread's numbers of S with row < all and column < cols: f(number, its place in a state of e columns, d).
template <class Tile, class T, class F>
__device__ void each_of_state(Shared<T> state, int64_t e, int all, int cols, F f) {
  const int row = static_cast<int>(threadIdx.x) / Tile::across * 4,
            column = static_cast<int>(threadIdx.x) % Tile::across * 4;
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int d = 0; d < 4; ++d)
      if (row + r < all && column + d < cols)
        f(state[(row + r) * Tile::ld + column + d], (row + r) * e + column + d, d);
}

/// The pairs of a chunk, for a decay of whole states, with A in `a`, the rows of x and c = v: adds their rows to
/// `rows`, for steps first + r of this thread, and the columns of warps to `partial`.
template <class Tile, int N, class T>
__device__ void sum_pairs(double (&rows)[Tile::rows], Shared<double> partial, Shared<T> a, Shared<T> x, Shared<T> v,
                          int first, int count, int cols) {
  static_assert(Tile::rows == 4);
  const int tx = static_cast<int>(threadIdx.x) % Tile::across;
  T dots[4][4] = {};
  if (first < count) add_dots<Tile>(dots, x, v, first, first + 4, cols, [](T(&)[4], int, int) {});
  double columns[4] = {};
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int s = 0; s < 4; ++s)
      if (const int t = first + r, j = tx + s * Tile::across; t < count && j < t) {
        const T pair = a[t * Tile::ld_a + j] * dots[r][s];
        rows[r] += double(pair), columns[s] += double(pair);
      }
  sum_columns<Tile, N>(partial, columns, [&](int s) { return tx + s * Tile::across; });
}

/// acc[r] = e^{L_t} ∘ acc[r], and near[r] = Σ_{j < t} A_tj v_j ∘ e^{L_t − L_j}, t = first + r: add_by_values() in two
/// sums, without the step's own term.
template <class Tile, class T>
__device__ void split_by_values(T (&acc)[Tile::rows][4], T (&near)[Tile::rows][4], Shared<T> a, Shared<T> v,
                                Shared<T> factor, int first, int count) {
#pragma unroll
  for (int r = 0; r < Tile::rows; ++r) {
#pragma unroll
    for (int d = 0; d < 4; ++d) near[r][d] = T(0);
    const int t = first + r;
    if (t >= count) continue;
    T w[4] = {1, 1, 1, 1}, x[4];
    for (int j = t; j >= 0; --j) {  // w: e^{L_t − L_j}
      if (j < t) {
        const T weight = a[t * Tile::ld_a + j];
        load_4(x, v + j * Tile::ld);
#pragma unroll
        for (int d = 0; d < 4; ++d) near[r][d] += weight * (w[d] * x[d]);
      }
      load_4(x, factor + j * Tile::ld);
#pragma unroll
      for (int d = 0; d < 4; ++d) w[d] = forget(w[d], x[d]);
    }
#pragma unroll
    for (int d = 0; d < 4; ++d) acc[r][d] *= w[d];
  }
}

/// The gradients of decays, from what both scans have stored.
template <class T, ScanDecay decay> struct ScanDecayResult {
  using Sum = typename ScanLearned<T, decay>::Sum;
  const Sum *later, *columns, *earlier;  // of all tiles of columns
  const double* across;
  const T* g;
  T* dg;
  int64_t heads, n, e, chunks, col_tiles;
  int length;
  bool reverse;

  /// The place of step i's decay in g, for a step i > 0.
  __device__ int64_t place(int64_t i) const { return reverse ? n - i : i; }
  __device__ int count(int64_t chunk) const {
    const int64_t left = n - chunk * length;
    return static_cast<int>(left < length ? left : length);
  }
  /// None where e^g is 0, and none of the decay before the first step.
  __device__ void store(int64_t at, int64_t i, T x) const { dg[at] = i == 0 || g[at] <= T(-1e3) ? T(0) : x; }
};

/// A decay of whole states: a warp for each chunk.
template <class T, int N>
__global__ void __launch_bounds__(kWarp) scan_decays(ScanDecayResult<T, ScanDecay::scalar> s) {
  const Shared<double> later = static_shared<double, 2 * N, ScanDecayResult<T, ScanDecay::scalar>>(),
                       earlier = later + N;
  const int64_t head = int64_t{blockIdx.x} / s.chunks, chunk = int64_t{blockIdx.x} % s.chunks;
  const int64_t first = chunk * s.length, row = head * s.n + first;
  const int count = s.count(chunk), lane = static_cast<int>(threadIdx.x);
  const auto over_tiles = [&](const double* x, int i) {
    double sum = 0;
    for (int64_t tile = 0; tile < s.col_tiles; ++tile) sum += x[tile * s.heads * s.n + row + i];
    return sum;
  };
  // From the last step on, so that NaN reaches no later one.
  running_sums(later, count,
               [&](int i) { return over_tiles(s.later, count - 1 - i) - over_tiles(s.columns, count - 1 - i); });
  running_sums(earlier, count, [&](int i) { return over_tiles(s.earlier, i); });
  double across = 0;
  if (chunk > 0 && chunk + 1 < s.chunks)
    for (int64_t c = lane; c < s.e; c += kWarp) across += s.across[(head * s.chunks + chunk) * s.e + c];
  across = sum_over_lanes(across);
  __syncwarp();  // all lanes see the running sums
  for (int i = lane; i < count; i += kWarp) {
    const int64_t at = head * s.n + (first + i > 0 ? s.place(first + i) : 0);
    s.store(at, first + i, static_cast<T>(later[count - 1 - i] + (i > 0 ? double(earlier[i - 1]) : 0.0) + across));
  }
}

/// Decays by channel: a thread for each chunk and channel.
template <class T> void store_decays_by_channel(const ScanDecayResult<T, ScanDecay::values>& s) {
  for_each(s.heads * s.chunks * s.e, [s] __device__(int64_t index) {
    const int64_t c = index % s.e, chunk = index / s.e % s.chunks, head = index / s.e / s.chunks;
    const int64_t first = chunk * s.length;
    const int count = s.count(chunk);
    double passing = chunk > 0 && chunk + 1 < s.chunks ? s.across[index] : 0.0, pairs = 0;
    for (int i = 0; i < count; ++i) {  // what starts before the chunk or goes beyond it, but for `later`
      const int64_t at = (head * s.n + (first + i > 0 ? s.place(first + i) : 0)) * s.e + c;
      s.dg[at] = static_cast<T>(passing);
      passing += double(s.earlier[(head * s.n + first + i) * s.e + c]);
    }
    for (int i = count - 1; i >= 0; --i) {
      const int64_t from = (head * s.n + first + i) * s.e + c,
                    at = (head * s.n + (first + i > 0 ? s.place(first + i) : 0)) * s.e + c;
      pairs += double(s.later[from]) - double(s.columns[from]);
      s.store(at, first + i, static_cast<T>(double(s.dg[at]) + pairs));
    }
  });
}

}  // namespace sluice::cuda
