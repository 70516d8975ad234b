// Large blocks of the allocator: cut from ranges of addresses that grow, and joined again when they are free.
//
// Best fit: a request takes the smallest free range that holds it, and what it leaves stays free. A freed block joins
// the free ranges before and behind it, so that memory which held sixteen small tensors can hold a large one: a cache by
// size would keep both. Sizes are whole pages of the system: part of a page cannot be returned, and a system asked for it
// takes all of the page, with what lives beside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace sluice::detail {

/// What the heap asks of the system. Tests have one with larger pages than this machine's.
struct Pages {
  std::size_t size;  ///< bytes of a page, a power of two: 4 KB on x86-64, on arm64 4, 16 or 64 KB
  std::byte* (*map)(std::byte* wanted, std::size_t bytes);  ///< at `wanted` if that can be had, else elsewhere; null: none
  void (*unmap)(std::byte* begin, std::size_t bytes);

  /// The bytes of the pages that hold so many.
  std::size_t of(std::size_t bytes) const { return (bytes + size - 1) & ~(size - 1); }
};
/// Those of this system.
const Pages& system_pages();
/// Bytes that the system says it has for a program: available memory and swap, at most what a container may have. On Linux;
/// elsewhere INT64_MAX.
int64_t memory_left();
/// False for a request, of 1 GB or more, that exceeds memory_left(): it fails now, and not when its pages are written.
bool has_room(std::size_t bytes);

class Heap {
 public:
  explicit Heap(const Pages& pages = system_pages()) : pages_(pages) {}

  /// A block of at least `bytes` > 0, at the beginning of a page; null if the system has none.
  void* take(std::size_t bytes);
  /// A block that was taken.
  void give(void* p) noexcept;
  /// Returns free ranges to the system, the largest first, until no more than `most` bytes of them are kept.
  void trim(int64_t most) noexcept;
  /// Bytes of the free ranges.
  int64_t cached() const { return cached_; }

 private:
  struct Range {
    std::byte* begin;
    std::size_t size;
    bool free = false;
    Range *next = nullptr, *previous = nullptr;  // of the free ones in its bin
  };
  static constexpr int kBins = 4 * 48;
  static int bin_of(std::size_t size);
  Range* best_fit(std::size_t size) const;
  Range* grow_by(std::size_t size);
  Range* release(Range* range) noexcept;
  bool join(Range* range, Range* next) noexcept;
  void put_in_bin(Range* range) noexcept;
  void take_from_bin(Range* range) noexcept;

  const Pages pages_;
  std::map<std::byte*, Range> ranges_;  // every one, used or free, by its beginning
  Range* bins_[kBins] = {};
  int64_t cached_ = 0;
};

}  // namespace sluice::detail
