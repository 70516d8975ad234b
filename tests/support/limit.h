// Less memory than the machine has.
#pragma once

#include <cstdint>
#include <fstream>

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

 private:
  rlimit before_;
};

}  // namespace sluice::testing
