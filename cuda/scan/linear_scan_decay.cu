// The slot of linear_scan_decay_backward: heads in turns, two scans of each, then the gradients of all their decays.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/scan/simt_kernel.cuh>
#include <sluice/ops/shape/view.h>

namespace sluice::cuda {

namespace {

struct DecayCall {
  const Tensor &a, &b, &c, &x, &g;
  const LinearScanOptions& o;
  Tensor &y, &z, &dg;
};

template <class T, int N, ScanDecay decay> void run(const DecayCall& call) {
  using Tile = ScanTile<N, decay>;
  using Sum = typename ScanLearned<T, decay>::Sum;
  const bool scalar = decay == ScanDecay::scalar;
  const auto view = [&](const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out, bool reverse) {
    LinearScanOptions o;
    o.reverse = reverse;
    ScanView<T> s = view_of<ScanView<T>, T>(q, v, call.g, o, N, Tile::steps, kScanBlocks<N>);
    set_rows<T, T>(s, HeadRows<const T>(q), HeadRows<const T>(k), HeadRows<const T>(v), HeadRows<T>(out), reverse);
    return s;
  };
  const ScanView<T> there = view(call.a, call.b, call.c, call.y, call.o.reverse),
                    back = view(call.b, call.a, call.x, call.z, !call.o.reverse);
  const int64_t heads = call.c.dim(0) * call.c.dim(1), n = there.n, e = there.e, chunks = there.cut.chunks,
                numbers = heads * n * (scalar ? there.col_tiles : e);
  const Scratch<Sum> sums(static_cast<std::size_t>(3 * numbers));
  const Scratch<T> states(static_cast<std::size_t>(heads * chunks * there.m * e));
  const Scratch<double> across(static_cast<std::size_t>(heads * chunks * e));
  Sum *const later = sums.get(), *const columns = later + numbers, *const earlier = columns + numbers;
  const auto scan = [&](const ScanView<T>& s, const ScanLearned<T, decay>& parts) {
    const std::size_t bytes = (Tile::end + (scalar ? Tile::steps * Tile::ld : 0)) * sizeof(T);
    scan_in_pieces(s, decay, [&](const ScanView<T>& some) {
      launch(scan_simt<T, N, decay, true>, grid_of(some.blocks), dim3(Tile::threads), bytes, some, parts);
    });
  };
  ScanLearned<T, decay> parts{.x = HeadRows<const T>(call.x),
                              .rows = later,
                              .columns = scalar ? columns : nullptr,
                              .states = states.get(),
                              .across = across.get(),
                              .own = !call.o.exclusive};
  if (call.o.reverse) parts.x = backwards(parts.x, n);
  scan(there, parts);
  parts.x = HeadRows<const T>(call.c), parts.rows = earlier, parts.columns = scalar ? nullptr : columns;
  parts.skip = chunks * Tile::steps - n, parts.back = true;
  if (!call.o.reverse) parts.x = backwards(parts.x, n);
  scan(back, parts);
  const ScanDecayResult<T, decay> result{.later = later,
                                         .columns = columns,
                                         .earlier = earlier,
                                         .across = across.get(),
                                         .g = data_of<T>(call.g),
                                         .dg = data_of<T>(call.dg),
                                         .heads = heads,
                                         .n = n,
                                         .e = e,
                                         .chunks = chunks,
                                         .col_tiles = there.col_tiles,
                                         .length = Tile::steps,
                                         .reverse = call.o.reverse};
  if constexpr (decay == ScanDecay::scalar) launch(scan_decays<T, N>, grid_of(heads * chunks), dim3(kWarp), 0, result);
  else store_decays_by_channel(result);
}

template <class T, int N> void run(const DecayCall& call) {
  call.g.rank() == 3 ? run<T, N, ScanDecay::scalar>(call) : run<T, N, ScanDecay::values>(call);
}

}  // namespace

void linear_scan_decay_backward(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& x, const Tensor& g,
                                const LinearScanOptions& o, Tensor& y, Tensor& z, Tensor& dg) {
  // Batches, or heads of one, in turns: states, one for each 16 to 64 steps, take m·e numbers.
  const int dim = c.dim(0) > 1 ? 0 : 1;
  const int64_t size = c.dim(dim), states = ceil_div(c.dim(2), g.rank() == 3 ? 32 : 16) * (c.dim(0) * c.dim(1) / size),
                bytes = states * a.dim(3) * c.dim(3) * size_of(a.dtype()),
                span = std::max<int64_t>(1, kScanStates / std::max<int64_t>(1, bytes));
  const bool by_heads = dim == 0 && bytes > kScanStates;  // a batch is too much
  for (int64_t from = 0; from < size; from += span) {
    const auto some = [&](const Tensor& t) { return narrow(t, dim, from, std::min(span, size - from)); };
    const Tensor as = some(a), bs = some(b), cs = some(c), xs = some(x), gs = some(g);
    Tensor ys = some(y), zs = some(z), dgs = some(dg);
    if (by_heads) linear_scan_decay_backward(as, bs, cs, xs, gs, o, ys, zs, dgs);
    else with_scan_tile(as, cs, [&]<class T, int N>() { run<T, N>({as, bs, cs, xs, gs, o, ys, zs, dgs}); });
  }
}

}  // namespace sluice::cuda
