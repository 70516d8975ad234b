// The formulas of roots, gates, losses and single layers, by the rules of ops/elementwise/formulas.h; and the lists of
// all formulas.
#pragma once

#include <sluice/ops/elementwise/formulas.h>

#include <limits>

namespace sluice::formula {

// -- powers that are roots ---------------------------------------------------------------------------
/// The number whose root C's pow returns: ∞ for −∞, and 0 for −0.
template <class T> SLUICE_FN T root_operand(const T& x) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  return select(x == -inf, like(x, inf), x) + 0.0;
}
struct PowHalf {  // x^½
  static constexpr const char* name = "pow";
  template <class T> SLUICE_FN T operator()(const T& x) const { return sqrt(root_operand(x)); }
};
struct PowMinusHalf {  // x^−½
  static constexpr const char* name = "pow";
  template <class T> SLUICE_FN T operator()(const T& x) const { return rsqrt(root_operand(x)); }
};

// -- gates: x ⊙ φ(g) ---------------------------------------------------------------------------------
template <class Phi> struct Gated {
  static constexpr const char* name = "gate";
  template <class T> SLUICE_FN T operator()(const T& x, const T& g) const { return x * Phi{}(g); }
};
// clang-format off
struct Glu : Gated<Sigmoid> { static constexpr const char* name = "glu"; };  // Dauphin et al. 2017
/// ReGlu, GeGlu, SwiGlu and Bilinear are of Shazeer 2020.
struct ReGlu : Gated<Relu> { static constexpr const char* name = "reglu"; };
struct GeGlu : Gated<Gelu> { static constexpr const char* name = "geglu"; };
struct GeGluTanh : Gated<GeluTanh> { static constexpr const char* name = "geglu_tanh"; };  // T5 1.1, Gemma
struct SwiGlu : Gated<Silu> { static constexpr const char* name = "swiglu"; };
struct Bilinear : Gated<Identity> { static constexpr const char* name = "bilinear"; };
struct NsGlu : Gated<NsSigmoid> { static constexpr const char* name = "ns_glu"; };  // Qiu et al. 2025
/// φ(x) ⊙ φ(g) with SiLU on both sides, as FLASH builds its GLU (Hua et al. 2022).
struct SiluGlu {
  static constexpr const char* name = "silu_glu";
  template <class T> SLUICE_FN T operator()(const T& x, const T& g) const {
    return Silu{}(x) * Silu{}(g);
  }
};
// clang-format on
/// Linear interpolation a + w·(b − a), from the nearer end: w = 1 gives b.
struct Lerp {
  static constexpr const char* name = "lerp";
  template <class T> SLUICE_FN T operator()(const T& a, const T& b, const T& w) const {
    const T way = b - a;
    return select(w < 0.5, a + w * way, b - (1.0 - w) * way);
  }
};
/// Lerp with one weight for all.
struct LerpBy {
  static constexpr const char* name = "lerp";
  static constexpr bool affine = true;
  double w;
  template <class T> SLUICE_FN T operator()(const T& a, const T& b) const { return Lerp{}(a, b, like(a, w)); }
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
/// The same of an entry and the mean.
struct SquaredDeviation : SquaredError {
  static constexpr const char* name = "var";
};
struct AbsoluteError {  // slope 0 where x = y
  static constexpr const char* name = "l1_loss";
  template <class T> SLUICE_FN T operator()(const T& x, const T& y) const { return abs(x - y); }
};
/// ½e² for |e| <= δ, and δ(|e| − ½δ) beyond (Huber 1964). Only the second part uses |e|, which would cost ½e² its
/// second derivative at 0.
struct Huber {
  static constexpr const char* name = "huber_loss";
  double delta = 1;
  template <class T> SLUICE_FN T operator()(const T& x, const T& y) const {
    const T e = x - y;
    const auto beyond = abs(e) > delta;
    const T near = select(beyond, like(e, 0), e), far = select(beyond, abs(e) - 0.5 * delta, like(e, 0));
    return near * near * 0.5 + far * delta;
  }
};
/// −[t·log σ(x) + (1−t)·log(1−σ(x))] = softplus(x) − t·x, finite for every finite logit x. With softplus(x) = max(x, 0)
/// + softplus(−|x|) no large terms cancel; −|x| is written so that its slope at 0 is that of either side.
struct BceWithLogits {
  static constexpr const char* name = "bce_with_logits";
  template <class T> SLUICE_FN T operator()(const T& x, const T& t) const {
    const auto right = x > 0.0;
    return softplus(select(right, -x, x)) + select(right, (1.0 - t) * x, -(t * x));
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
    const auto none = p == 0.0;
    return select(none, like(p, 0), p * (log(select(none, like(p, 1), p)) - log_q));
  }
};
/// −q·log p of a distribution q, 0 where q = 0, even at log p = −∞.
struct CrossEntropyTerm {
  static constexpr const char* name = "cross_entropy";
  template <class T> SLUICE_FN T operator()(const T& q, const T& log_p) const {
    constexpr double inf = std::numeric_limits<double>::infinity();
    return -(q * select(q == 0.0, select(log_p == -inf, like(log_p, 0), log_p), log_p));
  }
};

// -- of layers -------------------------------------------------------------------------------------------
/// x where `real` ≠ 0, and where |x| < 10⁹; else 0: padding may hold NaN, or numbers whose squares overflow.
struct FinitePadding {
  static constexpr const char* name = "finite_padding";
  static constexpr bool selects = true;
  template <class T> SLUICE_FN T operator()(const T& x, const T& real) const {
    return select(real != 0.0, x, select(abs(x) < 1e9, x, like(x, 0)));
  }
};
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
/// n / (max(|d|, e^{−m}) + eps), the division of an mLSTM whose n and d have the factor e^{−m} (Beck et al. 2024).
/// Beyond e^80 the result is 0 for any n that they give; the bound keeps the slope from being ∞·0.
struct StabilisedQuotient {
  static constexpr const char* name = "stabilised_quotient";
  double eps;
  template <class T> SLUICE_FN T operator()(const T& n, const T& d, const T& m) const {
    return n / (max(abs(d), exp(-max(m, like(m, -80)))) + eps);
  }
};
/// log σ(z)·rate, the log-decay of a gate (Yang et al. 2024, gated linear attention: rate = 1/τ).
struct LogDecay {
  static constexpr const char* name = "log_decay";
  double rate;
  template <class T> SLUICE_FN T operator()(const T& z) const { return softplus(-z) * (-rate); }
};
/// −e^a·softplus(z + b), the log-decay of Mamba, Gated DeltaNet and Kimi Delta Attention.
struct SoftplusDecay {
  static constexpr const char* name = "softplus_decay";
  template <class T> SLUICE_FN T operator()(const T& z, const T& b, const T& a) const {
    return -(exp(a) * softplus(z + b));
  }
};
/// x·e^g of a log decay g. Where e^g is 0 nothing of x is left, not even NaN or ∞.
struct Decayed {
  static constexpr const char* name = "decayed";
  template <class T> SLUICE_FN T operator()(const T& x, const T& g) const {
    const T kept = exp(g);
    return select(kept == 0.0, like(x, 0), x) * kept;
  }
};
/// lower·σ(e^a·(z + b)), a log-decay above `lower` (Kimi Linear's bounded gate).
struct BoundedDecay {
  static constexpr const char* name = "bounded_decay";
  double lower;
  template <class T> SLUICE_FN T operator()(const T& z, const T& b, const T& a) const {
    return sigmoid(exp(a) * (z + b)) * lower;
  }
};
/// x·σ(i)·√(1 − e^{2g}), what a gated recurrent unit of log decay g writes (De et al. 2024). The slope at g = 0, where
/// the root has none, is 0.
struct GatedInput {
  static constexpr const char* name = "gated_input";
  template <class T> SLUICE_FN T operator()(const T& x, const T& i, const T& g) const {
    return x * sigmoid(i) * sqrt(max(-expm1(g * 2.0), like(g, 1e-37)));
  }
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
  static constexpr bool selects = true;
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
/// Every formula must be in one list. Backends install kernels for whole lists, and tests iterate over the lists. On a
/// device without a kernel for it, a formula runs as one op per operation (composed_map() in ops/elementwise/map.h).
template <std::size_t N, class... F> struct Formulas {};  // of N operands
using Arithmetic1 = Formulas<1, Neg, Scale, AddScalar, SubFrom, DivBy, DivInto, Reciprocal, PowScalar, PowHalf,
                             PowMinusHalf, Square, Cube, Clamp>;
using Arithmetic2 = Formulas<2, Add, Sub, Mul, Div, Pow, Remainder, FloorDivide, Maximum, Minimum, MaskedFill, LerpBy>;
using Arithmetic3 = Formulas<3, Where, Lerp, ScaleOffset>;
using Mathematics = Formulas<1, Exp, Expm1, Log, Log1p, Sqrt, Rsqrt, Tanh, Sigmoid, Softplus, Erf, NormalCdf, Sin, Cos,
                             Abs, Sign, Floor, Ceil, Round, Trunc>;
using Activations = Formulas<1, Identity, Relu, Relu2, Elu, Elu1, Silu, Gelu, GeluTanh, Laplace, LeakyRelu, NsSigmoid>;
using Gates = Formulas<2, Glu, ReGlu, GeGlu, GeGluTanh, SwiGlu, Bilinear, NsGlu, SiluGlu>;
using Losses2 =
    Formulas<2, SquaredError, SquaredDeviation, AbsoluteError, Huber, BceWithLogits, KlTerm, CrossEntropyTerm>;
using Losses3 = Formulas<3, WeightedBceWithLogits>;
using Layers1 = Formulas<1, LogDecay, ReluOffset>;
using Layers2 = Formulas<2, Quotient, FavorFeature, Decayed, FinitePadding>;
using Layers3 = Formulas<3, AddScaled, AddGated, SoftplusDecay, BoundedDecay, GatedInput, StabilisedQuotient>;
using Layers4 = Formulas<4, MixedQuotient>;

/// Calls f(list) for each list.
void each_list(auto f) {
  f(Arithmetic1()), f(Arithmetic2()), f(Arithmetic3()), f(Mathematics()), f(Activations()), f(Gates()), f(Losses2());
  f(Losses3()), f(Layers1()), f(Layers2()), f(Layers3()), f(Layers4());
}

}  // namespace sluice::formula
