#include <sluice/layers/train/optim_kernels.h>

#include <sluice/core/parallel.h>

#include <algorithm>
#include <array>
#include <vector>

namespace sluice {

using detail::AdamStep, detail::LambStep, detail::lamb_rate, detail::limited, detail::SgdStep;

namespace {

constexpr int64_t kGrain = 1 << 14;  // elements per task
constexpr int64_t kTile = 512;       // elements of a buffer on the stack

/// Σx² in sixteen lanes: the loop vectorises, and the order of the sum is fixed.
template <class T>
double sum_squares(const T* x, int64_t n) {
  constexpr int lanes = 16;
  double sum[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int k = 0; k < lanes; ++k) sum[k] += static_cast<double>(x[i + k]) * static_cast<double>(x[i + k]);
  for (int k = 0; i < n; ++i, ++k) sum[k] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) sum[k] += sum[k + width];
  return sum[0];
}

int64_t chunks_of(int64_t n) { return (n + kGrain - 1) / kGrain; }

template <class T, bool nesterov>
void momentum_span(const SgdStep<T> sgd, int64_t n, T* __restrict__ w, const T* __restrict__ g, T* __restrict__ b) {
  for (int64_t i = 0; i < n; ++i) sgd.template step<nesterov>(w[i], g[i], b[i]);
}

template <class T>
void sgd_span(const SgdStep<T> sgd, int64_t n, T* __restrict__ w, const T* __restrict__ g) {
  for (int64_t i = 0; i < n; ++i) sgd.step(w[i], g[i]);
}

template <class T>
void adam_span(const AdamStep<T> adam, int64_t n, T* __restrict__ w, const T* __restrict__ g, T* __restrict__ m, T* __restrict__ v) {
  for (int64_t i = 0; i < n; ++i) adam.step(w[i], g[i], m[i], v[i]);
}

/// The moments, and the directions u.
template <class T>
void lamb_span(const LambStep<T> lamb, int64_t n, const T* __restrict__ w, const T* __restrict__ g, T* __restrict__ m, T* __restrict__ v,
               T* __restrict__ u) {
  for (int64_t i = 0; i < n; ++i) {
    lamb.moments(g[i], m[i], v[i]);
    u[i] = lamb.direction(w[i], m[i], v[i]);
  }
}
template <class T>
void apply_span(const LambStep<T> lamb, T rate, int64_t n, T* __restrict__ w, const T* __restrict__ m, const T* __restrict__ v) {
  for (int64_t i = 0; i < n; ++i) w[i] -= rate * lamb.direction(w[i], m[i], v[i]);
}

void sgd_cpu(const SgdRule& rule, Tensor& w, const Tensor& g, Tensor* momentum) {
  dispatch_float("sgd", w.dtype(), [&]<class T>() {
    const SgdStep<T> sgd(rule);
    T* pw = w.mutable_data<T>();
    T* pb = momentum ? momentum->mutable_data<T>() : nullptr;
    const T* pg = g.data<T>();
    parallel_for(w.numel(), kGrain, [&](int64_t i, int64_t end) {
      if (!pb) sgd_span(sgd, end - i, pw + i, pg + i);
      else if (rule.nesterov) momentum_span<T, true>(sgd, end - i, pw + i, pg + i, pb + i);
      else momentum_span<T, false>(sgd, end - i, pw + i, pg + i, pb + i);
    });
  });
}

void adam_cpu(const AdamRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v) {
  dispatch_float("adam", w.dtype(), [&]<class T>() {
    const AdamStep<T> adam(rule);
    T *pw = w.mutable_data<T>(), *pm = m.mutable_data<T>(), *pv = v.mutable_data<T>();
    const T* pg = g.data<T>();
    parallel_for(w.numel(), kGrain, [&](int64_t i, int64_t end) {
      adam_span(adam, end - i, pw + i, pg + i, pm + i, pv + i);
    });
  });
}

void lamb_cpu(const LambRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v) {
  dispatch_float("lamb", w.dtype(), [&]<class T>() {
    T *pw = w.mutable_data<T>(), *pm = m.mutable_data<T>(), *pv = v.mutable_data<T>();
    const T* pg = g.data<T>();
    const int64_t n = w.numel();
    const LambStep<T> lamb(rule);
    // First pass: the moments and, chunk by chunk, the squares of w and of the direction u.
    std::vector<std::array<double, 2>> part(static_cast<std::size_t>(chunks_of(n)));
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
      alignas(64) T u[kTile];
      auto& [ww, uu] = part[static_cast<std::size_t>(begin / kGrain)];
      for (int64_t i = begin; i < end; i += kTile) {
        const int64_t k = std::min(kTile, end - i);
        lamb_span(lamb, k, pw + i, pg + i, pm + i, pv + i, u);
        ww += sum_squares(pw + i, k);
        uu += sum_squares(u, k);
      }
    });
    double ww = 0, uu = 0;
    for (const auto& p : part) ww += p[0], uu += p[1];
    // Second pass: u again, which costs less than keeping it.
    const T rate = static_cast<T>(lamb_rate(rule, ww, uu));
    parallel_for(n, kGrain, [&](int64_t i, int64_t end) { apply_span(lamb, rate, end - i, pw + i, pm + i, pv + i); });
  });
}

void sum_squares_cpu(const Tensor& x, Tensor& total) {
  dispatch_float("clip_grad_norm", x.dtype(), [&]<class T>() {
    const T* p = x.data<T>();
    std::vector<double> part(static_cast<std::size_t>(chunks_of(x.numel())));
    parallel_for(x.numel(), kGrain, [&](int64_t i, int64_t end) {
      part[static_cast<std::size_t>(i / kGrain)] = sum_squares(p + i, end - i);
    });
    double sum = 0;
    for (double s : part) sum += s;
    *total.mutable_data<double>() += sum;
  });
}

void limit_cpu(Tensor& x, double factor, double limit) {
  dispatch_float("clip_grad", x.dtype(), [&]<class T>() {
    T* p = x.mutable_data<T>();
    const T f = static_cast<T>(factor), hi = static_cast<T>(limit);
    parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) p[i] = limited(f * p[i], hi);
    });
  });
}

}  // namespace

constinit decltype(kernel::sgd) kernel::sgd{"sgd", &sgd_cpu, Bf16::updated};
constinit decltype(kernel::adam) kernel::adam{"adam", &adam_cpu, Bf16::updated};
constinit decltype(kernel::lamb) kernel::lamb{"lamb", &lamb_cpu, Bf16::updated};
constinit decltype(kernel::sum_squares) kernel::sum_squares{"clip_grad_norm", &sum_squares_cpu};
constinit decltype(kernel::limit) kernel::limit{"clip_grad", &limit_cpu, Bf16::updated};

}  // namespace sluice
