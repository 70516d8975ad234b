// Softmax, norms and cross entropy: a team takes a row (cuda/rows/rows.cuh). Limited by memory: a row is read once and
// kept in registers; where it is too long for them, later passes find it in the cache. The CPU kernels give the
// formulas (ops/rows/softmax.cpp, ops/rows/norm.cpp, ops/rows/loss.cpp).
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>

namespace sluice::cuda {

namespace {

/// total = Σ e^(x_i − shift), where shift is the largest x_i.
template <class T> struct ExpTotal { T shift, total; };
struct AddExpTotals {
  template <class T> __device__ ExpTotal<T> operator()(ExpTotal<T> a, ExpTotal<T> b) const {
    if (b.shift > a.shift) {
      const ExpTotal<T> c = a;
      a = b, b = c;
    }
    return {a.shift, a.total + b.total * math::exp(b.shift - a.shift)};
  }
};
/// The ExpTotal of a row, in one pass. Beside +∞ the shift is the largest finite number: +∞ alone has an infinite term.
template <int threads, class Row, class Length> __device__ auto row_exp_total(const Row& x, const Length& length) {
  using T = typename Length::Number;
  constexpr T largest = std::numeric_limits<T>::max();
  ExpTotal<T> sum{-largest, T(0)};
  each_place<threads>(length, [&](auto place) {
    const auto v = x(place);
    if constexpr (std::is_same_v<decltype(v), const Eight>) {
      float top = sum.shift;
#pragma unroll
      for (int e = 0; e < kNeighbours; ++e) top = v.x[e] > top ? v.x[e] : top;
      if (top > sum.shift) sum = {top, sum.total * math::exp(sum.shift - top)};
#pragma unroll
      for (int e = 0; e < kNeighbours; ++e) sum.total += math::exp(v.x[e] - sum.shift);
    } else {
      const T e = math::exp(-math::abs(v - sum.shift));
      if (v > sum.shift) sum = {v, sum.total * e + T(1)};
      else sum.total += e;
    }
  });
  sum = over_team<threads>(sum, AddExpTotals());
  if (sum.shift == std::numeric_limits<T>::infinity())
    sum = {largest, row_total<threads>(length, [&](auto place) { return exp_of(x(place) - largest); })};
  return sum;
}

// -- softmax ----------------------------------------------------------------------------------------------------
template <class T> struct SoftmaxRow {
  Numbers<T> x, y;
  bool log;
  template <int threads> __device__ void operator()(int64_t row, const auto& length) const {
    const auto p = length.row(x, row);
    const Numbers<T> q = y.from(row * length.n);
    const ExpTotal<T> sum = row_exp_total<threads>(p, length);
    const T from = sum.shift;
    if (log) {
      const T l = math::log(sum.total);                               // l + from would lose digits of l
      const bool nothing = l == -std::numeric_limits<T>::infinity();  // stays −∞ instead of −∞ + ∞
      each_place<threads>(length, [&](auto place) {
        const auto v = p(place);
        q.set(place, nothing ? v : v - from - l);
      });
    } else {
      const T scale = sum.total == T(0) ? T(0) : T(1) / sum.total;
      each_place<threads>(length, [&](auto place) { q.set(place, exp_of(p(place) - from) * scale); });
    }
  }
};

template <class T> struct SoftmaxBackwardRow {
  Numbers<T> y, g, dx;
  bool log;
  template <int threads> __device__ void operator()(int64_t row, const auto& length) const {
    const auto a = length.row(y, row), b = length.row(g, row);
    const Numbers<T> q = dx.from(row * length.n);
    if (log) {
      const T total = row_total<threads>(length, [&](auto place) { return b(place); });
      each_place<threads>(length, [&](auto place) { q.set(place, b(place) - exp_of(a(place)) * total); });
    } else {
      const T dot = row_total<threads>(length, [&](auto place) { return a(place) * b(place); });
      each_place<threads>(length, [&](auto place) { q.set(place, a(place) * (b(place) - dot)); });
    }
  }
};

// -- norms ------------------------------------------------------------------------------------------------------
template <class T> struct NormRow {
  Numbers<T> x, w, b, y;  // w, b: null where missing
  T* stats;
  T eps;
  bool centred;
  template <int threads> __device__ void operator()(int64_t row, const auto& length) const {
    const auto p = length.row(x, row);
    const Numbers<T> q = y.from(row * length.n);
    const T n = T(length.n);
    // From the first number on, because r makes an ulp of a row of equal numbers large.
    const T first = centred ? x[row * length.n] : T(0);
    const T mean =
        centred ? first + row_total<threads>(length, [&](auto place) { return p(place) - first; }) / n : T(0);
    const T squares = row_total<threads>(length, [&](auto place) {
      const auto v = p(place) - mean;
      return v * v;
    });
    const T r = T(1) / math::sqrt(squares / n + eps);
    const auto factor = length.row(w, 0), shift = length.row(b, 0);
    each_place<threads>(length, [&](auto place) {
      auto v = (p(place) - mean) * r;
      if (w) v = v * factor(place);
      if (b) v = v + shift(place);
      q.set(place, v);
    });
    if (rank_in_team<threads>() == 0) stats[2 * row] = mean, stats[2 * row + 1] = r;
  }
};

template <class T> struct NormBackwardRow {
  Numbers<T> x, w, g, dx;
  const T* stats;
  bool centred;
  template <int threads> __device__ void operator()(int64_t row, const auto& length) const {
    const auto p = length.row(x, row), q = length.row(g, row), factor = length.row(w, 0);
    const Numbers<T> o = dx.from(row * length.n);
    const T mean = stats[2 * row], r = stats[2 * row + 1], n = T(length.n);
    const auto h = [&](auto place) {
      const auto v = q(place);
      return w ? v * factor(place) : v;
    };
    const T hx = row_total<threads>(length, [&](auto place) { return h(place) * (p(place) - mean); }) * r / n;
    const T hm = centred ? row_total<threads>(length, h) / n : T(0);
    each_place<threads>(length, [&](auto place) { o.set(place, (h(place) - hm - (p(place) - mean) * (r * hx)) * r); });
  }
};

/// Terms of dw and db.
struct ParameterGradients {
  double w, b;
};
struct SumGradients {
  using Total = ParameterGradients;
  __device__ static Total start() { return {0, 0}; }
  __device__ Total operator()(Total u, Total v) const { return {u.w + v.w, u.b + v.b}; }
};
template <class T> struct GradientsOfRow {
  const T* stats;
  __device__ ParameterGradients operator()(const T (&x_g)[2], int64_t row) const {
    const T mean = stats[2 * row], r = stats[2 * row + 1];
    return {static_cast<double>(x_g[1] * ((x_g[0] - mean) * r)), static_cast<double>(x_g[1])};
  }
};
template <class T> struct StoreGradients {
  Numbers<T> dw, db;  // null if not wanted
  __device__ void operator()(int64_t i, ParameterGradients total) const {
    if (dw) dw.set({i}, static_cast<T>(total.w));
    if (db) db.set({i}, static_cast<T>(total.b));
  }
};

// -- cross entropy ------------------------------------------------------------------------------------------------
void flatten_targets(const int64_t* targets, int64_t n, int64_t ignore_index, int64_t classes, int64_t* flat) {
  for_each(n, [=] __device__(int64_t i) {
    const int64_t t = targets[i];
    flat[i] = t == ignore_index ? -1 : t < 0 ? classes : t;  // a target outside [0, classes) stays outside
  });
}

struct Counted {
  const int64_t* flat;
  __device__ int64_t operator()(int64_t at, int64_t, int64_t) const { return flat[at] >= 0; }
};
template <class T> struct StoreShare {
  T* share;
  __device__ void operator()(int64_t, int64_t counted) const {
    *share = static_cast<T>(1.0 / static_cast<double>(counted > 1 ? counted : 1));
  }
};

template <class T> struct CrossEntropyRow {
  Numbers<T> x;
  const int64_t* targets;
  T* loss;
  T smoothing, rest;
  template <int threads> __device__ void operator()(int64_t row, const auto& length) const {
    const int64_t t = targets[row];
    T result = 0;
    if (t >= 0) {
      const auto p = length.row(x, row);
      const ExpTotal<T> sum = row_exp_total<threads>(p, length);
      const T from = sum.shift;
      T target = x[row * length.n + t] - from;
      if (smoothing > 0) {
        const T all = row_total<threads>(length, [&](auto place) { return p(place) - from; });
        target = (rest > T(0) ? rest * target : T(0)) + smoothing * all / T(length.n);  // 0·∞ is NaN
      }
      result = sum.total == T(0) ? T(INFINITY) : math::log(sum.total) - target;
    }
    if (rank_in_team<threads>() == 0) loss[row] = result;
  }
};

template <class T> struct CrossEntropyBackwardRow {
  Numbers<T> x, dx;
  const int64_t* targets;
  const T* g;
  T uniform, rest;  // target probability of every class, and the target's extra share
  template <int threads> __device__ void operator()(int64_t row, const auto& length) const {
    const int64_t t = targets[row];
    const Numbers<T> q = dx.from(row * length.n);
    if (t < 0) {
      for (int64_t i = rank_in_team<threads>(); i < length.n; i += threads) q.set(Place<1>{i}, T(0));
      return;
    }
    const auto p = length.row(x, row);
    const T factor = g[row];
    const ExpTotal<T> sum = row_exp_total<threads>(p, length);
    const T scale = sum.total == T(0) ? T(0) : factor / sum.total, every = factor * uniform, hit = factor * rest;
    each_place<threads>(length, [&](auto place) {
      auto v = exp_of(p(place) - sum.shift) * scale - every;
      if constexpr (std::is_same_v<decltype(v), Eight>) {
#pragma unroll
        for (int e = 0; e < kNeighbours; ++e) v.x[e] -= place.i + e == t ? hit : 0.0f;
      } else {
        v -= place.i == t ? hit : T(0);
      }
      q.set(place, v);
    });
  }
};

}  // namespace

void softmax(const Tensor& x, Tensor& y, bool log) {
  const int64_t n = x.dim(-1);
  dispatch_float("softmax", computed(x.dtype()), [&]<class T>() {
    const Numbers<T> from(x), to(y);
    for_each_row_of<T>(x.numel() / n, n, SoftmaxRow<T>{from, to, log}, from, to);
  });
}

void softmax_backward(const Tensor& y, const Tensor& g, Tensor& dx, bool log) {
  const int64_t n = y.dim(-1);
  dispatch_float("softmax", computed(y.dtype()), [&]<class T>() {
    const Numbers<T> a(y), b(g), to(dx);
    for_each_row_of<T>(y.numel() / n, n, SoftmaxBackwardRow<T>{a, b, to, log}, a, b, to);
  });
}

void norm(const Tensor& x, const Tensor& w, const Tensor& b, Tensor& y, Tensor& stats, NormSpec spec) {
  const int64_t n = x.dim(-1);
  dispatch_float("norm", computed(x.dtype()), [&]<class T>() {
    const Numbers<T> from(x), weight(w), bias(b), to(y);
    const NormRow<T> body{from, weight, bias, to, data_of<T>(stats), static_cast<T>(spec.eps), spec.centred};
    for_each_row_of<T>(x.numel() / n, n, body, from, weight, bias, to);
  });
}

void norm_backward(const Tensor& x, const Tensor& w, const Tensor& g, const Tensor& stats, Tensor& dx, Tensor& dw,
                   Tensor& db, NormSpec spec) {
  const int64_t n = x.dim(-1), rows = x.numel() / n;
  dispatch_float("norm", computed(x.dtype()), [&]<class T>() {
    const Numbers<T> from(x), weight(w), gradient(g), to(dx);
    const T* ps = data_of<T>(stats);
    const NormBackwardRow<T> body{from, weight, gradient, to, ps, spec.centred};
    for_each_row_of<T>(rows, n, body, from, weight, gradient, to);
    if (dw.defined() || db.defined())
      reduce_to<SumGradients>({1, rows, n}, Terms<T, 2, GradientsOfRow<T>>{{from, gradient}, {ps}},
                              StoreGradients<T>{Numbers<T>(dw), Numbers<T>(db)});
  });
}

void cross_entropy_targets(const Tensor& targets, int64_t ignore_index, int64_t classes, Tensor& flat, Tensor& share) {
  const int64_t *t = data_of<int64_t>(targets), n = targets.numel();
  if (n == 0) return kernel::fill(share, 1);
  int64_t* out = data_of<int64_t>(flat);
  flatten_targets(t, n, ignore_index, classes, out);
  const int64_t bad = first_outside(out, n, -1, classes, -1);
  if (bad < n)
    fail<ValueError>("cross_entropy: target ", value_at(t + bad), " at position ", bad, " is outside [0, ", classes,
                     ")");
  dispatch_float("cross_entropy", share.dtype(), [&]<class T>() {
    reduce_to<SumOf<int64_t>>({1, n, 1}, Counted{out}, StoreShare<T>{data_of<T>(share)});
  });
}

void cross_entropy(const Tensor& x, const Tensor& targets, Tensor& loss, double smoothing) {
  const int64_t classes = x.dim(1);
  dispatch_float("cross_entropy", computed(x.dtype()), [&]<class T>() {
    const Numbers<T> from(x);
    const CrossEntropyRow<T> body{from, data_of<int64_t>(targets), data_of<T>(loss), static_cast<T>(smoothing),
                                  static_cast<T>(1 - smoothing)};
    for_each_row_of<T>(x.dim(0), classes, body, from);
  });
}

void cross_entropy_backward(const Tensor& x, const Tensor& targets, const Tensor& g, Tensor& dx, double smoothing) {
  const int64_t classes = x.dim(1);
  dispatch_float("cross_entropy", computed(x.dtype()), [&]<class T>() {
    const Numbers<T> from(x), to(dx);
    const auto share = static_cast<T>(smoothing / static_cast<double>(classes));
    const CrossEntropyBackwardRow<T> body{from,          to,    data_of<int64_t>(targets),
                                          data_of<T>(g), share, static_cast<T>(1 - smoothing)};
    for_each_row_of<T>(x.dim(0), classes, body, from, to);
  });
}

}  // namespace sluice::cuda
