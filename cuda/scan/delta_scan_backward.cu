// The slot of delta_scan_backward, in f32 and f64.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/scan/delta_gradients.cuh>

namespace sluice::cuda {

namespace {

/// The first of `chunks` states of each head.
template <class T> void first_states(const T* states, int64_t chunks, int64_t size, int64_t heads, T* to) {
  for_each(heads * size, [=] __device__(int64_t i) { to[i] = states[i / size * chunks * size + i % size]; });
}

}  // namespace

void delta_scan_backward(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& g,
                         const Tensor& states, const Tensor& dout, int64_t chunk, Tensor& dq, Tensor& dk,
                         Tensor& derase, Tensor& dwrite, Tensor& dg, Tensor& dstate) {
  with_delta_tile(k, write, g, [&]<class T, int N, ScanDecay decay>() {
    DeltaView<T> s(q, k, erase, write, g, chunk, N);
    const int64_t size = s.dk * s.dv, prepared = s.template prepared<N>();
    const bool again = s.cut.parts > 1;  // a chunk is several tiles: the states before them are computed again
    const int64_t tiles = s.cut.tiles * size, numbers = prepared + s.n * s.dv + tiles + again * (tiles + size);
    s.span = heads_at_once(s, k.dim(0), numbers);
    const Scratch<T> memory(static_cast<std::size_t>(s.span * numbers));
    s.template set_prepared<N>(memory.get());
    T *const u = memory.get() + s.span * prepared, *const behind = u + s.span * s.n * s.dv,
             *const kept = behind + s.span * tiles, *const carried = kept + s.span * tiles;
    const auto heads = static_cast<int>(k.dim(0) * s.heads);
    for (; s.first_head < heads; s.first_head += s.span) {
      s.span = std::min(s.span, heads - s.first_head);
      delta_prepare<T, N, decay>(s);
      T* before = const_cast<T*>(data_of<T>(states)) + s.first_head * s.cut.chunks * size;
      if (again) {
        first_states(before, s.cut.chunks, size, s.span, carried);
        before = kept;
      }
      delta_sweep<T, N, decay>(s, {}, {.state = carried, .kept = before, .u = u, .one_tile_a_block = !again});
      T* const last = data_of<T>(dstate) + s.first_head * size;
      delta_backwards<T, N, decay>(s, HeadRows<const T>(dout), HeadRows<T>(dwrite), {.state = last, .kept = behind});
      delta_gradients<T, N, decay>(s, {.dout = HeadRows<const T>(dout),
                                       .dwrite = HeadRows<const T>(dwrite),
                                       .u = u,
                                       .states = before,
                                       .behind = behind,
                                       .dq = HeadRows<T>(dq),
                                       .dk = HeadRows<T>(dk),
                                       .derase = HeadRows<T>(derase),
                                       .dg = data_or_null<T>(dg)});
    }
  });
}

}  // namespace sluice::cuda
