// The heap of large blocks, against a plain list of what is taken.
#include <sluice/core/memory/heap.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <vector>

using namespace sluice;
using namespace sluice::detail;

namespace {

constexpr int64_t mb = 1 << 20;

/// A system with pages of 64 KB on one with smaller ones: what begins or ends within a page cannot be returned.
constexpr std::size_t kLargePage = 1 << 16;
int torn_pages = 0;
std::byte* map_large(std::byte* wanted, std::size_t bytes) {
  const Pages& system = system_pages();
  std::byte* const p = system.map(wanted, bytes + kLargePage);
  if (!p) return nullptr;
  const std::size_t before = (kLargePage - reinterpret_cast<std::uintptr_t>(p) % kLargePage) % kLargePage;
  if (before) system.unmap(p, before);
  system.unmap(p + before + bytes, kLargePage - before);
  return p + before;
}
void unmap_large(std::byte* begin, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(begin) % kLargePage || bytes % kLargePage) ++torn_pages;
  else system_pages().unmap(begin, bytes);
}
constexpr Pages kLargePages{kLargePage, &map_large, &unmap_large};

/// Takes, gives and trims at random.
void walk(const Pages& pages) {
  Heap heap(pages);
  testing::Rand r(7);
  struct Block {
    std::size_t bytes;
    int tag;
  };
  std::map<std::byte*, Block> live;
  int64_t used = 0, most_used = 0;
  for (int step = 0; step < 20000; ++step) {
    if (r.below(2) || live.empty()) {
      if (live.size() > 60) continue;
      const auto bytes = static_cast<std::size_t>(1 + (r.below(8) ? r.below(300000) : r.below(3000000)));
      auto* p = static_cast<std::byte*>(heap.take(bytes));
      REQUIRE(p);
      REQUIRE(reinterpret_cast<std::uintptr_t>(p) % pages.size == 0);
      const auto next = live.lower_bound(p);
      if (next != live.end()) REQUIRE(p + bytes <= next->first);
      if (next != live.begin()) REQUIRE(std::prev(next)->first + std::prev(next)->second.bytes <= p);
      p[0] = p[bytes - 1] = static_cast<std::byte>(step);
      live[p] = {bytes, step};
      used += static_cast<int64_t>(pages.of(bytes));
      most_used = std::max(most_used, used);
    } else {
      const auto it = std::next(live.begin(), r.below(static_cast<int64_t>(live.size())));
      const auto& [bytes, tag] = it->second;
      REQUIRE(it->first[0] == static_cast<std::byte>(tag));
      REQUIRE(it->first[bytes - 1] == static_cast<std::byte>(tag));
      used -= static_cast<int64_t>(pages.of(bytes));
      heap.give(it->first);
      live.erase(it);
    }
    if (step % 1000 == 999) heap.trim(step % 2000 == 999 ? 0 : mb);
  }
  for (const auto& [p, block] : live) heap.give(p);
  const int64_t all = heap.cached();
  CHECK(all > 0);
  CHECK(all < 2 * most_used);
  heap.trim(0);
  CHECK(heap.cached() == 0);
}

}  // namespace

TEST_CASE("heap: blocks lie apart, keep their bytes, and all become one again", "[allocator]") { walk(system_pages()); }

TEST_CASE("heap: where pages are larger, what returns to the system is whole pages of it", "[allocator]") {
  torn_pages = 0;
  walk(kLargePages);
  CHECK(torn_pages == 0);
}

TEST_CASE("heap: neighbours that are free serve a larger request, the smallest range a small one", "[allocator]") {
  Heap heap;
  heap.give(heap.take(32 * mb));
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(heap.take(mb));
  const int64_t rest = heap.cached();
  CHECK(rest == 16 * mb);
  for (int i : {3, 5, 4}) heap.give(blocks[static_cast<std::size_t>(i)]);  // behind, before, between
  heap.give(blocks[9]);
  CHECK(heap.cached() == rest + 4 * mb);
  CHECK(heap.take(mb - 5) == blocks[9]);  // fits exactly
  CHECK(heap.take(2 * mb) == blocks[3]);
  CHECK(heap.take(mb) == blocks[5]);  // the rest
  CHECK(heap.cached() == rest);
}

TEST_CASE("heap: trimming leaves what it may", "[allocator]") {
  Heap heap;
  void* a = heap.take(64 * mb);
  void* b = heap.take(mb);
  heap.give(a);
  heap.trim(40 * mb);
  CHECK(heap.cached() == 40 * mb);
  void* c = heap.take(38 * mb);  // of what is left, wherever the system had put it
  CHECK(heap.cached() == 2 * mb);
  std::memset(c, 1, 38 * mb);
  heap.trim(0);
  CHECK(heap.cached() == 0);
  std::memset(b, 1, mb);
  heap.give(b);
  CHECK(heap.take(std::size_t{1} << 62) == nullptr);
}

TEST_CASE("memory_left: the system's, or what a container's limit leaves, without pages of files", "[allocator]") {
  const testing::TempFolder root;
  const auto write = [&](const char* name, const char* text) {
    std::filesystem::create_directories(std::filesystem::path(root / name).parent_path());
    root.put(name, text);
  };
  const auto left = [&] { return memory_left(root / ""); };
  CHECK(left() == std::numeric_limits<int64_t>::max());

  write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\nSwapTotal: 800 kB\nSwapFree: 700 kB\n");
  CHECK(left() == 5700 * 1024);

  write("sys/fs/cgroup/memory.max", "max\n");
  CHECK(left() == 5700 * 1024);
  write("sys/fs/cgroup/memory.max", "99000000000\n");
  CHECK(left() == 5700 * 1024);
  write("sys/fs/cgroup/memory.max", "4000000\n");
  CHECK(left() == 4000000);
  write("sys/fs/cgroup/memory.current", "3000000\n");
  CHECK(left() == 1000000);
  write("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 200000\nactive_file 30000\nslab 7\n");
  CHECK(left() == 1230000);
  write("sys/fs/cgroup/memory.current", "4100000\n");  // above the limit for a moment
  CHECK(left() == 130000);
  write("sys/fs/cgroup/memory.current", "4900000\n");
  CHECK(left() == 0);

  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n");
  write("sys/fs/cgroup/memory/memory.stat", "cache 3\ninactive_file 1000\n");
  CHECK(left() == 2501000);
}
