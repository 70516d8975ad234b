// y = x ⊙ m / (1 − p),   m_i = [u_i >= p],   u_i from Philox block offset + i/4.     dx = g ⊙ m / (1 − p)
#include <sluice/ops/elementwise/dropout.h>

#include <sluice/core/node.h>
#include <sluice/core/number/philox.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/kernels.h>

namespace sluice {

namespace {

void dropout_cpu(const Tensor& x, Tensor& y, DropoutSpec s) {
  dispatch_float("dropout", x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    const detail::Dropping<T> drop(s.p);
    const int64_t n = x.numel();
    parallel_for(ceil_div(n, 4), 4096, [&](int64_t begin, int64_t end) {
      const T* from = in + 4 * begin;
      T* to = out + 4 * begin;
      detail::for_philox_words(s.from.seed, s.from.first + static_cast<uint64_t>(begin), 0,
                               std::min(n, 4 * end) - 4 * begin, [=](int64_t i, const uint32_t* word, int64_t count) {
                                 for (int64_t k = 0; k < count; ++k) to[i + k] = drop(word[k], from[i + k]);
                               });
    });
  });
}

Tensor apply(const Tensor& x, DropoutSpec s) {
  Tensor y = empty(x.shape(), x.options(), "dropout");
  kernel::dropout(contiguous(x.detach()), y, s);
  return record("dropout", std::move(y), {x}, {}, [s](const Tensor& g) { return apply(g, s); });
}

}  // namespace

constinit decltype(kernel::dropout) kernel::dropout{"dropout", &dropout_cpu};

Tensor dropout(const Tensor& x, double p, Rng& rng) {
  if (!(p >= 0 && p <= 1)) fail<ValueError>("dropout: p=", p, " is outside [0, 1]");
  detail::check_float("dropout", x);
  if (p == 0) return x;
  const uint64_t blocks = static_cast<uint64_t>(ceil_div(x.numel(), 4));
  return apply(x, {p, rng.draw(blocks, x.device())});
}

}  // namespace sluice
