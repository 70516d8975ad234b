#include <sluice/ops/shape/create.h>

#include <sluice/core/node.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/operands.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/shape/join.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice {

namespace {

void check_source(const char* op, const Tensor& y) {
  detail::check_defined(op, {{"y", y}});
  if (grad_enabled() && y.requires_grad())
    fail<AutogradError>(op, ": the source ", y,
                        " requires a gradient, which an in-place edit would lose; use "
                        "the out-of-place op, or NoGrad, or detach()");
}

/// Throws DeviceError if x is on meta, where it has no values, and is to be copied to another device.
void check_values(const char* op, const Tensor& x, Device device) {
  if (x.device() == meta && device != meta)
    fail<DeviceError>(op, ": a tensor on meta has no values to copy to ", device);
}

/// True if maps can write their result over x: it is contiguous, or, on the CPU, has long rows.
bool is_updated_in_place(const Tensor& x) {
  return x.is_contiguous() || (x.device() == cpu && detail::StridedRange(x.layout()).run(0).count > 0);
}

void fill_cpu(Tensor& x, double value) {
  const Layout one(x.shape(), Shape::filled(x.rank(), 0), 0);
  dispatch_all(x.dtype(), [&]<class T>() {
    const T number = detail::convert<T>(value);
    detail::copy_strided(reinterpret_cast<const std::byte*>(&number), one, x.dtype(), x.raw(), x.layout(), x.dtype());
  });
}

/// y_i = value(i), computed in f64 and converted.
template <class F> void generate(Tensor& y, F value) {
  dispatch_all(y.dtype(), [&]<class T>() {
    T* p = y.mutable_data<T>();
    parallel_for(y.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) p[i] = detail::convert<T>(value(i));
    });
  });
}

void ramp_cpu(Tensor& y, double start, double step) {
  generate(y, [=](int64_t i) { return start + step * static_cast<double>(i); });
}
void eye_cpu(Tensor& y) {
  fill_cpu(y, 0);
  dispatch_all(y.dtype(), [&]<class T>() {
    T* p = y.mutable_data<T>();
    for (int64_t i = 0; i < std::min(y.dim(0), y.dim(1)); ++i) p[i * (y.dim(1) + 1)] = detail::convert<T>(1.0);
  });
}

void one_hot_cpu(const Tensor& index, Tensor& y) {
  const int64_t classes = y.dim(-1), *p = index.data<int64_t>();
  for (int64_t i = 0; i < index.numel(); ++i)
    if (p[i] < 0 || p[i] >= classes)
      fail<ValueError>("one_hot: index ", p[i], " is outside [0, ", classes, ") — got it at element ", i,
                       " of an index of shape ", index);
  dispatch_all(y.dtype(), [&]<class T>() {
    T* out = y.mutable_data<T>();
    parallel_for(index.numel(), std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, classes)),
                 [&](int64_t begin, int64_t end) {
                   std::fill(out + begin * classes, out + end * classes, detail::convert<T>(0.0));
                   for (int64_t i = begin; i < end; ++i) out[i * classes + p[i]] = detail::convert<T>(1.0);
                 });
  });
}

/// The sums may lie over x.
template <class T> void add_scaled(const void* factor, const T* const* in, T* const* out, int64_t n) {
  const T f = static_cast<T>(*static_cast<const double*>(factor));
  const T *x = in[0], *y = in[1];
  T* sums = out[0];
  SLUICE_VECTORIZE
  for (int64_t i = 0; i < n; ++i) sums[i] = x[i] + f * y[i];
}
void add_to_cpu(Tensor& x, const Tensor& y, double factor) {
  const Tensor* both[] = {&x, &y};
  detail::run_map(detail::plan_map("add_", both, 2, false), {{add_scaled<float>}, {add_scaled<double>}}, &factor, &x,
                  1);
}

}  // namespace

constinit decltype(kernel::fill) kernel::fill{"fill", &fill_cpu, Bf16::native};
constinit decltype(kernel::ramp) kernel::ramp{"arange", &ramp_cpu, Bf16::native};
constinit decltype(kernel::eye) kernel::eye{"eye", &eye_cpu, Bf16::native};
constinit decltype(kernel::one_hot) kernel::one_hot{"one_hot", &one_hot_cpu, Bf16::native};
constinit decltype(kernel::add_to) kernel::add_to{"add_", &add_to_cpu, Bf16::native};

Tensor detail::filled(const char* op, const Shape& shape, double value, TensorOptions options) {
  Tensor x = empty(shape, options, op);
  kernel::fill(x, value);
  return x;
}
void detail::check_exact(const char* op, DType dtype, double c) {
  if (dtype == i64 && std::abs(c) >= 0x1p53 && std::abs(c) < 0x1p63)
    fail<DTypeError>(op, ": ", c,
                     " beside i64 may have been rounded; from 2^53 on give a tensor, "
                     "Tensor::from<int64_t>({n})");
}

Tensor full(const Shape& shape, double value, TensorOptions options) {
  detail::check_exact("full", options.dtype, value);
  return detail::filled("full", shape, value, options);
}
Tensor zeros(const Shape& shape, TensorOptions options) { return detail::filled("zeros", shape, 0, options); }
Tensor ones(const Shape& shape, TensorOptions options) { return detail::filled("ones", shape, 1, options); }
Tensor zeros_like(const Tensor& x) {
  detail::check_defined("zeros_like", x);
  return detail::filled("zeros_like", x.shape(), 0, x.options());
}
Tensor ones_like(const Tensor& x) {
  detail::check_defined("ones_like", x);
  return detail::filled("ones_like", x.shape(), 1, x.options());
}

Tensor arange(double start, double end, double step, TensorOptions options) {
  const double parts = (end - start) / step;  // NaN or infinite if start or end is not finite or step is 0
  const double count = std::ceil(parts);
  if (!std::isfinite(parts) || !std::isfinite(step) || parts < 0)
    fail<ValueError>("arange: step ", step, " does not lead from ", start, " to ", end);
  if (count > static_cast<double>(kMaxElements)) fail("arange: ", count, " values are too many");
  Tensor y = empty({static_cast<int64_t>(count)}, options, "arange");
  kernel::ramp(y, start, step);
  return y;
}

Tensor detail::arange_whole(int64_t start, int64_t end, int64_t step, TensorOptions options) {
  const auto exact = [](int64_t v) { return v >= -(int64_t{1} << 52) && v <= int64_t{1} << 52; };  // in f64, and sums
  if (exact(start) && exact(end) && exact(step))
    return arange(static_cast<double>(start), static_cast<double>(end), static_cast<double>(step), options);
  if (step == 0 || (step > 0 ? end < start : end > start))
    fail<ValueError>("arange: step ", step, " does not lead from ", start, " to ", end);
  const auto from = static_cast<uint64_t>(start), to_end = static_cast<uint64_t>(end);
  const uint64_t distance = step > 0 ? to_end - from : from - to_end;
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t count = distance / stride + (distance % stride != 0);
  if (count > static_cast<uint64_t>(kMaxElements)) fail("arange: ", count, " values are too many");
  const Tensor i = arange(0.0, static_cast<double>(count), 1.0, {i64, options.device});
  const auto beside = [&](int64_t v) { return to(Tensor::from<int64_t>({v}), options.device); };
  Tensor y = i * beside(step) + beside(start);  // i64 wraps around, and ends in its range
  if (options.dtype == i32) y = clamp(y, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
  return to(y, options.dtype);
}

Tensor linspace(double start, double end, int64_t n, TensorOptions options) {
  if (n < 0) fail<ValueError>("linspace: needs n >= 0 — got ", n);
  const double parts = static_cast<double>(std::max<int64_t>(n - 1, 1));
  double step = (end - start) / parts;
  if (!std::isfinite(step)) step = n > 2 ? end / parts - start / parts : 0;
  Tensor y = empty({n}, options, "linspace");
  kernel::ramp(y, start, step);
  if (n > 1) {  // the end exactly
    Tensor last = alias(y, Layout({1}, {1}, n - 1));
    kernel::fill(last, end);
  }
  return y;
}

Tensor eye(int64_t n, int64_t m, TensorOptions options) {
  if (m == -1) m = n;
  Tensor y = empty({n, m}, options, "eye");
  kernel::eye(y);
  return y;
}

Tensor one_hot(const Tensor& x, int64_t classes, TensorOptions options) {
  detail::check_defined("one_hot", x);
  if (!is_integer(x.dtype())) fail<DTypeError>("one_hot: needs i64 or i32 — got ", x.dtype(), " of shape ", x);
  detail::check_rank("one_hot", x.rank() + 1, x);
  Shape shape = x.shape();
  shape.push_back(classes);
  Tensor y = empty(shape, {options.dtype, x.device()}, "one_hot");
  kernel::one_hot(contiguous(to(x.detach(), i64)), y);
  return y;
}

Tensor to(const Tensor& x, DType dtype) {
  detail::check_defined("to", x);
  if (x.dtype() == dtype) return x;
  Tensor y = empty(x.shape(), {dtype, x.device()}, "to");
  detail::copy_elements(x, y);
  if (!is_float(dtype)) return y;  // nothing differentiable comes out
  return record("to", std::move(y), {x}, {}, [from = x.dtype()](const Tensor& g) { return to(g, from); });
}

Tensor to(const Tensor& x, Device device) {
  detail::check_defined("to", x);
  if (x.device() == device) return x;
  check_values("to", x, device);
  Tensor y = empty(x.shape(), {x.dtype(), device}, "to");
  detail::copy_elements(x, y);
  if (!is_float(x.dtype())) return y;
  return record("to", std::move(y), {x}, {}, [from = x.device()](const Tensor& g) { return to(g, from); });
}

Tensor clone(const Tensor& x) {
  detail::check_defined("clone", x);
  Tensor y = empty(x.shape(), x.options(), "clone");
  detail::copy_elements(x, y);
  return record("clone", std::move(y), {x}, {}, [](const Tensor& g) { return g; });
}
Tensor contiguous(const Tensor& x) {
  detail::check_defined("contiguous", x);
  return x.is_contiguous() ? x : clone(x);
}

void fill_(Tensor& x, double value) {
  check_in_place("fill_", x);
  detail::check_exact("fill_", x.dtype(), value);
  kernel::fill(x, value);
  x.bump_version();
}

void copy_(Tensor& x, const Tensor& y) {
  check_in_place("copy_", x);
  check_source("copy_", y);
  if (!stretches_to(y.shape(), x.shape())) fail("copy_: a source of shape ", y, " does not fit into ", x);
  check_values("copy_", y, x.device());
  Tensor source = y.shares_storage(x) ? clone(y.detach()) : y;  // the two may overlap
  detail::copy_elements(alias(source, source.layout().expanded(x.shape())), x);
  x.bump_version();
}

void add_(Tensor& x, const Tensor& y, double factor) {
  check_in_place("add_", x);
  check_source("add_", y);
  if (x.shape() != y.shape()) fail("add_: shapes differ — got x=", x, ", y=", y);
  if (x.dtype() != y.dtype()) fail<DTypeError>("add_: dtypes differ — got x=", x.dtype(), x, ", y=", y.dtype(), y);
  detail::check_float("add_", x);
  NoGrad guard;
  // y may be another view of the same memory: every element must be read before it is written.
  const bool overlap = y.shares_storage(x) && (y.layout().offset != x.layout().offset || y.strides() != x.strides());
  if (!is_updated_in_place(x) || overlap) {  // by the kernel of contiguous memory: the layout changes no bits
    Tensor sums = clone(x);
    add_(sums, y, factor);
    return copy_(x, sums);
  }
  if (x.dtype() == bf16 && factor == 1) {  // as in gradient accumulation: element by element, in place
    const Tensor* both[] = {&x, &y};
    detail::MapKernels<formula::Add, std::make_index_sequence<2>>::forward({}, detail::plan_map("add_", both, 2, false),
                                                                           x);
  } else {
    kernel::add_to(x, y, factor);
  }
  x.bump_version();
}

void scale_(Tensor& x, double factor) {
  check_in_place("scale_", x);
  detail::check_float("scale_", x);
  NoGrad guard;
  if (!is_updated_in_place(x)) return copy_(x, x.detach() * factor);
  const Tensor* operand = &x;  // the result lies over it: element by element, in place
  detail::MapKernels<formula::Scale, std::make_index_sequence<1>>::forward(
      {factor}, detail::plan_map("scale_", &operand, 1, false), x);
  x.bump_version();
}

}  // namespace sluice
