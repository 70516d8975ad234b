// Memory for the working rows and packed tiles of a thread's kernels, which is kept from call to call.
#pragma once

#include <sluice/core/memory/allocator.h>

#include <cstddef>

namespace sluice::detail {

/// Memory of this thread for at least `bytes` bytes, aligned as allocate() aligns. Its contents are not defined.
/// It is valid until the thread asks for more of the same Owner and part, 0 <= part < kParts; it is freed when the
/// thread ends.
template <class Owner, int kParts> [[gnu::noinline]] void* thread_memory(int part, std::size_t bytes) {
  struct Memory {
    void* data;
    std::size_t bytes;
  };
  // No destructor: destructors of global objects, which run later than those of the thread, may compute, too.
  constinit static thread_local Memory memory[kParts] = {};
  struct Freed {
    ~Freed() {
      for (Memory& m : memory) free(m);
    }
    static void free(Memory& m) {
      if (m.data) deallocate(m.data, m.bytes), m = {};
    }
  };
  Memory& mine = memory[part];
  if (bytes > mine.bytes || !mine.data) {
    [[maybe_unused]] static thread_local Freed at_end;
    Freed::free(mine);
    mine = {allocate(bytes), bytes};
  }
  return mine.data;
}

}  // namespace sluice::detail
