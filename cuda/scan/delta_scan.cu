// The delta rule step by step: a thread has a column of the state, in global memory, where the columns of a head's
// threads lie side by side. Right for every option, in f32 and f64. What limits it: the state is read and written twice
// a step, from the cache if it fits, and steps wait for each other. Its gradients run composed of ops; there is no
// kernel for them, nor one by chunks.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/tensors.h>

namespace sluice::cuda {

namespace {

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

}  // namespace

void delta_scan(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& g,
                int64_t chunk, Tensor& out, Tensor& state, Tensor& states) {
  const int64_t heads = erase.dim(1), n = k.dim(2);
  dispatch_float("delta_scan", k.dtype(), [&]<class T>() {
    for_each(erase.dim(0) * heads * write.dim(3),
             DeltaColumn<T>{.q = HeadRows<const T>(q.defined() ? q : k),
                            .k = HeadRows<const T>(k),
                            .erase = HeadRows<const T>(erase),
                            .write = HeadRows<const T>(write),
                            .out = HeadRows<T>(out),
                            .g = data_or_null<T>(g),
                            .state = data_of<T>(state),
                            .states = states.defined() ? data_of<T>(states) : nullptr,
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
  });
}

}  // namespace sluice::cuda
