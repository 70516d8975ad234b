#include <sluice/core/parallel.h>

#include <sluice/core/error.h>

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>

#include <atomic>
#include <memory>
#include <mutex>

namespace sluice {

namespace {
std::mutex control_mutex;
std::unique_ptr<tbb::global_control> control;
std::atomic<int> threads{0};
}  // namespace

int num_threads() {
  int n = threads.load(std::memory_order_relaxed);
  static const int cores = tbb::info::default_concurrency();
  return n > 0 ? n : cores;
}

void set_num_threads(int n) {
  if (n < 0) fail<ValueError>("set_num_threads: needs n >= 0 — got ", n);
  std::lock_guard lock(control_mutex);
  threads = n;
  control.reset();
  if (n > 0)
    control = std::make_unique<tbb::global_control>(
        tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(n));
}

namespace detail {

void parallel_chunks(int64_t chunks, void (*body)(void*, int64_t), void* context) {
  if (num_threads() == 1) {
    for (int64_t i = 0; i < chunks; ++i) body(context, i);
    return;
  }
  tbb::parallel_for(int64_t{0}, chunks, [=](int64_t i) { body(context, i); });
}

}  // namespace detail
}  // namespace sluice
