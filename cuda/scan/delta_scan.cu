// The slot of delta_scan, in f32 and f64: by tiles (delta.cuh), and step by step for the few tokens of a stream.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/scan/delta_mma.cuh>
#include <sluice/cuda/scan/delta_prepare.cuh>
#include <sluice/cuda/scan/delta_sweep.cuh>
#include <sluice/ops/gemm/precision.h>

namespace sluice::cuda {

namespace {

constexpr int64_t kFewSteps = 4;  // up to so many, tiles cost more than steps

/// A thread has a column of the state, in global memory, where the columns of a head's threads lie side by side. What
/// limits it: the state is read and written twice a step, from the cache if it fits, and steps wait for each other.
template <class T> struct DeltaColumn {
  HeadRows<const T> q, k, erase, write;
  HeadRows<T> out;
  const T* g;
  T *state, *states;
  int64_t heads, group, n, dk, dv, chunk, chunks, channels;  // channels of g; 0: no decay
  bool by_channel, reads;                                    // without queries `out` receives u

  __device__ void operator()(int64_t column) const {
    const int64_t j = column % dv, head = column / dv, b = head / heads, h = head % heads, key_head = h / group;
    T* const s = state + head * dk * dv + j;
    for (int64_t t = 0; t < n; ++t) {
      if (states && t % chunk == 0)
        for (int64_t c = 0; c < dk; ++c) states[((head * chunks + t / chunk) * dk + c) * dv + j] = s[c * dv];
      const T *e = erase.at(b, h, t), *key = k.at(b, key_head, t), *query = q.at(b, key_head, t);
      const T* const decays = channels ? g + (head * n + t) * channels : nullptr;
      T said = T(0), read = T(0);
      for (int64_t c = 0; c < dk; ++c) {
        if (decays) s[c * dv] *= math::exp(decays[by_channel ? c : 0]);
        said += e[c] * s[c * dv];
      }
      const T u = write.at(b, h, t)[j] - said;
      for (int64_t c = 0; c < dk; ++c) {
        s[c * dv] += key[c] * u;
        read += query[c] * s[c * dv];
      }
      out.at(b, h, t)[j] = reads ? read : u;
    }
  }
};

template <class T>
void by_steps(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& g,
              int64_t chunk, Tensor& out, Tensor& state, Tensor& states) {
  const int64_t heads = erase.dim(1), n = k.dim(2);
  for_each(erase.dim(0) * heads * write.dim(3), DeltaColumn<T>{.q = HeadRows<const T>(q.defined() ? q : k),
                                                               .k = HeadRows<const T>(k),
                                                               .erase = HeadRows<const T>(erase),
                                                               .write = HeadRows<const T>(write),
                                                               .out = HeadRows<T>(out),
                                                               .g = data_or_null<T>(g),
                                                               .state = data_of<T>(state),
                                                               .states = data_or_null<T>(states),
                                                               .heads = heads,
                                                               .group = heads / k.dim(1),
                                                               .n = n,
                                                               .dk = k.dim(3),
                                                               .dv = write.dim(3),
                                                               .chunk = chunk,
                                                               .chunks = (n - 1) / chunk + 1,
                                                               .channels = !g.defined()    ? 0
                                                                           : g.rank() == 3 ? 1
                                                                                           : k.dim(3),
                                                               .by_channel = g.defined() && g.rank() == 4,
                                                               .reads = q.defined()});
}

/// compute(view, states) prepares the tiles of a launch and goes through them.
template <int N, class T, class Stored, class In, class Compute>
void by_tiles(DeltaView<T, Stored, In> s, int64_t batch, Tensor& state, Tensor& states, Compute compute) {
  s.span = heads_at_once(s, batch, s.template prepared<N>());
  const Scratch<T> memory(static_cast<std::size_t>(s.span * s.template prepared<N>()));
  s.template set_prepared<N>(memory.get());
  T *const all = data_of<T>(state), *const kept = data_or_null<T>(states);
  const int64_t size = s.dk * s.dv;
  const auto heads = static_cast<int>(batch * s.heads);
  for (; s.first_head < heads; s.first_head += s.span) {
    s.span = std::min(s.span, heads - s.first_head);
    compute(s, DeltaStates<T>{.state = all + s.first_head * size,
                              .kept = kept ? kept + s.first_head * s.cut.chunks * size : nullptr,
                              .every = s.cut.parts});
  }
}

/// True if tensor cores answer the call. As on the CPU, decays of keys stay exact, and so does u alone. Calls that a
/// tile cannot hold, or that would not fill one, go to the other kernels.
bool for_tensor_cores(const Tensor& q, const Tensor& k, const Tensor& write, const Tensor& g) {
  return precision() == Precision::bf16 && q.defined() && k.dtype() != f64 && (!g.defined() || g.rank() == 3) &&
         k.dim(2) >= 16 && k.dim(3) >= 16 && k.dim(3) <= 128 && write.dim(3) >= 16;
}

template <class In>
void on_tensor_cores(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& g,
                     int64_t chunk, Tensor& out, Tensor& state, Tensor& states) {
  const DeltaMmaView<In> view(q, k, erase, write, g, chunk, kScanMmaSteps);
  by_tiles<kScanMmaSteps>(view, k.dim(0), state, states, [&](const DeltaMmaView<In>& s, const DeltaStates<float>& x) {
    delta_prepare_mma(s);
    s.key_tiles == 1 ? delta_sweep_mma<64>(s, HeadRows<In>(out), x) : delta_sweep_mma<128>(s, HeadRows<In>(out), x);
  });
}

}  // namespace

void delta_scan(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& g,
                int64_t chunk, Tensor& out, Tensor& state, Tensor& states) {
  if (for_tensor_cores(q, k, write, g))
    return k.dtype() == bf16
               ? on_tensor_cores<BFloat16>(q, k, erase, write, converted(g, f32), chunk, out, state, states)
               : on_tensor_cores<float>(q, k, erase, write, g, chunk, out, state, states);
  if (k.dtype() == bf16) return call_widened(&delta_scan, false, q, k, erase, write, g, chunk, out, state, states);
  if (k.dim(2) <= kFewSteps)
    return dispatch_float("delta_scan", k.dtype(),
                          [&]<class T>() { by_steps<T>(q, k, erase, write, g, chunk, out, state, states); });
  with_delta_tile(k, write, g, [&]<class T, int N, ScanDecay decay>() {
    by_tiles<N>(DeltaView<T>(q, k, erase, write, g, chunk, N), k.dim(0), state, states,
                [&](const DeltaView<T>& s, const DeltaStates<T>& x) {
                  delta_prepare<T, N, decay>(s), delta_sweep<T, N, decay>(s, HeadRows<T>(out), x);
                });
  });
}

// For delta_scan_backward.cu.
#define SLUICE_DELTA(T, N, decay)                                \
  template void delta_prepare<T, N, decay>(const DeltaView<T>&); \
  template void delta_sweep<T, N, decay>(const DeltaView<T>&, HeadRows<T>, DeltaStates<T>);
#define SLUICE_DELTA_DECAYS(T, N)       \
  SLUICE_DELTA(T, N, ScanDecay::none)   \
  SLUICE_DELTA(T, N, ScanDecay::scalar) \
  SLUICE_DELTA(T, N, ScanDecay::keys)
SLUICE_DELTA_DECAYS(float, 32)
SLUICE_DELTA_DECAYS(float, 64)
SLUICE_DELTA_DECAYS(double, 32)

}  // namespace sluice::cuda
