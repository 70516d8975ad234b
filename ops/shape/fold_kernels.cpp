// The loops of fold: y_p = Σ of the windows' entries that lie at p, along one dim.
#include <sluice/ops/kernels.h>

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/number/arithmetic.h>

#include <algorithm>

namespace sluice {

namespace {

/// The windows of one position before the dim: count windows of `size` entries, each of them `inner` numbers.
struct Windows {
  int64_t count, size, step, inner;
  int64_t apart, along;  // strides: of a window, and of an entry in it
};

/// y [stop − first, inner] = the sums at the places [first, stop). A sum goes through the entries of a window in their
/// order.
template <class From, class T>
void fold_places(const From* x, const Windows& w, int64_t first, int64_t stop, T* __restrict__ y) {
  const auto add = [](T& to, From from) { to = detail::sum_of(to, detail::convert<T>(from)); };
  std::fill_n(y, (stop - first) * w.inner, T(0));
  for (int64_t k = 0; k < w.size && k < stop; ++k) {
    const int64_t begin = first > k ? ceil_div(first - k, w.step) : 0,
                  end = std::min(w.count, (stop - 1 - k) / w.step + 1);
    const From* from = x + begin * w.apart + k * w.along;
    T* __restrict__ to = y + (begin * w.step + k - first) * w.inner;
    if (w.inner > 1)
      for (int64_t i = begin; i < end; ++i, from += w.apart, to += w.step * w.inner)
        for (int64_t j = 0; j < w.inner; ++j) add(to[j], from[j]);
    else if (w.apart == 1 && w.step == 1)
      for (int64_t i = 0; i < end - begin; ++i) add(to[i], from[i]);
    else
      for (int64_t i = 0; i < end - begin; ++i) add(to[i * w.step], from[i * w.apart]);
  }
}

void fold_cpu(const Tensor& x, Tensor& y, int dim, int64_t step) {
  constexpr int64_t task = 1 << 14;  // additions
  const Layout& layout = x.layout();
  const ReduceShape s = ReduceShape::along(y.shape(), dim);
  const int last = x.rank() - 1;
  const Windows w{layout.shape[dim], layout.shape[last], step, s.inner, layout.strides[dim], layout.strides[last]};
  const int64_t entries = w.size * s.inner, block = std::clamp<int64_t>(task / entries, 1, s.n);
  const int64_t blocks = ceil_div(s.n, block);
  const auto run = [&]<class From, class T>() {
    const From* from = x.data<From>();
    T* to = y.mutable_data<T>();
    parallel_for(s.outer * blocks, std::max<int64_t>(1, task / (block * entries)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / blocks, first = i % blocks * block, stop = std::min(s.n, first + block);
        fold_places(from + layout.step_to(row, 0, dim), w, first, stop, to + (row * s.n + first) * s.inner);
      }
    });
  };
  if (x.dtype() == bf16) return run.operator()<BFloat16, float>();
  dispatch_sum("fold", x.dtype(), [&]<class T, class>() { run.template operator()<T, T>(); });
}

}  // namespace

constinit decltype(kernel::fold) kernel::fold{"fold", &fold_cpu, Bf16::native};

}  // namespace sluice
