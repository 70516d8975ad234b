// Deterministic parallel loops over TBB. Work is split by shape alone, never by the number of threads, so every result
// is bit-identical for any thread count.
//
// While a thread waits for the end of its loop it runs pieces of that loop only, never another task, so the caller may
// hold locks and use thread-local state. A child of fork() computes on one thread if its parent had used several,
// because the other threads do not exist in the child.
//
// The body is compiled for several instruction sets (core/kernel/vectorise.h): its loops are as fast as the processor
// allows.
#pragma once

#include <sluice/core/memory/no_copy.h>
#include <sluice/core/kernel/vectorise.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace sluice {

/// Number of threads that parallel loops may use.
int num_threads();
/// 0: one per core. Throws ValueError if n is negative. Has no effect in a child of fork() that computes on one thread.
void set_num_threads(int n);

/// Whether kernels treat denormal operands (below 1.2e-38 in f32, 2.2e-308 in f64) as 0 and round denormal results to
/// 0. On by default: processors compute with denormals up to 100 times slower, and gradients become denormal once a
/// loss is small. Applies inside kernels, parallel loops and backward walks (with their hooks) on every thread; then
/// the caller's own mode is restored. When off, AMX is not used, because it has no denormals in any mode. Must not be
/// changed while another thread computes.
bool flush_denormals();
void set_flush_denormals(bool on);

namespace detail {
extern std::atomic<bool> flush_denormals_on;
void parallel_chunks(int64_t chunks, void (*body)(void*, int64_t), void* context);

/// Sets the processor's mode for denormals to flush_denormals() for a scope, then restores the caller's mode.
class DenormalMode : private NoCopy {
 public:
  DenormalMode() : before_(read()) {
    const auto wanted = flush_denormals_on.load(std::memory_order_relaxed) ? before_ | kFlush : before_ & ~kFlush;
    if (wanted != before_) write(wanted), changed_ = true;
  }
  ~DenormalMode() {
    if (changed_) write(before_);
  }

 private:
#if defined(__SSE2__)
  using Register = uint32_t;
  static constexpr Register kFlush = 0x8040;  // MXCSR: results (FTZ), operands (DAZ)
  static Register read() { return __builtin_ia32_stmxcsr(); }
  static void set(Register r) { __builtin_ia32_ldmxcsr(r); }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register kFlush = Register{1} << 24;  // FPCR: both
  static Register read() {
    Register r;
    asm volatile("mrs %0, fpcr" : "=r"(r));
    return r;
  }
  static void set(Register r) { asm volatile("msr fpcr, %0" : : "r"(r)); }
#else
  using Register = uint32_t;
  static constexpr Register kFlush = 0;
  static Register read() { return 0; }
  static void set(Register) {}
#endif
  static void write(Register r) {  // no memory access moves across the change
    asm volatile("" : : : "memory");
    set(r);
    asm volatile("" : : : "memory");
  }
  Register before_;
  bool changed_ = false;
};
}  // namespace detail

/// Calls f(begin, end) for consecutive pieces of [0, n) of `grain` items (the last may be shorter),
/// possibly at the same time. Exceptions thrown by f reach the caller. Throws MemoryError when the system refuses a
/// thread that the loop needs; some pieces may have run by then.
template <class F> void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  if (n <= grain) {
    detail::DenormalMode mode;
    return detail::vectorised(f, int64_t{0}, n);
  }
  struct Context {
    std::remove_reference_t<F>* f;
    int64_t n, grain;
  } context{std::addressof(f), n, grain};
  detail::parallel_chunks((n + grain - 1) / grain,
                          [](void* p, int64_t chunk) {
                            const Context& c = *static_cast<Context*>(p);
                            const int64_t begin = chunk * c.grain, end = begin + c.grain < c.n ? begin + c.grain : c.n;
                            detail::vectorised(*c.f, begin, end);
                          },
                          &context);
}

}  // namespace sluice
