#include <sluice/ops/create.h>

#include <sluice/core/node.h>
#include <sluice/core/parallel.h>
#include <sluice/core/strided.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/map.h>

#include <algorithm>
#include <cmath>

namespace sluice {

namespace {

void check_source(const char* op, const Tensor& y) {
  if (grad_enabled() && y.requires_grad())
    fail<AutogradError>(op, ": the source ", y, " requires a gradient, which an in-place edit would lose; use "
                        "the out-of-place op, or NoGrad, or detach()");
}

template <class F>
Tensor generate(const char* op, const Shape& shape, TensorOptions options, F value) {
  Tensor x = empty(shape, options, op);
  dispatch_all(options.dtype, [&]<class T>() {
    T* p = x.mutable_data<T>();
    parallel_for(x.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) p[i] = detail::convert<T>(value(i));
    });
  });
  return x;
}

struct Convert final : Node {
  DType from;
  explicit Convert(DType t) : from(t) {}
  static const char* op_name() { return "to"; }
  const char* name() const override { return op_name(); }
  Tensors vjp(const Tensor& g) override { return {to(g, from)}; }
};

struct Clone final : Node {
  static const char* op_name() { return "clone"; }
  const char* name() const override { return op_name(); }
  Tensors vjp(const Tensor& g) override { return {g}; }
};

}  // namespace

namespace detail {
Tensor filled(const char* op, const Shape& shape, double value, TensorOptions options) {
  return generate(op, shape, options, [=](int64_t) { return value; });
}
}  // namespace detail

Tensor full(const Shape& shape, double value, TensorOptions options) { return detail::filled("full", shape, value, options); }
Tensor zeros(const Shape& shape, TensorOptions options) { return detail::filled("zeros", shape, 0, options); }
Tensor ones(const Shape& shape, TensorOptions options) { return detail::filled("ones", shape, 1, options); }
Tensor zeros_like(const Tensor& x) { return full(x.shape(), 0, x.options()); }
Tensor ones_like(const Tensor& x) { return full(x.shape(), 1, x.options()); }

Tensor arange(double start, double end, double step, TensorOptions options) {
  const double count = std::ceil((end - start) / step);  // NaN or infinite for what is not finite, and for step 0
  if (!std::isfinite(count) || !std::isfinite(step) || count < 0)
    fail<ValueError>("arange: step ", step, " does not lead from ", start, " to ", end);
  if (count > static_cast<double>(kMaxElements)) fail("arange: ", count, " values are too many");
  return generate("arange", {static_cast<int64_t>(count)}, options, [=](int64_t i) { return start + step * static_cast<double>(i); });
}

Tensor linspace(double start, double end, int64_t n, TensorOptions options) {
  if (n < 0) fail<ValueError>("linspace: needs n >= 0 — got ", n);
  double step = n > 1 ? (end - start) / static_cast<double>(n - 1) : 0;
  return generate("linspace", {n}, options, [=](int64_t i) {
    return i == n - 1 && n > 1 ? end : start + step * static_cast<double>(i);
  });
}

Tensor eye(int64_t n, int64_t m, TensorOptions options) {
  if (m == -1) m = n;
  return generate("eye", {n, m}, options, [=](int64_t i) { return i / m == i % m ? 1.0 : 0.0; });
}

Tensor one_hot(const Tensor& x, int64_t classes, TensorOptions options) {
  if (!is_integer(x.dtype()))
    fail<DTypeError>("one_hot: needs i64 or i32 — got ", x.dtype(), " of shape ", x);
  std::vector<int64_t> index = x.to_vector<int64_t>();
  for (int64_t i : index)
    if (i < 0 || i >= classes)
      fail<ValueError>("one_hot: index ", i, " is outside [0, ", classes, ")");
  Shape shape = x.shape();
  shape.push_back(classes);
  return generate("one_hot", shape, options, [&](int64_t i) {
    return index[static_cast<std::size_t>(i / classes)] == i % classes ? 1.0 : 0.0;
  });
}

Tensor to(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = empty(x.shape(), {dtype, x.device()});
  detail::copy_elements(x, y);
  if (!is_float(dtype)) return y;  // nothing differentiable comes out
  return record<Convert>(std::move(y), {x}, {}, x.dtype());
}

Tensor clone(const Tensor& x) {
  Tensor y = empty_like(x);
  detail::copy_elements(x, y);
  return record<Clone>(std::move(y), {x}, {});
}
Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }

void fill_(Tensor& x, double value) {
  check_in_place("fill_", x);
  Tensor v = full({}, value, x.options());
  detail::copy_strided(v.raw(), v.layout().expanded(x.shape()), v.dtype(), x.raw(), x.layout(), x.dtype());
  x.bump_version();
}

void copy_(Tensor& x, const Tensor& y) {
  check_in_place("copy_", x);
  check_source("copy_", y);
  if (broadcast("copy_", x.shape(), y.shape()) != x.shape())
    fail("copy_: a source of shape ", y, " does not fit into ", x);
  Tensor source = y.shares_storage(x) ? clone(y.detach()) : y;  // the two may overlap
  detail::copy_strided(source.raw(), source.layout().expanded(x.shape()), source.dtype(), x.raw(),
                       x.layout(), x.dtype());
  x.bump_version();
}

void add_(Tensor& x, const Tensor& y, double factor) {
  check_in_place("add_", x);
  check_source("add_", y);
  if (x.shape() != y.shape()) fail("add_: shapes differ — got x=", x, ", y=", y);
  if (x.dtype() != y.dtype())
    fail<DTypeError>("add_: dtypes differ — got x=", x.dtype(), ", y=", y.dtype());
  NoGrad guard;
  // y may be another view of the same memory: every element must be read before it is written.
  const bool overlap = y.shares_storage(x) && !(y.raw() == x.raw() && y.is_contiguous());
  if (!x.is_contiguous() || overlap) return copy_(x, x + y * factor);
  dispatch_float("add_", x.dtype(), [&]<class T>() {
    T* out = x.mutable_data<T>();
    const T f = static_cast<T>(factor);
    auto plan = detail::plan_map<1>("add_", {&y}, false);
    detail::for_each_tile<T>(plan, [&](const std::array<const T*, 1>& in, int64_t at, int64_t n) {
      T* o = out + at;
      const T* p = in[0];
      for (int64_t i = 0; i < n; ++i) o[i] += f * p[i];
    });
  });
  x.bump_version();
}

void scale_(Tensor& x, double factor) {
  check_in_place("scale_", x);
  NoGrad guard;
  copy_(x, x.detach() * factor);
}

}  // namespace sluice
