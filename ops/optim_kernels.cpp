#include <sluice/ops/optim_kernels.h>

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <array>
#include <vector>

namespace sluice {

using detail::AdamStep, detail::kTile, detail::LambStep, detail::lamb_rate, detail::limited, detail::LionStep,
    detail::RmsPropStep, detail::SgdStep;

namespace {

constexpr int64_t kGrain = 1 << 14;  // elements per task

template <class T> double sum_squares(const T* x, int64_t n) {
  return detail::row_total<double>(n, [x](int64_t i) {
    const double v = detail::convert<double>(x[i]);
    return v * v;
  });
}

/// Elements [begin, end) of a tensor.
struct Piece {
  std::size_t tensor;
  int64_t begin, end;
};
/// All elements of some tensors in pieces of at most kGrain, cut by their shapes alone; small tensors share a task.
struct Pieces {
  std::vector<Piece> all;
  std::vector<std::size_t> last;  // for each task, one past its last piece

  explicit Pieces(const std::vector<Tensor>& tensors) {
    int64_t waiting = 0;
    for (std::size_t k = 0; k < tensors.size(); ++k)
      for (int64_t n = tensors[k].numel(), begin = 0; begin < n; begin += kGrain) {
        const int64_t end = std::min(begin + kGrain, n);
        all.push_back({k, begin, end});
        waiting += end - begin;
        if (waiting >= kGrain) last.push_back(all.size()), waiting = 0;
      }
    if (waiting > 0) last.push_back(all.size());
  }
  /// Calls f(piece, index of the piece), in parallel.
  template <class F> void each(F f) const {
    parallel_for(static_cast<int64_t>(last.size()), 1, [&](int64_t task, int64_t end) {
      for (std::size_t i = task == 0 ? 0 : last[static_cast<std::size_t>(task - 1)];
           i < last[static_cast<std::size_t>(end - 1)]; ++i)
        f(all[i], i);
    });
  }
};

/// Calls span(n, w, g, m, v, u) for a piece of a parameter: once, or once per buffer where gradients or results are
/// bf16. Moments that the rule does not have are null.
template <class T, class Span> void step_piece(const UpdatedTensors& x, Piece piece, Span span) {
  const std::size_t k = piece.tensor;
  const auto from = [&](const std::vector<Tensor>& list) {
    return list.empty() ? nullptr : const_cast<T*>(list[k].data<T>()) + piece.begin;
  };
  T *w = from(x.w), *m = from(x.m), *v = from(x.v), *u = from(x.u);
  if (x.g[k].dtype() == x.w[k].dtype())
    return span(piece.end - piece.begin, w, x.g[k].data<T>() + piece.begin, m, v, u);
  alignas(64) T g[kTile];
  for (int64_t i = piece.begin; i < piece.end; i += kTile) {
    const int64_t n = std::min(kTile, piece.end - i), at = i - piece.begin;
    const BFloat16* low = x.g[k].data<BFloat16>() + i;
    for (int64_t e = 0; e < n; ++e) g[e] = static_cast<T>(float(low[e]));
    const auto next = [at](T* moment) { return moment ? moment + at : nullptr; };
    span(n, w + at, g, next(m), next(v), next(u));
    if (x.rounded.empty()) continue;
    BFloat16* to = const_cast<BFloat16*>(x.rounded[k].data<BFloat16>()) + i;
    for (int64_t e = 0; e < n; ++e) to[e] = BFloat16(static_cast<float>(w[at + e]));
  }
}

/// f(p[i]…) for element i of each array, i < n. The arrays do not overlap.
template <class F, class... P> void each_element(int64_t n, F f, P* __restrict__... p) {
  for (int64_t i = 0; i < n; ++i) f(p[i]...);
}

template <bool centered, bool momentum, class T>
void rmsprop_span(const RmsPropStep<T> rms, int64_t n, T* __restrict__ w, const T* __restrict__ g, T* __restrict__ m,
                  T* __restrict__ v, T* __restrict__ u) {
  for (int64_t i = 0; i < n; ++i) {
    T step;
    if constexpr (centered) step = rms.direction(w[i], g[i], v[i], m[i]);
    else step = rms.direction(w[i], g[i], v[i]);
    if constexpr (momentum) step = u[i] = rms.momentum * u[i] + step;
    w[i] -= rms.lr * step;
  }
}

/// Updates all tensors by span(rule's step, n, w, g, m, v, u), see step_piece().
template <template <class> class Step, class Rule, class Span>
void step_all(const char* op, const Rule& rule, UpdatedTensors& x, Span span) {
  dispatch_float(op, x.w[0].dtype(), [&]<class T>() {
    const Step<T> step(rule);
    Pieces(x.w).each([&](Piece piece, std::size_t) {
      step_piece<T>(x, piece, [&](int64_t n, T* w, const T* g, T* m, T* v, T* u) { span(step, n, w, g, m, v, u); });
    });
  });
}

void sgd_cpu(const SgdRule& rule, UpdatedTensors& x) {
  step_all<SgdStep>("sgd", rule, x, [&]<class T>(const SgdStep<T>& sgd, int64_t n, T* w, const T* g, T* b, T*, T*) {
    const auto plain = [sgd](T& wi, T gi, T& bi) { sgd.template step<false>(wi, gi, bi); };
    const auto ahead = [sgd](T& wi, T gi, T& bi) { sgd.template step<true>(wi, gi, bi); };
    if (!b) each_element(n, sgd, w, g);
    else if (rule.nesterov) each_element(n, ahead, w, g, b);
    else each_element(n, plain, w, g, b);
  });
}

void rmsprop_cpu(const RmsPropRule& rule, UpdatedTensors& x) {
  const bool momentum = !x.u.empty();
  step_all<RmsPropStep>(
      "rmsprop", rule, x, [=]<class T>(const RmsPropStep<T>& rms, int64_t n, T* w, const T* g, T* m, T* v, T* u) {
        const auto span = rms.centered ? momentum ? &rmsprop_span<true, true, T> : &rmsprop_span<true, false, T>
                          : momentum ? &rmsprop_span<false, true, T>
                                       : &rmsprop_span<false, false, T>;
        span(rms, n, w, g, m, v, u);
      });
}

void lion_cpu(const LionRule& rule, UpdatedTensors& x) {
  step_all<LionStep>("lion", rule, x, [](const auto& lion, int64_t n, auto* w, auto* g, auto* m, auto*, auto*) {
    each_element(n, lion, w, g, m);
  });
}

void adam_cpu(const AdamRule& rule, UpdatedTensors& x) {
  step_all<AdamStep>("adam", rule, x, [](const auto& adam, int64_t n, auto* w, auto* g, auto* m, auto* v, auto*) {
    each_element(n, adam, w, g, m, v);
  });
}

void lamb_cpu(const LambRule& rule, UpdatedTensors& x) {
  dispatch_float("lamb", x.w[0].dtype(), [&]<class T>() {
    const LambStep<T> lamb(rule);
    const Pieces pieces(x.w);
    // First pass: the moments and, piece by piece, the squares of w and of the direction u.
    std::vector<std::array<double, 2>> part(pieces.all.size());
    UpdatedTensors kept = x;
    kept.rounded.clear();  // written in the second pass
    pieces.each([&](Piece piece, std::size_t number) {
      alignas(64) T u[kTile];
      std::array<double, 2>& squares = part[number];
      step_piece<T>(kept, piece, [&](int64_t n, T* w, const T* g, T* m, T* v, T*) {
        for (int64_t i = 0; i < n; i += kTile) {
          const int64_t k = std::min(kTile, n - i);
          const auto direct = [lamb](T wi, T gi, T& mi, T& vi, T& ui) {
            lamb.moments(gi, mi, vi);
            ui = lamb.direction(wi, mi, vi);
          };
          each_element(k, direct, w + i, g + i, m + i, v + i, u);
          squares[0] += sum_squares(w + i, k);
          squares[1] += sum_squares(u, k);
        }
      });
    });
    std::vector<std::array<double, 2>> norms(x.w.size());
    for (std::size_t i = 0; i < part.size(); ++i)
      for (std::size_t e = 0; e < 2; ++e) norms[pieces.all[i].tensor][e] += part[i][e];
    // Second pass: computes u again, which costs less than storing it.
    pieces.each([&](Piece piece, std::size_t) {
      const auto [ww, uu] = norms[piece.tensor];
      const T rate = static_cast<T>(lamb_rate(rule, ww, uu));
      const auto apply = [lamb, rate](T& wi, T mi, T vi) { wi -= rate * lamb.direction(wi, mi, vi); };
      step_piece<T>(x, piece, [&](int64_t n, T* w, const T*, T* m, T* v, T*) { each_element(n, apply, w, m, v); });
    });
  });
}

/// f<T>(elements of x), T its dtype.
template <class F> void with_floats(const char* op, const Tensor& x, F f) {
  if (x.dtype() == bf16) f(x.data<BFloat16>());
  else dispatch_float(op, x.dtype(), [&]<class T>() { f(x.data<T>()); });
}

void sum_squares_cpu(const std::vector<Tensor>& x, Tensor& total) {
  const Pieces pieces(x);
  std::vector<double> part(pieces.all.size()), sums(x.size());
  pieces.each([&](Piece piece, std::size_t number) {
    with_floats("clip_grad_norm", x[piece.tensor],
                [&]<class T>(const T* p) { part[number] = sum_squares(p + piece.begin, piece.end - piece.begin); });
  });
  for (std::size_t i = 0; i < part.size(); ++i) sums[pieces.all[i].tensor] += part[i];
  for (const double sum : sums) *total.mutable_data<double>() += sum;
}

void clip_grad_cpu(std::vector<Tensor>& x, const Tensor& squares, double norm, double limit) {
  const double factor = squares.defined() ? detail::clip_factor(*squares.data<double>(), norm) : 1;
  Pieces(x).each([&](Piece piece, std::size_t) {
    with_floats("clip_grad", x[piece.tensor], [&]<class T>(const T* elements) {
      using Wide = detail::Computed<T>;
      T* p = const_cast<T*>(elements);
      const detail::ClipFactors<Wide> clipped(factor);
      const Wide hi = static_cast<Wide>(limit);
      for (int64_t i = piece.begin; i < piece.end; ++i) p[i] = T(limited(clipped(Wide(p[i])), hi));
    });
  });
}

}  // namespace

constinit decltype(kernel::sgd) kernel::sgd{"sgd", &sgd_cpu, Bf16::native};
constinit decltype(kernel::rmsprop) kernel::rmsprop{"rmsprop", &rmsprop_cpu, Bf16::native};
constinit decltype(kernel::adam) kernel::adam{"adam", &adam_cpu, Bf16::native};
constinit decltype(kernel::lamb) kernel::lamb{"lamb", &lamb_cpu, Bf16::native};
constinit decltype(kernel::lion) kernel::lion{"lion", &lion_cpu, Bf16::native};
constinit decltype(kernel::sum_squares) kernel::sum_squares{"clip_grad_norm", &sum_squares_cpu, Bf16::native};
constinit decltype(kernel::clip_grad) kernel::clip_grad{"clip_grad", &clip_grad_cpu, Bf16::native};

}  // namespace sluice
