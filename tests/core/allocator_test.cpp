// The allocator: alignment, exact statistics, reuse, and blocks that change threads.
#include <sluice/core/memory/allocator.h>
#include <sluice/core/kernel/backend.h>
#include <sluice/core/memory/heap.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/child.h"
#include "support/limit.h"

#include <sluice/core/memory/heap.h>
#include <sluice/core/tensor.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using namespace sluice;
using namespace sluice::detail;

namespace {
/// Tensors of 1 KB with their headers and handles.
std::vector<Tensor> many_small(int64_t bytes) {
  std::vector<Tensor> all;
  all.reserve(static_cast<std::size_t>(bytes / 1024));
  for (int64_t i = 0; i < bytes / 1024; ++i) all.push_back(empty({200}));
  return all;
}
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCaches = false;
#else
constexpr bool kCaches = true;
#endif
}  // namespace

TEST_CASE("allocator: blocks are aligned, large enough and apart", "[allocator]") {
  testing::Rand r(1);
  std::map<std::byte*, std::size_t> live;
  for (int step = 0; step < 20000; ++step) {
    if (live.size() < 200 && r.below(3)) {
      const auto bytes = static_cast<std::size_t>(r.below(5) ? r.below(5000) : r.below(300000));
      auto* p = static_cast<std::byte*>(allocate(bytes));
      REQUIRE(reinterpret_cast<std::uintptr_t>(p) % 64 == 0);
      auto next = live.lower_bound(p);
      if (next != live.end()) REQUIRE(p + bytes <= next->first);
      if (next != live.begin()) REQUIRE(std::prev(next)->first + std::prev(next)->second <= p);
      if (live.contains(p)) FAIL("handed out twice");
      std::memset(p, 0xab, bytes);
      live[p] = bytes;
    } else if (!live.empty()) {
      auto it = std::next(live.begin(), r.below(static_cast<int64_t>(live.size())));
      deallocate(it->first, it->second);
      live.erase(it);
    }
  }
  for (auto& [p, bytes] : live) deallocate(p, bytes);
}

TEST_CASE("allocator: every size around the borders of its classes", "[allocator]") {
  for (int k = 5; k < 27; ++k)
    for (std::size_t base :
         {std::size_t{4} << (k - 2), std::size_t{5} << (k - 2), std::size_t{6} << (k - 2), std::size_t{7} << (k - 2)})
      for (std::size_t bytes : {base - 1, base, base + 1}) {
        const int64_t before = memory_stats().live;
        void* p = allocate_counted(bytes);
        const int64_t taken = memory_stats().live - before;
        std::memset(p, 1, std::min<std::size_t>(bytes, 1 << 16));
        static_cast<char*>(p)[bytes - 1] = 1;
        const double most =
            bytes > 1 << 16 ? static_cast<double>(bytes + system_pages().size) : 1.25 * static_cast<double>(bytes) + 64;
        if (taken < static_cast<int64_t>(bytes) || static_cast<double>(taken) > most)
          FAIL(bytes << " bytes took " << taken);
        deallocate_counted(p, bytes);
        REQUIRE(memory_stats().live == before);
      }
  deallocate(allocate(0), 0);
  release_cached_memory();
}

TEST_CASE("allocator: what no machine has is a MemoryError", "[allocator]") {
  CHECK_THROWS_AS(allocate(SIZE_MAX), MemoryError);
  CHECK_THROWS_AS(allocate((std::size_t{1} << 46) + 1), MemoryError);
  const int64_t before = memory_stats().live;
  CHECK_THROWS_AS(allocate_counted(SIZE_MAX / 2), MemoryError);
  CHECK(memory_stats().live == before);
  // The error says for which tensor, and for which op where the op has said its name.
  const Tensor vast = expand(Tensor(1.f), {int64_t{1} << 42});
  CHECK_THROWS_WITH(clone(vast), StartsWith("clone: allocate: ") && EndsWith(" — for f32[4398046511104]"));
  CHECK_THROWS_WITH(cat({vast, vast}), StartsWith("cat: allocate: ") && EndsWith(" — for f32[8796093022208]"));
}

TEST_CASE("allocator: more than the system has left is refused at once, though it would give addresses",
          "[allocator]") {
  const int64_t all = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGE_SIZE),
                left = std::min(memory_left(), all);
  REQUIRE(left > 0);
  CHECK(has_room(1));
  CHECK(!has_room(std::size_t{1} << 60));
  if (left < all - (int64_t{256} << 20)) CHECK_THROWS_AS(empty({(left + all) / 2}, {boolean}), MemoryError);
}

TEST_CASE("allocator: a freed block is handed out again", "[allocator]") {
  if (!kCaches) return;
  for (std::size_t bytes : {64, 1000, 5000, 1 << 20}) {
    void* p = allocate(bytes);
    deallocate(p, bytes);
    void* q = allocate(bytes);
    CHECK(p == q);
    deallocate(q, bytes);
  }
}

TEST_CASE("memory_stats: live, peak and cached are exact", "[allocator]") {
  release_cached_memory();
  const MemoryStats start = memory_stats();
  CHECK(start.cached == 0);
  reset_peak_memory();
  CHECK(memory_stats().peak == start.live);
  {
    Tensor a = empty({1 << 18}), b = a, c = alias(a, Layout({2}, {1}, 0));  // 1 MB once
    const int64_t one = memory_stats().live - start.live;
    CHECK(one >= 1 << 20);
    CHECK(one <= (1 << 20) * 5 / 4);
    int64_t cached = 0;
    {
      Tensor d = empty({1 << 18});
      cached = memory_stats().cached;
    }
    CHECK(memory_stats().live == start.live + one);
    CHECK(memory_stats().peak == start.live + 2 * one);
    if (kCaches) CHECK(memory_stats().cached == cached + one);
    a = Tensor(), b = Tensor();
    CHECK(memory_stats().live == start.live + one);  // the alias still holds it
  }
  CHECK(memory_stats().live == start.live);
  if (kCaches) CHECK(memory_stats().cached > 0);
  release_cached_memory();
  CHECK(memory_stats().cached == 0);
  CHECK(memory_stats().live == start.live);
}

TEST_CASE("memory_stats: of a device, the CPU's are the process's and meta has none", "[allocator]") {
  { Tensor x = empty({1 << 18}); }
  reset_peak_memory(cpu);
  CHECK(memory_stats(cpu).peak == memory_stats().live);
  CHECK(memory_stats(cpu).live == memory_stats().live);
  CHECK_NOTHROW(reset_peak_memory(meta));
  CHECK(memory_stats(meta).peak == 0);
}

TEST_CASE("allocator: an op that throws gives its memory back", "[allocator]") {
  const int64_t start = memory_stats().live;
  Tensor x({1, 2, 3});
  for (int i = 0; i < 10; ++i) {
    CHECK_THROWS_AS(x + Tensor({1, 2}), Error);
    CHECK_THROWS_AS(exp(arange(3)), Error);
  }
  x = Tensor();
  CHECK(memory_stats().live == start);
}

TEST_CASE("allocator: blocks may be freed by another thread, also after theirs has ended", "[allocator]") {
  const int64_t start = memory_stats().live;
  std::mutex mutex;
  std::vector<std::pair<void*, std::size_t>> handed;
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread producer([&] {
    testing::Rand r(1);
    for (int i = 0; i < 30000; ++i) {
      const auto bytes = static_cast<std::size_t>(8 + r.below(r.below(20) ? 600 : 20000));
      void* p = allocate_counted(bytes);
      std::memset(p, static_cast<int>(bytes & 0xff), bytes);
      std::lock_guard lock(mutex);
      handed.emplace_back(p, bytes);
    }
    done = true;
  });
  auto drain = [&] {
    std::vector<std::pair<void*, std::size_t>> mine;
    {
      std::lock_guard lock(mutex);
      mine.swap(handed);
    }
    for (auto [p, bytes] : mine) {
      const auto* c = static_cast<const unsigned char*>(p);
      if (c[0] != (bytes & 0xff) || c[bytes - 1] != (bytes & 0xff)) ++wrong;
      deallocate_counted(p, bytes);
    }
  };
  while (!done) drain();
  producer.join();
  drain();
  CHECK(wrong == 0);
  CHECK(memory_stats().live == start);
}

TEST_CASE("allocator: tensors may outlive the thread that made them", "[allocator]") {
  const int64_t start = memory_stats().live;
  {
    Tensor x;
    std::thread([&] { x = ones({100}).requires_grad_() * 2.0; }).join();
    CHECK(x.to_vector()[99] == 2);
    std::thread([y = std::move(x)]() mutable { y = Tensor(); }).join();
  }
  CHECK(memory_stats().live == start);
}

TEST_CASE("allocator: the last tensors of a thread are freed, and made, when its cache is gone", "[allocator]") {
  const int64_t start = memory_stats().live;
  struct Last {
    Tensor* sum = nullptr;
    Tensor kept;
    ~Last() {
      if (sum) *sum = kept + 1.0;
    }
  };
  Tensor sum;
  std::thread([&] {
    thread_local Last last;  // made before the thread's first block, so that it goes after the blocks' cache
    last.sum = &sum;
    last.kept = ones({3});
  }).join();
  CHECK(sum.to_vector() == std::vector<float>{2, 2, 2});
  sum = Tensor();
  CHECK(memory_stats().live == start);
}

TEST_CASE("allocator: a refused allocation returns the cache, then is a MemoryError and loses nothing", "[allocator]") {
  if (!kCaches) return;  // and AddressSanitizer needs its address space
  if (!testing::MemoryLimit::works()) {
    WARN("not tested: memory has no limits here");
    return;
  }
  constexpr int64_t mb = 1 << 20;
  CHECK(testing::in_child([] {
          release_cached_memory();
          const testing::MemoryLimit limit(1000 * mb);
          const MemoryStats start = memory_stats();
          { Tensor a = empty({80 * mb}), b = empty({80 * mb}); }  // 640 MB, kept
          if (memory_stats().cached < 640 * mb) return "nothing is cached";
          { Tensor c = empty({150 * mb}); }  // of another size
          release_cached_memory();
          { const auto small = many_small(600 * mb); }
          Tensor keep = empty({100 * mb});  // 400 MB: small blocks must return as well
          std::string said;
          try {
            empty({500 * mb});
          } catch (const MemoryError& e) { said = e.what(); }
          if (said.find(std::to_string(2000 * mb)) == std::string::npos &&
              said.find(std::to_string(2000 * mb + 64)) == std::string::npos)  // with its header
            return "the error does not say how much was asked";
          if (said.find(std::to_string(memory_stats().live)) == std::string::npos) return "nor how much is live";
          for (int i = 0; i < 3; ++i) {
            try {
              const auto small = many_small(1200 * mb);
              return "more was given than there is";
            } catch (const MemoryError&) {}
          }
          keep = Tensor();
          if (memory_stats().live != start.live) return "memory was lost";
          { Tensor again = empty({200 * mb}); }
          if (sum(ones({1000}) + 1.0).item() != 2000) return "and ops fail";
          return "";
        }) == "");
}

TEST_CASE("allocator: the cache keeps no more than its limit, of small blocks too", "[allocator]") {
  if (!kCaches) return;
  constexpr int64_t mb = 1 << 20;
  const int64_t standard = cache_limit();
  CHECK(standard > 0);
  CHECK_THROWS_AS(set_cache_limit(-1), ValueError);
  release_cached_memory();
  const MemoryStats start = memory_stats();
  set_cache_limit(40 * mb);
  {
    std::vector<Tensor> all;
    for (int i = 0; i < 10; ++i) all.push_back(empty({2 * mb}));  // 8 MB each, and a little more
    for (const Tensor& x : many_small(128 * mb)) all.push_back(x);
  }
  CHECK(memory_stats().live == start.live);
  CHECK(memory_stats().cached > 20 * mb);
  CHECK(memory_stats().cached <= 40 * mb);
  CHECK(memory_stats().slabs - start.slabs <= 100 * mb);  // twice the limit, and what this thread keeps
  set_cache_limit(0);
  CHECK(memory_stats().cached == 0);
  { Tensor x = empty({mb}); }
  CHECK(memory_stats().cached == 0);
  release_cached_memory();
  CHECK(memory_stats().slabs - start.slabs <= mb);
  set_cache_limit(standard);
  CHECK(cache_limit() == standard);
}

TEST_CASE("allocator: blocks of every size share one limit, whichever are freed last", "[allocator]") {
  if (!kCaches) return;
  constexpr int64_t mb = 1 << 20;
  const int64_t standard = cache_limit();
  // Blocks of 40 KB are kept by size class, those of 1 MB in a heap: 6 MB of either.
  const auto blocks = [](int64_t each) {
    std::vector<Tensor> all;
    for (int64_t bytes = 0; bytes < 6 * mb; bytes += each) all.push_back(empty({each}, {boolean}));
    return all;
  };
  for (const bool large_last : {false, true}) {
    release_cached_memory();
    set_cache_limit(8 * mb);
    {
      const auto last = blocks(large_last ? mb : 40'000);
      const auto first = blocks(large_last ? 40'000 : mb);
    }
    INFO("large blocks " << (large_last ? "last" : "first"));
    CHECK(memory_stats().cached > 4 * mb);
    CHECK(memory_stats().cached <= 8 * mb);
  }
  set_cache_limit(standard);
}

TEST_CASE("allocator: a child of fork() computes and ends while threads of its parent allocate", "[allocator]") {
  if (!kCaches) return;  // AddressSanitizer's allocator may be locked when the child begins
  std::atomic<bool> done{false};
  auto work = [&] {
    while (!done) {
      std::vector<Tensor> all;
      for (int64_t i = 0; i < 600; ++i) all.push_back(empty({i * 20}));
      Tensor x = ones({1 << 18}) + 1.0;
    }
  };
  std::thread first(work), second(work);
  std::string said;
  for (int i = 0; i < 25 && said.empty(); ++i)
    said = testing::in_child([] {
      for (int64_t n : {10, 1000, 100000, 1000000})
        if (sum(ones({n}) + 1.0).item() != 2.0 * static_cast<double>(n)) return "wrong sum";
      return "";
    });
  done = true;
  first.join(), second.join();
  CHECK(said == "");
}
