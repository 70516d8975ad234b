// Caching CPU allocator. A fresh 16 MB block costs more in page faults than the op that fills it, so freed blocks are
// kept by size class and used again.
//
// Blocks are 64-byte aligned. Size classes are 64 B steps up to 512 B, then four steps per power of two (at most 25 %
// rounding). Small blocks (up to 4 KB) are cut from slabs and cached per thread; batches move between threads under a
// lock. Larger blocks are kept in one locked pool. Blocks over 64 KB are whole pages, cut from ranges that merge again
// when free (core/memory/heap.h), because a model's tensors have many sizes and do not all live at once. Under
// AddressSanitizer nothing is cached, so that use-after-free stays visible.
//
// If the system refuses an allocation, the cache is returned to the system and the allocation is tried again. If that
// fails too, MemoryError is thrown; nothing is lost, and the program may go on. fork() is safe while other threads
// allocate.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

/// Bytes on the host. For other devices see memory_stats(device) in core/kernel/backend.h.
struct MemoryStats {
  int64_t live = 0;    // bytes of tensor storage in use
  int64_t peak = 0;    // largest `live` since start or reset_peak_memory()
  int64_t cached = 0;  // bytes kept in the locked pool for reuse, or got from the system in advance
  int64_t slabs = 0;   // bytes that small blocks are cut from, in use or not
};
/// The current figures.
MemoryStats memory_stats();
/// Sets `peak` to `live`.
void reset_peak_memory();
/// Returns the locked pool's free blocks and the empty slabs to the system. Other threads keep what they have cached:
/// at most two lists, each of 256 blocks or of those of one slab, of each of the 20 small sizes, 14 MB in all.
void release_cached_memory();

/// Most bytes of free blocks that are kept; large and small blocks count separately. Blocks freed beyond it return to
/// the system: of the large ones the largest first, small ones as whole slabs. Half of the machine's memory unless set.
/// Throws ValueError when negative.
int64_t cache_limit();
void set_cache_limit(int64_t bytes);

namespace detail {

/// At least `bytes` bytes, 64-byte aligned, uninitialised. Throws MemoryError.
void* allocate(std::size_t bytes);
void deallocate(void* p, std::size_t bytes) noexcept;
/// As allocate/deallocate, counted in memory_stats().
void* allocate_counted(std::size_t bytes);
void deallocate_counted(void* p, std::size_t bytes) noexcept;

/// Gives a class pooled new/delete; `Base::operator delete` receives the dynamic size.
struct Pooled {
  static void* operator new(std::size_t n) { return allocate(n); }
  static void* operator new(std::size_t, void* p) { return p; }
  static void operator delete(void* p, std::size_t n) noexcept { deallocate(p, n); }
};

}  // namespace detail
}  // namespace sluice
