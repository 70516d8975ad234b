#include <sluice/core/allocator.h>

#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define SLUICE_CACHE_BLOCKS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLUICE_CACHE_BLOCKS 0
#endif
#endif
#ifndef SLUICE_CACHE_BLOCKS
#define SLUICE_CACHE_BLOCKS 1
#endif

namespace sluice {
namespace {

constexpr std::size_t kAlign = 64;
constexpr int kClasses = 192;
constexpr int kSmallClasses = 8 + 4 * 3;   // 64…512 in steps of 64, then 640…4096
constexpr int kBatch = 256;                // blocks that move between a thread's list and the shared one
constexpr std::size_t kSlab = 1 << 16;     // small blocks are cut from slabs of this size

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

struct FreeBlock {
  FreeBlock* next;
};
struct FreeList {
  FreeBlock* head = nullptr;
  int count = 0;

  void push(void* p) {
    head = ::new (p) FreeBlock{head};
    ++count;
  }
  void* pop() {
    --count;
    return std::exchange(head, head->next);
  }
};

void* fresh_block(std::size_t bytes) {
  void* p = std::aligned_alloc(kAlign, bytes);
  if (!p) throw std::bad_alloc();
  return p;
}

class Pool {  // blocks larger than 4 KB, shared by all threads
 public:
  void* take(int c) {
    std::lock_guard lock(mutex_);
    auto& list = free_[c];
    if (list.empty()) return nullptr;
    void* p = list.back();
    list.pop_back();
    cached_ -= static_cast<int64_t>(size_of_class(c));
    return p;
  }
  void give(int c, void* p) noexcept {
    try {
      std::lock_guard lock(mutex_);
      free_[c].push_back(p);
      cached_ += static_cast<int64_t>(size_of_class(c));
    } catch (...) {
      std::free(p);  // no room to remember it
    }
  }
  void release() {
    std::lock_guard lock(mutex_);
    for (auto& list : free_) {
      for (void* p : list) std::free(p);
      list.clear();
    }
    cached_ = 0;
  }
  int64_t cached() {
    std::lock_guard lock(mutex_);
    return cached_;
  }

 private:
  std::mutex mutex_;
  std::vector<void*> free_[kClasses];
  int64_t cached_ = 0;
};

Pool& pool() {
  static Pool* p = new Pool;  // never destroyed: tensors may outlive static objects
  return *p;
}

/// Small blocks that threads have too many of, in batches. Without it a thread that only frees would hoard
/// what a thread that only allocates has to ask the system for.
class SharedLists {
 public:
  void give(int c, FreeList batch) noexcept {
    std::lock_guard lock(mutex_);
    try {
      batches_[c].push_back(batch);
    } catch (...) {  // no room to remember them: the blocks are lost, the program goes on
    }
  }
  FreeList take(int c) {
    {
      std::lock_guard lock(mutex_);
      if (!batches_[c].empty()) {
        FreeList batch = batches_[c].back();
        batches_[c].pop_back();
        return batch;
      }
    }
    FreeList fresh;  // a new slab, cut up
    auto* slab = static_cast<std::byte*>(fresh_block(kSlab));
    const std::size_t size = size_of_class(c);
    for (std::size_t at = (kSlab / size) * size; at >= size; at -= size) fresh.push(slab + at - size);
    return fresh;
  }

 private:
  std::mutex mutex_;
  std::vector<FreeList> batches_[kSmallClasses];
};

SharedLists& shared_lists() {
  static SharedLists* lists = new SharedLists;
  return *lists;
}

/// Two lists a class: `spare` is a full batch or empty, so a thread that works at the border of a batch does
/// not visit the shared lists at each call.
struct ThreadCache {
  FreeList current[kSmallClasses], spare[kSmallClasses];
  ~ThreadCache();
};
thread_local ThreadCache cache;
constinit thread_local bool cache_alive = true;  // trivially destructible, so readable to the thread's end

ThreadCache::~ThreadCache() {
  cache_alive = false;
  for (int c = 0; c < kSmallClasses; ++c)
    for (FreeList* list : {&current[c], &spare[c]})
      if (list->count) shared_lists().give(c, *list);
}

void* take_small(int c) {
  if (!cache_alive) {  // a thread in its last moments: the rest of the batch goes back
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
  if (!cache_alive) {
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

// Statistics. Relaxed atomics: the figures are exact whenever no other thread allocates.
std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

}  // namespace

MemoryStats memory_stats() { return {live_bytes.load(), peak_bytes.load(), pool().cached()}; }
void reset_peak_memory() { peak_bytes.store(live_bytes.load()); }
void release_cached_memory() { pool().release(); }

namespace detail {

void* allocate(std::size_t bytes) {
  if (bytes > (std::size_t{1} << 46)) throw std::bad_alloc();
  int c = class_of(bytes);
#if SLUICE_CACHE_BLOCKS
  if (c < kSmallClasses) return take_small(c);
  if (void* p = pool().take(c)) return p;
#endif
  return fresh_block(size_of_class(c));
}

void deallocate(void* p, std::size_t bytes) noexcept {
#if SLUICE_CACHE_BLOCKS
  int c = class_of(bytes);
  return c < kSmallClasses ? give_small(c, p) : pool().give(c, p);
#else
  (void)bytes;
  std::free(p);
#endif
}

void* allocate_counted(std::size_t bytes) {
  void* p = allocate(bytes);
  int64_t size = static_cast<int64_t>(size_of_class(class_of(bytes)));
  int64_t now = live_bytes.fetch_add(size, std::memory_order_relaxed) + size;
  int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  return p;
}

void deallocate_counted(void* p, std::size_t bytes) noexcept {
  live_bytes.fetch_sub(static_cast<int64_t>(size_of_class(class_of(bytes))),
                       std::memory_order_relaxed);
  deallocate(p, bytes);
}

}  // namespace detail
}  // namespace sluice
