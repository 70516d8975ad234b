#include <sluice/core/memory/allocator.h>

#include <sluice/core/error.h>
#include <sluice/core/memory/heap.h>
#include <sluice/core/memory/thread_end.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define SLUICE_CACHE_BLOCKS 0
#else
#define SLUICE_CACHE_BLOCKS 1
#endif

namespace sluice {
namespace {

constexpr std::size_t kAlign = 64;
constexpr int kClasses = 8 + 4 * 7;       // up to kLarge
constexpr int kSmallClasses = 8 + 4 * 3;  // 64…512 in steps of 64, then 640…4096
constexpr int kBatch = 256;               // blocks that move between a thread's list and the shared one
constexpr std::size_t kSlab = 1 << 16;    // small blocks are cut from slabs of this size
[[maybe_unused]] constexpr std::size_t kSmall = 4096, kLarge = 1 << 16;  // to kSmall: slabs; over kLarge: heap
constexpr std::size_t kMost = std::size_t{1} << 46;

// Class c holds blocks of size_of_class(c): 64·(c+1) for c < 8, then (5,6,7,8)/4 · 2^k.
int class_of(std::size_t bytes) {
  if (bytes <= 512) return bytes == 0 ? 0 : static_cast<int>((bytes - 1) / 64);
  int k = std::bit_width(bytes - 1) - 1;  // 2^k < bytes <= 2^(k+1), k >= 9
  int quarter = static_cast<int>(((bytes - 1) >> (k - 2)) & 3);
  return 8 + 4 * (k - 9) + quarter;
}
std::size_t size_of_class(int c) {
  if (c < 8) return 64 * static_cast<std::size_t>(c + 1);
  int k = 9 + (c - 8) / 4;
  return static_cast<std::size_t>(5 + (c - 8) % 4) << (k - 2);
}
/// Size of the block for a request of `bytes`.
std::size_t size_of_block(std::size_t bytes) {
  return bytes > kLarge ? detail::system_pages().of(bytes) : size_of_class(class_of(bytes));
}

// Defined below. Small blocks come from slabs through the thread's own lists, others from one pool.
[[maybe_unused]] void* take_small(int c);
[[maybe_unused]] void give_small(int c, void* p) noexcept;
void* take_pooled(std::size_t bytes);
void give_pooled(void* p, std::size_t bytes) noexcept;
void* system_block(std::size_t bytes);
[[noreturn, gnu::cold]] void refuse(std::size_t bytes, int64_t cached);

// Statistics. Relaxed atomics: the figures are exact whenever no other thread allocates.
std::atomic<int64_t> live_bytes{0}, peak_bytes{0};
std::atomic<int64_t> limit{int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGE_SIZE) / 2};

}  // namespace

namespace detail {

void* allocate(std::size_t bytes) {
  if (bytes > kMost) refuse(bytes, 0);
#if SLUICE_CACHE_BLOCKS
  return bytes > kSmall ? take_pooled(bytes) : take_small(class_of(bytes));
#else
  return system_block(bytes);  // no more: a sanitizer sees what is read or written behind it
#endif
}

void deallocate(void* p, std::size_t bytes) noexcept {
#if SLUICE_CACHE_BLOCKS
  return bytes > kSmall ? give_pooled(p, bytes) : give_small(class_of(bytes), p);
#else
  (void)bytes;
  std::free(p);
#endif
}

void* allocate_counted(std::size_t bytes) {
  void* p = allocate(bytes);
  int64_t size = static_cast<int64_t>(size_of_block(bytes));
  int64_t now = live_bytes.fetch_add(size, std::memory_order_relaxed) + size;
  int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {}
  return p;
}

void deallocate_counted(void* p, std::size_t bytes) noexcept {
  live_bytes.fetch_sub(static_cast<int64_t>(size_of_block(bytes)), std::memory_order_relaxed);
  deallocate(p, bytes);
}

}  // namespace detail

namespace {

struct FreeBlock {
  FreeBlock* next;
  FreeBlock* next_batch;  // in a batch's first block: the next batch of a shared list,
  int count;              // and the number of blocks in this one
};
struct FreeList {
  FreeBlock* head = nullptr;
  int count = 0;

  void push(void* p) {
    auto* block = ::new (p) FreeBlock;
    block->next = std::exchange(head, block);
    ++count;
  }
  void* pop() {
    --count;
    return std::exchange(head, head->next);
  }
};

void refuse(std::size_t bytes, int64_t cached) {
  fail<MemoryError>("allocate: the system has no ", bytes, " bytes — live are ", live_bytes.load(), ", and ", cached,
                    " that were cached have been returned");
}

/// The memory that `ask` gets from the system. If there is none, returns the cache and asks again; then MemoryError.
template <class Ask> void* fresh(std::size_t bytes, Ask ask) {
  if (void* p = ask()) return p;
  const int64_t cached = memory_stats().cached;
  release_cached_memory();
  if (void* p = ask()) return p;
  refuse(bytes, cached);
}
void* system_block(std::size_t bytes) {
  return fresh(bytes, [=]() -> void* {
    void* p = nullptr;  // std::aligned_alloc() would need a multiple of kAlign
    return detail::has_room(bytes) && ::posix_memalign(&p, kAlign, bytes) == 0 ? p : nullptr;
  });
}

class Pool {  // blocks over 4 KB, shared by all threads: by size class, over 64 KB from a heap
 public:
  void* take(int c) {
    std::lock_guard lock(mutex);
    if (free_[c].count == 0) return nullptr;
    cached_ -= static_cast<int64_t>(size_of_class(c));
    return free_[c].pop();
  }
  void give(int c, void* p) noexcept {
    std::lock_guard lock(mutex);
    free_[c].push(p);
    cached_ += static_cast<int64_t>(size_of_class(c));
    shrink(limit.load(std::memory_order_relaxed));
  }
  void* take_large(std::size_t bytes) {
    std::lock_guard lock(mutex);
    return heap_.take(bytes);
  }
  void give_large(void* p) noexcept {
    std::lock_guard lock(mutex);
    heap_.give(p);
    shrink(limit.load(std::memory_order_relaxed));
  }
  void trim(int64_t most) {
    std::lock_guard lock(mutex);
    shrink(most);
  }
  int64_t cached() {
    std::lock_guard lock(mutex);
    return cached_ + heap_.cached();
  }

  std::mutex mutex;

 private:
  void shrink(int64_t most) {  // the largest go first
    if (heap_.cached() + cached_ > most) heap_.trim(std::max<int64_t>(0, most - cached_));
    for (int c = kClasses; cached_ > most && c-- > 0;)
      while (free_[c].count && cached_ > most) {
        std::free(free_[c].pop());
        cached_ -= static_cast<int64_t>(size_of_class(c));
      }
  }
  FreeList free_[kClasses];
  int64_t cached_ = 0;
  detail::Heap heap_;
};

Pool& pool() {
  static Pool* p = new Pool;  // never destroyed: tensors may outlive static objects
  return *p;
}

/// The header of a slab. Slabs lie at multiples of kSlab.
struct Slab {
  int blocks;    // cut from the slab
  int free = 0;  // blocks found in the shared lists; counted by return_slabs()
  Slab* next = nullptr;
};
static_assert(sizeof(Slab) <= kAlign && sizeof(FreeBlock) <= 64);
Slab* slab_of(void* p) { return reinterpret_cast<Slab*>(reinterpret_cast<std::uintptr_t>(p) & ~(kSlab - 1)); }

/// kSlab bytes at a multiple of kSlab, or null. Tries without padding first, because the system places one mapping
/// beside the other.
void* map_slab() {
  auto map = [](std::size_t bytes) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
  };
  auto rest = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kSlab; };
  std::byte* p = map(kSlab);
  if (!p || rest(p) == 0) return p;
  ::munmap(p, kSlab);
  p = map(2 * kSlab);
  if (!p) return p;
  const std::size_t before = (kSlab - rest(p)) % kSlab;
  if (before) ::munmap(p, before);
  ::munmap(p + before + kSlab, kSlab - before);
  return p + before;
}

[[maybe_unused]] void* take_pooled(std::size_t bytes) {
  if (bytes > kLarge) return fresh(bytes, [=] { return pool().take_large(bytes); });
  void* p = pool().take(class_of(bytes));
  return p ? p : system_block(size_of_block(bytes));
}
[[maybe_unused]] void give_pooled(void* p, std::size_t bytes) noexcept {
  return bytes > kLarge ? pool().give_large(p) : pool().give(class_of(bytes), p);
}

/// Surplus small blocks of the threads, in batches. Without these lists a thread that only frees would hoard blocks
/// that a thread that only allocates has to ask the system for.
class SharedLists {
 public:
  void give(int c, FreeList batch) noexcept {
    std::lock_guard lock(mutex);
    push(c, batch);
    const int64_t most = limit.load(std::memory_order_relaxed);
    if (cached_ > most && cached_ > 2 * after_trim_) return_slabs();  // twice: slabs with blocks in use cannot return
  }
  FreeList take(int c) {
    {
      std::lock_guard lock(mutex);
      if (FreeBlock* head = batches_[c]) {
        batches_[c] = head->next_batch;
        cached_ -= head->count * static_cast<int64_t>(size_of_class(c));
        return {head, head->count};
      }
    }
    FreeList cut;
    auto* slab = static_cast<std::byte*>(fresh(kSlab, map_slab));
    const std::size_t size = size_of_class(c), blocks = (kSlab - kAlign) / size;
    ::new (slab) Slab{static_cast<int>(blocks)};
    for (std::size_t i = blocks; i-- > 0;) cut.push(slab + kAlign + i * size);
    slab_bytes.fetch_add(kSlab, std::memory_order_relaxed);
    return cut;
  }
  void trim() {
    std::lock_guard lock(mutex);
    return_slabs();
  }

  std::mutex mutex;
  std::atomic<int64_t> slab_bytes{0};

 private:
  void push(int c, FreeList batch) {
    batch.head->next_batch = std::exchange(batches_[c], batch.head);
    batch.head->count = batch.count;
    cached_ += batch.count * static_cast<int64_t>(size_of_class(c));
  }
  /// Returns each slab whose blocks are all in these lists. Needs no memory of its own.
  void return_slabs() {
    Slab* whole = nullptr;
    for (int c = 0; c < kSmallClasses; ++c) {
      FreeList all;
      for (FreeBlock* batch = std::exchange(batches_[c], nullptr); batch;) {
        FreeList list{batch, batch->count};
        for (batch = batch->next_batch; list.count;) {
          void* p = list.pop();
          Slab* slab = slab_of(p);
          if (++slab->free == slab->blocks) slab->next = std::exchange(whole, slab);
          all.push(p);
        }
      }
      cached_ -= all.count * static_cast<int64_t>(size_of_class(c));
      FreeList kept, batch;
      while (all.count) {
        void* p = all.pop();
        if (slab_of(p)->free < slab_of(p)->blocks) kept.push(p);
      }
      while (kept.count) {
        void* p = kept.pop();
        slab_of(p)->free = 0;
        batch.push(p);
        if (batch.count == kBatch || kept.count == 0) push(c, std::exchange(batch, {}));
      }
    }
    for (; whole; slab_bytes.fetch_sub(kSlab, std::memory_order_relaxed))
      ::munmap(std::exchange(whole, whole->next), kSlab);
    after_trim_ = cached_;
  }

  FreeBlock* batches_[kSmallClasses] = {};
  int64_t cached_ = 0, after_trim_ = 0;
};

SharedLists& shared_lists() {
  static SharedLists* lists = new SharedLists;
  return *lists;
}

// A child of fork() finds the locks free and the lists whole, whatever other threads were doing.
[[maybe_unused]] const int fork_safe = ::pthread_atfork([] { pool().mutex.lock(), shared_lists().mutex.lock(); },
                                                        [] { shared_lists().mutex.unlock(), pool().mutex.unlock(); },
                                                        [] { shared_lists().mutex.unlock(), pool().mutex.unlock(); });

/// Two lists for each class. `spare` is a full batch or empty, so a thread that works at the border of a batch does not
/// visit the shared lists at each call.
struct ThreadCache {
  FreeList current[kSmallClasses], spare[kSmallClasses];
  void empty() noexcept {
    for (int c = 0; c < kSmallClasses; ++c)
      for (FreeList* list : {&current[c], &spare[c]})
        if (list->count) shared_lists().give(c, std::exchange(*list, {}));
  }
};
constinit thread_local ThreadCache cache;
constinit thread_local detail::ThreadEnd emptied{[]() noexcept { cache.empty(); }};

void* take_small(int c) {
  if (!detail::at_thread_end(emptied)) {  // no cache then: the rest of the batch goes back
    FreeList batch = shared_lists().take(c);
    void* p = batch.pop();
    if (batch.count) shared_lists().give(c, batch);
    return p;
  }
  FreeList& list = cache.current[c];
  if (list.count == 0) {
    if (cache.spare[c].count) std::swap(list, cache.spare[c]);
    else list = shared_lists().take(c);
  }
  return list.pop();
}

void give_small(int c, void* p) noexcept {
  if (!detail::at_thread_end(emptied)) {
    FreeList one;
    one.push(p);
    return shared_lists().give(c, one);
  }
  FreeList& list = cache.current[c];
  if (list.count >= kBatch) {
    if (cache.spare[c].count) shared_lists().give(c, cache.spare[c]);
    cache.spare[c] = std::exchange(list, FreeList{});
  }
  list.push(p);
}

}  // namespace

MemoryStats memory_stats() {
  return {live_bytes.load(), peak_bytes.load(), pool().cached(), shared_lists().slab_bytes.load()};
}
void reset_peak_memory() { peak_bytes.store(live_bytes.load()); }

void release_cached_memory() {
  pool().trim(0);
  cache.empty();
  shared_lists().trim();
#if defined(__GLIBC__)  // malloc keeps some, too
  ::malloc_trim(0);
#endif
}

int64_t cache_limit() { return limit.load(); }
void set_cache_limit(int64_t bytes) {
  if (bytes < 0) fail<ValueError>("set_cache_limit: needs bytes >= 0 — got ", bytes);
  limit = bytes;
  pool().trim(bytes);
  shared_lists().trim();
}

}  // namespace sluice
