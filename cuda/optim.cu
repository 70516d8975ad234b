// Steps of the optimisers and clipping. Few launches take all tensors of a step, whose addresses are kernel arguments;
// a block takes pieces of tensors. All devices share the formulas. Limited by memory.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>

namespace sluice::cuda {

using sluice::detail::AdamStep;
using sluice::detail::convert;
using sluice::detail::LambStep;
using sluice::detail::LionStep;
using sluice::detail::RmsPropStep;
using sluice::detail::SgdStep;

namespace {

constexpr int kTogether = 64;          // tensors of a launch
constexpr int64_t kOptimPiece = 4096;  // elements of a piece

enum List { kW, kG, kM, kV, kU, kRounded, kLists, kOnly = 0 };
/// Some tensors of a call: their addresses in each of its lists, their lengths, and the numbers of their pieces.
struct Together {
  void* at[kLists][kTogether];
  int64_t n[kTogether];
  int first_piece[kTogether + 1];
  int count;
  template <class T> __device__ T* of(List list, int k) const { return static_cast<T*>(at[list][k]); }
};

/// Calls start(x) with up to kTogether tensors at a time until all are done. The first list gives the lengths.
template <class Start> void in_launches(std::initializer_list<const std::vector<Tensor>*> lists, Start start) {
  Together x{};
  const std::vector<Tensor>& first = **lists.begin();
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].numel() > 0) {
      const int k = x.count++;
      int list = 0;
      for (const auto* tensors : lists) x.at[list++][k] = tensors->empty() ? nullptr : address_of((*tensors)[i]);
      x.n[k] = first[i].numel();
      x.first_piece[k + 1] = x.first_piece[k] + static_cast<int>(ceil_div(x.n[k], kOptimPiece));
    }
    if (x.count == kTogether || (x.count > 0 && i + 1 == first.size())) start(x), x.count = 0;
  }
}
template <class Start> void in_launches(const UpdatedTensors& x, Start start) {
  in_launches({&x.w, &x.g, &x.m, &x.v, &x.u, &x.rounded}, start);
}
/// f.operator()<type of w, type of g>().
template <class F> void with_types(const char* op, const UpdatedTensors& x, F f) {
  if (x.g[0].dtype() == bf16) return f.template operator()<float, BFloat16>();
  dispatch_float(op, x.w[0].dtype(), [&]<class T>() { f.template operator()<T, T>(); });
}

/// All threads of a block call body(x, tensor, begin, end, piece), for every piece.
template <class Body>
__global__ void __launch_bounds__(kThreads, 3) pieces_kernel(const __grid_constant__ Together x, Body body) {
  for (int piece = static_cast<int>(blockIdx.x); piece < x.first_piece[x.count]; piece += static_cast<int>(gridDim.x)) {
    int k = 0;  // the last tensor whose first piece is `piece` or an earlier one
    for (int step = kTogether / 2; step > 0; step /= 2)
      if (k + step < x.count && x.first_piece[k + step] <= piece) k += step;
    const int64_t begin = (piece - x.first_piece[k]) * kOptimPiece, end = begin + kOptimPiece;
    body(x, k, begin, end < x.n[k] ? end : x.n[k], piece);
  }
}
template <class Body> void for_each_piece(const Together& x, Body body) {
  static_assert(sizeof x + sizeof body <= 4096);  // all that a kernel's arguments may have
  const int64_t blocks = std::min<int64_t>(x.first_piece[x.count], kMostBlocks);
  launch(pieces_kernel<Body>, grid_of(blocks), dim3(kThreads), 0, x, body);
}

/// step(w, g, m, v, u) for the elements of a piece; missing moments are 0, of three also those whose lists are empty. A
/// thread reads some elements before it writes one, to hide the latency of memory.
template <int moments, class T, class G, class Element, class Rule> struct StepPiece {
  Latest<Rule> rule;
  __device__ void operator()(const Together& x, int k, int64_t begin, int64_t end, int) const {
    if (rule.stopped()) return;
    const Element step{rule.get()};
    T *const w = x.of<T>(kW, k), *const m = x.of<T>(kM, k), *const v = x.of<T>(kV, k), *const u = x.of<T>(kU, k);
    const G* const g = x.of<const G>(kG, k);
    BFloat16* const rounded = x.of<BFloat16>(kRounded, k);
    const auto has = [](int number, const T* moment) { return number <= moments && (moments < 3 || moment); };
    constexpr int together = moments * sizeof(T) > 16 ? 2 : 4;  // three moments of f64 fill the registers
    for (int64_t first = begin + threadIdx.x; first < end; first += together * kThreads) {
      T wi[together] = {}, gi[together] = {}, mi[together] = {}, vi[together] = {}, ui[together] = {};
#pragma unroll
      for (int e = 0; e < together; ++e) {
        const int64_t i = first + e * kThreads;
        if (i >= end) continue;
        wi[e] = w[i], gi[e] = convert<T>(g[i]);
        if (has(1, m)) mi[e] = m[i];
        if (has(2, v)) vi[e] = v[i];
        if (has(3, u)) ui[e] = u[i];
      }
#pragma unroll
      for (int e = 0; e < together; ++e) {
        const int64_t i = first + e * kThreads;
        if (i >= end) continue;
        step(wi[e], gi[e], mi[e], vi[e], ui[e]);
        w[i] = wi[e];
        if (has(1, m)) m[i] = mi[e];
        if (has(2, v)) v[i] = vi[e];
        if (has(3, u)) u[i] = ui[e];
        if (rounded) rounded[i] = BFloat16(static_cast<float>(wi[e]));
      }
    }
  }
};

template <class T, int form>  // 0: no momentum; 1: momentum; 2: Nesterov's momentum
struct SgdElement {
  SgdStep<T> sgd;
  __device__ void operator()(T& w, T g, T& m, T&, T&) const {
    if constexpr (form == 0) sgd(w, g);
    else sgd.template step<form == 2>(w, g, m);
  }
};
template <class T> struct AdamElement {
  AdamStep<T> adam;
  __device__ void operator()(T& w, T g, T& m, T& v, T&) const { adam(w, g, m, v); }
};
template <class T> struct LionElement {
  LionStep<T> lion;
  __device__ void operator()(T& w, T g, T& m, T&, T&) const { lion(w, g, m); }
};
template <class T> struct RmsPropElement {
  RmsPropStep<T> rms;
  __device__ void operator()(T& w, T g, T& m, T& v, T& u) const {
    const T step = rms.centered ? rms.direction(w, g, v, m) : rms.direction(w, g, v);
    u = rms.momentum * u + step;  // without momentum u is 0 before
    w -= rms.lr * u;
  }
};

/// Σw² and Σu².
struct Norms {
  double w, u;
};
struct SumNorms {
  using Total = Norms;
  __device__ static Total start() { return {0, 0}; }
  __device__ Total operator()(Total a, Total b) const { return {a.w + b.w, a.u + b.u}; }
};
/// Updates the moments of a piece and stores its sums of squares.
template <class T, class G> struct LambMoments {
  Latest<LambStep<T>> rule;
  Norms* part;
  __device__ void operator()(const Together& x, int k, int64_t begin, int64_t end, int piece) const {
    if (rule.stopped()) return;
    const LambStep<T> lamb = rule.get();
    const T* const w = x.of<const T>(kW, k);
    const G* const g = x.of<const G>(kG, k);
    T *const m = x.of<T>(kM, k), *const v = x.of<T>(kV, k);
    Norms total = SumNorms::start();
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      lamb.moments(convert<T>(g[i]), m[i], v[i]);
      const double own = static_cast<double>(w[i]), u = static_cast<double>(lamb.direction(w[i], m[i], v[i]));
      total = SumNorms()(total, {own * own, u * u});
    }
    total = over_team<kThreads>(total, SumNorms());
    if (threadIdx.x == 0) part[piece] = total;
  }
};
/// Computes the step's rate of each tensor; a block takes a tensor.
__global__ void __launch_bounds__(kThreads, 3)
    rates_kernel(const __grid_constant__ Together x, Latest<LambRule> rule, const Norms* part, double* rate) {
  if (rule.stopped()) return;
  const int k = static_cast<int>(blockIdx.x);
  Norms total = SumNorms::start();
  for (int i = x.first_piece[k] + static_cast<int>(threadIdx.x); i < x.first_piece[k + 1]; i += kThreads)
    total = SumNorms()(total, part[i]);
  total = over_team<kThreads>(total, SumNorms());
  if (threadIdx.x == 0) rate[k] = sluice::detail::lamb_rate(rule.get(), total.w, total.u);
}
template <class T> struct LambPiece {
  Latest<LambStep<T>> rule;
  const double* rate;
  __device__ void operator()(const Together& x, int k, int64_t begin, int64_t end, int) const {
    if (rule.stopped()) return;
    const LambStep<T> lamb = rule.get();
    const T own = static_cast<T>(rate[k]);
    T* const w = x.of<T>(kW, k);
    const T *const m = x.of<const T>(kM, k), *const v = x.of<const T>(kV, k);
    BFloat16* const rounded = x.of<BFloat16>(kRounded, k);
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      w[i] -= own * lamb.direction(w[i], m[i], v[i]);
      if (rounded) rounded[i] = BFloat16(static_cast<float>(w[i]));
    }
  }
};

template <class T> struct SquaresOfPiece {
  double* part;
  __device__ void operator()(const Together& x, int k, int64_t begin, int64_t end, int piece) const {
    const T* const p = x.of<const T>(kOnly, k);
    double total = 0;
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
      total += convert<double>(p[i]) * convert<double>(p[i]);
    total = over_team<kThreads>(total, Add());
    if (threadIdx.x == 0) part[piece] = total;
  }
};
struct AddTotal {
  double* total;
  __device__ void operator()(int64_t, double sum) const { *total += sum; }
};
template <class T> struct LimitPiece {
  using Wide = sluice::detail::Computed<T>;
  const double* squares;  // null: no clipping by norm
  double norm;
  Wide limit;
  __device__ void operator()(const Together& x, int k, int64_t begin, int64_t end, int) const {
    T* const p = x.of<T>(kOnly, k);
    const sluice::detail::ClipFactors<Wide> clipped(squares ? sluice::detail::clip_factor(*squares, norm) : 1);
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
      p[i] = T(sluice::detail::limited(clipped(convert<Wide>(p[i])), limit));
  }
};

/// f.operator()<T>(the tensors of x with elements T), for each T.
template <class F> void by_dtype(const std::vector<Tensor>& x, F f) {
  const auto some = [&]<class T>() {
    std::vector<Tensor> of_type;
    for (const Tensor& t : x)
      if (t.dtype() == dtype_of<T>()) of_type.push_back(t);
    f.template operator()<T>(of_type);
  };
  some.template operator()<float>(), some.template operator()<double>(), some.template operator()<BFloat16>();
}

template <int moments, template <class> class Element, template <class> class Step, class Rule>
void step_all(const char* op, const Rule& rule, const UpdatedTensors& x) {
  with_types(op, x, [&]<class T, class G>() {
    const auto step = latest(Step<T>(rule), x);
    if (step.only_renews) return;
    in_launches(
        x, [&](const Together& some) { for_each_piece(some, StepPiece<moments, T, G, Element<T>, Step<T>>{step}); });
  });
}

}  // namespace

void sgd(const SgdRule& rule, UpdatedTensors& x) {
  with_types("sgd", x, [&]<class T, class G>() {
    const auto sgd = latest(SgdStep<T>(rule), x);
    if (sgd.only_renews) return;
    in_launches(x, [&](const Together& some) {
      if (x.m.empty()) for_each_piece(some, StepPiece<0, T, G, SgdElement<T, 0>, SgdStep<T>>{sgd});
      else if (!rule.nesterov) for_each_piece(some, StepPiece<1, T, G, SgdElement<T, 1>, SgdStep<T>>{sgd});
      else for_each_piece(some, StepPiece<1, T, G, SgdElement<T, 2>, SgdStep<T>>{sgd});
    });
  });
}

void adam(const AdamRule& rule, UpdatedTensors& x) { step_all<2, AdamElement, AdamStep>("adam", rule, x); }

void rmsprop(const RmsPropRule& rule, UpdatedTensors& x) {
  step_all<3, RmsPropElement, RmsPropStep>("rmsprop", rule, x);
}

void lion(const LionRule& rule, UpdatedTensors& x) { step_all<1, LionElement, LionStep>("lion", rule, x); }

void lamb(const LambRule& rule, UpdatedTensors& x) {
  with_types("lamb", x, [&]<class T, class G>() {
    const auto lamb = latest(LambStep<T>(rule), x);
    const auto all = latest(rule, x);
    if (lamb.only_renews) return;
    in_launches(x, [&](const Together& some) {
      const Scratch<Norms> part(static_cast<std::size_t>(some.first_piece[some.count]));
      const Scratch<double> rates(kTogether);
      for_each_piece(some, LambMoments<T, G>{lamb, part.get()});
      launch(rates_kernel, dim3(static_cast<unsigned>(some.count)), dim3(kThreads), 0, some, all, part.get(),
             rates.get());
      for_each_piece(some, LambPiece<T>{lamb, rates.get()});
    });
  });
}

void sum_squares(const std::vector<Tensor>& x, Tensor& total) {
  by_dtype(x, [&]<class T>(const std::vector<Tensor>& of_type) {
    in_launches({&of_type}, [&](const Together& some) {
      const int pieces = some.first_piece[some.count];
      const Scratch<double> part(static_cast<std::size_t>(pieces));
      for_each_piece(some, SquaresOfPiece<T>{part.get()});
      reduce_to<SumOf<double>>({1, pieces, 1}, LoadPart<double>{part.get()}, AddTotal{data_of<double>(total)});
    });
  });
}

void clip_grad(std::vector<Tensor>& x, const Tensor& squares, double norm, double limit) {
  by_dtype(x, [&]<class T>(const std::vector<Tensor>& of_type) {
    using Wide = typename LimitPiece<T>::Wide;
    in_launches({&of_type}, [&](const Together& some) {
      for_each_piece(some, LimitPiece<T>{data_or_null<double>(squares), norm, static_cast<Wide>(limit)});
    });
  });
}

}  // namespace sluice::cuda
