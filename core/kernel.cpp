#include <sluice/core/kernel.h>

#include <chrono>

namespace sluice::detail {

constinit std::atomic<int> kernel_observers = 0;

namespace {

constinit thread_local KernelObserver* observers = nullptr;  // of this thread, innermost first
constinit thread_local ObservedCall* running = nullptr;
constinit thread_local int64_t allocated = 0;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

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
  Tensor wide = empty(x.shape(), {f32, x.device()});
  if (x.numel() > 0) copy(x, wide);
  return wide;
}

Tensor Widening::result(const Tensor& y) {
  if (y.dtype() != bf16) return y;
  Tensor wide = updates_ ? operand(y) : empty(y.shape(), {f32, y.device()});
  results_.push_back({y, wide});
  return wide;
}

void Widening::finish() const {
  for (auto [y, wide] : results_)
    if (y.numel() > 0) copy(wide, y);
}

KernelObserver::KernelObserver() : outer_(observers) {
  observers = this;
  kernel_observers.fetch_add(1, std::memory_order_relaxed);
}
KernelObserver::~KernelObserver() {
  for (KernelObserver** at = &observers; *at; at = &(*at)->outer_)  // observers need not end in order
    if (*at == this) {
      *at = outer_;
      break;
    }
  kernel_observers.fetch_sub(1, std::memory_order_relaxed);
}

void WorkCounter::on_call(const KernelCall& call) {
  if (call.nested) return;  // the outer call stands for its nested calls
  work_ += call.work;
  ++calls_;
}

void note_allocation(std::size_t bytes) { allocated += static_cast<int64_t>(bytes); }

ObservedCall::ObservedCall(const char* op, Device device)
    : op_(op), device_(device), start_(observers ? now() : 0), outer_(running) {
  running = this;
}

ObservedCall::~ObservedCall() {
  running = outer_;
  if (!observers) return;
  const double seconds = now() - start_;
  if (outer_) outer_->nested_seconds_ += seconds;
  const KernelCall call{op_, device_, work, start_, seconds, seconds - nested_seconds_, std::exchange(allocated, 0), outer_ != nullptr};
  for (KernelObserver* o = observers; o; o = o->outer_) o->on_call(call);
}

}  // namespace sluice::detail
