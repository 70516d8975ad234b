// The kernel slots of the optimisers and of clipping, and their elementwise formulas, shared by all devices. A call
// takes all tensors of a step at once: models have hundreds, most of them small. All tensors are contiguous.
#pragma once

#include <sluice/core/kernel/kernel.h>
#include <sluice/core/number/select.h>

#include <limits>
#include <vector>

namespace sluice {

struct SgdRule {
  double lr, momentum, weight_decay;
  bool nesterov;
  bool operator==(const SgdRule&) const = default;
};
struct RmsPropRule {
  double alpha, eps, momentum, lr, weight_decay;
  bool centered;
  bool operator==(const RmsPropRule&) const = default;
};
struct AdamRule {
  double beta1, beta2, eps;
  double lr;          // divided by 1 − β1^t
  double root_scale;  // 1/√(1 − β2^t)
  double shrink;      // decoupled weight decay: this share of w is subtracted
  double l2;          // factor of w added to the gradient
  bool operator==(const AdamRule&) const = default;
};
struct LambRule {
  double beta1, beta2, eps, lr;
  double mean_scale, root_scale;  // 1/(1 − β1^t), 1/√(1 − β2^t); 1 without bias correction
  double weight_decay;
  bool adapt;
  bool operator==(const LambRule&) const = default;
};

struct LionRule {
  double beta1, beta2, lr;
  double shrink;  // decoupled weight decay: this share of w is subtracted
  bool operator==(const LionRule&) const = default;
};

/// The tensors that a rule updates: entry i of each list belongs to parameter i. All w are f32 or all f64.
struct UpdatedTensors {
  std::vector<Tensor> w;
  std::vector<Tensor> g;        // of w's dtype or, if that is f32, all bf16
  std::vector<Tensor> m, v, u;  // moments, of w's dtype; empty: none. SGD's momentum is m, RMSprop's u
  std::vector<Tensor> rounded;  // becomes w in bf16, where g is bf16; empty: none
  void each_tensor(auto f) const {
    for (const auto* list : {&w, &g, &m, &v, &u, &rounded})
      for (const Tensor& x : *list) f(x);
  }
};

namespace kernel {

extern Kernel<void(const SgdRule& rule, UpdatedTensors& x)> sgd;
extern Kernel<void(const RmsPropRule& rule, UpdatedTensors& x)> rmsprop;
extern Kernel<void(const AdamRule& rule, UpdatedTensors& x)> adam;
extern Kernel<void(const LambRule& rule, UpdatedTensors& x)> lamb;
extern Kernel<void(const LionRule& rule, UpdatedTensors& x)> lion;
/// total {} f64 += Σx² over all tensors of x, of any float dtype.
extern Kernel<void(const std::vector<Tensor>& x, Tensor& total)> sum_squares;
/// x ← clamp(factor·x, ±limit) for all tensors of x, of any float dtype; NaN stays. factor = clip_factor(squares, norm)
/// with squares {} f64, or 1 if squares is undefined.
extern Kernel<void(std::vector<Tensor>& x, const Tensor& squares, double norm, double limit)> clip_grad;

}  // namespace kernel

namespace detail {

// The constants of each rule in the parameter's dtype, and its step for one element.

template <class T> struct SgdStep {
  T lr, momentum, l2;
  explicit SgdStep(const SgdRule& r)
      : lr(static_cast<T>(r.lr)), momentum(static_cast<T>(r.momentum)), l2(static_cast<T>(r.weight_decay)) {}

  SLUICE_FN void operator()(T& w, T g) const { w -= lr * (g + l2 * w); }
  template <bool nesterov> SLUICE_FN void step(T& w, T g, T& b) const {
    const T d = g + l2 * w;
    b = momentum * b + d;
    w -= lr * (nesterov ? d + momentum * b : b);
  }
};

template <class T> struct RmsPropStep {
  T a, c, eps, momentum, lr, l2;
  bool centered;
  explicit RmsPropStep(const RmsPropRule& r)
      : a(static_cast<T>(r.alpha)), c(static_cast<T>(1 - r.alpha)), eps(static_cast<T>(r.eps)),
        momentum(static_cast<T>(r.momentum)), lr(static_cast<T>(r.lr)), l2(static_cast<T>(r.weight_decay)),
        centered(r.centered) {}

  /// d/(√v + eps).
  SLUICE_FN T direction(T w, T g, T& v) const {
    const T d = g + l2 * w;
    v = c * (d * d) + a * v;
    return d / (math::sqrt(v) + eps);
  }
  /// d/(√(v − m²) + eps).
  SLUICE_FN T direction(T w, T g, T& v, T& m) const {
    const T d = g + l2 * w;
    v = c * (d * d) + a * v;
    m = c * d + a * m;
    return d / (math::sqrt(math::max(v - m * m, T(0))) + eps);  // what is left of v may be rounded to below 0
  }
};

template <class T> struct AdamStep {
  T b1, c1, b2, c2, lr, root_scale, eps, shrink, l2;
  explicit AdamStep(const AdamRule& r)
      : b1(static_cast<T>(r.beta1)), c1(static_cast<T>(1 - r.beta1)), b2(static_cast<T>(r.beta2)),
        c2(static_cast<T>(1 - r.beta2)), lr(static_cast<T>(r.lr)), root_scale(static_cast<T>(r.root_scale)),
        eps(static_cast<T>(r.eps)), shrink(static_cast<T>(r.shrink)), l2(static_cast<T>(r.l2)) {}

  SLUICE_FN void operator()(T& w, T g, T& m, T& v) const {
    const T d = g + l2 * w;
    m = b1 * m + c1 * d;
    v = b2 * v + c2 * (d * d);
    // The decay is added to the update, not multiplied into w: 1 − shrink would round most of it away in f32.
    w -= shrink * w + lr * m / (math::sqrt(v) * root_scale + eps);
  }
};

template <class T> struct LambStep {
  T b1, c1, b2, c2, mean_scale, root_scale, eps, decay;
  explicit LambStep(const LambRule& r)
      : b1(static_cast<T>(r.beta1)), c1(static_cast<T>(1 - r.beta1)), b2(static_cast<T>(r.beta2)),
        c2(static_cast<T>(1 - r.beta2)), mean_scale(static_cast<T>(r.mean_scale)),
        root_scale(static_cast<T>(r.root_scale)), eps(static_cast<T>(r.eps)), decay(static_cast<T>(r.weight_decay)) {}

  SLUICE_FN void moments(T g, T& m, T& v) const {
    m = b1 * m + c1 * g;
    v = b2 * v + c2 * (g * g);
  }
  SLUICE_FN T direction(T w, T m, T v) const { return mean_scale * m / (math::sqrt(v) * root_scale + eps) + decay * w; }
};
template <class T> struct LionStep {
  T b1, c1, b2, c2, lr, shrink;
  explicit LionStep(const LionRule& r)
      : b1(static_cast<T>(r.beta1)), c1(static_cast<T>(1 - r.beta1)), b2(static_cast<T>(r.beta2)),
        c2(static_cast<T>(1 - r.beta2)), lr(static_cast<T>(r.lr)), shrink(static_cast<T>(r.shrink)) {}

  SLUICE_FN void operator()(T& w, T g, T& m) const {
    const T u = math::sign(c1 * g + b1 * m);
    m = c2 * g + b2 * m;
    w -= lr * u + shrink * w;  // the decay is added to the update, as Adam's
  }
};
/// LAMB's factor of the directions u of a tensor: lr·√(ww/uu), ww = Σw², uu = Σu², or lr where that is not usable.
SLUICE_FN double lamb_rate(const LambRule& r, double ww, double uu) {
  constexpr double largest = std::numeric_limits<double>::max();
  const bool usable = r.adapt && ww > 0 && uu > 0 && ww <= largest && uu <= largest;
  return r.lr * (usable ? math::sqrt(ww) / math::sqrt(uu) : 1);
}

/// The factor that reduces the norm of gradients with Σx² = squares to at most `norm`; 1 if their norm is not finite.
SLUICE_FN double clip_factor(double squares, double norm) {
  const double now = math::sqrt(squares);
  return now > norm && now <= std::numeric_limits<double>::max() ? norm / now : 1;
}
/// clamp(y, ±hi); NaN stays.
template <class T> SLUICE_FN T limited(T y, T hi) { return y > hi ? hi : (y < -hi ? -hi : y); }
/// clip_factor() as a product of two numbers: by itself it may be too small for T, which has no denormals here.
template <class T> struct ClipFactors {
  T first, second = 1;
  SLUICE_FN explicit ClipFactors(double factor) : first(static_cast<T>(factor)) {
    if (factor < std::numeric_limits<T>::min()) first = second = static_cast<T>(math::sqrt(factor));
  }
  SLUICE_FN T operator()(T x) const { return first * x * second; }
};

}  // namespace detail
}  // namespace sluice
