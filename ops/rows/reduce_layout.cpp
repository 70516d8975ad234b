#include <sluice/ops/rows/reduce_layout.h>

#include <sluice/core/kernel/strided.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice {

namespace detail {

namespace {

Tensor reduce_once(ReduceKind kind, const Tensor& x, const Shape& dims, bool wide, DType dtype);
Tensor reduce_in_memory_order(ReduceKind kind, const Tensor& x, const Shape& dims, bool wide);
Tensor reduce_runs(ReduceKind kind, const Tensor& x, const Shape& dims, DType dtype);

}  // namespace

Tensor reduce_values(ReduceKind kind, const Tensor& given, const Shape& dims, bool keep_dims, bool wide) {
  const Tensor x = given.detach();
  const DType dtype = !wide ? x.dtype() : is_float(x.dtype()) ? widened(x.dtype()) : i64;
  if (dims.empty()) return to(kind == ReduceKind::norm ? abs(x) : clone(x), dtype);  // a scalar; a new result
  Tensor y = reduce_once(kind, x, dims, wide, dtype);
  if (!y.defined()) y = reduce_in_memory_order(kind, x, dims, wide);
  if (!y.defined()) y = reduce_runs(kind, x, dims, dtype);
  return keep_dims ? y : alias(y, Layout(with_dims_dropped(x.shape(), dims)));
}

Shape with_dims_kept(Shape s, const Shape& dims) {
  for (int64_t d : dims) s[static_cast<int>(d)] = 1;
  return s;
}
Shape with_dims_dropped(const Shape& s, const Shape& dims) {
  Shape out;
  for (int i = 0, k = 0; i < s.rank(); ++i) {
    if (k < dims.rank() && dims[k] == i) ++k;
    else out.push_back(s[i]);
  }
  return out;
}
int64_t count_of(const Shape& s, const Shape& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= s[static_cast<int>(d)];
  return n;
}

std::vector<DimRun> runs_of(const Shape& dims) {
  std::vector<DimRun> runs;
  for (int i = dims.rank() - 1; i >= 0;) {
    const int last = static_cast<int>(dims[i]);
    int first = last;
    for (--i; i >= 0 && dims[i] == first - 1; --i) --first;
    runs.push_back({first, last});
  }
  return runs;
}

Shape places_first(const Tensor& x, DimRun run) {
  const ReduceShape s = run.of(x.shape());
  if (!as_on_cpu(x) || s.inner > 1 || s.outer == 1 || s.n >= kFew || x.is_contiguous()) return {};
  Shape order;
  for (int d = run.first; d <= run.last; ++d) order.push_back(d);
  for (int d = 0; d < x.rank(); ++d)
    if (d < run.first || d > run.last) order.push_back(d);
  return order;
}

Tensor without_repeats(const Tensor& x, const Shape& except) {
  Tensor y = x.detach();
  for (int d = 0; d < x.rank() && x.numel() > 0; ++d)
    if (x.strides()[d] == 0 && x.shape()[d] > 1 && std::find(except.begin(), except.end(), d) == except.end())
      y = narrow(y, d, 0, 1);
  return y;
}
Tensor converted(const Tensor& x, DType dtype) { return expand(to(without_repeats(x), dtype), x.shape()); }

namespace {

/// Floats that are repeated beyond this number are multiplied, not added one by one.
constexpr int64_t kVast = int64_t{1} << 28;

/// For an x that repeats numbers, as by expand(): reduces each of them once. Undefined for another x.
Tensor reduce_once(ReduceKind kind, const Tensor& x, const Shape& dims, bool wide, DType dtype) {
  const bool adds = kind == ReduceKind::sum || kind == ReduceKind::norm;
  // The number of floats in a sum, which decides its order and its bits, stays, as long as a copy of x is thinkable.
  Tensor y = without_repeats(x, adds && is_float(x.dtype()) && x.numel() <= kVast ? dims : Shape{});
  if (y.numel() == x.numel()) return {};
  const int64_t times = count_of(x.shape(), dims) / count_of(y.shape(), dims);  // how often a result has each number
  const bool multiplied = adds && times > 1;
  y = reduce_values(kind, multiplied ? widened(y) : y, dims, true, wide);  // results are rounded once
  if (multiplied && !is_float(x.dtype())) y = y * to(Tensor::from<int64_t>({times}), y.device());  // exact
  else if (multiplied) y = y * (kind == ReduceKind::sum ? double(times) : std::sqrt(double(times)));
  return contiguous(expand(to(y, dtype), with_dims_kept(x.shape(), dims)));
}

/// The position of each of the dims in `order`.
Shape places_of(const Shape& dims, const Shape& order) {
  Shape places;
  for (int64_t d : dims) places.push_back(std::find(order.begin(), order.end(), d) - order.begin());
  return places;
}
/// order_in_memory() of x; empty where this order is no gain, or would change the order of a sum.
Shape useful_order(ReduceKind kind, const Tensor& x, const Shape& dims) {
  if (!as_on_cpu(x) || x.is_contiguous()) return {};
  const Shape order = x.layout().order_in_memory();
  if (std::is_sorted(order.begin(), order.end())) return {};
  if (kind == ReduceKind::max || kind == ReduceKind::min) return order;
  const Shape places = places_of(dims, order);
  const bool in_order = std::is_sorted(places.begin(), places.end());
  const bool one_run = runs_of(dims).size() == 1 && runs_of(places).size() == 1;
  return in_order && one_run ? order : Shape{};
}
/// For a permuted x: reduces the dims in the order of memory. Undefined for another x.
Tensor reduce_in_memory_order(ReduceKind kind, const Tensor& x, const Shape& dims, bool wide) {
  const Shape order = useful_order(kind, x, dims);
  if (order.rank() == 0) return {};
  Shape places, all;  // of the dims in `order`, sorted
  for (int d = 0; d < x.rank(); ++d) {
    all.push_back(d);
    if (std::find(dims.begin(), dims.end(), order[d]) != dims.end()) places.push_back(d);
  }
  return contiguous(permute(reduce_values(kind, permute(x, order), places, true, wide), places_of(all, order)));
}

/// True if x has a dim along which numbers are repeated, as by expand().
bool repeats(const Tensor& x) {
  for (int d = 0; d < x.rank(); ++d)
    if (x.strides()[d] == 0 && x.shape()[d] > 1) return true;
  return false;
}
/// x, made contiguous where the kernel would not find long runs in place, unless numbers would be repeated in memory.
Tensor readable(const Tensor& x, const ReduceShape& s) {
  if (as_on_cpu(x) && repeats(x)) return x;
  if (!as_on_cpu(x) || (s.inner == 1 ? s.n : s.inner) < 192) return contiguous(x);
  return StridedRange(x.layout()).run(0).count > 0 ? x : contiguous(x);
}
/// Neighbouring dims go in one pass over memory; dims that are apart take one pass for each run.
Tensor reduce_runs(ReduceKind kind, const Tensor& x, const Shape& dims, DType dtype) {
  const auto runs = runs_of(dims);
  const DType within = runs.size() > 1 ? widened(dtype) : dtype;  // results are rounded once, if at all
  Tensor y = as_on_cpu(x) ? x : to(x, within);
  for (const DimRun run : runs) {
    Tensor out = empty(run.kept(y.shape()), {within, y.device()});
    ReduceShape s = run.of(y.shape());
    if (const Shape order = places_first(y, run); order.rank() > 0) y = permute(y, order), s = {1, s.n, s.outer};
    if (y.numel() > 0) kernel::reduce(kind, readable(y, s), out, s);
    else fill_(out, kind == ReduceKind::max || kind == ReduceKind::min ? std::numeric_limits<double>::quiet_NaN() : 0);
    y = out;
  }
  return to(y, dtype);
}

}  // namespace

}  // namespace detail

}  // namespace sluice
