#include <sluice/core/memory/heap.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <string>

namespace sluice::detail {

namespace {

constexpr std::size_t kHuge = 1 << 21;  // a huge page; the heap grows by multiples of it
constexpr std::size_t kMuch = 1 << 30;  // has_room() checks from here on: writing to overcommitted memory may kill

/// Preferred begin of the heap: far from programs and libraries, with room to grow.
std::byte* const kBegin = sizeof(void*) == 8 ? reinterpret_cast<std::byte*>(std::uintptr_t{1} << 45) : nullptr;

/// Memory at `wanted` if possible, else elsewhere; null if the system has none. In huge pages where available: a page
/// fault brings 2 MB instead of 4 KB, and memory that no cache holds is read faster (87 MB in 3.7 instead of 4.9 ms on
/// two threads), because the processor need not look up an address for every 4 KB.
std::byte* map_pages(std::byte* wanted, std::size_t bytes) {
  if (!has_room(bytes)) return nullptr;
  void* p = ::mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
#if defined(MADV_HUGEPAGE)
  ::madvise(p, bytes, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(p);
}
void unmap_pages(std::byte* begin, std::size_t bytes) { ::munmap(begin, bytes); }

/// The number after `key` in a small system file; -1 if there is none.
int64_t number_in(const std::string& path, const char* key) {
  char text[4096];
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (!file) return -1;
  text[std::fread(text, 1, sizeof text - 1, file)] = '\0';
  std::fclose(file);
  long long number = -1;
  const char* at = std::strstr(text, key);
  return at && std::sscanf(at + std::strlen(key), "%lld", &number) == 1 ? number : -1;
}

}  // namespace

const Pages& system_pages() {
  static const Pages pages{static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), &map_pages, &unmap_pages};
  return pages;
}

int64_t memory_left(const std::string& root) {
  int64_t left = std::numeric_limits<int64_t>::max();
  const std::string system = root + "proc/meminfo";
  if (const int64_t kb = number_in(system, "MemAvailable:"); kb >= 0)
    left = 1024 * (kb + std::max<int64_t>(0, number_in(system, "SwapFree:")));
  const std::string groups = root + "sys/fs/cgroup/";
  const std::string names[][3] = {
      // the limit, what is used, and of what kind, in cgroup 2 and 1
      {"memory.max", "memory.current", "memory.stat"},
      {"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"}};
  for (const auto& [most, used, kinds] : names) {
    const int64_t limit = number_in(groups + most, "");
    if (limit < 0) continue;
    // Pages of files count as used, but the system drops them when it needs memory.
    int64_t in_use = std::max<int64_t>(0, number_in(groups + used, ""));
    for (const char* files : {"\ninactive_file ", "\nactive_file "})
      in_use -= std::max<int64_t>(0, number_in(groups + kinds, files));
    left = std::min(left, limit - std::clamp<int64_t>(in_use, 0, limit));
  }
  return left;
}

bool has_room(std::size_t bytes) { return bytes < kMuch || static_cast<int64_t>(bytes) <= memory_left(); }

void* Heap::take(std::size_t bytes) try {
  const std::size_t size = pages_.of(bytes);
  Range* range = best_fit(size);
  if (!range) range = grow_by(size);
  if (!range) return nullptr;
  Range* rest = nullptr;
  if (range->size > size) {
    std::byte* const begin = range->begin + size;
    rest = &ranges_.emplace(begin, Range{begin, range->size - size}).first->second;
  }
  take_from_bin(range);
  range->size = size;
  if (rest) put_in_bin(rest);
  return range->begin;
} catch (const std::bad_alloc&) {  // no memory for a Range: nothing has changed
  return nullptr;
}

void Heap::give(void* p) noexcept { release(&ranges_.find(static_cast<std::byte*>(p))->second); }

void Heap::trim(int64_t most) noexcept {
  for (int bin = kBins; bin-- > 0;)
    while (cached_ > most && bins_[bin]) {
      Range* const range = bins_[bin];
      const std::size_t cut = std::min(range->size, pages_.of(static_cast<std::size_t>(cached_ - most)));
      take_from_bin(range);
      range->size -= cut;
      pages_.unmap(range->begin + range->size, cut);
      if (range->size) put_in_bin(range);
      else ranges_.erase(range->begin);
    }
}

// -- the ranges ----------------------------------------------------------------------------------------------

/// The smallest free range of at least `size`; null if there is none.
Heap::Range* Heap::best_fit(std::size_t size) const {
  for (int bin = bin_of(size); bin < kBins; ++bin) {  // all ranges of a higher bin are larger
    Range* best = nullptr;
    for (Range* r = bins_[bin]; r && !(best && best->size == size); r = r->next)
      if (r->size >= size && (!best || r->size < best->size)) best = r;
    if (best) return best;
  }
  return nullptr;
}

/// A free range of at least `size` with new memory from the system, behind the last range if possible; null if the
/// system has none.
Heap::Range* Heap::grow_by(std::size_t size) {
  std::byte* end = kBegin;
  std::size_t there = 0;  // free bytes of the last range
  if (!ranges_.empty()) {
    const Range& last = std::prev(ranges_.end())->second;
    end = last.begin + last.size;
    if (last.free) there = last.size;
  }
  auto up = [](std::size_t bytes) { return (bytes + kHuge - 1) / kHuge * kHuge; };
  std::size_t more = up(size - there);
  std::byte* p = pages_.map(end, more);
  if (p && p != end && there) {  // the new memory lies elsewhere, and its size counted on `there`
    pages_.unmap(p, more);
    p = pages_.map(nullptr, more = up(size));
  }
  if (!p) return nullptr;
  try {
    return release(&ranges_.emplace(p, Range{p, more}).first->second);
  } catch (const std::bad_alloc&) {
    pages_.unmap(p, more);
    return nullptr;
  }
}

/// Frees a range and merges it with the free ranges that it touches. Returns the merged range.
Heap::Range* Heap::release(Range* range) noexcept {
  put_in_bin(range);
  const auto here = ranges_.find(range->begin);
  if (const auto next = std::next(here); next != ranges_.end()) join(range, &next->second);
  if (here == ranges_.begin()) return range;
  Range* const previous = &std::prev(here)->second;
  return join(previous, range) ? previous : range;
}

/// Merges two neighbours if both are free and touch. Returns whether it did.
bool Heap::join(Range* range, Range* next) noexcept {
  if (!range->free || !next->free || range->begin + range->size != next->begin) return false;
  take_from_bin(range);
  take_from_bin(next);
  range->size += next->size;
  ranges_.erase(next->begin);
  put_in_bin(range);
  return true;
}

// -- the bins ------------------------------------------------------------------------------------------------

/// Four bins to a power of two, as the size classes of the allocator.
int Heap::bin_of(std::size_t size) {
  const int k = std::bit_width(size) - 1;
  return std::min(kBins - 1, 4 * (k - 12) + static_cast<int>(size >> (k - 2) & 3));
}

void Heap::put_in_bin(Range* range) noexcept {
  Range*& first = bins_[bin_of(range->size)];
  range->free = true, range->previous = nullptr, range->next = first;
  if (first) first->previous = range;
  first = range;
  cached_ += static_cast<int64_t>(range->size);
}

void Heap::take_from_bin(Range* range) noexcept {
  (range->previous ? range->previous->next : bins_[bin_of(range->size)]) = range->next;
  if (range->next) range->next->previous = range->previous;
  range->free = false;
  cached_ -= static_cast<int64_t>(range->size);
}

}  // namespace sluice::detail
