#include <sluice/core/kernel/parallel.h>

#include <sluice/core/error.h>

#include <pthread.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <exception>
#include <mutex>

namespace sluice {

namespace {
std::mutex control_mutex;
std::unique_ptr<tbb::global_control> control;
std::atomic<int> threads{0};

// After fork() the child has none of TBB's threads, and one of them may have held a lock: the child must not wait.
std::atomic<bool> started{false}, orphan{false};
[[maybe_unused]] const int fork_safe = ::pthread_atfork(nullptr, nullptr, [] { orphan = orphan || started; });
}  // namespace

int num_threads() {
  if (orphan.load(std::memory_order_relaxed)) return 1;
  int n = threads.load(std::memory_order_relaxed);
  static const int cores = tbb::info::default_concurrency();
  return n > 0 ? n : cores;
}

void set_num_threads(int n) {
  if (n < 0) fail<ValueError>("set_num_threads: needs n >= 0 — got ", n);
  if (orphan.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(control_mutex);
  threads = n;
  control.reset();
  if (n > 0)
    control = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism,
                                                    static_cast<std::size_t>(n));
}

bool flush_denormals() { return detail::flush_denormals_on.load(); }
void set_flush_denormals(bool on) { detail::flush_denormals_on = on; }

namespace detail {

std::atomic<bool> flush_denormals_on{true};

void parallel_chunks(int64_t chunks, void (*body)(void*, int64_t), void* context) {
  if (num_threads() == 1) {
    DenormalMode mode;
    for (int64_t i = 0; i < chunks; ++i) body(context, i);
    return;
  }
  if (!started.load(std::memory_order_relaxed)) started = true;
  std::atomic<bool> thrown{false};  // by the body; any other exception is TBB's own
  try {
    tbb::this_task_arena::isolate([&] {
      tbb::parallel_for(int64_t{0}, chunks, [=, &thrown](int64_t i) {
        DenormalMode mode;
        try {
          body(context, i);
        } catch (...) {
          thrown = true;
          throw;
        }
      });
    });
  } catch (const std::exception& e) {  // TBB allocates tasks, and a thread when a loop first needs one
    if (thrown) throw;
    fail<MemoryError>("parallel loop: no memory for its tasks, or for one more thread, or none is allowed (", e.what(),
                      "); set_num_threads(1) needs neither");
  }
}

}  // namespace detail
}  // namespace sluice
