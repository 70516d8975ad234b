// Elementwise kernels made from formulas (ops/formulas.h), forward and backward: the device's counterpart of the loops in
// ops/map.h. A thread takes an element: it reads each operand where it lies, broadcast, strided or bool, and keeps what it
// computes in registers.
#pragma once

#include <sluice/cuda/tensors.h>
#include <sluice/ops/map.h>

namespace sluice::cuda {

/// The operands of a map as a kernel takes them.
template <class T, int N>
struct Operands {
  const void* at[N];
  bool direct[N], boolean[N];
  sluice::detail::Walk walk[N];

  explicit Operands(const sluice::detail::MapPlan& plan) {
    for (std::size_t k = 0; k < N; ++k) {
      const Tensor& x = *plan.operands[k];
      direct[k] = plan.direct[k], boolean[k] = x.dtype() == sluice::boolean && !std::is_same_v<T, bool>;
      at[k] = boolean[k] ? static_cast<const void*>(data_of<bool>(x)) : data_of<T>(x);
      if (!direct[k]) walk[k] = sluice::detail::Walk(x.layout().expanded(plan.shape));
    }
  }
  /// Operand k at element i of the result.
  __device__ T operator()(int k, int64_t i) const {
    if (direct[k]) return static_cast<const T*>(at[k])[i];
    const int64_t where = offset_at(walk[k], i);
    return boolean[k] ? T(static_cast<const bool*>(at[k])[where]) : static_cast<const T*>(at[k])[where];
  }
};

template <class F, class T, class Arity>
struct MapForward;
template <class F, class T, std::size_t... I>
struct MapForward<F, T, std::index_sequence<I...>> {
  F f;
  Operands<T, sizeof...(I)> in;
  T* y;
  __device__ void operator()(int64_t i) const { y[i] = f(Value<T>{in(I, i), {}}...).v; }
};

/// dx_k = g · ∂f/∂x_k; the last operand is g. Gradients that nobody wants are null.
template <class F, class T, class Arity>
struct MapBackward;
template <class F, class T, std::size_t... I>
struct MapBackward<F, T, std::index_sequence<I...>> {
  static constexpr std::size_t N = sizeof...(I);
  F f;
  Operands<T, N + 1> in;
  T* dx[N];
  __device__ void operator()(int64_t i) const {
    const Dual<T, N> y = f(Dual<T, N>::variable(in(I, i), I, T(1))...);
    const T g = in(N, i);
    ((dx[I] ? void(dx[I][i] = g * y.d[I]) : void()), ...);
  }
};

template <class F, class Arity>
void map_forward(const F& f, const sluice::detail::MapPlan& plan, Tensor& y) {
  const auto run = [&]<class T>() {
    for_each(plan.shape.numel(), MapForward<F, T, Arity>{f, Operands<T, Arity::size()>(plan), data_of<T>(y)});
  };
  if (plan.dtype == f32) return run.template operator()<float>();
  if (plan.dtype == f64) return run.template operator()<double>();
  if constexpr (sluice::detail::is_integral<F>()) {
    if (plan.dtype == i64) return run.template operator()<int64_t>();
    return run.template operator()<int32_t>();
  }
}

template <class F, class Arity>
void map_backward(const F& f, const sluice::detail::MapPlan& plan, Tensors& grads) {
  dispatch_float("map", plan.dtype, [&]<class T>() {
    MapBackward<F, T, Arity> body{f, Operands<T, Arity::size() + 1>(plan), {}};
    for (std::size_t k = 0; k < Arity::size(); ++k) body.dx[k] = data_or_null<T>(grads[k]);
    for_each(plan.shape.numel(), body);
  });
}

/// Installs the kernels of formulas of N operands.
template <std::size_t N, class... F>
void install_maps() {
  using Arity = std::make_index_sequence<N>;
  (sluice::detail::MapKernels<F, Arity>::forward.install(DeviceKind::cuda, &map_forward<F, Arity>), ...);
  (sluice::detail::MapKernels<F, Arity>::backward.install(DeviceKind::cuda, &map_backward<F, Arity>), ...);
}

}  // namespace sluice::cuda
