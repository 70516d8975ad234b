// y_t = Σ_j w_j ⊙ x_{t+j−(width−1)} + bias, where rows before x_0 are those of `before`, or zeros. With g = dL/dy:
//
//   dx_s = Σ_j w_j ⊙ g_{s+(width−1)−j}, of `before` too      dw_j = Σ_t g_t ⊙ x_{t+j−(width−1)}      dbias = Σ_t g_t
#include <sluice/ops/scan/causal_conv.h>

#include <sluice/core/node.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>

namespace sluice {

namespace {

// Rows [outer, n, c] of sequences with `early` rows [outer, width − 1, c] before them; those may be absent.
template <class T> struct Sequences {
  T *rows, *early;
  int64_t n, c, width;
  /// Row t of sequence i, 1 − width <= t < n; null if it is absent.
  T* at(int64_t i, int64_t t) const {
    if (t >= 0) return rows + (i * n + t) * c;
    return early ? early + ((i + 1) * (width - 1) + t) * c : nullptr;
  }
};
template <class T> Sequences<const T> reading(const Tensor& x, const Tensor& before, int64_t width) {
  return {x.data<T>(), before.defined() ? before.data<T>() : nullptr, x.dim(-2), x.dim(-1), width};
}

template <class T> void add_product(const T* a, const T* b, T* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += a[i] * b[i];
}

constexpr int64_t kGrain = 1 << 14;  // numbers

void causal_conv_cpu(const Tensor& x_in, const Tensor& weight, const Tensor& bias, const Tensor& before,
                     Tensor& y_out) {
  dispatch_float("causal_conv1d", x_in.dtype(), [&]<class T>() {
    const int64_t width = weight.dim(0);
    const Sequences<const T> x = reading<T>(x_in, before, width);
    const T *w = weight.data<T>(), *start = bias.defined() ? bias.data<T>() : nullptr;
    T* const y = y_out.mutable_data<T>();
    const int64_t n = x.n, c = x.c;
    parallel_for(x_in.numel() / c, std::max<int64_t>(1, kGrain / c), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* const to = y + row * c;
        if (start) std::copy_n(start, c, to);
        else std::fill_n(to, c, T(0));
        for (int64_t j = 0; j < width; ++j)
          if (const T* from = x.at(row / n, row % n + j - (width - 1))) add_product(w + j * c, from, to, c);
      }
    });
  });
}

/// dx, and the gradient of the rows before it, for those of g.
template <class T> void rows_backward(Sequences<const T> g, const T* w, Sequences<T> dx, int64_t outer) {
  const int64_t early = dx.early ? dx.width - 1 : 0, each = early + (dx.rows ? dx.n : 0);
  if (each == 0) return;
  parallel_for(outer * each, std::max<int64_t>(1, kGrain / dx.c), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t i = row / each, s = row % each - early;
      T* const to = dx.at(i, s);
      std::fill_n(to, dx.c, T(0));
      for (int64_t j = 0; j < dx.width; ++j)
        if (const int64_t t = s + (dx.width - 1) - j; t >= 0 && t < dx.n)
          add_product(w + j * dx.c, g.at(i, t), to, dx.c);
    }
  });
}

/// dw [width, c] and dbias [c], either of which may be null. Sums of 64 rows are added up in f64.
template <class T> void weight_backward(Sequences<const T> x, const T* g, int64_t rows, T* dw, T* dbias) {
  constexpr int64_t kFew = 64, kSegment = 1024, kChannels = 256;
  const int64_t c = x.c, width = x.width, segments = (rows + kSegment - 1) / kSegment,
                blocks = (c + kChannels - 1) / kChannels, sums = (width + 1) * c;
  detail::Scratch<double> all(segments * sums);
  double* const of = all.data();
  std::fill_n(of, segments * sums, 0.0);
  parallel_for(segments * blocks, 1, [=](int64_t begin, int64_t end) {
    T few[kChannels];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t segment = task / blocks, first = task % blocks * kChannels, count = std::min(kChannels, c - first);
      for (int64_t from = segment * kSegment; from < std::min(rows, (segment + 1) * kSegment); from += kFew)
        for (int64_t j = 0; j <= width; ++j) {  // the last sum is that of g
          std::fill_n(few, count, T(0));
          for (int64_t row = from; row < std::min({rows, (segment + 1) * kSegment, from + kFew}); ++row) {
            const T* const here = g + row * c + first;
            if (j == width)
              for (int64_t k = 0; k < count; ++k) few[k] += here[k];
            else if (const T* past = x.at(row / x.n, row % x.n + j - (width - 1)))
              add_product(here, past + first, few, count);
          }
          double* const sum = of + segment * sums + j * c + first;
          for (int64_t k = 0; k < count; ++k) sum[k] += static_cast<double>(few[k]);
        }
    }
  });
  for (int64_t segment = 1; segment < segments; ++segment)
    for (int64_t k = 0; k < sums; ++k) of[k] += of[segment * sums + k];
  if (dw) std::transform(of, of + width * c, dw, [](double sum) { return static_cast<T>(sum); });
  if (dbias) std::transform(of + width * c, of + sums, dbias, [](double sum) { return static_cast<T>(sum); });
}

void causal_conv_backward_cpu(const Tensor& x, const Tensor& weight, const Tensor& before, const Tensor& g, Tensor& dx,
                              Tensor& dweight, Tensor& dbias, Tensor& dbefore) {
  dispatch_float("causal_conv1d", x.dtype(), [&]<class T>() {
    const auto to = [](Tensor& t) { return t.defined() ? t.mutable_data<T>() : nullptr; };
    const int64_t width = weight.dim(0), c = x.dim(-1), rows = x.numel() / c;
    rows_backward<T>(reading<T>(g, {}, width), weight.data<T>(), {to(dx), to(dbefore), x.dim(-2), c, width},
                     rows / x.dim(-2));
    if (dweight.defined() || dbias.defined())
      weight_backward<T>(reading<T>(x, before, width), g.data<T>(), rows, to(dweight), to(dbias));
  });
}

/// x behind the rows before it.
Tensor with_rows_before(const Tensor& x, const Tensor& before, int64_t width) {
  return before.defined() ? cat({before, x}, -2) : pad(x, -2, width - 1, 0);
}

Tensor composed(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before) {
  if (x.dtype() == bf16) return detail::in_f32(composed, x, weight, bias, before);
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

struct CausalConv final : Node {
  static const char* op_name() { return "causal_conv1d"; }
  const char* name() const override { return op_name(); }
  Tensors vjp(const Tensor& g) override {
    const Tensor x = saved(0), weight = saved(1), before = saved(2);
    if (!grad_enabled() && kernel::causal_conv_backward.installed(g.device())) {
      const auto wanted = [&](std::size_t i, const Shape& shape) {
        if (!needs(i)) return Tensor();
        return g.numel() > 0 ? empty(shape, x.options()) : zeros(shape, x.options());
      };
      Tensor dx = wanted(0, x.shape()), dweight = wanted(1, weight.shape()), dbias = wanted(2, {x.dim(-1)}),
             dbefore = wanted(3, before.defined() ? before.shape() : Shape());
      if (g.numel() > 0)
        kernel::causal_conv_backward(contiguous(x), contiguous(weight), before.defined() ? contiguous(before) : before,
                                     contiguous(g), dx, dweight, dbias, dbefore);
      return {dx, dweight, dbias, dbefore};
    }
    const Tensor wide = detail::widened(g), w = detail::widened(weight);
    const int64_t width = w.dim(0), n = x.dim(-2), early = width - 1;
    const Tensor rows = with_rows_before(detail::widened(x), detail::widened(before), width),
                 late = pad(wide, -2, early, early);
    Tensor drows;
    std::vector<Tensor> dw;
    for (int64_t j = 0; j < width; ++j) {
      const Tensor term = narrow(late, -2, early - j, n + early) * select(w, 0, j);
      drows = drows.defined() ? drows + term : term;
      dw.push_back(sum(flatten(wide * narrow(rows, -2, j, n), 0, -2), {0}));
    }
    const auto in_dtype = [&](const Tensor& t) { return to(t, x.dtype()); };
    return {in_dtype(narrow(drows, -2, early, n)), in_dtype(stack(dw, 0)),
            needs(2) ? in_dtype(sum(flatten(wide, 0, -2), {0})) : Tensor(),
            needs(3) ? in_dtype(narrow(drows, -2, 0, early)) : Tensor()};
  }
};

}  // namespace

constinit decltype(kernel::causal_conv) kernel::causal_conv{"causal_conv1d", &causal_conv_cpu};
constinit decltype(kernel::causal_conv_backward) kernel::causal_conv_backward{"causal_conv1d",
                                                                              &causal_conv_backward_cpu};

Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before) {
  const char* op = "causal_conv1d";
  detail::check_float(op, x);
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
  if (!kernel::causal_conv.installed(x.device())) return composed(x, weight, bias, before);
  const auto plain = [](const Tensor& t) { return t.defined() ? contiguous(t.detach()) : t; };
  Tensor y = empty(x.shape(), x.options());
  if (y.numel() > 0) kernel::causal_conv(plain(x), plain(weight), plain(bias), plain(before), y);
  return record<CausalConv>(y, {x, weight, bias, before}, {x, weight, before});
}

}  // namespace sluice
