// The allocator: alignment, exact statistics, reuse, and blocks that change threads.
#include <sluice/core/allocator.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/tensor.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

using namespace sluice;
using namespace sluice::detail;

namespace {
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
    for (std::size_t base : {std::size_t{4} << (k - 2), std::size_t{5} << (k - 2), std::size_t{6} << (k - 2), std::size_t{7} << (k - 2)})
      for (std::size_t bytes : {base - 1, base, base + 1}) {
        const int64_t before = memory_stats().live;
        void* p = allocate_counted(bytes);
        const int64_t taken = memory_stats().live - before;
        std::memset(p, 1, std::min<std::size_t>(bytes, 1 << 16));
        static_cast<char*>(p)[bytes - 1] = 1;
        if (taken < static_cast<int64_t>(bytes) || static_cast<double>(taken) > 1.25 * static_cast<double>(bytes) + 64)
          FAIL(bytes << " bytes took " << taken);
        deallocate_counted(p, bytes);
        REQUIRE(memory_stats().live == before);
      }
  deallocate(allocate(0), 0);
  release_cached_memory();
}

TEST_CASE("allocator: what no machine has is bad_alloc", "[allocator]") {
  CHECK_THROWS_AS(allocate(SIZE_MAX), std::bad_alloc);
  CHECK_THROWS_AS(allocate((std::size_t{1} << 46) + 1), std::bad_alloc);
  const int64_t before = memory_stats().live;
  CHECK_THROWS_AS(allocate_counted(SIZE_MAX / 2), std::bad_alloc);
  CHECK(memory_stats().live == before);
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
    { Tensor d = empty({1 << 18}); }
    CHECK(memory_stats().live == start.live + one);
    CHECK(memory_stats().peak == start.live + 2 * one);
    if (kCaches) CHECK(memory_stats().cached == one);
    a = Tensor(), b = Tensor();
    CHECK(memory_stats().live == start.live + one);  // the alias still holds it
  }
  CHECK(memory_stats().live == start.live);
  if (kCaches) CHECK(memory_stats().cached > 0);
  release_cached_memory();
  CHECK(memory_stats().cached == 0);
  CHECK(memory_stats().live == start.live);
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
