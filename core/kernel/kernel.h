// The device seam: one slot per op, and the slot makes the call.
//
//   constinit Kernel<void(const Tensor& x, Tensor& y, bool log)> kernel::softmax{"softmax", &softmax_cpu};
//   kernel::softmax(x, y, log);      // runs where x and y live
//
// A call finds the device from the tensors among its arguments, refuses operands on different devices, and sets the
// mode for denormals (core/kernel/parallel.h). All kernel calls are observed here (core/kernel/observer.h). The CPU
// kernel is the slot's initialiser; a backend installs its own at start-up, one line per slot. An empty slot throws
// DeviceError naming the op and the device; there is no silent fallback. On meta no kernel runs: the call is only
// observed. Code outside kernels must not touch the bytes of a tensor.
#pragma once

#include <sluice/core/kernel/backend.h>
#include <sluice/core/kernel/kernel_arguments.h>
#include <sluice/core/kernel/kernel_bf16.h>
#include <sluice/core/kernel/observer.h>
#include <sluice/core/kernel/parallel.h>

namespace sluice {

/// How a kernel takes tensors of bf16.
enum class Bf16 : uint8_t {
  widened,  // the kernel gets f32 copies; its results are rounded once
  updated,  // as `widened`; the kernel also reads its results before it writes them
  native,   // the kernel reads and writes bf16 itself
};

namespace detail {

[[noreturn, gnu::cold]] void fail_devices(const char* op, Device a, Device b);
[[noreturn, gnu::cold]] void fail_no_kernel(const char* op, Device device);
[[noreturn, gnu::cold]] void fail_no_bf16(const char* op, Device device);

/// Finds the common device of tensors; throws DeviceError if there are two.
struct CommonDevice {
  const char* op;
  Device device = cpu;
  bool found = false, has_bf16 = false;
  void operator()(const Tensor& x) {
    const Device here = x.device();
    if (found && here != device) [[unlikely]]
      fail_devices(op, device, here);
    device = here, found = true;
    has_bf16 |= x.dtype() == bf16;
  }
};

}  // namespace detail

template <class Signature> class Kernel;

template <class R, class... Args> class Kernel<R(Args...)> {
 public:
  using Function = R(Args...);
  using CountWork = Work(Args...);

  /// `work` gives the flops and attention elements of a call; bytes are counted from its tensors.
  constexpr Kernel(const char* op, Function* cpu_kernel, CountWork* work, Bf16 bf16 = Bf16::widened)
      : op_(op), kernels_{cpu_kernel, nullptr}, work_(work), takes_bf16_{bf16 == Bf16::native, false},
        updates_(bf16 == Bf16::updated) {}
  constexpr Kernel(const char* op, Function* cpu_kernel, Bf16 bf16 = Bf16::widened)
      : Kernel(op, cpu_kernel, nullptr, bf16) {}
  void install(DeviceKind kind, Function* f, Bf16 bf16 = Bf16::widened) {
    kernels_[static_cast<int>(kind)] = f, takes_bf16_[static_cast<int>(kind)] = bf16 == Bf16::native;
  }
  bool installed(Device d) const { return d.kind == DeviceKind::meta || kernels_[static_cast<int>(d.kind)]; }

  R operator()(Args... args) const {
    static_assert((detail::holds_tensors<Args>() || ...) || (std::is_same_v<Args, Device> || ...),
                  "a kernel finds its device from its tensors, or from a Device among its arguments");
    detail::CommonDevice where{op_};
    if constexpr ((std::is_same_v<Args, Device> || ...)) (explicit_device(args, where), ...);
    else (detail::each_tensor(args, where), ...);
    if (where.device.kind == DeviceKind::meta || detail::observed()) [[unlikely]]
      return observe(where.device, where.has_bf16, args...);
    return run(where.device, where.has_bf16, args...);
  }

 private:
  friend class detail::Widening;
  Function* at(Device d) const {
    Function* f = kernels_[static_cast<int>(d.kind)];
    if (!f) [[unlikely]]
      detail::fail_no_kernel(op_, d);
    return f;
  }
  R run(Device d, bool has_bf16, Args... args) const {
    Function* f = at(d);
    detail::DenormalMode denormals;
    if constexpr (std::is_void_v<R> && (detail::holds_tensors<Args>() || ...))
      if (has_bf16 && !takes_bf16_[static_cast<int>(d.kind)]) [[unlikely]]
        return widen(d, f, args...);
    return f(args...);
  }
  [[gnu::noinline]] void widen([[maybe_unused]] Device d, [[maybe_unused]] Function* f, Args... args) const {
    if constexpr ((detail::borrows_tensors<Args>() || ...)) {
      detail::fail_no_bf16(op_, d);
    } else {
      detail::Widening w(updates_);
      [f](auto&&... wide) { f(wide.get()...); }(detail::Widened<Args>(w, args)...);
      w.finish();
    }
  }
  [[gnu::cold, gnu::noinline]] R observe(Device d, bool has_bf16, Args... args) const {
    detail::ObservedCall call(op_, d);
    if (detail::observed()) {
      if (work_) call.work = work_(args...);
      (detail::each_tensor(args, [&](const Tensor& x) { call.work.bytes += x.numel() * size_of(x.dtype()); }), ...);
    }
    if (d.kind == DeviceKind::meta) {
      if constexpr (std::is_void_v<R>) return;
      else fail<DeviceError>(op_, ": a tensor on meta has no values");
    }
    if constexpr (std::is_void_v<R>) run(d, has_bf16, args...), synchronize(d);  // its time includes the device's
    else return run(d, has_bf16, args...);
  }
  template <class A> static void explicit_device(const A& a, detail::CommonDevice& where) {
    if constexpr (std::is_same_v<A, Device>) where.device = a;
  }

  const char* op_;
  Function* kernels_[2];  // by DeviceKind
  CountWork* work_;
  bool takes_bf16_[2];  // by DeviceKind
  bool updates_;
};

struct RandomFill;

namespace kernel {
/// to = from with conversion; any layouts, from broadcasts to the shape of to.
extern Kernel<void(const Tensor& from, Tensor& to)> copy;
/// Copies between cpu and `device`, either way: two contiguous tensors of one dtype and size.
extern Kernel<void(Device device, const Tensor& from, Tensor& to)> transfer;
/// Fills contiguous y from the generator's blocks (core/number/random.h).
extern Kernel<void(const RandomFill& fill, Tensor& y)> random;
}  // namespace kernel

}  // namespace sluice
