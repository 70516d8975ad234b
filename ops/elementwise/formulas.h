// Every scalar formula of the project, exactly once: arithmetic, mathematics and activations here; gates, losses and
// what single layers need in formulas_of_layers.h. A formula is a functor with a templated body: no loops, no devices,
// no dtypes. The same text runs as a vectorised CPU loop (Value<float>), as the generated fused backward (Dual<float,
// N>), as a composition of ops for gradients of any order (Dual<Tensor, N>), and on a GPU.
//
// Rules: select(mask, a, b) instead of if, with both branches finite; constants by like(x, c) or plain
// numbers; the convention at a kink is stated beside the formula. `affine` marks formulas whose slopes are
// constants: nothing is saved for their backward. `integral` marks formulas that also serve i64 and i32. `selects`
// marks formulas that do not depend on an operand wherever its slope is 0: there even an infinite gradient ends.
#pragma once

#include <sluice/core/number/dual_operators.h>

namespace sluice::formula {

// -- arithmetic ------------------------------------------------------------------------------------
struct Add {
  static constexpr const char* name = "add";
  static constexpr bool affine = true, integral = true;
  template <class T> SLUICE_FN T operator()(const T& a, const T& b) const { return a + b; }
};
struct Sub {
  static constexpr const char* name = "sub";
  static constexpr bool affine = true, integral = true;
  template <class T> SLUICE_FN T operator()(const T& a, const T& b) const { return a - b; }
};
struct Mul {
  static constexpr const char* name = "mul";
  static constexpr bool integral = true;
  template <class T> SLUICE_FN T operator()(const T& a, const T& b) const { return a * b; }
};
struct Div {
  static constexpr const char* name = "div";
  template <class T> SLUICE_FN T operator()(const T& a, const T& b) const { return a / b; }
};
struct Neg {
  static constexpr const char* name = "neg";
  static constexpr bool affine = true, integral = true;
  template <class T> SLUICE_FN T operator()(const T& x) const { return -x; }
};
struct Scale {
  static constexpr const char* name = "scale";
  static constexpr bool affine = true, integral = true;
  double factor;
  template <class T> SLUICE_FN T operator()(const T& x) const { return x * factor; }
};
struct AddScalar {
  static constexpr const char* name = "add_scalar";
  static constexpr bool affine = true, integral = true;
  double c;
  template <class T> SLUICE_FN T operator()(const T& x) const { return x + c; }
};
/// x / c, rounded once: 49 / 49 is 1, and 49·(1/49) is not.
struct DivBy {
  static constexpr const char* name = "div";
  static constexpr bool affine = true;
  double c;
  template <class T> SLUICE_FN T operator()(const T& x) const { return x / c; }
};
/// c − x
struct SubFrom {
  static constexpr const char* name = "sub";
  static constexpr bool affine = true, integral = true;
  double c;
  template <class T> SLUICE_FN T operator()(const T& x) const { return c - x; }
};
/// c / x
struct DivInto {
  static constexpr const char* name = "div";
  double c;
  template <class T> SLUICE_FN T operator()(const T& x) const { return c / x; }
};
struct Reciprocal {
  static constexpr const char* name = "reciprocal";
  template <class T> SLUICE_FN T operator()(const T& x) const { return 1.0 / x; }
};
/// x^c, c fixed; of integers c >= 0
struct PowScalar {
  static constexpr const char* name = "pow";
  static constexpr bool integral = true;
  double c;
  template <class T> SLUICE_FN T operator()(const T& x) const { return pow(x, c); }
};
struct Square {
  static constexpr const char* name = "square";
  static constexpr bool integral = true;
  template <class T> SLUICE_FN T operator()(const T& x) const { return x * x; }
};
struct Cube {
  static constexpr const char* name = "pow";
  template <class T> SLUICE_FN T operator()(const T& x) const { return x * x * x; }
};
// Primitives of two operands, with their slopes in core/number/dual.h. Remainder is a − b·⌊a/b⌋, as Python's %, and
// FloorDivide ⌊a/b⌋, as its //. A tie of maximum or minimum splits the gradient in halves.
#define SLUICE_BINARY_FORMULA(Type, op, f, of_integers, selecting)                              \
  struct Type {                                                                                 \
    static constexpr const char* name = #op;                                                    \
    static constexpr bool integral = of_integers, selects = selecting;                          \
    template <class T> SLUICE_FN T operator()(const T& a, const T& b) const { return f(a, b); } \
  };
SLUICE_BINARY_FORMULA(Pow, pow, pow, false, false)
SLUICE_BINARY_FORMULA(Remainder, remainder, remainder, true, false)
SLUICE_BINARY_FORMULA(FloorDivide, floor_divide, floor_divide, true, true)
SLUICE_BINARY_FORMULA(Maximum, maximum, max, true, true)
SLUICE_BINARY_FORMULA(Minimum, minimum, min, true, true)
#undef SLUICE_BINARY_FORMULA
/// x limited to [lo, hi]; slope 1 inside and on the bounds, 0 outside; NaN stays NaN.
struct Clamp {
  static constexpr const char* name = "clamp";
  static constexpr bool integral = true, selects = true;
  double lo, hi;
  template <class T> SLUICE_FN T operator()(const T& x) const {
    return select(x < lo, like(x, lo), select(x > hi, like(x, hi), x));
  }
};
/// mask ≠ 0 ? a : b; the mask is a bool tensor, read as 0 and 1.
struct Where {
  static constexpr const char* name = "where";
  static constexpr bool integral = true, selects = true;
  template <class T> SLUICE_FN T operator()(const T& mask, const T& a, const T& b) const {
    return select(mask != 0.0, a, b);
  }
};
/// mask ≠ 0 ? value : x
struct MaskedFill {
  static constexpr const char* name = "masked_fill";
  static constexpr bool selects = true;
  double value;
  template <class T> SLUICE_FN T operator()(const T& x, const T& mask) const {
    return select(mask != 0.0, like(x, value), x);
  }
};

// -- unary mathematics: primitives, with their slopes in core/number/dual.h; `flat`: slope 0, and of integers, too ---
#define SLUICE_UNARY_FORMULA(Type, f, flat)                                      \
  struct Type {                                                                  \
    static constexpr const char* name = #f;                                      \
    static constexpr bool selects = flat, integral = flat;                       \
    template <class T> SLUICE_FN T operator()(const T& x) const { return f(x); } \
  };
SLUICE_UNARY_FORMULA(Exp, exp, false)
SLUICE_UNARY_FORMULA(Expm1, expm1, false)
SLUICE_UNARY_FORMULA(Log, log, false)
SLUICE_UNARY_FORMULA(Log1p, log1p, false)
SLUICE_UNARY_FORMULA(Sqrt, sqrt, false)
SLUICE_UNARY_FORMULA(Rsqrt, rsqrt, false)
SLUICE_UNARY_FORMULA(Tanh, tanh, false)
SLUICE_UNARY_FORMULA(Sigmoid, sigmoid, false)
SLUICE_UNARY_FORMULA(Softplus, softplus, false)
SLUICE_UNARY_FORMULA(Erf, erf, false)
SLUICE_UNARY_FORMULA(NormalCdf, normal_cdf, false)
SLUICE_UNARY_FORMULA(Sin, sin, false)
SLUICE_UNARY_FORMULA(Cos, cos, false)
SLUICE_UNARY_FORMULA(Sign, sign, true)
SLUICE_UNARY_FORMULA(Floor, floor, true)
SLUICE_UNARY_FORMULA(Ceil, ceil, true)
SLUICE_UNARY_FORMULA(Round, round, true)
SLUICE_UNARY_FORMULA(Trunc, trunc, true)
#undef SLUICE_UNARY_FORMULA
struct Abs {
  static constexpr const char* name = "abs";
  static constexpr bool integral = true;
  template <class T> SLUICE_FN T operator()(const T& x) const { return abs(x); }
};

// -- activations -------------------------------------------------------------------------------------
struct Identity {  // x
  static constexpr const char* name = "identity";
  static constexpr bool affine = true;
  template <class T> SLUICE_FN T operator()(const T& x) const { return x; }
};
struct Relu {  // relu'(0) = 0
  static constexpr const char* name = "relu";
  static constexpr bool integral = true, selects = true;
  template <class T> SLUICE_FN T operator()(const T& x) const {
    return select(x <= 0.0, like(x, 0), x);  // this way round NaN stays NaN
  }
};
/// relu(x)², the attention activation of GAU (Hua et al. 2022; So et al. 2021).
struct Relu2 {
  static constexpr const char* name = "relu2";
  static constexpr bool selects = true;
  template <class T> SLUICE_FN T operator()(const T& x) const {
    T r = Relu{}(x);
    return r * r;
  }
};
struct Elu {  // Clevert et al. 2015; slope at 0 is α (exp branch)
  static constexpr const char* name = "elu";
  double alpha = 1;
  template <class T> SLUICE_FN T operator()(const T& x) const {
    return select(x > 0.0, x, expm1(select(x > 0.0, like(x, 0), x)) * alpha);
  }
};
/// elu(x) + 1, the positive feature map of linear attention (Katharopoulos et al. 2020).
struct Elu1 {
  static constexpr const char* name = "elu1";
  template <class T> SLUICE_FN T operator()(const T& x) const {
    return select(x > 0.0, x + 1.0, exp(select(x > 0.0, like(x, 0), x)));
  }
};
struct Silu {
  static constexpr const char* name = "silu";
  template <class T> SLUICE_FN T operator()(const T& x) const { return x * sigmoid(x); }
};
struct Gelu {  // x·Φ(x), exact (Hendrycks & Gimpel 2016)
  static constexpr const char* name = "gelu";
  template <class T> SLUICE_FN T operator()(const T& x) const { return x * normal_cdf(x); }
};
/// ½x(1 + tanh u) with u = √(2/π)(x + 0.044715x³), written as x·σ(2u): no cancellation for negative x.
struct GeluTanh {
  static constexpr const char* name = "gelu_tanh";
  template <class T> SLUICE_FN T operator()(const T& x) const {
    const T u = max(min(x, like(x, 100)), like(x, -100));  // σ is 0 or 1 long before; x³ must not overflow
    return x * sigmoid((u + u * u * u * 0.044715) * 1.5957691216057308);
  }
};
/// ½(1 + erf((x − √½) / (√(1/4π)·√2))), the Laplace attention function of MEGA (Ma et al. 2022): a normal distribution
/// function with mean √½ and variance 1/4π.
struct Laplace {
  static constexpr const char* name = "laplace";
  template <class T> SLUICE_FN T operator()(const T& x) const {
    return normal_cdf((x - 0.7071067811865476) * 3.5449077018110318);  // √4π
  }
};
struct LeakyRelu {
  static constexpr const char* name = "leaky_relu";
  double slope = 0.01;
  template <class T> SLUICE_FN T operator()(const T& x) const { return select(x > 0.0, x, x * slope); }
};
/// ½ + ½σ(x): the "non-sparse" sigmoid of gated attention (Qiu et al. 2025).
struct NsSigmoid {
  static constexpr const char* name = "ns_sigmoid";
  template <class T> SLUICE_FN T operator()(const T& x) const { return sigmoid(x) * 0.5 + 0.5; }
};

}  // namespace sluice::formula

// -- functions for formulas of map(), in addition to those of core/number/dual.h -------------------------------------
namespace sluice {
#define SLUICE_NAMED_FORMULA(f, Formula)                                     \
  template <class T, std::size_t N, class... C>                              \
  requires requires(C... c) { formula::Formula{static_cast<double>(c)...}; } \
  SLUICE_FN Dual<T, N> f(const Dual<T, N>& x, C... c) { return formula::Formula{static_cast<double>(c)...}(x); }
SLUICE_NAMED_FORMULA(square, Square)
SLUICE_NAMED_FORMULA(relu, Relu)
SLUICE_NAMED_FORMULA(relu2, Relu2)
SLUICE_NAMED_FORMULA(leaky_relu, LeakyRelu)
SLUICE_NAMED_FORMULA(elu, Elu)
SLUICE_NAMED_FORMULA(silu, Silu)
SLUICE_NAMED_FORMULA(gelu, Gelu)
SLUICE_NAMED_FORMULA(gelu_tanh, GeluTanh)
SLUICE_NAMED_FORMULA(clamp, Clamp)
#undef SLUICE_NAMED_FORMULA
}  // namespace sluice
