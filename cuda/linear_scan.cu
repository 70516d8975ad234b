// The scan (ops/scan/linear_scan.h) as its recurrence, step by step:
//
//   S ← D_t ∘ S + k_tᵀ v_t          o_t = q_t S,  or with chunks_only q_t times S as it came to the chunk of t, decayed
//
// The columns of S are independent: a block has 64 of them, two a lane, and its warps share the rows, up to 16 each, in
// registers; more rows than the block holds are further passes that add to o. Eight steps at a time come into shared
// memory, and so do the warps' parts of o, which are added in order.
// A factor e^g near 1 is kept as 1 and e^g − 1: rounded, it would multiply S thousands of times, always wrong in the same
// direction.
// What limits it: steps follow one another, so only batch · heads · ⌈e/64⌉ blocks have work; 2–4 reads of shared memory,
// the same for all lanes, for 4–8 multiply-adds.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/tensors.h>
#include <sluice/ops/scan/linear_scan.h>

namespace sluice::cuda {

namespace {

constexpr int kSteps = 8, kLaneCols = 2, kScanCols = kWarp * kLaneCols, kMostWarps = 16;
template <class T>
constexpr int kScanRows = sizeof(T) == 4 ? 16 : 8;  // of a warp

enum class Decay { none, scalar, keys, values };

template <class T>
struct ScanView {
  HeadRows<const T> q, k, v;
  HeadRows<T> y;
  const T* g;  // [batch, heads, n, channels]
  int64_t heads, n, m, e, channels, chunk, col_tiles, blocks;
  bool reverse;
};

/// e^g = whole + rest, where whole is 1 unless much is forgotten.
template <class T>
struct Factor {
  T whole, rest;
  __device__ explicit Factor(T g) {
    if (g < T(-1e4)) g = T(-1e4);  // nothing is left in either precision
    whole = g < T(-0.7) ? T(0) : T(1), rest = g < T(-0.7) ? math::exp(g) : math::expm1(g);
  }
};

/// x e^g + y
template <class T>
__device__ T decayed(T x, T whole, T rest, T y) { return x * whole + (x * rest + y); }

template <class T, Decay decay, bool chunks_only>
__global__ void __launch_bounds__(kMostWarps * kWarp) scan_kernel(ScanView<T> s) {
  constexpr int rows_of_warp = kScanRows<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp, held = warps * rows_of_warp;
  const int factors = decay == Decay::keys ? held : decay == Decay::values ? kScanCols : 1;  // of a step
  const Shared<T> q = dynamic_shared<T>(), k = q + kSteps * held, whole = k + kSteps * held, rest = whole + kSteps * factors;
  const Shared<T> v = rest + kSteps * factors, part = v + kSteps * kScanCols;
  for (int64_t block = blockIdx.x; block < s.blocks; block += gridDim.x) {
    const int64_t col = block % s.col_tiles * kScanCols, head = block / s.col_tiles, b = head / s.heads, h = head % s.heads;
    const int cols = static_cast<int>(s.e - col < kScanCols ? s.e - col : kScanCols);
    for (int64_t first = 0; first == 0 || first < s.m; first += held) {
      const int all = static_cast<int>(s.m - first < held ? s.m - first : held), left = all - warp * rows_of_warp;
      T state[rows_of_warp][kLaneCols] = {}, border[rows_of_warp][kLaneCols] = {};
      for (int64_t begin = 0; begin < s.n; begin += kSteps) {
        const int steps = static_cast<int>(s.n - begin < kSteps ? s.n - begin : kSteps);
        for (int i = warp; i < steps; i += warps) {
          const int64_t row = s.reverse ? s.n - 1 - (begin + i) : begin + i;
          for (int c = lane; c < all; c += kWarp) {
            q[i * held + c] = s.q.at(b, h, row)[first + c];
            k[i * held + c] = s.k.at(b, h, row)[first + c];
          }
          for (int c = lane; c < cols; c += kWarp) v[i * kScanCols + c] = s.v.at(b, h, row)[col + c];
          if (decay == Decay::none) continue;
          const int64_t from = decay == Decay::keys ? first : decay == Decay::values ? col : 0;
          const int count = decay == Decay::keys ? all : decay == Decay::values ? cols : 1;
          for (int c = lane; c < count; c += kWarp) {
            // From j to t < j a scan in reverse passes the decays of t + 1 … j. The first step has nothing to forget.
            const Factor<T> f(begin + i == 0 ? T(0) : s.g[(head * s.n + row + s.reverse) * s.channels + from + c]);
            whole[i * factors + c] = f.whole, rest[i * factors + c] = f.rest;
          }
        }
        __syncthreads();  // and all have added up the parts of the steps before
        for (int i = 0; i < steps; ++i) {
          const int64_t row = s.reverse ? s.n - (begin + i) : begin + i;  // one more in reverse: where its chunk ends
          const bool starts = chunks_only && (begin + i == 0 || row % s.chunk == 0);
          T value[kLaneCols], sum[kLaneCols] = {}, f[kLaneCols] = {}, f_rest[kLaneCols] = {};
#pragma unroll
          for (int c = 0; c < kLaneCols; ++c) {
            const int at = lane + c * kWarp;
            value[c] = at < cols ? T(v[i * kScanCols + at]) : T(0);
            if (decay == Decay::scalar) f[c] = whole[i], f_rest[c] = rest[i];
            if (decay == Decay::values && at < cols) f[c] = whole[i * kScanCols + at], f_rest[c] = rest[i * kScanCols + at];
          }
#pragma unroll
          for (int r = 0; r < rows_of_warp; ++r) {
            if (r >= left) break;
            const int at = i * held + warp * rows_of_warp + r;
            const T query = q[at], key = k[at];
            T mine = 0, mine_rest = 0;
            if (decay == Decay::keys) mine = whole[at], mine_rest = rest[at];
#pragma unroll
            for (int c = 0; c < kLaneCols; ++c) {
              const T a = decay == Decay::keys ? mine : f[c], a_rest = decay == Decay::keys ? mine_rest : f_rest[c];
              if constexpr (chunks_only) {
                if (decay != Decay::none) state[r][c] = decayed(state[r][c], a, a_rest, T(0));
                if (starts) border[r][c] = state[r][c];
                else if (decay != Decay::none) border[r][c] = decayed(border[r][c], a, a_rest, T(0));
                state[r][c] += key * value[c];
                sum[c] += query * border[r][c];
              } else {
                state[r][c] = decay == Decay::none ? state[r][c] + key * value[c] : decayed(state[r][c], a, a_rest, key * value[c]);
                sum[c] += query * state[r][c];
              }
            }
          }
#pragma unroll
          for (int c = 0; c < kLaneCols; ++c) part[(warp * kSteps + i) * kScanCols + lane + c * kWarp] = sum[c];
        }
        __syncthreads();  // and all have used what was loaded
        for (int i = warp; i < steps; i += warps) {
          T* y = s.y.at(b, h, s.reverse ? s.n - 1 - (begin + i) : begin + i) + col;
          for (int c = lane; c < cols; c += kWarp) {
            T total = first > 0 ? y[c] : T(0);
            for (int w = 0; w < warps; ++w) total += part[(w * kSteps + i) * kScanCols + c];
            y[c] = total;
          }
        }
      }
    }
  }
}

template <class T, Decay decay>
void scan_with(const ScanView<T>& s, bool chunks_only) {
  const int64_t wanted = (s.m + kScanRows<T> - 1) / kScanRows<T>;
  const int warps = static_cast<int>(std::clamp<int64_t>(wanted, 1, kMostWarps)), held = warps * kScanRows<T>;
  const int factors = decay == Decay::keys ? held : decay == Decay::values ? kScanCols : 1;
  const int count = kSteps * (2 * held + 2 * factors + kScanCols + warps * kScanCols);
  launch(chunks_only ? scan_kernel<T, decay, true> : scan_kernel<T, decay, false>, grid_of(s.blocks),
         dim3(static_cast<unsigned>(warps * kWarp)), static_cast<std::size_t>(count) * sizeof(T), s);
}

template <class T>
void scan_as(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o, Tensor& y) {
  ScanView<T> s{.q = HeadRows<const T>(q), .k = HeadRows<const T>(k), .v = HeadRows<const T>(v), .y = HeadRows<T>(y),
                .g = data_or_null<T>(g), .heads = q.dim(1), .n = q.dim(2), .m = q.dim(3), .e = v.dim(3),
                .channels = g.defined() && g.rank() == 4 ? g.dim(3) : 1, .chunk = o.chunk,
                .col_tiles = (v.dim(3) + kScanCols - 1) / kScanCols, .blocks = 0, .reverse = o.reverse};
  s.blocks = q.dim(0) * s.heads * s.col_tiles;
  if (!g.defined()) scan_with<T, Decay::none>(s, o.chunks_only);
  else if (g.rank() == 3) scan_with<T, Decay::scalar>(s, o.chunks_only);
  else if (o.decay_on_values) scan_with<T, Decay::values>(s, o.chunks_only);
  else scan_with<T, Decay::keys>(s, o.chunks_only);
}

}  // namespace

void linear_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o, Tensor& y) {
  dispatch_float("linear_scan", q.dtype(), [&]<class T>() { scan_as<T>(q, k, v, g, o, y); });
}

}  // namespace sluice::cuda
