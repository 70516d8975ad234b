// Fibers: the threads of an emulated block, which take turns on one thread of the system.
#pragma once

#include <cstddef>
#include <memory>

namespace sluice::cuda::emulator {

/// A default Fiber stands for the code that already runs.
struct Fiber {
  static constexpr std::size_t kStackBytes = 128 * 1024;
  std::unique_ptr<unsigned char[]> stack;
  std::size_t begins = 0;  // so many bytes below the end of `stack`
  void* top = nullptr;     // the saved stack pointer, or a ucontext_t
  void (*entry)() = nullptr;
  void* sanitizer = nullptr;  // AddressSanitizer's second stack, and the bounds of the first
  const void* bottom = nullptr;
  std::size_t bytes = 0;
};

/// Makes `f` begin with `entry`, which must not return and must not throw.
void start_fiber(Fiber& f, void (*entry)());
/// Stops the running fiber, which must be `from`, and goes on with `to`.
void switch_fiber(Fiber& from, Fiber& to);
/// switch_fiber for the last time: `from` can run again only after start_fiber.
[[noreturn]] void leave_fiber(Fiber& from, Fiber& to);

}  // namespace sluice::cuda::emulator
