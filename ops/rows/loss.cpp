// Cross entropy with p = softmax(x) and target distribution q:   L = log Σ e^x − Σ q·x,   dx = w·(p − q)
#include <sluice/ops/rows/loss.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/rows/column_exp.h>
#include <sluice/ops/rows/rows.h>
#include <sluice/ops/rows/softmax.h>

#include <cmath>
#include <limits>

namespace sluice {

namespace {

void cross_entropy_targets_cpu(const Tensor& targets, int64_t ignore_index, int64_t classes, Tensor& flat,
                               Tensor& share) {
  const int64_t *t = targets.data<int64_t>(), n = targets.numel();
  int64_t *out = flat.mutable_data<int64_t>(), counted = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (t[i] != ignore_index && (t[i] < 0 || t[i] >= classes))
      fail<ValueError>("cross_entropy: target ", t[i], " at position ", i, " is outside [0, ", classes, ")");
    out[i] = t[i] == ignore_index ? -1 : t[i];
    counted += t[i] != ignore_index;
  }
  kernel::fill(share, 1.0 / static_cast<double>(std::max<int64_t>(1, counted)));
}

/// The target's part of the loss, from its logit and from the sum of all logits, less the shift.
template <class T> T smoothed(T target, T sum, int64_t classes, double smoothing) {
  if (!(smoothing > 0)) return target;
  return (smoothing < 1 ? T(1 - smoothing) * target : T(0)) + T(smoothing) * sum / T(classes);  // 0·∞ is NaN
}
/// Σ e^(x_i − shift) of a row, and its target's part of the loss.
template <class T> T exp_total_of_row(const T* p, int64_t classes, int64_t of, double smoothing, T& target) {
  T shift;
  const T total = detail::row_exp_total(p, classes, detail::row_max(p, classes), shift, [](int64_t, T e) { return e; });
  const T by = shift;  // subtracted from all logits: log Σ + shift would lose the digits of log Σ
  const T sum = smoothing > 0 ? detail::row_total<T>(classes, [=](int64_t i) { return p[i] - by; }) : T(0);
  target = smoothed(p[of] - by, sum, classes, smoothing);
  return total;
}

/// Log Σ less the target's part. The total is 0 where all logits are −∞. The target has probability 0 there, and −∞ + ∞
/// would be NaN.
template <class T> void write_losses(const T* total, const T* target, int64_t m, T* out) {
  for (int64_t k = 0; k < m; ++k)
    out[k] = total[k] == T(0) ? std::numeric_limits<T>::infinity() : math::log(total[k]) - target[k];
}
/// cross_entropy_cpu() of short rows, which are copied to be columns, with the same bits.
template <class T> void cross_entropy_short_rows(const Tensor& x, const int64_t* targets, T* out, double smoothing) {
  const int64_t classes = x.dim(1);
  detail::for_each_short_block<T>(x, classes, [=](const T* columns, int64_t row, int64_t m) {
    const ReduceShape s{1, classes, m};
    T shift[detail::kColumns], total[detail::kColumns], target[detail::kColumns], sum[detail::kColumns] = {};
    detail::column_exp_totals<true>(columns, s, m, shift, total, [](int64_t, T e) { return e; });
    if (smoothing > 0) detail::row_totals<T>(s, m, sum, [&](int64_t i, int64_t k) { return columns[i] - shift[k]; });
    for (int64_t k = 0; k < m; ++k) {
      const int64_t of = targets[row + k];
      if (of < 0) total[k] = 1, target[k] = 0;
      else target[k] = smoothed(columns[of * m + k] - shift[k], sum[k], classes, smoothing);
    }
    write_losses(total, target, m, out + row);
  });
}

/// Loss of each row of x [n, C]; rows whose target is negative are ignored and give 0.
void cross_entropy_cpu(const Tensor& x, const Tensor& targets, Tensor& loss, double smoothing) {
  constexpr int64_t most = 128;  // rows at a time, whose logarithms are taken together
  const int64_t rows = x.dim(0), classes = x.dim(1);
  const int64_t block = std::clamp<int64_t>((1 << 14) / std::max<int64_t>(1, classes), 1, most);
  const int64_t* t = targets.data<int64_t>();
  detail::dispatch_rows("cross_entropy", x.dtype(), [&]<class T>() {
    const detail::RowsIn<T> in(x, classes, 0);
    T* out = loss.mutable_data<T>();
    if (detail::are_short_rows<T>(rows, classes)) return cross_entropy_short_rows<T>(x, t, out, smoothing);
    detail::for_each_row(ceil_div(rows, block), block * classes, [&](int64_t i) {
      const int64_t first = i * block, n = std::min(block, rows - first);
      T total[most], target[most];
      for (int64_t k = 0; k < n; ++k) {
        const int64_t of = t[first + k];
        total[k] = 1, target[k] = 0;
        if (of >= 0) total[k] = exp_total_of_row(in[first + k], classes, of, smoothing, target[k]);
      }
      write_losses(total, target, n, out + first);
    });
  });
}

/// cross_entropy_backward_cpu() of short rows, which are copied to be columns, with the same bits.
template <class T>
void cross_entropy_backward_short_rows(const Tensor& x, const int64_t* targets, const T* g, Tensor& dx,
                                       double smoothing) {
  const int64_t classes = x.dim(1);
  detail::for_each_short_block<T>(x, classes, [=, &dx](const T* columns, int64_t row, int64_t m) {
    T q[detail::kShort<T> * detail::kColumns];
    T shift[detail::kColumns], total[detail::kColumns], uniform[detail::kColumns];
    detail::column_exp_totals<true>(columns, {1, classes, m}, m, shift, total,
                                    [&q](int64_t i, T e) { return q[i] = e; });
    for (int64_t k = 0; k < m; ++k) {
      total[k] = total[k] == T(0) ? T(0) : g[row + k] / total[k];
      uniform[k] = g[row + k] * T(smoothing / static_cast<double>(classes));
    }
    for (int64_t i = 0; i < classes; ++i)
      for (int64_t k = 0; k < m; ++k) q[i * m + k] = q[i * m + k] * total[k] - uniform[k];
    for (int64_t k = 0; k < m; ++k) {
      const int64_t of = targets[row + k];
      if (of >= 0) q[of * m + k] -= g[row + k] * T(1 - smoothing);
      for (int64_t i = 0; of < 0 && i < classes; ++i) q[i * m + k] = 0;
    }
    detail::columns_to_rows(q, dx, row, classes, m);
  });
}

/// dx = g·(softmax(x) − q), g one number per row.
void cross_entropy_backward_cpu(const Tensor& x, const Tensor& targets, const Tensor& g, Tensor& dx, double smoothing) {
  const int64_t classes = x.dim(1);
  const int64_t* t = targets.data<int64_t>();
  detail::dispatch_rows("cross_entropy", x.dtype(), [&]<class T>() {
    const detail::RowsIn<T> in(x, classes, 0);
    const detail::RowsOut<T> out(dx, classes, 1);
    const T* pg = g.data<T>();
    if (detail::are_short_rows<T>(x.dim(0), classes))
      return cross_entropy_backward_short_rows<T>(x, t, pg, dx, smoothing);
    detail::for_each_row(x.dim(0), classes, [&](int64_t r) {
      T* __restrict__ q = out[r];
      if (t[r] < 0) {
        std::fill_n(q, classes, T(0));
        return out.done(r);
      }
      const T* __restrict__ p = in[r];
      T shift;
      const T total = detail::row_exp_total(p, classes, detail::row_max(p, classes), shift,
                                            [q](int64_t i, T e) { return q[i] = e; });
      const T scale = total == T(0) ? T(0) : pg[r] / total;
      const T uniform = pg[r] * T(smoothing / static_cast<double>(classes));
      detail::row_map(q, q, classes, [=](T v) { return v * scale - uniform; });
      q[t[r]] -= pg[r] * T(1 - smoothing);
      out.done(r);
    });
  });
}

struct CrossEntropy final : Op<"cross_entropy"> {
  double smoothing;
  explicit CrossEntropy(double s) : smoothing(s) {}
  Tensors vjp(const Tensor& g) override {
    Tensor x = saved(0), targets = saved(1);
    if (!grad_enabled()) {
      Tensor dx = empty(x.shape(), x.options());
      kernel::cross_entropy_backward(contiguous(x), targets, contiguous(g), dx, smoothing);
      return {dx, {}};
    }
    const Tensor ignored = targets < 0.0, rows = unsqueeze(ignored, 1);
    const Tensor hot = one_hot(masked_fill(targets, ignored, 0), x.dim(1), {detail::widened(x.dtype())});
    const Tensor q = hot * (1 - smoothing) + smoothing / static_cast<double>(x.dim(1));
    const Tensor p = softmax(masked_fill(detail::widened(x), rows, 0));  // what is ignored may be NaN
    return {to(masked_fill(unsqueeze(g, 1) * (p - q), rows, 0), x.dtype()), {}};
  }
};

void check_equal(const char* op, const char* name_a, const Tensor& a, const char* name_b, const Tensor& b) {
  detail::check_defined(op, {{name_a, a}, {name_b, b}});
  if (a.shape() != b.shape()) fail(op, ": shapes must be equal — got ", a, " and ", b);
}

/// f(x, more…) of each element, reduced. Sums of bf16 are f32, and rounded once. Beside f32, bf16 counts as f32.
template <class F, class... More> Tensor reduced(F f, Reduction reduction, const Tensor& x, const More&... more) {
  const auto one_is = [&](DType t) { return x.dtype() == t || ((more.dtype() == t) || ...); };
  if (one_is(f32) && one_is(bf16)) return reduced(f, reduction, detail::widened(x), detail::widened(more)...);
  if (reduction != Reduction::none && one_is(bf16))
    return detail::in_f32([&](const auto&... xs) { return reduced(f, reduction, xs...); }, x, more...);
  const Tensor each = map(f, x, more...);
  if (reduction == Reduction::none) return each;
  return reduction == Reduction::sum ? sum(each) : mean(each);
}

}  // namespace

constinit decltype(kernel::cross_entropy_targets) kernel::cross_entropy_targets{"cross_entropy",
                                                                                &cross_entropy_targets_cpu};
constinit decltype(kernel::cross_entropy) kernel::cross_entropy{"cross_entropy", &cross_entropy_cpu, Bf16::native};
constinit decltype(kernel::cross_entropy_backward) kernel::cross_entropy_backward{
    "cross_entropy backward", &cross_entropy_backward_cpu, Bf16::native};

namespace {

/// Throws unless y has x's dtype and device; bf16 and f32 go together.
void check_beside(const char* op, const char* name, const Tensor& x, const char* of_y, const Tensor& y) {
  if (detail::widened(y.dtype()) != detail::widened(x.dtype()))
    fail<DTypeError>(op, ": dtypes differ — got ", name, "=", x.dtype(), x, ", ", of_y, "=", y.dtype(), y);
  detail::check_devices(op, {x, y});
}

void check_options(const char* op, const char* name, const Tensor& x, const CrossEntropyOptions& o) {
  if (!(o.label_smoothing >= 0 && o.label_smoothing <= 1))
    fail<ValueError>(op, ": label_smoothing ", o.label_smoothing, " is outside [0, 1]");
  if (!o.weight.defined()) return;
  if (o.weight.shape() != Shape{x.dim(-1)})
    fail(op, ": weight=", o.weight, " does not fit ", name, "=", x, "; need [C]");
  check_beside(op, name, x, "weight", o.weight);
}

void check_classes(const char* op, const char* name, const Tensor& x, const Tensor& targets,
                   const CrossEntropyOptions& o) {
  detail::check_defined(op, {{name, x}, {"targets", targets}});
  detail::check_float(op, x);
  if (!is_integer(targets.dtype()))
    fail<DTypeError>(op, ": targets must be i64 or i32 — got ", targets.dtype(), " of shape ", targets);
  detail::check_devices(op, {x, targets});
  if (x.rank() < 1 || Shape(std::span(x.shape().begin(), x.rank() - 1)) != targets.shape())
    fail(op, ": ", name, "=", x, " and targets=", targets, " do not fit; need [..., C] and [...]");
  check_options(op, name, x, o);
}

void check_probabilities(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& o) {
  constexpr const char* op = "cross_entropy";
  detail::check_float(op, logits);
  if (logits.rank() == targets.rank() + 1)
    fail<DTypeError>(op, ": classes must be i64 or i32 — got ", targets.dtype(), targets, " beside logits=", logits,
                     "; write to(targets, i64)");
  if (logits.rank() < 1 || logits.shape() != targets.shape())
    fail(op, ": logits=", logits, " and probabilities ", targets.dtype(), targets,
         " do not fit; need [..., C] of both, or classes [...] of i64 or i32");
  if (logits.dim(-1) == 0 && targets.rank() > 1) fail(op, ": needs a class — got ", logits);
  if (o.ignore_index >= 0)
    fail<ValueError>(op, ": ignore_index ", o.ignore_index, " is for classes, but targets ", targets,
                     " are probabilities");
  check_beside(op, "logits", logits, "targets", targets);
  check_options(op, "logits", logits, o);
}

/// Which of the targets, i64, count; bool.
Tensor counted_targets(const Tensor& targets, const CrossEntropyOptions& o) {
  const auto index = static_cast<double>(o.ignore_index);  // rounded from 2^53 on
  if (std::abs(index) < 0x1p53) return ne(targets, full({}, index, targets.options()));
  return ne(targets, to(Tensor::from<int64_t>({o.ignore_index}), targets.device()));
}

/// −Σ_c q_c w_c log_p_c of rows whose sizes were checked; the mean is over Σ w of their targets.
Tensor nll_of(const char* op, const Tensor& log_p_in, const Tensor& targets, const CrossEntropyOptions& o) {
  const int64_t classes = log_p_in.dim(-1), n = targets.numel();
  // Without smoothing only the targets' numbers are read, and widened.
  const Tensor log_p = reshape(o.label_smoothing > 0 ? detail::widened(log_p_in) : log_p_in, {n, classes});
  const Tensor t = reshape(to(targets, i64), {n});
  const Tensor counted = counted_targets(t, o);
  const Tensor safe = where(counted, t, 0);
  for (const Tensor& worst : n > 0 && t.device() != meta ? std::vector{min(safe), max(safe)} : std::vector<Tensor>())
    if (worst.item<int64_t>() < 0 || worst.item<int64_t>() >= std::max<int64_t>(classes, 1))
      fail<ValueError>(op, ": target ", worst.item<int64_t>(), " is outside [0, ", classes, ")");
  if (classes == 0 && n > 0) fail(op, ": needs a class — got ", log_p_in);
  const Tensor weight = o.weight.defined() ? detail::widened(o.weight.detach()) : Tensor();
  const auto times = [](const Tensor& x, const Tensor& w) {  // a class of weight 0 counts nothing, even with −∞
    return w.defined() ? masked_fill(x * w, w == 0.0, 0) : x;
  };
  const Tensor of_targets = weight.defined() ? index_select(weight, 0, safe) : weight;
  Tensor loss = neg(times(detail::widened(squeeze(gather(log_p, 1, unsqueeze(safe, 1)), 1)), of_targets));
  if (o.label_smoothing > 0) {
    const Tensor even = sum(times(log_p, weight), 1) * (o.label_smoothing / static_cast<double>(classes));
    loss = o.label_smoothing < 1 ? loss * (1 - o.label_smoothing) - even : neg(even);  // ∞·0 is NaN
  }
  loss = where(counted, loss, 0);
  if (o.reduction == Reduction::none) return to(reshape(loss, targets.shape()), log_p_in.dtype());
  const Tensor total = sum(loss);
  if (o.reduction == Reduction::sum) return to(total, log_p_in.dtype());
  const Tensor count = sum(weight.defined() ? where(counted, of_targets, 0) : to(counted, loss.dtype()));
  return to(total / masked_fill(count, count == 0.0, 1), log_p_in.dtype());
}

}  // namespace

Tensor nll_loss(const Tensor& log_p, const Tensor& targets, CrossEntropyOptions o) {
  check_classes("nll_loss", "log_p", log_p, targets, o);
  return nll_of("nll_loss", log_p, targets, o);
}

/// The mean is over rows, whatever the weights.
static Tensor cross_entropy_of_probabilities(const Tensor& logits, const Tensor& targets,
                                             const CrossEntropyOptions& o) {
  const auto classes = static_cast<double>(logits.dim(-1));
  Tensor q = detail::widened(targets);
  if (o.label_smoothing > 0) q = q * (1 - o.label_smoothing) + o.label_smoothing / classes;
  if (o.weight.defined()) q = q * detail::widened(o.weight.detach());
  const Tensor loss = sum(map(formula::CrossEntropyTerm{}, q, log_softmax(detail::widened(logits))), {-1});
  if (o.reduction == Reduction::none) return to(loss, logits.dtype());
  const double rows = o.reduction == Reduction::mean ? static_cast<double>(std::max<int64_t>(1, loss.numel())) : 1;
  return to(sum(loss) / rows, logits.dtype());
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions o) {
  detail::check_defined("cross_entropy", {{"logits", logits}, {"targets", targets}});
  if (is_float(targets.dtype())) {
    check_probabilities(logits, targets, o);
    return cross_entropy_of_probabilities(logits, targets, o);
  }
  check_classes("cross_entropy", "logits", logits, targets, o);
  if (o.weight.defined()) {  // what is ignored may be NaN
    const Tensor ignored = logical_not(counted_targets(to(targets, i64), o));
    Tensor rows = detail::widened(logits);
    if (ignored.device() == meta || any(ignored).item() != 0)
      rows = masked_fill(rows, unsqueeze(reshape(ignored, targets.shape()), -1), 0);
    return to(nll_of("cross_entropy", log_softmax(rows), targets, o), logits.dtype());
  }
  const int64_t classes = logits.dim(-1), n = targets.numel();
  const TensorOptions wide = detail::widened(logits.options());  // of the losses
  Tensor flat_targets = empty({n}, {i64, targets.device()}, "cross_entropy"), share = empty({}, wide);
  kernel::cross_entropy_targets(contiguous(reshape(to(targets, i64), {n}).detach()), o.ignore_index, classes,
                                flat_targets, share);
  Tensor x = reshape(logits, {n, classes});
  Tensor loss = empty({n}, wide, "cross_entropy");
  if (n > 0) kernel::cross_entropy(contiguous(x.detach()), flat_targets, loss, o.label_smoothing);
  loss = record<CrossEntropy>(loss, {x, flat_targets}, {x, flat_targets}, o.label_smoothing);
  if (o.reduction == Reduction::none) return to(reshape(loss, targets.shape()), logits.dtype());
  Tensor total = sum(loss);
  return to(o.reduction == Reduction::sum ? total : total * share, logits.dtype());
}

Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction) {
  check_equal("mse_loss", "x", x, "y", y);
  return reduced(formula::SquaredError{}, reduction, x, y);
}

Tensor l1_loss(const Tensor& x, const Tensor& y, Reduction reduction) {
  check_equal("l1_loss", "x", x, "y", y);
  return reduced(formula::AbsoluteError{}, reduction, x, y);
}

Tensor huber_loss(const Tensor& x, const Tensor& y, double delta, Reduction reduction) {
  check_equal("huber_loss", "x", x, "y", y);
  const double as_used = x.dtype() == f64 ? delta : static_cast<float>(delta);
  if (!(as_used > 0 && std::isfinite(as_used)))
    fail<ValueError>("huber_loss: delta must be above 0 and finite in ", x.dtype(), " — got ", delta);
  return reduced(formula::Huber{delta}, reduction, x, y);
}

Tensor bce_with_logits(const Tensor& x, const Tensor& targets, Reduction reduction, const Tensor& pos_weight) {
  check_equal("bce_with_logits", "x", x, "targets", targets);
  if (pos_weight.defined() && !stretches_to(pos_weight.shape(), x.shape()))
    fail("bce_with_logits: pos_weight=", pos_weight, " does not fit x=", x);
  if (pos_weight.defined()) return reduced(formula::WeightedBceWithLogits{}, reduction, x, targets, pos_weight);
  return reduced(formula::BceWithLogits{}, reduction, x, targets);
}

Tensor kl_div(const Tensor& log_q, const Tensor& p, Reduction reduction) {
  check_equal("kl_div", "log_q", log_q, "p", p);
  double rows = 1;
  for (int64_t d = 0; d + 1 < log_q.rank(); ++d) rows *= static_cast<double>(log_q.dim(d));
  if (reduction != Reduction::mean || rows == 0) return reduced(formula::KlTerm{}, reduction, log_q, p);
  if (log_q.dtype() == bf16 && p.dtype() != f32) return detail::in_f32(kl_div, log_q, p, reduction);
  return reduced(formula::KlTerm{}, Reduction::sum, log_q, p) / rows;
}

}  // namespace sluice
