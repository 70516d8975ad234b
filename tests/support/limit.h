// Less memory than the machine has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace sluice::testing {

/// While it lives, this process gets no more than `more` bytes beyond what it has: of address space, or of private
/// memory that can be written, which leaves out the addresses that a GPU's driver sets aside.
class MemoryLimit {
 public:
  enum class Of { addresses, data };
  explicit MemoryLimit(int64_t more, Of of = Of::addresses) : what_(of == Of::data ? RLIMIT_DATA : RLIMIT_AS) {
    int64_t all = 0, other = 0, data = 0;
    std::ifstream("/proc/self/statm") >> all >> other >> other >> other >> other >> data;
    ::getrlimit(what_, &before_);
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>((of == Of::data ? data : all) * ::sysconf(_SC_PAGESIZE) + more);
    ::setrlimit(what_, &now);
  }
  ~MemoryLimit() { ::setrlimit(what_, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  /// Whether there are limits here: emulators of processors ignore them, and AddressSanitizer ends the process.
  static bool works() {
#if defined(__SANITIZE_ADDRESS__)
    return false;
#endif
    constexpr std::size_t bytes = std::size_t{1} << 30;
    const MemoryLimit limit(bytes / 2);
    void* const all = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return true;
    ::munmap(all, bytes);
    return false;
  }

 private:
  decltype(RLIMIT_AS) what_;
  rlimit before_;
};

}  // namespace sluice::testing
