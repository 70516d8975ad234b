// Less memory than the machine has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace sluice::testing {

/// While it lives, this process gets no more than `more` bytes of address space beyond what it has.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t more) {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    ::getrlimit(RLIMIT_AS, &before_);
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + more);
    ::setrlimit(RLIMIT_AS, &now);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  /// Whether there are limits here: emulators of processors ignore them.
  static bool works() {
    constexpr std::size_t bytes = std::size_t{1} << 30;
    const MemoryLimit limit(bytes / 2);
    void* const all = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return true;
    ::munmap(all, bytes);
    return false;
  }

 private:
  rlimit before_;
};

}  // namespace sluice::testing
