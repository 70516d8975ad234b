#include <sluice/layers/train/optim_kernels.h>

#include <sluice/core/parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace sluice {

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
void momentum_span(const SgdRule& r, int64_t n, T* __restrict__ w, const T* __restrict__ g, T* __restrict__ b) {
  const T lr = static_cast<T>(r.lr), momentum = static_cast<T>(r.momentum), l2 = static_cast<T>(r.weight_decay);
  for (int64_t i = 0; i < n; ++i) {
    const T d = g[i] + l2 * w[i];
    b[i] = momentum * b[i] + d;
    w[i] -= lr * (nesterov ? d + momentum * b[i] : b[i]);
  }
}

template <class T>
void sgd_span(const SgdRule& r, int64_t n, T* __restrict__ w, const T* __restrict__ g) {
  const T lr = static_cast<T>(r.lr), l2 = static_cast<T>(r.weight_decay);
  for (int64_t i = 0; i < n; ++i) w[i] -= lr * (g[i] + l2 * w[i]);
}

template <class T>
void adam_span(const AdamRule& r, int64_t n, T* __restrict__ w, const T* __restrict__ g, T* __restrict__ m,
               T* __restrict__ v) {
  const T b1 = static_cast<T>(r.beta1), c1 = static_cast<T>(1 - r.beta1);
  const T b2 = static_cast<T>(r.beta2), c2 = static_cast<T>(1 - r.beta2);
  const T lr = static_cast<T>(r.lr), root_scale = static_cast<T>(r.root_scale), eps = static_cast<T>(r.eps);
  const T shrink = static_cast<T>(r.shrink), l2 = static_cast<T>(r.l2);
  for (int64_t i = 0; i < n; ++i) {
    const T d = g[i] + l2 * w[i];
    m[i] = b1 * m[i] + c1 * d;
    v[i] = b2 * v[i] + c2 * (d * d);
    // The decay is added to the update, not multiplied into w: 1 − shrink would round most of it away in f32.
    w[i] -= shrink * w[i] + lr * m[i] / (std::sqrt(v[i]) * root_scale + eps);
  }
}

/// LAMB's constants in the dtype of the parameter, and its direction u.
template <class T>
struct Lamb {
  T b1, c1, b2, c2, mean_scale, root_scale, eps, decay;
  explicit Lamb(const LambRule& r)
      : b1(static_cast<T>(r.beta1)), c1(static_cast<T>(1 - r.beta1)),
        b2(static_cast<T>(r.beta2)), c2(static_cast<T>(1 - r.beta2)),
        mean_scale(static_cast<T>(r.mean_scale)), root_scale(static_cast<T>(r.root_scale)),
        eps(static_cast<T>(r.eps)), decay(static_cast<T>(r.weight_decay)) {}

  T direction(T w, T m, T v) const { return mean_scale * m / (std::sqrt(v) * root_scale + eps) + decay * w; }
  void moments(int64_t n, const T* __restrict__ w, const T* __restrict__ g, T* __restrict__ m,
               T* __restrict__ v, T* __restrict__ u) const {
    const Lamb c = *this;  // a copy that no store can change
    for (int64_t i = 0; i < n; ++i) {
      m[i] = c.b1 * m[i] + c.c1 * g[i];
      v[i] = c.b2 * v[i] + c.c2 * (g[i] * g[i]);
      u[i] = c.direction(w[i], m[i], v[i]);
    }
  }
  void apply(T rate, int64_t n, T* __restrict__ w, const T* __restrict__ m, const T* __restrict__ v) const {
    const Lamb c = *this;
    for (int64_t i = 0; i < n; ++i) w[i] -= rate * c.direction(w[i], m[i], v[i]);
  }
};

void sgd_cpu(const SgdRule& rule, Tensor& w, const Tensor& g, Tensor* momentum) {
  dispatch_float("sgd", w.dtype(), [&]<class T>() {
    T* pw = w.mutable_data<T>();
    T* pb = momentum ? momentum->mutable_data<T>() : nullptr;
    const T* pg = g.data<T>();
    parallel_for(w.numel(), kGrain, [&](int64_t i, int64_t end) {
      if (!pb) sgd_span(rule, end - i, pw + i, pg + i);
      else if (rule.nesterov) momentum_span<T, true>(rule, end - i, pw + i, pg + i, pb + i);
      else momentum_span<T, false>(rule, end - i, pw + i, pg + i, pb + i);
    });
  });
}

void adam_cpu(const AdamRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v) {
  dispatch_float("adam", w.dtype(), [&]<class T>() {
    T *pw = w.mutable_data<T>(), *pm = m.mutable_data<T>(), *pv = v.mutable_data<T>();
    const T* pg = g.data<T>();
    parallel_for(w.numel(), kGrain, [&](int64_t i, int64_t end) {
      adam_span(rule, end - i, pw + i, pg + i, pm + i, pv + i);
    });
  });
}

void lamb_cpu(const LambRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v) {
  dispatch_float("lamb", w.dtype(), [&]<class T>() {
    T *pw = w.mutable_data<T>(), *pm = m.mutable_data<T>(), *pv = v.mutable_data<T>();
    const T* pg = g.data<T>();
    const int64_t n = w.numel();
    const Lamb<T> lamb(rule);
    // First pass: the moments and, chunk by chunk, the squares of w and of the direction u.
    std::vector<std::array<double, 2>> part(static_cast<std::size_t>(chunks_of(n)));
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
      alignas(64) T u[kTile];
      auto& [ww, uu] = part[static_cast<std::size_t>(begin / kGrain)];
      for (int64_t i = begin; i < end; i += kTile) {
        const int64_t k = std::min(kTile, end - i);
        lamb.moments(k, pw + i, pg + i, pm + i, pv + i, u);
        ww += sum_squares(pw + i, k);
        uu += sum_squares(u, k);
      }
    });
    double ww = 0, uu = 0;
    for (const auto& p : part) ww += p[0], uu += p[1];
    const double ratio = std::sqrt(ww) / std::sqrt(uu);
    const bool usable = rule.adapt && ww > 0 && uu > 0 && std::isfinite(ww) && std::isfinite(uu);
    // Second pass: u again, which costs less than keeping it.
    const T rate = static_cast<T>(rule.lr * (usable ? ratio : 1));
    parallel_for(n, kGrain, [&](int64_t i, int64_t end) { lamb.apply(rate, end - i, pw + i, pm + i, pv + i); });
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
      for (int64_t i = begin; i < end; ++i) {
        const T y = f * p[i];
        p[i] = y > hi ? hi : (y < -hi ? -hi : y);
      }
    });
  });
}

}  // namespace

constinit decltype(kernel::sgd) kernel::sgd{"sgd", &sgd_cpu};
constinit decltype(kernel::adam) kernel::adam{"adam", &adam_cpu};
constinit decltype(kernel::lamb) kernel::lamb{"lamb", &lamb_cpu};
constinit decltype(kernel::sum_squares) kernel::sum_squares{"clip_grad_norm", &sum_squares_cpu};
constinit decltype(kernel::limit) kernel::limit{"clip_grad", &limit_cpu};

}  // namespace sluice
