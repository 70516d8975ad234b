#include <sluice/cuda/emulator/fiber.h>

#include <cstdint>
#include <exception>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace sluice::cuda::emulator {

#if defined(__x86_64__)
// Every lane switches at every shuffle, and swapcontext is 50 times slower because it makes a system call each time.
// This function pushes the registers that a call preserves, exchanges the stacks, and pops the registers.
extern "C" void sluice_switch_stacks(void** from, void* to);
asm(R"(
.text
.p2align 4
.type sluice_switch_stacks, @function
sluice_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sluice_switch_stacks, .-sluice_switch_stacks
)");
#endif

namespace {

// Large blocks of memory begin at the same place of a page, and so their ends would share the same few cache lines.
// Each stack begins elsewhere: 64 stacks in 64 places.
constexpr std::size_t kLine = 64, kPage = 4096;
thread_local std::size_t stacks = 0;

thread_local Fiber* came_from = nullptr;
thread_local Fiber* running = nullptr;

void arrived([[maybe_unused]] Fiber& me) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(me.sanitizer, &came_from->bottom, &came_from->bytes);
#endif
}

void begin() {
  arrived(*running);
  running->entry();
  std::terminate();
}

void go(Fiber& from, Fiber& to, [[maybe_unused]] bool for_good) {
  came_from = &from, running = &to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.sanitizer, to.bottom, to.bytes);
#endif
#if defined(__x86_64__)
  sluice_switch_stacks(&from.top, to.top);
#else
  if (!from.top) from.top = new ucontext_t;  // for the scheduler's fiber: one for each thread that emulates
  swapcontext(static_cast<ucontext_t*>(from.top), static_cast<ucontext_t*>(to.top));
#endif
  arrived(from);
}

}  // namespace

void start_fiber(Fiber& f, void (*entry)()) {
  if (!f.stack) {
    f.stack.reset(new unsigned char[Fiber::kStackBytes]);
    f.begins = kLine * 7 * ++stacks % kPage;
  }
  f.entry = entry, f.bottom = f.stack.get(), f.bytes = Fiber::kStackBytes, f.sanitizer = nullptr;
#if defined(__x86_64__)
  // Six registers, the address that the switch returns to, and a return address of 0 above it.
  const unsigned char* last = f.stack.get() + Fiber::kStackBytes - f.begins;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(last) & ~std::uintptr_t{15};
  auto* top = reinterpret_cast<void**>(end) - 8;
  for (int i = 0; i < 8; ++i) top[i] = nullptr;
  top[6] = reinterpret_cast<void*>(&begin);
  f.top = top;
#else
  auto* context = static_cast<ucontext_t*>(f.top ? f.top : new ucontext_t);
  getcontext(context);
  context->uc_stack.ss_sp = f.stack.get(), context->uc_stack.ss_size = Fiber::kStackBytes, context->uc_link = nullptr;
  makecontext(context, &begin, 0);
  f.top = context;
#endif
}

void switch_fiber(Fiber& from, Fiber& to) { go(from, to, false); }

void leave_fiber(Fiber& from, Fiber& to) {
  go(from, to, true);
  std::terminate();
}

}  // namespace sluice::cuda::emulator
