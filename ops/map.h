// map(f, a, b, …): the user's own fused elementwise op, with exact gradients of any order.
//
//   Tensor y = map([](auto x, auto g) { return x * sigmoid(g); }, value, gate);
//
// f is called on Value<T> (forward), Dual<T, N> (backward, generated: Σ_k g·∂f/∂x_k in one pass) and
// Dual<Tensor, N> (when the gradient itself is recorded). Operands broadcast; bool operands count as
// 0 and 1. Every elementwise op of the library is a map of a formula (ops/formulas.h).
#pragma once

#include <sluice/core/node.h>
#include <sluice/core/parallel.h>
#include <sluice/core/strided.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/formulas.h>

#include <algorithm>
#include <array>

#if defined(__clang__)
#define SLUICE_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define SLUICE_VECTORIZE _Pragma("GCC ivdep")
#else
#define SLUICE_VECTORIZE
#endif

#define SLUICE_RESTRICT __restrict__

namespace sluice {

namespace detail {
/// The tensor 1 that seeds derivatives.
const Tensor& unit(DType dtype);
bool is_unit(const Tensor& x);
}  // namespace detail

/// Partial derivatives that are tensors: undefined is an exact 0, unit() an exact 1.
template <>
struct PartialOps<Tensor> {
  static Tensor zero() { return {}; }
  static Tensor mul(const Tensor& slope, const Tensor& d) {
    if (!slope.defined() || !d.defined()) return {};
    if (detail::is_unit(d)) return slope;
    return detail::is_unit(slope) ? d : sluice::mul(slope, d);
  }
  static Tensor mul(const Tensor& d, double slope) { return d.defined() ? scale(d, slope) : d; }
  static Tensor add(const Tensor& a, const Tensor& b) {
    if (!a.defined()) return b;
    return b.defined() ? sluice::add(a, b) : a;
  }
  static Tensor sub(const Tensor& a, const Tensor& b) {
    if (!b.defined()) return a;
    return a.defined() ? sluice::sub(a, b) : scale(b, -1);
  }
  static Tensor select(const Tensor& mask, const Tensor& a, const Tensor& b) {
    if (!a.defined() && !b.defined()) return {};
    return where(mask, a.defined() ? a : like(b, 0), b.defined() ? b : like(a, 0));
  }
};

namespace detail {

/// How the operands of an elementwise op are read: prepared once, without templates.
template <std::size_t N>
struct MapPlan {
  DType dtype = f32;                   // of the computation
  Shape shape;                         // of the result
  std::array<const Tensor*, N> operands;
  std::array<const std::byte*, N> base;
  std::array<bool, N> direct;          // contiguous, of full shape and right dtype: no tile buffer
};

struct OperandCheck {
  DType dtype;
  bool all_same;  // same shape and contiguous
};
/// Common dtype and device of an op's operands; throws naming the op.
OperandCheck check_operands(const char* op, const Tensor* const* xs, std::size_t n, bool integral);

template <std::size_t N>
MapPlan<N> plan_map(const char* op, std::array<const Tensor*, N> xs, bool integral) {
  MapPlan<N> p;
  OperandCheck check = check_operands(op, xs.data(), N, integral);
  p.dtype = check.dtype;
  p.operands = xs;
  p.shape = xs[0]->shape();
  if (!check.all_same)
    for (std::size_t k = 1; k < N; ++k) p.shape = broadcast(op, p.shape, xs[k]->shape());
  for (std::size_t k = 0; k < N; ++k) {
    p.base[k] = xs[k]->raw();
    p.direct[k] = xs[k]->dtype() == p.dtype &&
                  (check.all_same || (xs[k]->shape() == p.shape && xs[k]->is_contiguous()));
  }
  return p;
}

/// Calls body(operand pointers, first index, count) on tiles that cover the result. Where an operand
/// is not directly readable the tile is first gathered into a buffer.
template <class T, std::size_t N, class Body>
void for_each_tile(const MapPlan<N>& p, Body body) {
  std::array<Walk, N> walks;
  for (std::size_t k = 0; k < N; ++k)
    if (!p.direct[k]) walks[k] = Walk(p.operands[k]->layout().expanded(p.shape));
  parallel_for(p.shape.numel(), 32 * kTile, [&](int64_t begin, int64_t end) {
    alignas(64) T buffer[N][kTile];
    std::array<const T*, N> in;
    for (int64_t i = begin; i < end; i += kTile) {
      const int64_t n = std::min(kTile, end - i);
      for (std::size_t k = 0; k < N; ++k) {
        if (p.direct[k]) {
          in[k] = reinterpret_cast<const T*>(p.base[k]) + i;
        } else {
          read_tile(walks[k], p.base[k], p.operands[k]->dtype(), i, n, buffer[k]);
          in[k] = buffer[k];
        }
      }
      body(in, i, n);
    }
  });
}

/// The forward loop: the only place where a formula meets memory.
template <class T, class F, std::size_t N>
void apply_tile(const F& formula, const std::array<const T*, N>& in, T* SLUICE_RESTRICT out,
                int64_t n) {
  const F f = formula;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    SLUICE_VECTORIZE
    for (int64_t i = 0; i < n; ++i) out[i] = f(Value<T>{in[I][i], {}}...).v;
  }(std::make_index_sequence<N>());
}

/// The generated backward loop: out[k] = g · ∂f/∂x_k.
template <class T, class F, std::size_t N>
void apply_tile_vjp(const F& formula, const std::array<const T*, N>& in, const T* g,
                    const std::array<T*, N>& out, int64_t n) {
  const F f = formula;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    SLUICE_VECTORIZE
    for (int64_t i = 0; i < n; ++i) {
      auto y = f(Dual<T, N>::variable(in[I][i], I, T(1))...);
      ((out[I][i] = g[i] * y.d[I]), ...);
    }
  }(std::make_index_sequence<N>());
}

template <class F>
constexpr const char* formula_name() {
  if constexpr (requires { F::name; }) return F::name;
  else return "map";
}
template <class F>
constexpr bool is_affine() {
  if constexpr (requires { F::affine; }) return F::affine;
  else return false;
}
template <class F>
constexpr bool is_integral() {
  if constexpr (requires { F::integral; }) return F::integral;
  else return false;
}

template <class F, std::size_t N>
struct MapNode final : Node {
  F f;
  explicit MapNode(const F& formula) : f(formula) {}
  static constexpr const char* op_name() { return formula_name<F>(); }
  const char* name() const override { return op_name(); }

  Tensors vjp(const Tensor& g) override {
    return [&]<std::size_t... I>(std::index_sequence<I...> all) -> Tensors {
      if constexpr (is_affine<F>()) {
        auto slopes = f(Dual<double, N>::variable(0.0, I, 1.0)...).d;
        return {needs(I) ? (slopes[I] == 1 ? g : scale(g, slopes[I])) : Tensor()...};
      } else if (grad_enabled()) {
        return compose(g, {saved(I)...}, all);
      } else {
        return fused(g, {saved(I)...}, all);
      }
    }(std::make_index_sequence<N>());
  }

 private:
  template <std::size_t... I>
  Tensors fused(const Tensor& g, const std::array<Tensor, N>& x, std::index_sequence<I...>) const {
    auto plan = plan_map<N + 1>(op_name(), {&x[I]..., &g}, false);
    Tensors grads(N);
    for (std::size_t k = 0; k < N; ++k)
      if (needs(k)) grads[k] = empty(plan.shape, {plan.dtype, g.device()});
    dispatch_float(op_name(), plan.dtype, [&]<class T>() {
      std::array<T*, N> out{(needs(I) ? grads[I].template mutable_data<T>() : nullptr)...};
      for_each_tile<T>(plan, [&](const std::array<const T*, N + 1>& in, int64_t begin, int64_t n) {
        alignas(64) T unwanted[kTile];
        std::array<T*, N> o{(out[I] ? out[I] + begin : unwanted)...};
        apply_tile_vjp<T, F, N>(f, {in[I]...}, in[N], o, n);
      });
    });
    return grads;
  }
  template <std::size_t... I>
  Tensors compose(const Tensor& g, const std::array<Tensor, N>& x,
                  std::index_sequence<I...>) const {
    using D = Dual<Tensor, N>;
    const Tensor& one = unit(g.dtype());
    D y = f((needs(I) ? D::variable(x[I], I, one) : D::constant(x[I]))...);
    Tensors grads(N);
    for (std::size_t k = 0; k < N; ++k)
      if (needs(k)) grads[k] = PartialOps<Tensor>::mul(g, y.d[k]);
    return grads;
  }
};

}  // namespace detail

/// Applies f elementwise to 1 to 6 broadcast tensors of one float dtype (f32 or f64; formulas marked
/// `integral` also i64 and i32). f must be callable with `auto` parameters and call functions by
/// unqualified names (exp, sigmoid, select, …). Throws ShapeError, DTypeError, DeviceError.
template <class F, class... Ts>
  requires(std::same_as<Ts, Tensor> && ...)
Tensor map(F f, const Tensor& first, const Ts&... rest) {
  constexpr std::size_t N = 1 + sizeof...(rest);
  static_assert(N <= 6, "map: a formula takes 1 to 6 tensors");
  static_assert(std::is_invocable_v<const F&, const Value<float>&, std::conditional_t<true, const Value<float>&, Ts>...>,
                "map: the formula must be callable with one `auto` parameter per tensor, all of one type");
  constexpr const char* op = detail::formula_name<F>();
  std::array<const Tensor*, N> xs{&first, &rest...};
  auto plan = detail::plan_map<N>(op, xs, detail::is_integral<F>());
  Tensor y = empty(plan.shape, {plan.dtype, first.device()}, op);
  auto run = [&]<class T>() {
    T* out = y.mutable_data<T>();
    detail::for_each_tile<T>(plan, [&](const std::array<const T*, N>& in, int64_t i, int64_t n) {
      detail::apply_tile<T>(f, in, out + i, n);
    });
  };
  if constexpr (detail::is_integral<F>()) {
    if (plan.dtype == i64) return run.template operator()<int64_t>(), y;
    if (plan.dtype == i32) return run.template operator()<int32_t>(), y;
  }
  dispatch_float(op, plan.dtype, run);
  if constexpr (detail::is_affine<F>())
    return record<detail::MapNode<F, N>>(std::move(y), {first, rest...}, {}, f);
  else
    return record<detail::MapNode<F, N>>(std::move(y), {first, rest...}, {first, rest...}, f);
}

}  // namespace sluice
