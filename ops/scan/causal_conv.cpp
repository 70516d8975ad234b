// y_t = φ(p_t) with p_t = Σ_j w_j ⊙ x_{t+j−(width−1)} + bias, where rows before x_0 are those of `before`, or zeros; φ
// is the identity or SiLU. p is not kept: the backward pass makes it again. With g = dL/dy and h_t = g_t ⊙ φ'(p_t):
//
//   dx_s = Σ_j w_j ⊙ h_{s+(width−1)−j}, of `before` too      dw_j = Σ_t h_t ⊙ x_{t+j−(width−1)}      dbias = Σ_t h_t
#include <sluice/ops/scan/causal_conv.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/kernels.h>

#include <algorithm>

namespace sluice {

namespace {

constexpr int64_t kGrain = 1 << 14;       // numbers of a task
constexpr int64_t kChannels = 1 << 10;    // channels of a task, at most: rows that are read again stay in L2
constexpr int64_t kFewChannels = 1 << 8;  // the same where there are few segments
constexpr int64_t kRows = 4;              // rows of one sequence at a time
constexpr int64_t kFew = 64;              // rows that are added up in T before their sum is added in f64
constexpr int64_t kSegment = 512;         // rows of a task of the backward pass

template <class T> void add_product(const T* a, const T* b, T* __restrict__ sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += a[i] * b[i];
}
/// The sum of all loops here: to(r) += Σ_j w(j) ⊙ x(r + j) for rows of n numbers, r < rows and j < taps. A null x(i) is
/// left out. Four by four, the width of published models, reads and writes each row once.
template <class T> void correlate(int64_t rows, int64_t taps, auto&& w, auto&& x, auto&& to, int64_t n) {
  const T *a[4], *b[7];
  bool all = rows == 4 && taps == 4;
  for (int i = 0; all && i < 7; ++i) all = (b[i] = x(i)) != nullptr;
  if (!all) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < taps; ++j)
        if (const T* from = x(r + j)) add_product(w(j), from, to(r), n);
    return;
  }
  for (int j = 0; j < 4; ++j) a[j] = w(j);
  const T *a0 = a[0], *a1 = a[1], *a2 = a[2], *a3 = a[3];
  const T *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3], *b4 = b[4], *b5 = b[5], *b6 = b[6];
  T* __restrict__ c0 = to(0), * __restrict__ c1 = to(1), * __restrict__ c2 = to(2), * __restrict__ c3 = to(3);
  SLUICE_VECTORIZE
  for (int64_t i = 0; i < n; ++i) {
    c0[i] = (((c0[i] + a0[i] * b0[i]) + a1[i] * b1[i]) + a2[i] * b2[i]) + a3[i] * b3[i];
    c1[i] = (((c1[i] + a0[i] * b1[i]) + a1[i] * b2[i]) + a2[i] * b3[i]) + a3[i] * b4[i];
    c2[i] = (((c2[i] + a0[i] * b2[i]) + a1[i] * b3[i]) + a2[i] * b4[i]) + a3[i] * b5[i];
    c3[i] = (((c3[i] + a0[i] * b3[i]) + a1[i] * b4[i]) + a2[i] * b5[i]) + a3[i] * b6[i];
  }
}

/// The operands of p: rows [outer, n, c] of sequences, `early` rows [outer, width − 1, c] before them, and the bias.
/// The last two may be absent.
template <class T> struct Convolution {
  const T *rows, *early, *w, *bias;
  int64_t n, c, width;

  Convolution(const Tensor& x, const Tensor& weight, const Tensor& bias_in, const Tensor& before)
      : rows(x.data<T>()), early(before.defined() ? before.data<T>() : nullptr), w(weight.data<T>()),
        bias(bias_in.defined() ? bias_in.data<T>() : nullptr), n(x.dim(-2)), c(x.dim(-1)), width(weight.dim(0)) {}

  /// How many of the rows `row` … `end` − 1 to compute next: at most kRows, of one sequence.
  int64_t next(int64_t row, int64_t end) const { return std::min({kRows, end - row, n - row % n}); }
  /// Channels from `first` on of the row that stands `later` rows after `row` in its sequence, at most kChannels.
  const T* at(int64_t row, int64_t later, int64_t first) const {
    const int64_t t = row % n + later;
    if (t >= 0) return rows + (row + later) * c + first;
    static constexpr T zeros[kChannels] = {};
    return early ? early + ((row / n + 1) * (width - 1) + t) * c + first : zeros;
  }
  /// p of `some` rows from `row` on, `count` channels from `first` on.
  void sums(int64_t row, int64_t some, int64_t first, int64_t count, auto&& to) const {
    for (int64_t r = 0; r < some; ++r)
      if (bias) std::copy_n(bias + first, count, to(r));
      else std::fill_n(to(r), count, T(0));
    correlate<T>(
        some, width, [&](int64_t j) { return w + j * c + first; },
        [&](int64_t i) { return at(row, i - (width - 1), first); }, to, count);
  }
};

void causal_conv_cpu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before, bool silu,
                     Tensor& y_out) {
  dispatch_float("causal_conv1d", x.dtype(), [&]<class T>() {
    const Convolution<T> p(x, weight, bias, before);
    T* const y = y_out.mutable_data<T>();
    parallel_for(x.numel() / p.c, std::max(kRows, kGrain / p.c), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin, some; row < end; row += some) {
        some = p.next(row, end);
        for (int64_t first = 0; first < p.c; first += kChannels) {
          const int64_t count = std::min(kChannels, p.c - first);
          const auto to = [=](int64_t r) { return y + (row + r) * p.c + first; };
          p.sums(row, some, first, count, to);
          for (int64_t r = 0; silu && r < some; ++r) {
            T* __restrict__ const h = to(r);
            for (int64_t k = 0; k < count; ++k) h[k] = formula::Silu()(Value<T>{h[k], {}}).v;
          }
        }
      }
    });
  });
}

/// Pointers to the gradients; each may be null.
template <class T> struct ConvolutionGradients { T *rows, *early, *w, *bias; };

/// A block of channels of a segment of rows.
template <class T> class BackwardTask {
 public:
  BackwardTask(const Convolution<T>& p, const T* g, bool silu, const ConvolutionGradients<T>& to, int64_t channel,
               int64_t channels)
      : p_(p), g_(g), to_(to), first_(channel), count_(std::min(channels, p.c - channel)),
        ring_(silu ? p.width + 2 * kRows : 0), h_(ring_ * count_), few_(to.w || to.bias ? (p.width + 1) * count_ : 0) {}

  /// Rows begin … end − 1. Adds their part of dw and dbias to sum [width + 1, c].
  void run(int64_t begin, int64_t end, double* sum) {
    std::fill(few_.data(), few_.end(), T(0));
    made_ = begin;
    for (int64_t row = begin, some, since = begin; row < end; row += some) {
      some = p_.next(row, end);
      if (ring_) make_h(row + some + (to_.rows || to_.early ? p_.width - 1 : 0), (row / p_.n + 1) * p_.n);
      if (to_.rows) make_dx(row, 0, some, to_.rows + row * p_.c);
      if (to_.early && row % p_.n == 0)
        make_dx(row, 1 - p_.width, p_.width - 1, to_.early + row / p_.n * (p_.width - 1) * p_.c);
      if (!few_.data()) continue;
      add_few(row, some);
      if (row + some - since < kFew && row + some < end) continue;
      finish_few(sum);
      since = row + some;
    }
  }

 private:
  /// Row `row` of h, for this task's channels. Must be one of the last ring_ rows that were made. Without SiLU h is g.
  const T* h(int64_t row) { return ring_ ? made(row) : g_ + row * p_.c + first_; }
  T* made(int64_t row) { return h_.data() + row % ring_ * count_; }
  /// Makes h up to row `wanted`, perhaps some rows more, but not beyond `end`, the end of the sequence.
  void make_h(int64_t wanted, int64_t end) {
    for (int64_t some; made_ < std::min(wanted, end); made_ += some) {
      some = p_.next(made_, end);
      p_.sums(made_, some, first_, count_, [&](int64_t r) { return made(made_ + r); });
      for (int64_t r = 0; r < some; ++r) {
        const T* const g = g_ + (made_ + r) * p_.c + first_;
        T* __restrict__ const h = made(made_ + r);
        for (int64_t k = 0; k < count_; ++k) h[k] = g[k] * formula::Silu()(Dual<T, 1>::variable(h[k], 0, T(1))).d[0];
      }
    }
  }
  /// dx of `some` rows, the first of them `later` rows after `row`: 0, or negative for rows before a sequence.
  void make_dx(int64_t row, int64_t later, int64_t some, T* dx) {
    for (int64_t r = 0; r < some; ++r) std::fill_n(dx + r * p_.c + first_, count_, T(0));
    const int64_t left = p_.n - row % p_.n;
    correlate<T>(
        some, p_.width, [&](int64_t j) { return p_.w + (p_.width - 1 - j) * p_.c + first_; },
        [&](int64_t i) { return later + i >= 0 && later + i < left ? h(row + later + i) : nullptr; },
        [&](int64_t r) { return dx + r * p_.c + first_; }, count_);
  }
  /// Adds the contribution of `some` rows to few_: dw and, last, dbias.
  void add_few(int64_t row, int64_t some) {
    const auto few = [&](int64_t j) { return few_.data() + j * count_; };
    correlate<T>(
        p_.width, some, [&](int64_t r) { return h(row + r); },
        [&](int64_t i) { return p_.at(row, i - (p_.width - 1), first_); }, few, count_);
    T* __restrict__ const bias = few(p_.width);
    for (int64_t r = 0; r < some; ++r) {
      const T* const here = h(row + r);
      for (int64_t k = 0; k < count_; ++k) bias[k] += here[k];
    }
  }
  void finish_few(double* sum) {
    for (int64_t j = 0; j <= p_.width; ++j)
      for (int64_t k = 0; k < count_; ++k) sum[j * p_.c + first_ + k] += double{few_.data()[j * count_ + k]};
    std::fill(few_.data(), few_.end(), T(0));
  }

  const Convolution<T> p_;
  const T* const g_;
  const ConvolutionGradients<T> to_;
  const int64_t first_, count_, ring_;  // ring_: rows of h_
  int64_t made_ = 0;                    // the rows of h before it are made
  detail::Scratch<T> h_;                // [ring_, count_]: row r of h at r % ring_
  detail::Scratch<T> few_;              // [width + 1, count_]
};

void causal_conv_backward_cpu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before,
                              const Tensor& g_in, bool silu, Tensor& dx, Tensor& dweight, Tensor& dbias,
                              Tensor& dbefore) {
  dispatch_float("causal_conv1d", x.dtype(), [&]<class T>() {
    const auto data = [](Tensor& t) { return t.defined() ? t.mutable_data<T>() : nullptr; };
    const Convolution<T> p(x, weight, bias, before);
    const ConvolutionGradients<T> to{data(dx), data(dbefore), data(dweight), data(dbias)};
    const T* const g = g_in.data<T>();
    const int64_t rows = x.numel() / p.c, segments = ceil_div(rows, kSegment),
                  channels = segments < 8 ? kFewChannels : kChannels, blocks = ceil_div(p.c, channels),
                  sums = to.w || to.bias ? (p.width + 1) * p.c : 0;
    detail::Scratch<double> all(segments * sums);
    double* const of = all.data();
    std::fill_n(of, segments * sums, 0.0);
    parallel_for(segments * blocks, 1, [=](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t segment = task / blocks, first = segment * kSegment;
        BackwardTask<T>(p, g, silu, to, task % blocks * channels, channels)
            .run(first, std::min(rows, first + kSegment), of + segment * sums);
      }
    });
    if (sums == 0) return;
    for (int64_t segment = 1; segment < segments; ++segment)
      for (int64_t k = 0; k < sums; ++k) of[k] += of[segment * sums + k];
    const auto rounded = [](double sum) { return static_cast<T>(sum); };
    if (to.w) std::transform(of, of + p.width * p.c, to.w, rounded);
    if (to.bias) std::transform(of + p.width * p.c, of + sums, to.bias, rounded);
  });
}

/// x with the rows before it in front.
Tensor with_rows_before(const Tensor& x, const Tensor& before, int64_t width) {
  return before.defined() ? cat({before, x}, -2) : pad(x, -2, width - 1, 0);
}

Tensor composed(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before) {
  const int64_t width = weight.dim(0);
  const Tensor rows = with_rows_before(x, before, width);
  Tensor y;
  for (int64_t j = 0; j < width; ++j) {
    const Tensor at = narrow(rows, -2, j, x.dim(-2)), w = select(weight, 0, j);
    if (const Tensor& so_far = j == 0 ? bias : y; so_far.defined()) y = map(formula::ScaleOffset{}, at, w, so_far);
    else y = at * w;
  }
  return y;
}

template <class Kernel> bool serves(const Kernel& kernel, const Tensor& x, const Tensor& weight) {
  const bool any_width = x.device() == cpu || x.device() == meta;
  return kernel.installed(x.device()) && (any_width || weight.dim(0) <= kernel::kCausalConvWidth);
}

struct CausalConv final : Op<"causal_conv1d"> {
  explicit CausalConv(bool activated) : silu(activated) {}
  Tensors vjp(const Tensor& g) override {
    const Tensor x = saved(0), weight = saved(1), bias = saved(2), before = saved(3);
    if (!grad_enabled() && serves(kernel::causal_conv_backward, x, weight)) {
      const auto wanted = [&](std::size_t i, const Shape& shape) {
        if (!needs(i)) return Tensor();
        return g.numel() > 0 ? empty(shape, x.options()) : zeros(shape, x.options());
      };
      Tensor dx = wanted(0, x.shape()), dweight = wanted(1, weight.shape()), dbias = wanted(2, {x.dim(-1)}),
             dbefore = wanted(3, before.defined() ? before.shape() : Shape());
      const auto plain = [](const Tensor& t) { return t.defined() ? contiguous(t) : t; };
      if (g.numel() > 0)
        kernel::causal_conv_backward(plain(x), plain(weight), plain(bias), plain(before), plain(g), silu, dx, dweight,
                                     dbias, dbefore);
      return {dx, dweight, dbias, dbefore};
    }
    const Tensor w = detail::widened(weight), all = detail::widened(x), first = detail::widened(before);
    const int64_t width = w.dim(0), n = x.dim(-2), early = width - 1;
    Tensor h = detail::widened(g);
    if (silu) h = pulled_back(composed(all, w, detail::widened(bias), first), h);
    const Tensor rows = with_rows_before(all, first, width), late = pad(h, -2, early, early);
    Tensor drows;
    std::vector<Tensor> dw;
    for (int64_t j = 0; j < width; ++j) {
      const Tensor term = narrow(late, -2, early - j, n + early) * select(w, 0, j);
      drows = drows.defined() ? drows + term : term;
      dw.push_back(sum(flatten(h * narrow(rows, -2, j, n), 0, -2), {0}));
    }
    const auto in_dtype = [&](const Tensor& t) { return to(t, x.dtype()); };
    return {in_dtype(narrow(drows, -2, early, n)), in_dtype(stack(dw, 0)),
            needs(2) ? in_dtype(sum(flatten(h, 0, -2), {0})) : Tensor(),
            needs(3) ? in_dtype(narrow(drows, -2, 0, early)) : Tensor()};
  }
  /// g ⊙ silu'(p) in one pass. The slope of formula::Silu on tensors would take six ops, and twice the time.
  static Tensor pulled_back(const Tensor& p, const Tensor& g) {
    return map(
        [](auto at, auto slope_of) {
          const auto s = sigmoid(at);
          return slope_of * (s * (1.0 + at * (1.0 - s)));
        },
        p, g);
  }
  bool silu;
};

}  // namespace

constinit decltype(kernel::causal_conv) kernel::causal_conv{"causal_conv1d", &causal_conv_cpu};
constinit decltype(kernel::causal_conv_backward) kernel::causal_conv_backward{"causal_conv1d",
                                                                              &causal_conv_backward_cpu};

Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before, Act activation) {
  const char* op = "causal_conv1d";
  detail::check_float(op, x), detail::check_defined(op, {{"weight", weight}});
  detail::check_devices(op, {x, weight, bias, before});
  if (x.rank() < 2 || weight.rank() != 2 || weight.dim(0) < 1 || weight.dim(1) != x.dim(-1))
    fail(op, ": got x=", x, ", weight=", weight, "; need [..., n, c], [width, c]");
  const int64_t c = x.dim(-1), width = weight.dim(0);
  if (bias.defined() && bias.shape() != Shape{c}) fail(op, ": bias=", bias, " does not fit x=", x, "; need [", c, "]");
  for (const Tensor* t : {&weight, &bias, &before})
    if (t->defined() && t->dtype() != x.dtype())
      fail<DTypeError>(op, ": needs operands of one dtype — got ", t->dtype(), *t, " beside x=", x.dtype(), x);
  if (before.defined()) {
    Shape want = x.shape();
    want[x.rank() - 2] = width - 1;
    if (before.shape() != want) fail(op, ": before=", before, " does not fit x=", x, "; need ", want);
  }
  Shape padded = x.shape();
  padded[x.rank() - 2] = checked_add(op, x.dim(-2), width - 1);
  checked_numel(op, padded);
  const bool silu = activation == Act::silu, here = silu || activation == Act::identity;
  if (!here || !serves(kernel::causal_conv, x, weight)) {
    if (x.dtype() == bf16)  // rounded once, after the activation
      return detail::in_f32(causal_conv1d, x, weight, bias, before, activation);
    return activate(activation, here ? composed(x, weight, bias, before) : causal_conv1d(x, weight, bias, before));
  }
  const auto plain = [](const Tensor& t) { return t.defined() ? contiguous(t.detach()) : t; };
  Tensor y = empty(x.shape(), x.options(), op);
  if (y.numel() > 0) kernel::causal_conv(plain(x), plain(weight), plain(bias), plain(before), silu, y);
  const Tensor of_p = silu ? bias : Tensor();  // the gradient makes p again only for SiLU
  return record<CausalConv>(y, {x, weight, bias, before}, {x, weight, of_p, before}, silu);
}

}  // namespace sluice
