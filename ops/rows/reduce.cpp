#include <sluice/ops/rows/reduce.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/products.h>
#include <sluice/ops/rows/reduce_layout.h>
#include <sluice/ops/rows/softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice {

using detail::as_on_cpu, detail::converted, detail::count_of, detail::DimRun, detail::places_first,
    detail::reduce_values, detail::runs_of, detail::with_dims_dropped, detail::with_dims_kept, detail::without_repeats;

Tensor sum(const Tensor& x, const Shape& dims_in, bool keep_dims) {
  detail::check_defined("sum", x);
  Shape dims = wrap_dims("sum", dims_in, x.rank()), kept = with_dims_kept(x.shape(), dims);
  if (!is_float(x.dtype())) return reduce_values(ReduceKind::sum, x, dims, keep_dims, true);
  detail::check_float("sum", x);
  // Backward: g, stretched back.
  return record("sum", reduce_values(ReduceKind::sum, x, dims, keep_dims), {x}, {},
                [from = x.shape(), kept](const Tensor& g) { return expand(reshape(g, kept), from); });
}

Tensor mean(const Tensor& x, const Shape& dims_in, bool keep_dims) {
  detail::check_defined("mean", x);
  const Shape dims = wrap_dims("mean", dims_in, x.rank()), kept = with_dims_kept(x.shape(), dims);
  const int64_t n = count_of(x.shape(), dims);
  if (x.dtype() == i64) return to(mean(converted(x, f64), dims, keep_dims), f32);  // a sum of i64 could wrap
  if (!is_float(x.dtype())) return to(to(sum(x, dims, keep_dims), f64) / static_cast<double>(n), f32);
  // The mean of no numbers: NaN is added instead of a division by 0, so that second derivatives stay finite.
  const auto divided = [n](const Tensor& total) {
    return n > 0 ? total / static_cast<double>(n) : total + std::numeric_limits<double>::quiet_NaN();
  };
  const Tensor total = reduce_values(ReduceKind::sum, x, dims, keep_dims, true);  // of bf16 in f32: rounded once
  // Backward: g/n, stretched back.
  return record("mean", to(divided(total), x.dtype()), {x}, {},
                [=, from = x.shape()](const Tensor& g) { return expand(reshape(divided(g), kept), from); });
}

namespace {
Tensor extreme(const char* op, ReduceKind kind, const Tensor& x, const Shape& dims_in, bool keep_dims) {
  detail::check_defined(op, x);
  Shape dims = wrap_dims(op, dims_in, x.rank()), kept = with_dims_kept(x.shape(), dims);
  if (count_of(x.shape(), dims) == 0) fail(op, ": nothing to choose from in x=", x, " over dims ", dims);
  if (x.dtype() == boolean) return to(extreme(op, kind, converted(x, i32), dims, keep_dims), boolean);
  if (is_integer(x.dtype()) && x.device() != cpu && !dims.empty()) {  // one dim after the other, by position
    Tensor y = x;
    for (int64_t d : dims) y = gather(y, d, kind == ReduceKind::max ? argmax(y, d, keep) : argmin(y, d, keep));
    return keep_dims ? y : reshape(y, with_dims_dropped(x.shape(), dims));
  }
  const auto runs = runs_of(dims);
  if (const Shape order = runs.size() == 1 ? places_first(x, runs[0]) : Shape{}; order.rank() > 0) {  // and in backward
    Shape places;
    for (int d = 0; d < dims.rank(); ++d) places.push_back(d);
    const Tensor y = extreme(op, kind, permute(x, order), places, false);
    return keep_dims ? reshape(y, kept) : y;
  }
  Tensor y = reduce_values(kind, x, dims, keep_dims);
  if (!is_float(x.dtype())) return y;
  // Backward: dx = g/k on the k places that attain y, which are locally constant, and 0 elsewhere, even if g is ∞.
  // Where y is NaN, which no place attains, dx is NaN.
  return record(op, y, {x}, {x, y}, [dims, kept](const Node& node, const Tensor& g) {
    const Tensor hit = eq(node.saved(0), reshape(node.saved(1).detach(), kept));
    const Tensor count = sum(to(hit, g.dtype()), dims, keep);
    const Tensor rest = masked_fill(zeros_like(count), count == 0.0, std::numeric_limits<double>::quiet_NaN());
    return where(hit, reshape(g, kept) / count, rest);
  });
}

Tensor arg_extreme(const char* op, bool largest, const Tensor& x, int64_t dim, bool keep_dim) {
  detail::check_defined(op, x);
  int d = wrap_dim(op, dim, x.rank());
  if (x.rank() == 0) return zeros({}, {i64, x.device()});
  if (x.shape()[d] == 0) fail(op, ": nothing to choose from in x=", x, " along dim ", dim);
  ReduceShape s = ReduceShape::along(x.shape(), d);
  Shape shape = x.shape();
  shape[d] = 1;
  if (const Tensor once = without_repeats(x); once.numel() < x.numel()) {
    const Tensor y = contiguous(expand(arg_extreme(op, largest, once, d, true), shape));
    return keep_dim ? y : squeeze(y, d);
  }
  if (!keep_dim) shape.erase(d);
  Tensor y = empty(shape, {i64, x.device()}, op), from = x.detach();
  if (y.numel() == 0) return y;
  // Short rows are searched side by side, and few columns as rows.
  if (as_on_cpu(x) && s.inner == 1 && s.n < 4 * detail::kFew && s.outer >= detail::kFew)
    from = transpose(reshape(from, {s.outer, s.n}), 0, 1), s = {1, s.n, s.outer};
  else if (as_on_cpu(x) && s.inner > 1 && s.inner < detail::kFew && s.n >= detail::kFew)
    from = transpose(reshape(from, {s.outer, s.n, s.inner}), 1, 2), s = {s.outer * s.inner, s.n, 1};
  kernel::arg_extreme(largest, contiguous(from), y, s);
  return y;
}

}  // namespace

Tensor max(const Tensor& x, const Shape& dims, bool keep_dims) {
  return extreme("max", ReduceKind::max, x, dims, keep_dims);
}
Tensor min(const Tensor& x, const Shape& dims, bool keep_dims) {
  return extreme("min", ReduceKind::min, x, dims, keep_dims);
}
Tensor argmax(const Tensor& x, int64_t dim, bool keep_dim) { return arg_extreme("argmax", true, x, dim, keep_dim); }
Tensor argmin(const Tensor& x, int64_t dim, bool keep_dim) { return arg_extreme("argmin", false, x, dim, keep_dim); }

namespace {
struct Centred {
  Tensor x;        // less its mean, in f32 for bf16
  Tensor rest;     // the mean of that: the rounding error of the mean, beside a large one more than the entries differ
  double freedom;  // number of entries less the correction
};
Centred centred(const char* op, const Tensor& x_in, const Shape& dims, double correction) {
  detail::check_float(op, x_in);
  const Tensor x = detail::widened(x_in);
  const int64_t n = count_of(x.shape(), wrap_dims(op, dims, x.rank()));
  if (!std::isfinite(correction)) fail<ValueError>(op, ": correction must be finite — got ", correction);
  const Tensor c = x - mean(x, dims, keep);
  return {c, mean(c.detach(), dims, keep), std::max(0.0, static_cast<double>(n) - correction)};
}
}  // namespace

Tensor var(const Tensor& x, const Shape& dims, bool keep_dims, double correction) {
  const Centred c = centred("var", x, dims, correction);
  return to(sum(map(formula::SquaredDeviation{}, c.x, c.rest), dims, keep_dims) / c.freedom, x.dtype());
}
// By norm(), whose slope at 0 is 0: equal numbers have a gradient, which √var does not give them.
Tensor std_dev(const Tensor& x, const Shape& dims, bool keep_dims, double correction) {
  const Centred c = centred("std_dev", x, dims, correction);
  return to(norm(c.x - c.rest, dims, keep_dims) / std::sqrt(c.freedom), x.dtype());
}

namespace {
/// [outer, inner] of x [outer, n, inner], without history.
Tensor logsumexp_values(const Tensor& x) {
  const int64_t outer = x.dim(0), n = x.dim(1), inner = x.dim(2);
  if (n == 0) return full({outer, inner}, -std::numeric_limits<double>::infinity(), x.options());
  Tensor y = empty({outer, inner}, x.options(), "logsumexp");
  if (x.numel() == 0) return y;
  // On the CPU few columns, and bf16, which must be widened, are faster as rows.
  if (x.device() == cpu && inner > 1 && (inner < 16 || x.dtype() == bf16))
    kernel::logsumexp(contiguous(transpose(x, 1, 2)), y, {outer * inner, n, 1});
  else kernel::logsumexp(contiguous(x), y, {outer, n, inner});
  return y;
}
}  // namespace

Tensor logsumexp(const Tensor& x_in, const Shape& dims_in, bool keep_dims) {
  detail::check_float("logsumexp", x_in);
  const Shape dims = wrap_dims("logsumexp", dims_in, x_in.rank());
  const Shape shape = keep_dims ? with_dims_kept(x_in.shape(), dims) : with_dims_dropped(x_in.shape(), dims);
  const auto runs = runs_of(dims);
  if (runs.size() > 1) {  // moved together to the end
    Shape order, last;
    for (int d = 0; d < x_in.rank(); ++d)
      if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
    for (int64_t d : dims) last.push_back(order.rank()), order.push_back(d);
    return reshape(logsumexp(permute(x_in, order), last), shape);
  }
  const ReduceShape s = runs.empty() ? ReduceShape{1, 1, 1} : runs[0].of(x_in.shape());
  const Tensor x = reshape(x_in, {s.outer, s.n, s.inner});
  // Backward: dx = g · softmax(x). e^(x − y) would lose the digits of a large y. x is made contiguous, because softmax
  // takes a transposed x by other loops, with other bits.
  const Tensor y = record("logsumexp", logsumexp_values(x.detach()), {x}, {x}, [](const Node& node, const Tensor& g) {
    const Tensor x = node.saved(0);
    if (x.numel() == 0) return zeros_like(x);
    return to(unsqueeze(detail::widened(g), 1) * softmax(contiguous(detail::widened(x)), 1), x.dtype());
  });
  return reshape(y, shape);
}

Tensor norm(const Tensor& x, const Shape& dims_in, bool keep_dims) {
  detail::check_float("norm", x);
  if (x.dtype() == bf16 && (x.requires_grad() || !as_on_cpu(x))) return detail::in_f32(norm, x, dims_in, keep_dims);
  Shape dims = wrap_dims("norm", dims_in, x.rank()), kept = with_dims_kept(x.shape(), dims);
  Tensor y;
  if (x.dtype() != f64 || as_on_cpu(x)) {
    y = reduce_values(ReduceKind::norm, x, dims, keep_dims);
  } else {
    NoGrad guard;
    Tensor unit = count_of(x.shape(), dims) > 0 ? max(abs(x), dims, keep) : ones(kept, x.options());
    unit = masked_fill(unit, logical_not(isfinite(unit)) | (unit == 0.0), 1);
    y = sqrt(sum(square(x / unit), dims, keep)) * unit;  // squares of x itself would leave the range of f64 at 10^±154
    if (!keep_dims) y = reshape(y, with_dims_dropped(x.shape(), dims));
  }
  // Backward: dx = g · x/y, 0 where y = 0.
  return record("norm", y, {x}, {x, y}, [kept](const Node& node, const Tensor& g) {
    const Tensor x = node.saved(0), y = reshape(node.saved(1), kept);
    return reshape(g, kept) * (x / masked_fill(y, y.detach() == 0.0, std::numeric_limits<double>::infinity()));
  });
}

namespace {
/// Products along the middle of x [outer, n, inner].
Tensor products(const Tensor& x) {
  if (x.dtype() == i64 && !as_on_cpu(x) && x.numel() > 0) {  // in ops: a device may have no kernel of integers
    Tensor y = clone(x);
    for (int64_t n = y.dim(1); n > 1; n = y.dim(1)) {  // one half times the other
      const int64_t half = (n + 1) / 2;
      const Tensor upper = narrow(y, 1, half, n - half);
      y = narrow(y, 1, 0, half) * (n % 2 == 0 ? upper : pad(upper, 1, 0, 1, 1));
    }
    return y;
  }
  Tensor y = empty({x.dim(0), 1, x.dim(2)}, x.options(), "prod");
  if (x.numel() > 0) kernel::prod(contiguous(x.detach()), y, {x.dim(0), x.dim(1), x.dim(2)});
  else fill_(y, 1);
  // Backward: dx_j = g · Π_{i≠j} x_i, without division.
  return record("prod", y, {x}, {x},
                [](const Node& node, const Tensor& g) { return detail::cumprod_vjp(node.saved(0), g, 1); });
}
}  // namespace

Tensor prod(const Tensor& x, const Shape& dims_in, bool keep_dims) {
  detail::check_defined("prod", x);
  const Shape dims = wrap_dims("prod", dims_in, x.rank());
  if (!is_float(x.dtype()) && x.dtype() != i64) return prod(to(x, i64), dims, keep_dims);
  if (dims.empty()) return clone(x);
  const auto runs = runs_of(dims);
  // In f64: products of some of the factors may leave the range of f32 where the whole does not.
  Tensor y = runs.size() > 1 && x.dtype() != i64 ? to(x, f64) : x;
  for (const DimRun run : runs) {
    const ReduceShape s = run.of(y.shape());
    const Shape kept = run.kept(y.shape());
    y = reshape(products(reshape(y, {s.outer, s.n, s.inner})), kept);
  }
  return reshape(to(y, x.dtype()), keep_dims ? y.shape() : with_dims_dropped(x.shape(), dims));
}

Tensor any(const Tensor& x, const Shape& dims, bool keep_dims) {
  detail::check_defined("any", x);
  if (x.dtype() != boolean) fail<DTypeError>("any: needs bool — got ", x.dtype(), " of shape ", x);
  return sum(x, wrap_dims("any", dims, x.rank()), keep_dims) > 0.0;
}
Tensor all(const Tensor& x, const Shape& dims, bool keep_dims) {
  detail::check_defined("all", x);
  if (x.dtype() != boolean) fail<DTypeError>("all: needs bool — got ", x.dtype(), " of shape ", x);
  const Tensor otherwise = expand(logical_not(without_repeats(x)), x.shape());
  return sum(otherwise, wrap_dims("all", dims, x.rank()), keep_dims) == 0.0;
}

}  // namespace sluice
