// Memory for the working rows and packed tiles of a thread's kernels, which is kept from call to call.
#pragma once

#include <sluice/core/memory/allocator.h>
#include <sluice/core/memory/thread_end.h>

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
  constinit static thread_local Memory memory[kParts] = {};
  struct Freed {
    static void all() noexcept {
      for (Memory& m : memory) one(m);
    }
    static void one(Memory& m) noexcept {
      if (m.data) deallocate(m.data, m.bytes), m = {};
    }
  };
  constinit static thread_local ThreadEnd freed{Freed::all};
  Memory& mine = memory[part];
  if (bytes > mine.bytes || !mine.data) {
    Freed::one(mine);
    mine = {allocate(bytes), bytes};
    at_thread_end(freed);
  }
  return mine.data;
}

}  // namespace sluice::detail
