#include <sluice/core/kernel/kernel.h>

#include <algorithm>
#include <numeric>

namespace sluice::detail {

void fail_devices(const char* op, Device a, Device b) {
  fail<DeviceError>(op, ": operands on ", a, " and ", b, "; move them with to(x, device)");
}
void fail_no_kernel(const char* op, Device device) { fail<DeviceError>(op, ": no kernel for ", device); }
void fail_no_bf16(const char* op, Device device) {
  fail<DTypeError>(op, ": no kernel for bf16 on ", device, "; convert with to(x, f32)");
}

namespace {

/// The dims of x in the order of its memory. In their own order if the last stride is not 1, or one is 0 (a broadcast).
Shape memory_order(const Layout& x) {
  if (x.rank() > 0 && x.strides[x.rank() - 1] == 1 &&
      std::find(x.strides.begin(), x.strides.end(), 0) == x.strides.end())
    return x.order_in_memory();
  Shape order = x.shape;
  std::iota(order.begin(), order.end(), 0);
  return order;
}
/// x with its dims in another order.
Tensor reordered(const Tensor& x, const Shape& order) {
  Layout y = x.layout();
  for (int i = 0; i < x.rank(); ++i) y.shape[i] = x.dim(int(order[i])), y.strides[i] = x.strides()[int(order[i])];
  return alias(x, y);
}

/// Memory for an f32 copy of x, in the order of x: rows that follow one another in memory are converted in one go, and
/// the kernel finds them as it would find rows of f32.
Tensor f32_like(const Tensor& x) {
  if (x.layout().is_contiguous()) return empty(x.shape(), {f32, x.device()});
  const Shape order = memory_order(x.layout());
  const Tensor wide = empty(reordered(x, order).shape(), {f32, x.device()});
  Layout y = x.layout();
  for (int i = 0; i < x.rank(); ++i) y.strides[int(order[i])] = wide.strides()[i];
  return alias(wide, {y.shape, y.strides, 0});
}

}  // namespace

// kernel::copy.run, which observers do not see: converting operands is a part of the kernel's call.
void Widening::copy(const Tensor& from, Tensor& to) {
  if (to.layout().is_contiguous()) return kernel::copy.run(from.device(), false, from, to);
  const Shape order = memory_order(to.layout());
  Tensor y = reordered(to, order);
  kernel::copy.run(from.device(), false, reordered(from, order), y);
}

Tensor Widening::operand(const Tensor& x) const {
  if (x.dtype() != bf16) return x;
  if (observed()) ObservedCall::note_widened();
  Tensor wide = f32_like(x);
  if (x.numel() > 0) copy(x, wide);
  return wide;
}

Tensor Widening::result(const Tensor& y) {
  if (y.dtype() != bf16) return y;
  if (observed() && !updates_) ObservedCall::note_widened();
  Tensor wide = updates_ ? operand(y) : f32_like(y);
  results_.push_back({y, wide});
  return wide;
}

void Widening::finish() const {
  for (auto [y, wide] : results_)
    if (y.numel() > 0) copy(wide, y);
}

}  // namespace sluice::detail
