#include <sluice/core/memory/thread_end.h>

#include <pthread.h>

#include <atomic>
#include <utility>

namespace sluice::detail {

namespace {

constinit thread_local ThreadEnd* noted = nullptr;  // the newest first

void run_noted(void*) {
  while (noted) {
    ThreadEnd& end = *std::exchange(noted, noted->next);
    end.noted = false;
    end.run();
  }
}

/// The system calls run_noted() in a thread that ends if the thread's value of `key` is not null. The first keys of a
/// process have a place for their values in every thread.
struct Key {
  Key() { made = ::pthread_key_create(&key, run_noted) == 0; }
  ~Key() {
    if (made.exchange(false)) ::pthread_key_delete(key);
  }
  std::atomic<bool> made = false;
  pthread_key_t key = {};
} of_all_threads;

}  // namespace

bool note_thread_end(ThreadEnd& end) noexcept {
  if (!of_all_threads.made || ::pthread_setspecific(of_all_threads.key, &noted) != 0) return false;
  end.next = std::exchange(noted, &end);
  return end.noted = true;
}

}  // namespace sluice::detail
