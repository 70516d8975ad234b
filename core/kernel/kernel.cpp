#include <sluice/core/kernel/kernel.h>

namespace sluice::detail {

void fail_devices(const char* op, Device a, Device b) {
  fail<DeviceError>(op, ": operands on ", a, " and ", b, "; move them with to(x, device)");
}
void fail_no_kernel(const char* op, Device device) { fail<DeviceError>(op, ": no kernel for ", device); }
void fail_no_bf16(const char* op, Device device) {
  fail<DTypeError>(op, ": no kernel for bf16 on ", device, "; convert with to(x, f32)");
}

// kernel::copy.run, which observers do not see: converting operands is a part of the kernel's call.
void Widening::copy(const Tensor& from, Tensor& to) { kernel::copy.run(from.device(), false, from, to); }

Tensor Widening::operand(const Tensor& x) const {
  if (x.dtype() != bf16) return x;
  if (observed()) ObservedCall::note_widened();
  Tensor wide = empty(x.shape(), {f32, x.device()});
  if (x.numel() > 0) copy(x, wide);
  return wide;
}

Tensor Widening::result(const Tensor& y) {
  if (y.dtype() != bf16) return y;
  if (observed() && !updates_) ObservedCall::note_widened();
  Tensor wide = updates_ ? operand(y) : empty(y.shape(), {f32, y.device()});
  results_.push_back({y, wide});
  return wide;
}

void Widening::finish() const {
  for (auto [y, wide] : results_)
    if (y.numel() > 0) copy(wide, y);
}

}  // namespace sluice::detail
