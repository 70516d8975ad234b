// Steps of the optimisers and clipping: a thread an element, the formulas those of every device. Limited by memory.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/reduce.cuh>

namespace sluice::cuda {

using sluice::detail::AdamStep;
using sluice::detail::LambStep;
using sluice::detail::SgdStep;

namespace {

template <class T>
void sgd_as(const SgdRule& rule, Tensor& w, const Tensor& g, Tensor* momentum) {
  const SgdStep<T> sgd(rule);
  T *pw = data_of<T>(w), *pb = momentum ? data_of<T>(*momentum) : nullptr;
  const T* pg = data_of<T>(g);
  const bool nesterov = rule.nesterov;
  for_each(w.numel(), [=] __device__(int64_t i) {
    if (!pb) sgd.step(pw[i], pg[i]);
    else if (nesterov) sgd.template step<true>(pw[i], pg[i], pb[i]);
    else sgd.template step<false>(pw[i], pg[i], pb[i]);
  });
}

template <class T>
void adam_as(const AdamRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v) {
  const AdamStep<T> adam(rule);
  T *pw = data_of<T>(w), *pm = data_of<T>(m), *pv = data_of<T>(v);
  const T* pg = data_of<T>(g);
  for_each(w.numel(), [=] __device__(int64_t i) { adam.step(pw[i], pg[i], pm[i], pv[i]); });
}

/// Σw² and Σu².
struct Norms {
  double w, u;
};
struct SumNorms {
  using Total = Norms;
  __device__ static Total start() { return {0, 0}; }
  __device__ Total operator()(Total a, Total b) const { return {a.w + b.w, a.u + b.u}; }
};
/// The squares of an element; renews its moments.
template <class T>
struct LambMoments {
  LambStep<T> lamb;
  const T *w, *g;
  T *m, *v;
  __device__ Norms operator()(int64_t i, int64_t, int64_t) const {
    lamb.moments(g[i], m[i], v[i]);
    const double x = static_cast<double>(w[i]), u = static_cast<double>(lamb.direction(w[i], m[i], v[i]));
    return {x * x, u * u};
  }
};
struct StoreRate {
  LambRule rule;
  double* rate;
  __device__ void operator()(int64_t, Norms total) const { *rate = sluice::detail::lamb_rate(rule, total.w, total.u); }
};
template <class T>
void lamb_as(const LambRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v) {
  const LambStep<T> lamb(rule);
  T *pw = data_of<T>(w), *pm = data_of<T>(m), *pv = data_of<T>(v);
  const Scratch<double> rates(1);
  const double* rate = rates.get();
  reduce_to<SumNorms>({1, w.numel(), 1}, LambMoments<T>{lamb, pw, data_of<T>(g), pm, pv}, StoreRate{rule, rates.get()});
  for_each(w.numel(), [=] __device__(int64_t i) { pw[i] -= static_cast<T>(*rate) * lamb.direction(pw[i], pm[i], pv[i]); });
}

template <class T>
struct Squares {
  const T* x;
  __device__ double operator()(int64_t i, int64_t, int64_t) const { return static_cast<double>(x[i]) * static_cast<double>(x[i]); }
};
struct AddTotal {
  double* total;
  __device__ void operator()(int64_t, double sum) const { *total += sum; }
};

template <class T>
void limit_as(Tensor& x, double factor, double limit) {
  T* p = data_of<T>(x);
  const T f = static_cast<T>(factor), hi = static_cast<T>(limit);
  for_each(x.numel(), [=] __device__(int64_t i) { p[i] = sluice::detail::limited(f * p[i], hi); });
}

}  // namespace

void sgd(const SgdRule& rule, Tensor& w, const Tensor& g, Tensor* momentum) {
  refuse_in_recording("sgd");
  dispatch_float("sgd", w.dtype(), [&]<class T>() { sgd_as<T>(rule, w, g, momentum); });
}
void adam(const AdamRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v) {
  refuse_in_recording("adam");
  dispatch_float("adam", w.dtype(), [&]<class T>() { adam_as<T>(rule, w, g, m, v); });
}
void lamb(const LambRule& rule, Tensor& w, const Tensor& g, Tensor& m, Tensor& v) {
  refuse_in_recording("lamb");
  if (w.numel() == 0) return;
  dispatch_float("lamb", w.dtype(), [&]<class T>() { lamb_as<T>(rule, w, g, m, v); });
}

void sum_squares(const Tensor& x, Tensor& total) {
  if (x.numel() == 0) return;
  dispatch_float("clip_grad_norm", x.dtype(), [&]<class T>() {
    reduce_to<SumOf<double>>({1, x.numel(), 1}, Squares<T>{data_of<T>(x)}, AddTotal{data_of<double>(total)});
  });
}

void limit(Tensor& x, double factor, double limit) {
  dispatch_float("clip_grad", x.dtype(), [&]<class T>() { limit_as<T>(x, factor, limit); });
}

}  // namespace sluice::cuda
