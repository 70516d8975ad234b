// Elementwise kernels made from formulas (ops/elementwise/formulas.h), forward and backward: the device's counterpart
// of the loops in ops/elementwise/map.h. A thread reads each operand in place (broadcast, strided or bool) and keeps
// intermediate values in registers. It takes eight neighbours where all operands lie in such rows or repeat along them,
// else one element.
#pragma once

#define SLUICE_MAPS_OF_LIBRARY  // no loops for CPUs here: map.h

#include <sluice/cuda/vectors.cuh>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/shape/create.h>

namespace sluice::cuda {

#ifdef __CUDACC__
constexpr int64_t kManyAcross = 1 << 20;  // numbers of an operand from which on a copy costs less
#else
constexpr int64_t kManyAcross = 1 << 13;
#endif
/// A plan whose large transposed operands are copies, made by tiles (make.cu): read in place, a warp would take one
/// number of each of 32 lines of memory.
struct Untransposed {
  sluice::detail::MapPlan plan;
  std::array<Tensor, sluice::detail::kMapOperands> copies;

  explicit Untransposed(const sluice::detail::MapPlan& given) : plan(given) {
    for (std::size_t k = 0; k < plan.count; ++k) {
      const Tensor& x = *plan.operands[k];
      if (x.numel() < kManyAcross || x.dtype() == boolean || !sluice::detail::reads_across(x.layout())) continue;
      copies[k] = contiguous(x.detach()), plan.operands[k] = &copies[k];
      plan.direct[k] = x.shape() == plan.shape && x.dtype() == plan.dtype;
    }
  }
  Untransposed(const Untransposed&) = delete;
  Untransposed& operator=(const Untransposed&) = delete;
};

/// The operands of a map, for a kernel. A kernel computes with bf16 operands in f32.
template <class T, int N> struct Operands {
  const void* at[N];
  bool direct[N], boolean[N], repeated[N], narrow;
  bool in_vectors = std::is_same_v<T, float>;  // all can be read eight at a time
  sluice::detail::StridedRange walk[N];

  explicit Operands(const sluice::detail::MapPlan& plan) : narrow(plan.dtype == bf16) {
    for (std::size_t k = 0; k < N; ++k) {
      const Tensor& x = *plan.operands[k];
      direct[k] = plan.direct[k], boolean[k] = x.dtype() == sluice::boolean;
      at[k] = address_of(x), repeated[k] = false;
      if (!direct[k]) walk[k] = sluice::detail::StridedRange(x.layout().expanded(plan.shape));
      if (!direct[k]) repeated[k] = repeats_in_vectors(walk[k]);
      in_vectors &=
          direct[k] ? is_aligned_16(at[k]) : repeated[k] || walks_in_vectors(walk[k], at[k], size_of(x.dtype()));
    }
  }
  /// Operand k at element i of the result.
  __device__ T operator()(int k, int64_t i) const { return at_place(k, direct[k] ? i : offset_at(walk[k], i)); }
  /// Operand k at elements i to i + 7 of the result.
  __device__ void vector(int k, int64_t i, float (&x)[kNeighbours]) const {
    const int64_t where = direct[k] ? i : offset_at(walk[k], i);
    if (repeated[k]) {
      const float all = at_place(k, where);
#pragma unroll
      for (int e = 0; e < kNeighbours; ++e) x[e] = all;
    } else if (boolean[k]) {
#pragma unroll
      for (int e = 0; e < kNeighbours; ++e) x[e] = static_cast<const bool*>(at[k])[where + e];
    } else {
      load_vector(x, at[k], where, narrow);
    }
  }

 private:
  __device__ T at_place(int k, int64_t place) const {
    return boolean[k] ? T(static_cast<const bool*>(at[k])[place]) : load<T>(at[k], place, narrow);
  }
};

template <class F, class T, class Arity> struct MapForward;
template <class F, class T, std::size_t... I> struct MapForward<F, T, std::index_sequence<I...>> {
  F f;
  Operands<T, sizeof...(I)> in;
  void* y;
  __device__ void operator()(int64_t i) const {
    store<T>(y, i, detail::call(f, Value<T>{in(I, i), {}}...).v, in.narrow);
  }
  __device__ void vector(int64_t i) const {
    float x[sizeof...(I)][kNeighbours], out[kNeighbours];
    (in.vector(I, i, x[I]), ...);
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) out[e] = detail::call(f, Value<float>{x[I][e], {}}...).v;
    store_vector(y, i, out, in.narrow);
  }
};

/// dx_k = g · ∂f/∂x_k; the last operand is g. Gradients that are not wanted are null.
template <class F, class T, class Arity> struct MapBackward;
template <class F, class T, std::size_t... I> struct MapBackward<F, T, std::index_sequence<I...>> {
  static constexpr std::size_t N = sizeof...(I);
  F f;
  Operands<T, N + 1> in;
  void* dx[N];
  __device__ void operator()(int64_t i) const {
    const Dual<T, N> y = detail::call(f, Dual<T, N>::variable(in(I, i), I, T(1))...);
    const T g = in(N, i);
    ((dx[I] ? store<T>(dx[I], i, detail::pulled_back<F>(g, y.d[I]), in.narrow) : void()), ...);
  }
  __device__ void vector(int64_t i) const {
    float x[N + 1][kNeighbours];
    (in.vector(I, i, x[I]), ...), in.vector(N, i, x[N]);
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) {  // gradients take the places of the operands
      const Dual<float, N> y = detail::call(f, Dual<float, N>::variable(x[I][e], I, 1.0f)...);
      const float g = x[N][e];
      ((x[I][e] = detail::pulled_back<F>(g, y.d[I])), ...);
    }
    ((dx[I] ? store_vector(dx[I], i, x[I], in.narrow) : void()), ...);
  }
};

template <class F, class Arity> void map_forward(const F& f, const sluice::detail::MapPlan& given, Tensor& y) {
  const Untransposed readable(given);
  const sluice::detail::MapPlan& plan = readable.plan;
  const auto run = [&]<class T>() {
    const MapForward<F, T, Arity> body{f, Operands<T, Arity::size()>(plan), address_of(y)};
    if constexpr (std::is_same_v<T, float>)
      if (body.in.in_vectors && is_aligned_16(body.y)) return for_each_vector(plan.shape.numel(), body);
    for_each(plan.shape.numel(), body);
  };
  if (plan.dtype == f32 || plan.dtype == bf16) return run.template operator()<float>();
  if (plan.dtype == f64) return run.template operator()<double>();
  if constexpr (sluice::detail::is_integral<F>) {
    if (plan.dtype == i64) return run.template operator()<int64_t>();
    return run.template operator()<int32_t>();
  }
}

template <class F, class Arity> void map_backward(const F& f, const sluice::detail::MapPlan& given, Tensors& grads) {
  const Untransposed readable(given);
  const sluice::detail::MapPlan& plan = readable.plan;
  dispatch_float("map", plan.dtype == bf16 ? f32 : plan.dtype, [&]<class T>() {
    MapBackward<F, T, Arity> body{f, Operands<T, Arity::size() + 1>(plan), {}};
    for (std::size_t k = 0; k < Arity::size(); ++k) body.dx[k] = grads[k].defined() ? address_of(grads[k]) : nullptr;
    if constexpr (std::is_same_v<T, float>)
      if (body.in.in_vectors && std::all_of(body.dx, body.dx + Arity::size(), is_aligned_16))
        return for_each_vector(plan.shape.numel(), body);
    for_each(plan.shape.numel(), body);
  });
}

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"  // the slots are the library's
#endif
/// Installs the kernels of a list of formulas. An affine formula's gradient is a constant times g: it has no kernel.
template <std::size_t N, class... F> void install_maps(formula::Formulas<N, F...>) {
  using Arity = std::make_index_sequence<N>;
  const auto install = []<class G>() {
    using Slots = sluice::detail::MapKernels<G, Arity>;
    Slots::forward.install(DeviceKind::cuda, &map_forward<G, Arity>, Bf16::native);
    if constexpr (!sluice::detail::is_affine<G>)
      Slots::backward.install(DeviceKind::cuda, &map_backward<G, Arity>, Bf16::native);
  };
  (install.template operator()<F>(), ...);
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

}  // namespace sluice::cuda
