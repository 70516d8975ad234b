// The slot of linear_scan: which kernel answers a call, and its operands as that takes them.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/linear_scan_simt.cuh>

namespace sluice::cuda {

namespace {

ScanDecay decay_of(const Tensor& g, const LinearScanOptions& o) {
  if (!g.defined()) return ScanDecay::none;
  return g.rank() == 3 ? ScanDecay::scalar : o.decay_on_values ? ScanDecay::values : ScanDecay::keys;
}

/// Everything of a call but its operands q, k, v and y.
template <class View, class State>
View view_of(const Tensor& q, const Tensor& v, const Tensor& g, const LinearScanOptions& o, int width, int steps) {
  const int64_t n = q.dim(2), e = v.dim(3), channels = g.defined() && g.rank() == 4 ? g.dim(3) : 1;
  const int64_t col_tiles = (e + width - 1) / width, blocks = q.dim(0) * q.dim(1) * col_tiles;
  if (blocks > INT32_MAX) fail<ValueError>("linear_scan: too large for a GPU's grid — q=", q, ", v=", v);
  View s{.g = data_or_null<State>(g), .g_row = channels, .n = n, .m = q.dim(3), .e = e, .channels = channels,
         .heads = static_cast<int>(q.dim(1)), .col_tiles = static_cast<int>(col_tiles), .blocks_of_piece = static_cast<int>(blocks),
         .cut = ScanCut(n, steps, o, blocks), .states = nullptr, .totals = nullptr};
  // From j to t < j a scan in reverse passes the decays of t + 1 … j.
  if (o.reverse && s.g) s.g += n * channels, s.g_row = -channels;
  return s;
}

template <class T, int N, ScanDecay decay>
void run_simt(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o, Tensor& y) {
  using Tile = ScanTile<N, decay>;
  ScanView<T> s = view_of<ScanView<T>, T>(q, v, g, o, N, Tile::steps);
  s.q = HeadRows<const T>(q), s.k = HeadRows<const T>(k), s.v = HeadRows<const T>(v), s.y = HeadRows<T>(y);
  if (o.reverse) s.q = backwards(s.q, s.n), s.k = backwards(s.k, s.n), s.v = backwards(s.v, s.n), s.y = backwards(s.y, s.n);
  scan_in_pieces(s, decay, [&](const ScanView<T>& x) {
    launch(scan_simt<T, N, decay>, grid_of(x.blocks), dim3(Tile::threads),
           static_cast<std::size_t>(o.chunks_only ? Tile::border_end : Tile::end) * sizeof(T), x, o.chunks_only);
  });
}

template <class T, int N>
void run_tile(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o, Tensor& y) {
  switch (decay_of(g, o)) {
    case ScanDecay::none: return run_simt<T, N, ScanDecay::none>(q, k, v, g, o, y);
    case ScanDecay::scalar: return run_simt<T, N, ScanDecay::scalar>(q, k, v, g, o, y);
    case ScanDecay::keys: return run_simt<T, N, ScanDecay::keys>(q, k, v, g, o, y);
    case ScanDecay::values: return run_simt<T, N, ScanDecay::values>(q, k, v, g, o, y);
  }
}

}  // namespace

void linear_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o, Tensor& y) {
  if (q.dtype() == f64) run_tile<double, 32>(q, k, v, g, o, y);
  else if (q.dim(3) <= 32 && v.dim(3) <= 32) run_tile<float, 32>(q, k, v, g, o, y);
  else run_tile<float, 64>(q, k, v, g, o, y);
}

}  // namespace sluice::cuda
