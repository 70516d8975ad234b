// Every scalar formula of the project, exactly once. A formula is a functor with a templated body: no
// loops, no devices, no dtypes. The same text runs as a vectorised CPU loop (Value<float>), as the
// generated fused backward (Dual<float, N>), as a composition of ops for gradients of any order
// (Dual<Tensor, N>), and on a GPU.
//
// Rules: select(mask, a, b) instead of if, with both branches finite; constants by like(x, c) or plain
// numbers; the convention at a kink is stated beside the formula. `affine` marks formulas whose slopes are
// constants: nothing is saved for their backward. `integral` marks formulas that also serve i64 and i32.
#pragma once

#include <sluice/core/dual_operators.h>

#include <utility>

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
struct Pow {
  static constexpr const char* name = "pow";
  template <class T> SLUICE_FN T operator()(const T& x, const T& e) const { return pow(x, e); }
};
/// x^c, c fixed
struct PowScalar {
  static constexpr const char* name = "pow";
  double c;
  template <class T> SLUICE_FN T operator()(const T& x) const { return pow(x, c); }
};
struct Square {
  static constexpr const char* name = "square";
  static constexpr bool integral = true;
  template <class T> SLUICE_FN T operator()(const T& x) const { return x * x; }
};
/// a − b·⌊a/b⌋, as Python's %.
struct Remainder {
  static constexpr const char* name = "remainder";
  static constexpr bool integral = true;
  template <class T> SLUICE_FN T operator()(const T& a, const T& b) const { return remainder(a, b); }
};
struct Maximum {  // a tie splits the gradient in halves
  static constexpr const char* name = "maximum";
  static constexpr bool integral = true;
  template <class T> SLUICE_FN T operator()(const T& a, const T& b) const { return max(a, b); }
};
struct Minimum {
  static constexpr const char* name = "minimum";
  static constexpr bool integral = true;
  template <class T> SLUICE_FN T operator()(const T& a, const T& b) const { return min(a, b); }
};
/// x limited to [lo, hi]; slope 1 inside and on the bounds, 0 outside; NaN stays NaN.
struct Clamp {
  static constexpr const char* name = "clamp";
  double lo, hi;
  template <class T> SLUICE_FN T operator()(const T& x) const {
    return select(x < lo, like(x, lo), select(x > hi, like(x, hi), x));
  }
};
/// mask ≠ 0 ? a : b; the mask is a bool tensor, read as 0 and 1.
struct Where {
  static constexpr const char* name = "where";
  static constexpr bool integral = true;
  template <class T> SLUICE_FN T operator()(const T& mask, const T& a, const T& b) const {
    return select(mask != 0.0, a, b);
  }
};
/// mask ≠ 0 ? value : x
struct MaskedFill {
  static constexpr const char* name = "masked_fill";
  double value;
  template <class T> SLUICE_FN T operator()(const T& x, const T& mask) const {
    return select(mask != 0.0, like(x, value), x);
  }
};

// -- unary mathematics: primitives, with their slopes in core/dual.h --------------------------------
#define SLUICE_UNARY_FORMULA(Type, f)                                              \
  struct Type {                                                                    \
    static constexpr const char* name = #f;                                        \
    template <class T> SLUICE_FN T operator()(const T& x) const { return f(x); }   \
  };
SLUICE_UNARY_FORMULA(Exp, exp)
SLUICE_UNARY_FORMULA(Expm1, expm1)
SLUICE_UNARY_FORMULA(Log, log)
SLUICE_UNARY_FORMULA(Log1p, log1p)
SLUICE_UNARY_FORMULA(Sqrt, sqrt)
SLUICE_UNARY_FORMULA(Rsqrt, rsqrt)
SLUICE_UNARY_FORMULA(Tanh, tanh)
SLUICE_UNARY_FORMULA(Sigmoid, sigmoid)
SLUICE_UNARY_FORMULA(Softplus, softplus)
SLUICE_UNARY_FORMULA(Erf, erf)
SLUICE_UNARY_FORMULA(NormalCdf, normal_cdf)
SLUICE_UNARY_FORMULA(Sin, sin)
SLUICE_UNARY_FORMULA(Cos, cos)
SLUICE_UNARY_FORMULA(Abs, abs)
SLUICE_UNARY_FORMULA(Sign, sign)
SLUICE_UNARY_FORMULA(Floor, floor)
SLUICE_UNARY_FORMULA(Ceil, ceil)
SLUICE_UNARY_FORMULA(Round, round)
SLUICE_UNARY_FORMULA(Trunc, trunc)
#undef SLUICE_UNARY_FORMULA

// -- activations -------------------------------------------------------------------------------------
struct Identity {  // x
  static constexpr const char* name = "identity";
  static constexpr bool affine = true;
  template <class T> SLUICE_FN T operator()(const T& x) const { return x; }
};
struct Relu {  // relu'(0) = 0
  static constexpr const char* name = "relu";
  template <class T> SLUICE_FN T operator()(const T& x) const {
    return select(x <= 0.0, like(x, 0), x);  // this way round NaN stays NaN
  }
};
/// relu(x)², the attention activation of GAU (Hua et al. 2022; So et al. 2021).
struct Relu2 {
  static constexpr const char* name = "relu2";
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
  template <class T> SLUICE_FN T operator()(const T& x) const {
    return x * normal_cdf(x);
  }
};
/// ½x(1 + tanh u) with u = √(2/π)(x + 0.044715x³), written as x·σ(2u): no cancellation for negative x.
struct GeluTanh {
  static constexpr const char* name = "gelu_tanh";
  template <class T> SLUICE_FN T operator()(const T& x) const {
    return x * sigmoid((x + x * x * x * 0.044715) * 1.5957691216057308);
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
  template <class T> SLUICE_FN T operator()(const T& x) const {
    return select(x > 0.0, x, x * slope);
  }
};
/// ½ + ½σ(x): the "non-sparse" sigmoid of gated attention (Qiu et al. 2025).
struct NsSigmoid {
  static constexpr const char* name = "ns_sigmoid";
  template <class T> SLUICE_FN T operator()(const T& x) const { return sigmoid(x) * 0.5 + 0.5; }
};

// -- gates: x ⊙ φ(g) ---------------------------------------------------------------------------------
template <class Phi>
struct Gated {
  static constexpr const char* name = "gate";
  template <class T> SLUICE_FN T operator()(const T& x, const T& g) const { return x * Phi{}(g); }
};
struct Glu : Gated<Sigmoid> { static constexpr const char* name = "glu"; };  // Dauphin et al. 2017
struct ReGlu : Gated<Relu> { static constexpr const char* name = "reglu"; };  // Shazeer 2020, as GeGlu, SwiGlu and Bilinear
struct GeGlu : Gated<Gelu> { static constexpr const char* name = "geglu"; };
struct GeGluTanh : Gated<GeluTanh> { static constexpr const char* name = "geglu_tanh"; };  // T5 1.1, Gemma
struct SwiGlu : Gated<Silu> { static constexpr const char* name = "swiglu"; };
struct Bilinear : Gated<Identity> { static constexpr const char* name = "bilinear"; };
/// φ(x) ⊙ φ(g) with SiLU on both sides, as FLASH builds its GLU (Hua et al. 2022).
struct SiluGlu {
  static constexpr const char* name = "silu_glu";
  template <class T> SLUICE_FN T operator()(const T& x, const T& g) const {
    return Silu{}(x) * Silu{}(g);
  }
};
/// Linear interpolation a + w·(b − a).
struct Lerp {
  static constexpr const char* name = "lerp";
  template <class T> SLUICE_FN T operator()(const T& a, const T& b, const T& w) const {
    return a + w * (b - a);
  }
};
/// γ ⊙ z + β, the scale-offset heads of GAU.
struct ScaleOffset {
  static constexpr const char* name = "scale_offset";
  template <class T> SLUICE_FN T operator()(const T& z, const T& gamma, const T& beta) const {
    return z * gamma + beta;
  }
};

// -- losses, elementwise ---------------------------------------------------------------------------------
struct SquaredError {
  static constexpr const char* name = "mse_loss";
  template <class T> SLUICE_FN T operator()(const T& x, const T& y) const {
    T e = x - y;
    return e * e;
  }
};
struct AbsoluteError {  // slope 0 where x = y
  static constexpr const char* name = "l1_loss";
  template <class T> SLUICE_FN T operator()(const T& x, const T& y) const { return abs(x - y); }
};
/// ½e² for |e| <= δ, and δ(|e| − ½δ) beyond (Huber 1964).
struct Huber {
  static constexpr const char* name = "huber_loss";
  double delta = 1;
  template <class T> SLUICE_FN T operator()(const T& x, const T& y) const {
    const T e = abs(x - y), m = min(e, like(e, delta));
    return m * (e - m * 0.5);
  }
};
/// −[t·log σ(x) + (1−t)·log(1−σ(x))] = softplus(x) − t·x, finite for every finite logit x.
struct BceWithLogits {
  static constexpr const char* name = "bce_with_logits";
  template <class T> SLUICE_FN T operator()(const T& x, const T& t) const {
    return softplus(x) - t * x;
  }
};

/// −[w·t·log σ(x) + (1−t)·log(1−σ(x))], w the weight of positive targets.
struct WeightedBceWithLogits {
  static constexpr const char* name = "bce_with_logits";
  template <class T> SLUICE_FN T operator()(const T& x, const T& t, const T& w) const {
    return t * w * softplus(-x) + (1.0 - t) * softplus(x);
  }
};

/// p·(log p − log q), 0 where p = 0.
struct KlTerm {
  static constexpr const char* name = "kl_div";
  template <class T> SLUICE_FN T operator()(const T& log_q, const T& p) const {
    return select(p > 0.0, p * (log(select(p > 0.0, p, like(p, 1))) - log_q), like(p, 0));
  }
};

// -- of layers -------------------------------------------------------------------------------------------
/// n / (d + eps), the division of linear attention. A denominator of exactly 0 counts as 1.
struct Quotient {
  static constexpr const char* name = "quotient";
  double eps;
  template <class T> SLUICE_FN T operator()(const T& n, const T& d) const {
    const T t = d + eps;
    return n / select(t == 0.0, like(t, 1), t);
  }
};
/// g·a + (1 − g)·n/(d + eps): softmax and linear attention mixed by a gate. Where nothing is visible a and n are 0.
struct MixedQuotient {
  static constexpr const char* name = "mixed_quotient";
  double eps;
  template <class T> SLUICE_FN T operator()(const T& a, const T& n, const T& d, const T& g) const {
    const T b = Quotient{eps}(n, d);
    return b + g * (a - b);
  }
};
/// log σ(z)·rate, the log-decay of a gate (Yang et al. 2024, gated linear attention: rate = 1/τ).
struct LogDecay {
  static constexpr const char* name = "log_decay";
  double rate;
  template <class T> SLUICE_FN T operator()(const T& z) const { return softplus(-z) * (-rate); }
};
/// (e^{p − s/2} + offset)·scale of p = x·ω and s = |x|² (Choromanski et al. 2021): one exponential, so that a large s
/// underflows instead of giving ∞·0.
struct FavorFeature {
  static constexpr const char* name = "favor_feature";
  double scale, offset;
  template <class T> SLUICE_FN T operator()(const T& p, const T& s) const {
    return (exp(p - s * 0.5) + offset) * scale;
  }
};
struct ReluOffset {
  static constexpr const char* name = "relu_offset";
  double offset;
  template <class T> SLUICE_FN T operator()(const T& x) const { return Relu{}(x) + offset; }
};
/// Gated residuals: AddScaled is x + g·y; AddGated takes the logit l of its gate, x + σ(l)·y.
struct AddScaled {
  static constexpr const char* name = "add_scaled";
  template <class T> SLUICE_FN T operator()(const T& x, const T& y, const T& g) const { return x + g * y; }
};
struct AddGated {
  static constexpr const char* name = "add_gated";
  template <class T> SLUICE_FN T operator()(const T& x, const T& y, const T& l) const { return x + sigmoid(l) * y; }
};

// -- lists -----------------------------------------------------------------------------------------------
// Every formula must be in one list. Backends install kernels for whole lists, and tests iterate over the lists. On a
// device without a kernel for it, a formula runs as one op per operation (composed_map() in ops/map.h).
template <std::size_t N, class... F>
struct Formulas {};  // of N operands
using Arithmetic1 = Formulas<1, Neg, Scale, AddScalar, SubFrom, DivBy, DivInto, PowScalar, Square, Clamp>;
using Arithmetic2 = Formulas<2, Add, Sub, Mul, Div, Pow, Remainder, Maximum, Minimum, MaskedFill>;
using Arithmetic3 = Formulas<3, Where, Lerp, ScaleOffset>;
using Mathematics = Formulas<1, Exp, Expm1, Log, Log1p, Sqrt, Rsqrt, Tanh, Sigmoid, Softplus, Erf, NormalCdf, Sin, Cos,
                             Abs, Sign, Floor, Ceil, Round, Trunc>;
using Activations = Formulas<1, Identity, Relu, Relu2, Elu, Elu1, Silu, Gelu, GeluTanh, Laplace, LeakyRelu, NsSigmoid>;
using Gates = Formulas<2, Glu, ReGlu, GeGlu, GeGluTanh, SwiGlu, Bilinear, SiluGlu>;
using Losses2 = Formulas<2, SquaredError, AbsoluteError, Huber, BceWithLogits, KlTerm>;
using Losses3 = Formulas<3, WeightedBceWithLogits>;
using Layers1 = Formulas<1, LogDecay, ReluOffset>;
using Layers2 = Formulas<2, Quotient, FavorFeature>;
using Layers3 = Formulas<3, AddScaled, AddGated>;
using Layers4 = Formulas<4, MixedQuotient>;

/// Calls f(list) for each list.
void each_list(auto f) {
  f(Arithmetic1()), f(Arithmetic2()), f(Arithmetic3()), f(Mathematics()), f(Activations()), f(Gates()), f(Losses2());
  f(Losses3()), f(Layers1()), f(Layers2()), f(Layers3()), f(Layers4());
}

}  // namespace sluice::formula

// -- functions for formulas of map(), in addition to those of core/dual.h -------------------------------------
namespace sluice {
#define SLUICE_NAMED_FORMULA(f, Formula)                                                                               \
  template <class T, std::size_t N, class... C>                                                                        \
    requires requires(C... c) { formula::Formula{static_cast<double>(c)...}; }                                         \
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
