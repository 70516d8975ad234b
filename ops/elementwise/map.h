// map(f, a, b, …): the user's own fused elementwise op, with exact gradients of any order.
//
//   Tensor y = map([](auto x, auto g) { return x * sigmoid(g); }, value, gate);
//
// A formula may use, on its parameters and on numbers it captures ([c](auto x) { … }):
//   + − * / += ++     < <= > >= == !=, and & | ! on comparisons
//   select(x > 0.0, a, b) instead of if and ?: — both sides are computed, and must be finite; like(x, c), a constant
//   exp expm1 log log1p sqrt rsqrt sin cos tanh sigmoid softplus erf normal_cdf pow(x, c) pow(c, x) pow(x, y)
//   abs sign floor ceil round trunc remainder floor_divide max min clamp(x, lo, hi) square
//   relu relu2 leaky_relu(x, slope) elu(x, α) silu gelu gelu_tanh
// all by bare names: std::exp has no derivative. Anything else is a compile-time error of a few lines.
//
// f is called on Value<T> (forward), on Dual<T, N> (generated backward: g·∂f/∂x_k for all k in one pass), on
// Dual<Tensor, N> (when the gradient itself is recorded), and on Value<Tensor> (on devices without a kernel for f).
// Operands broadcast; bool operands count as 0 and 1. The library's elementwise arithmetic, mathematics and
// activations are maps of formulas (ops/elementwise/formulas.h).
#pragma once

#include <sluice/core/kernel/kernel.h>
#include <sluice/core/node.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/elementwise/dual_tensor.h>
#include <sluice/ops/elementwise/formula_loops.h>
#include <sluice/ops/elementwise/map_misuse.h>
#include <sluice/ops/elementwise/map_plan.h>
#include <sluice/ops/shape/view.h>

#include <array>
#include <span>

namespace sluice {

namespace detail {

#if defined(__clang__)  // as in core/kernel/vectorise.h; with -g the warning is about these lines
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

/// The forward loop: y_i = f(x_0i, …). `in` holds x_0, …. Operand `number` is in[number][0] for all i.
template <class F, class T, std::size_t number, std::size_t... I>
SLUICE_LOOP void formula_loop(const void* formula, const T* const* in, T* const* out, int64_t n) {
  const F f = *static_cast<const F*>(formula);
  const T* const x[] = {in[I]...};
  T* const y = out[0];
  if constexpr (requires { on_bits(f, x[I][0]...); }) {
    SLUICE_VECTORIZE
    for (int64_t i = 0; i < n; ++i) y[i] = on_bits(f, x[I][i]...);
  } else if constexpr (std::same_as<T, BFloat16>) {
    const Bf16Pair* const pairs[] = {reinterpret_cast<const Bf16Pair*>(x[I])...};
    Bf16Pair* const to = reinterpret_cast<Bf16Pair*>(y);
    SLUICE_VECTORIZE
    for (int64_t i = 0; i < n / 2; ++i) to[i] = pair_call(f, pairs[I][i]...);
    if (n % 2) y[n - 1].bits = static_cast<uint16_t>(pair_call(f, uint32_t{x[I][n - 1].bits}...));
  } else if constexpr (requires { quick(f, x[I][0]..., y[0]); }) {
    quick_loop<WordOf<T>>(
        n, [=](int64_t i) { return quick(f, x[I][i]..., y[i]); },
        [=](int64_t i) {
          y[i] = call(f, Value<T>{x[I][i], {}}...).v;
        });
  } else {
    SLUICE_VECTORIZE
    for (int64_t i = 0; i < n; ++i) y[i] = call(f, Value<T>{x[I][I == number ? 0 : i], {}}...).v;
  }
}

/// The generated backward loop: dx_k = g · ∂f/∂x_k. `in` holds x_0, …, g.
template <class F, class T, std::size_t... I>
SLUICE_LOOP void formula_vjp_loop(const void* formula, const T* const* in, T* const* out, int64_t n) {
  constexpr std::size_t N = sizeof...(I);
  const F f = *static_cast<const F*>(formula);
  const T* const x[] = {in[I]...};
  T* const dx[] = {out[I]...};
  const T* g = in[N];
  if constexpr (std::array<T, N> d; requires { quick_slopes(f, x[I][0]..., d); }) {
    const auto pull_back = [=](int64_t i, const std::array<T, N>& slopes) {
      ((dx[I][i] = pulled_back<F>(g[i], slopes[I])), ...);
    };
    const auto by_quick_slopes = [=](int64_t i) {
      std::array<T, N> slopes;
      const bool right = quick_slopes(f, x[I][i]..., slopes);
      pull_back(i, slopes);
      return right;
    };
    quick_loop<WordOf<T>>(n, by_quick_slopes,
                          [=](int64_t i) { pull_back(i, call(f, Dual<T, N>::variable(x[I][i], I, T(1))...).d); });
  } else {
    SLUICE_VECTORIZE
    for (int64_t i = 0; i < n; ++i) {
      auto y = call(f, Dual<T, N>::variable(x[I][i], I, T(1))...);
      ((dx[I][i] = pulled_back<F>(g[i], y.d[I])), ...);
    }
  }
}

template <class F, class T, std::size_t number, std::size_t... I>
void apply_formula(const void* formula, const T* const* in, T* const* out, int64_t n) {
  vectorised([=] { formula_loop<F, T, number, I...>(formula, in, out, n); });
}
template <class F, class T, std::size_t... I>
void apply_formula_vjp(const void* formula, const T* const* in, T* const* out, int64_t n) {
  vectorised([=] { formula_vjp_loop<F, T, I...>(formula, in, out, n); });
}

#if defined(__clang__)
#pragma clang diagnostic pop
#endif

template <class F> constexpr const char* formula_name() {
  if constexpr (requires { F::name; }) return F::name;
  else return "map";
}
template <class F> constexpr bool is_affine = requires { requires F::affine; };
template <class F> constexpr bool is_integral = requires { requires F::integral; };

/// The kernel slots of formula F, forward and fused backward. The argument f carries the formula's constants. A backend
/// installs kernels for the named formulas.
template <class F, class Arity> struct MapKernels;
template <class F, std::size_t... I> struct MapKernels<F, std::index_sequence<I...>> {
  template <class T> static TileLoopsOf<T> loops_of() {
    constexpr std::size_t N = sizeof...(I);
    if constexpr (N == 2 && formula::is_short<F> && std::floating_point<T>)
      return {apply_formula<F, T, N, I...>, {apply_formula<F, T, I, I...>...}};
    else return {apply_formula<F, T, N, I...>};
  }
  static void forward_cpu(const F& f, const MapPlan& plan, Tensor& y) {
    TileLoops loops{loops_of<float>(), loops_of<double>()};
    if constexpr (is_integral<F>) loops.i64 = loops_of<int64_t>(), loops.i32 = loops_of<int32_t>();
    if constexpr (formula::is_short<F>) loops.bf16 = loops_of<BFloat16>();
    run_map(plan, loops, &f, &y, 1);
  }
  static void backward_cpu(const F& f, const MapPlan& plan, Tensors& grads) {
    run_map(plan, {{apply_formula_vjp<F, float, I...>}, {apply_formula_vjp<F, double, I...>}}, &f, grads.data(),
            sizeof...(I));
  }
  /// y [plan.shape] of plan.dtype = f(operands…).
  static constinit Kernel<void(const F& f, const MapPlan& plan, Tensor& y)> forward;
  /// The operands are the inputs and g. Undefined entries of grads are not needed.
  static constinit Kernel<void(const F& f, const MapPlan& plan, Tensors& grads)> backward;
};
#ifndef SLUICE_MAPS_OF_LIBRARY  // A backend fills the library's slots and compiles no loops for CPUs.
template <class F, std::size_t... I>
constinit Kernel<void(const F& f, const MapPlan& plan, Tensor& y)> MapKernels<F, std::index_sequence<I...>>::forward{
    formula_name<F>(), &forward_cpu, Bf16::native};
template <class F, std::size_t... I>
constinit Kernel<void(const F& f, const MapPlan& plan, Tensors& grads)>
    MapKernels<F, std::index_sequence<I...>>::backward{formula_name<F>(), &backward_cpu, Bf16::native};
#endif

template <class F, std::size_t N> struct MapNode final : Node {
  F f;
  explicit MapNode(const F& formula) : f(formula) {}
  static constexpr const char* op_name() { return formula_name<F>(); }
  const char* name() const override { return op_name(); }
  Tensors vjp(const Tensor& g) override { return vjp_at(g, std::make_index_sequence<N>()); }

 private:
  template <std::size_t... I> Tensors vjp_at(const Tensor& g, std::index_sequence<I...>) const {
    if constexpr (is_affine<F>) {
      auto slopes = f(Dual<double, N>::variable(0.0, I, 1.0)...).d;
      return {needs(I) ? (slopes[I] == 1 ? g : scale(g, slopes[I])) : Tensor()...};
    } else {
      const std::array<Tensor, N> x{saved(I)...};
      Tensors grads;
      if (!grad_enabled() && MapKernels<F, std::index_sequence<I...>>::backward.installed(g.device())) {
        const MapPlan plan = plan_map_vjp(*this, x.data(), N, g, grads);
        MapKernels<F, std::index_sequence<I...>>::backward(f, plan, grads);
        return grads;
      }
      return composed_vjp(g, x, std::index_sequence<I...>());
    }
  }
  /// The gradient as ops, which record their own. Bools count as 0 and 1, here as in the loops.
  template <std::size_t... I>
  [[gnu::cold, gnu::noinline]] Tensors composed_vjp(const Tensor& g, const std::array<Tensor, N>& x,
                                                    std::index_sequence<I...>) const {
    using D = Dual<Tensor, N>;
    const Tensor wide = widened(g), one = unit(wide);
    const auto number = [&](std::size_t k) { return to(x[k], wide.dtype()); };
    const D y = call(f, (needs(I) ? D::variable(number(I), I, one) : D::constant(number(I)))...);
    return pulled_back(*this, y.d, wide, g.dtype(), is_selecting<F>);
  }
};

/// Computes f on tensors, one op per operation of the formula: for a device that has no kernel for f itself. The result
/// has memory of its own and no history.
template <class F, class... Ts> [[gnu::cold]] Tensor composed_map(const F& f, const MapPlan& plan, const Ts&... xs) {
  NoGrad guard;
  const DType wide = plan.dtype == bf16 ? f32 : plan.dtype;
  const Tensor y = to(call(f, Value<Tensor>{to(xs, wide), {}}...).v, plan.dtype);
  return y.is_sole_owner() && y.is_contiguous() && y.shape() == plan.shape ? y : clone(expand(y, plan.shape));
}

}  // namespace detail

/// Applies f elementwise to 1 to 6 broadcast tensors of one float dtype (f32, f64, or bf16, computed in f32; formulas
/// marked `integral` also i64 and i32). f must be callable with `auto` parameters and call functions by
/// unqualified names (exp, sigmoid, select, …). Throws ShapeError, DTypeError, DeviceError, and ValueError for an
/// undefined tensor.
template <class F, class... Ts>
requires(std::same_as<Ts, Tensor>&&...) auto map(F f, const Tensor& first, const Ts&... rest) ->
    // Compiles the body of f first and, if that fails, nothing further: a mistake in f gives one error.
    typename detail::ResultOf<decltype(detail::formula<F>()(detail::number<1 + sizeof...(Ts)>(),
                                                            detail::number<1 + sizeof...(Ts), Ts>()...))>::type {
  constexpr std::size_t N = 1 + sizeof...(rest);
  using Number = Dual<Tensor, N>;
  using Index = std::make_index_sequence<N>;
  static_assert(N <= 6, "map: a formula takes 1 to 6 tensors");
  using Given = decltype(detail::formula<F>()(detail::number<N>(), detail::number<N, Ts>()...));
  if constexpr (std::same_as<Given, detail::NoCall>) {
    static_assert(sizeof(F) == 0,
                  "map: the formula takes one `auto` parameter per tensor, and changes none: map([](auto x, auto y) { "
                  "return x * exp(y); }, a, b)");
    return {};
  } else if constexpr (!std::same_as<Given, Number> && (std::same_as<Given, bool> || !std::is_arithmetic_v<Given>)) {
    static_assert(sizeof(F) == 0,
                  "map: the formula returns a number, made of its parameters: no sum(x), no softmax(x, 0); and for x > "
                  "0.0 select(x > 0.0, 1, 0)");
    return {};
  } else {
    // Refuses formulas with double parameters here.
    if (false) static_cast<void>(f(detail::number<N>(), detail::number<N, Ts>()...));
    constexpr const char* op = detail::formula_name<F>();
    const Tensor* xs[] = {&first, &rest...};
    const detail::MapPlan plan = detail::plan_map(op, xs, N, detail::is_integral<F>);
    using Kernels = detail::MapKernels<F, Index>;
    Tensor y;
    if (Kernels::forward.installed(first.device())) [[likely]]
      y = empty(plan.shape, {plan.dtype, first.device()}, op), Kernels::forward(f, plan, y);
    else y = detail::composed_map(f, plan, first, rest...);
    if constexpr (detail::is_affine<F>) return record<detail::MapNode<F, N>>(std::move(y), {first, rest...}, {}, f);
    else return record<detail::MapNode<F, N>>(std::move(y), {first, rest...}, {first, rest...}, f);
  }
}
}  // namespace sluice
