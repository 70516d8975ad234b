// Flows of control that take turns on one thread of the system: the threads of an emulated block.
#pragma once

#include <cstddef>
#include <memory>

namespace sluice::cuda::emulator {

/// A default Fiber stands for the flow that runs already.
struct Fiber {
  static constexpr std::size_t kStackBytes = 128 * 1024;
  std::unique_ptr<unsigned char[]> stack;
  void* top = nullptr;  // where it goes on
  void (*entry)() = nullptr;
  void* sanitizer = nullptr;  // AddressSanitizer's second stack, and the bounds of the first
  const void* bottom = nullptr;
  std::size_t bytes = 0;
};

/// Makes `f` begin with `entry`, which must never return and let no exception out.
void start_fiber(Fiber& f, void (*entry)());
/// Stops the running flow, which is `from`, and goes on with `to`.
void switch_fiber(Fiber& from, Fiber& to);
/// The same, never to come back to `from` but by start_fiber.
[[noreturn]] void leave_fiber(Fiber& from, Fiber& to);

}  // namespace sluice::cuda::emulator
