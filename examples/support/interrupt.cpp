#include "interrupt.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <string>

#include <unistd.h>

namespace sluice::examples {
namespace {

std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler must not take a lock");

extern "C" void on_interrupt(int signal) {
  // Only async-signal-safe calls here: no stdio, no allocation, no exit handlers.
  if (flag.exchange(true)) _exit(128 + signal);
  const int saved = errno;  // the interrupted code may be about to read it
  constexpr char kNote[] = "\nstopping after this step; once more to quit at once\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kNote, sizeof kNote - 1);
  errno = saved;
}

}  // namespace

void catch_interrupts() {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;  // a file being written is not cut short
    sigemptyset(&action.sa_mask);
    if (sigaction(signal, &action, nullptr) != 0) {
      throw std::runtime_error("catch_interrupts: cannot handle signal " + std::to_string(signal) + " — " +
                               std::strerror(errno));
    }
  }
}

bool interrupted() { return flag.load(std::memory_order_relaxed); }

}  // namespace sluice::examples
