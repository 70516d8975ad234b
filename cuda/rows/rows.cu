// Softmax, norms and cross entropy: a team takes a row (cuda/rows/rows.cuh). Limited by memory: the first pass over a
// row reads it, and later passes find it in the cache. The CPU kernels give the formulas (ops/rows/softmax.cpp,
// ops/rows/norm.cpp, ops/rows/loss.cpp).
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/reduce.cuh>

namespace sluice::cuda {

namespace {

/// Σ term(i), i < n, over the team.
template <int threads, class T, class Term> __device__ T row_total(int64_t n, Term term) {
  T total = 0;
#pragma unroll 4
  for (int64_t i = rank_in_team<threads>(); i < n; i += threads) total += term(i);
  return over_team<threads>(total, Add());
}

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
/// The ExpTotal of a row, in one pass. If a number is +∞ the shift is 0: e^x without a shift gives the right result.
template <int threads, class T> __device__ ExpTotal<T> row_exp_total(const T* x, int64_t n) {
  ExpTotal<T> sum{std::numeric_limits<T>::lowest(), 0};
#pragma unroll 4
  for (int64_t i = rank_in_team<threads>(); i < n; i += threads) {
    const T v = x[i], e = math::exp(-math::abs(v - sum.shift));
    if (v > sum.shift) sum = {v, sum.total * e + T(1)};
    else sum.total += e;
  }
  sum = over_team<threads>(sum, AddExpTotals());
  if (sum.shift == std::numeric_limits<T>::infinity())
    return {0, row_total<threads, T>(n, [=](int64_t i) { return math::exp(x[i]); })};
  return sum;
}

// -- softmax ----------------------------------------------------------------------------------------------------
template <class T> struct SoftmaxRow {
  const T* x;
  T* y;
  int64_t n;
  bool log;
  template <int threads> __device__ void operator()(int64_t row) const {
    const T* p = x + row * n;
    T* q = y + row * n;
    const auto [shift, total] = row_exp_total<threads>(p, n);
    if (log) {
      const T l = math::log(total) + shift;
      const bool nothing = l == -std::numeric_limits<T>::infinity();  // stays −∞ instead of −∞ + ∞
      for (int64_t i = rank_in_team<threads>(); i < n; i += threads) q[i] = nothing ? l : p[i] - l;
    } else {
      const T scale = total == T(0) ? T(0) : T(1) / total;
      for (int64_t i = rank_in_team<threads>(); i < n; i += threads) q[i] = math::exp(p[i] - shift) * scale;
    }
  }
};

template <class T> struct SoftmaxBackwardRow {
  const T *y, *g;
  T* dx;
  int64_t n;
  bool log;
  template <int threads> __device__ void operator()(int64_t row) const {
    const T *a = y + row * n, *b = g + row * n;
    T* q = dx + row * n;
    if (log) {
      const T total = row_total<threads, T>(n, [=](int64_t i) { return b[i]; });
      for (int64_t i = rank_in_team<threads>(); i < n; i += threads) q[i] = b[i] - math::exp(a[i]) * total;
    } else {
      const T dot = row_total<threads, T>(n, [=](int64_t i) { return a[i] * b[i]; });
      for (int64_t i = rank_in_team<threads>(); i < n; i += threads) q[i] = a[i] * (b[i] - dot);
    }
  }
};

// -- norms ------------------------------------------------------------------------------------------------------
template <class T> struct NormRow {
  const T *x, *w, *b;  // w, b: null where missing
  T *y, *stats;
  int64_t n;
  T eps;
  bool centred;
  template <int threads> __device__ void operator()(int64_t row) const {
    const T* p = x + row * n;
    T* q = y + row * n;
    const T mean = centred ? row_total<threads, T>(n, [=](int64_t i) { return p[i]; }) / T(n) : T(0);
    const T squares = row_total<threads, T>(n, [=](int64_t i) { return (p[i] - mean) * (p[i] - mean); });
    const T r = T(1) / math::sqrt(squares / T(n) + eps);
    for (int64_t i = rank_in_team<threads>(); i < n; i += threads) {
      const T unit = (p[i] - mean) * r, scaled = w ? unit * w[i] : unit;
      q[i] = b ? scaled + b[i] : scaled;
    }
    if (rank_in_team<threads>() == 0) stats[2 * row] = mean, stats[2 * row + 1] = r;
  }
};

template <class T> struct NormBackwardRow {
  const T *x, *w, *g, *stats;
  T* dx;
  int64_t n;
  bool centred;
  template <int threads> __device__ void operator()(int64_t row) const {
    const T *p = x + row * n, *q = g + row * n, *weight = w, mean = stats[2 * row], r = stats[2 * row + 1];
    T* o = dx + row * n;
    const auto h = [=](int64_t i) { return weight ? q[i] * weight[i] : q[i]; };
    const T hx = row_total<threads, T>(n, [=](int64_t i) { return h(i) * (p[i] - mean); }) * r / T(n);
    const T hm = centred ? row_total<threads, T>(n, h) / T(n) : T(0);
    for (int64_t i = rank_in_team<threads>(); i < n; i += threads) o[i] = r * (h(i) - hm - (p[i] - mean) * r * hx);
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
  const T *x, *g, *stats;
  __device__ ParameterGradients operator()(int64_t at, int64_t row, int64_t) const {
    return {static_cast<double>(g[at] * ((x[at] - stats[2 * row]) * stats[2 * row + 1])), static_cast<double>(g[at])};
  }
};
template <class T> struct StoreGradients {
  T *dw, *db;  // null if not wanted
  __device__ void operator()(int64_t i, ParameterGradients total) const {
    if (dw) dw[i] = static_cast<T>(total.w);
    if (db) db[i] = static_cast<T>(total.b);
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
  const T* x;
  const int64_t* targets;
  T* loss;
  int64_t classes;
  T smoothing, rest;
  template <int threads> __device__ void operator()(int64_t row) const {
    const int64_t t = targets[row];
    T result = 0;
    if (t >= 0) {
      const T* p = x + row * classes;
      const auto [shift, total] = row_exp_total<threads>(p, classes);
      T target = p[t];
      if (smoothing > 0) {
        const T sum = row_total<threads, T>(classes, [=](int64_t i) { return p[i]; });
        target = rest * target + smoothing * sum / T(classes);
      }
      result = math::log(total) + shift - target;
    }
    if (rank_in_team<threads>() == 0) loss[row] = result;
  }
};

template <class T> struct CrossEntropyBackwardRow {
  const T* x;
  const int64_t* targets;
  const T* g;
  T* dx;
  int64_t classes;
  T uniform, rest;  // target probability of every class, and the target's extra share
  template <int threads> __device__ void operator()(int64_t row) const {
    const int64_t t = targets[row];
    T* q = dx + row * classes;
    if (t < 0) {
      for (int64_t i = rank_in_team<threads>(); i < classes; i += threads) q[i] = 0;
      return;
    }
    const T *p = x + row * classes, factor = g[row];
    const auto [shift, total] = row_exp_total<threads>(p, classes);
    const T scale = factor / total, every = factor * uniform, hit = factor * rest;
    for (int64_t i = rank_in_team<threads>(); i < classes; i += threads) {
      const T v = math::exp(p[i] - shift) * scale - every;
      q[i] = i == t ? v - hit : v;
    }
  }
};

}  // namespace

void softmax(const Tensor& x, Tensor& y, bool log) {
  const int64_t n = x.dim(-1);
  dispatch_float("softmax", x.dtype(), [&]<class T>() {
    for_each_row(x.numel() / n, n, SoftmaxRow<T>{data_of<T>(x), data_of<T>(y), n, log});
  });
}

void softmax_backward(const Tensor& y, const Tensor& g, Tensor& dx, bool log) {
  const int64_t n = y.dim(-1);
  dispatch_float("softmax", y.dtype(), [&]<class T>() {
    for_each_row(y.numel() / n, n, SoftmaxBackwardRow<T>{data_of<T>(y), data_of<T>(g), data_of<T>(dx), n, log});
  });
}

void norm(const Tensor& x, const Tensor& w, const Tensor& b, Tensor& y, Tensor& stats, NormSpec spec) {
  const int64_t n = x.dim(-1);
  dispatch_float("norm", x.dtype(), [&]<class T>() {
    for_each_row(x.numel() / n, n,
                 NormRow<T>{data_of<T>(x), data_or_null<T>(w), data_or_null<T>(b), data_of<T>(y), data_of<T>(stats), n,
                            static_cast<T>(spec.eps), spec.centred});
  });
}

void norm_backward(const Tensor& x, const Tensor& w, const Tensor& g, const Tensor& stats, Tensor& dx, Tensor& dw,
                   Tensor& db, NormSpec spec) {
  const int64_t n = x.dim(-1), rows = x.numel() / n;
  dispatch_float("norm", x.dtype(), [&]<class T>() {
    const T *in = data_of<T>(x), *pg = data_of<T>(g), *ps = data_of<T>(stats);
    for_each_row(rows, n, NormBackwardRow<T>{in, data_or_null<T>(w), pg, ps, data_of<T>(dx), n, spec.centred});
    if (dw.defined() || db.defined())
      reduce_to<SumGradients>({1, rows, n}, GradientsOfRow<T>{in, pg, ps},
                              StoreGradients<T>{data_or_null<T>(dw), data_or_null<T>(db)});
  });
}

void cross_entropy_targets(const Tensor& targets, int64_t ignore_index, int64_t classes, Tensor& flat, Tensor& share) {
  const int64_t *t = data_of<int64_t>(targets), n = targets.numel();
  if (n == 0) return kernel::fill(share, 1);
  int64_t* out = data_of<int64_t>(flat);
  flatten_targets(t, n, ignore_index, classes, out);
  const int64_t bad = first_outside(out, n, classes, true);
  if (bad < n)
    fail<ValueError>("cross_entropy: target ", value_at(t + bad), " at position ", bad, " is outside [0, ", classes,
                     ")");
  dispatch_float("cross_entropy", share.dtype(), [&]<class T>() {
    reduce_to<SumOf<int64_t>>({1, n, 1}, Counted{out}, StoreShare<T>{data_of<T>(share)});
  });
}

void cross_entropy(const Tensor& x, const Tensor& targets, Tensor& loss, double smoothing) {
  const int64_t classes = x.dim(1);
  dispatch_float("cross_entropy", x.dtype(), [&]<class T>() {
    for_each_row(x.dim(0), classes,
                 CrossEntropyRow<T>{data_of<T>(x), data_of<int64_t>(targets), data_of<T>(loss), classes,
                                    static_cast<T>(smoothing), static_cast<T>(1 - smoothing)});
  });
}

void cross_entropy_backward(const Tensor& x, const Tensor& targets, const Tensor& g, Tensor& dx, double smoothing) {
  const int64_t classes = x.dim(1);
  dispatch_float("cross_entropy", x.dtype(), [&]<class T>() {
    for_each_row(x.dim(0), classes,
                 CrossEntropyBackwardRow<T>{data_of<T>(x), data_of<int64_t>(targets), data_of<T>(g), data_of<T>(dx),
                                            classes, static_cast<T>(smoothing / static_cast<double>(classes)),
                                            static_cast<T>(1 - smoothing)});
  });
}

}  // namespace sluice::cuda
