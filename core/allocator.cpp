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
constexpr std::size_t kSmallLimit = 4096;  // up to here blocks are cached per thread
constexpr int kSmallClasses = 8 + 4 * 3;   // 64…512 in steps of 64, then 640…4096
constexpr int kSmallKeep = 4096;           // blocks per class and thread

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

void* fresh_block(std::size_t bytes) {
  void* p = std::aligned_alloc(kAlign, bytes);
  if (!p) throw std::bad_alloc();
  return p;
}

class Pool {  // blocks larger than kSmallLimit, shared by all threads
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

struct ThreadCache {
  FreeBlock* head[kSmallClasses] = {};
  int count[kSmallClasses] = {};
  ~ThreadCache();
};
thread_local ThreadCache cache;
thread_local bool cache_alive = true;  // trivially destructible, so readable to the thread's end

ThreadCache::~ThreadCache() {
  cache_alive = false;
  for (FreeBlock*& h : head)
    while (h) std::free(std::exchange(h, h->next));
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
  if (c < kSmallClasses) {
    if (cache_alive && cache.head[c]) {
      FreeBlock* b = cache.head[c];
      cache.head[c] = b->next;
      --cache.count[c];
      return b;
    }
  } else if (void* p = pool().take(c)) {
    return p;
  }
#endif
  return fresh_block(size_of_class(c));
}

void deallocate(void* p, std::size_t bytes) noexcept {
#if SLUICE_CACHE_BLOCKS
  int c = class_of(bytes);
  if (c >= kSmallClasses) return pool().give(c, p);
  if (cache_alive && cache.count[c] < kSmallKeep) {
    cache.head[c] = ::new (p) FreeBlock{cache.head[c]};
    ++cache.count[c];
    return;
  }
#else
  (void)bytes;
#endif
  std::free(p);
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
