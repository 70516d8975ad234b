// Large blocks of the allocator: cut from address ranges that grow, and merged again when they are free.
//
// Best fit: a request takes the smallest free range that holds it, and the rest of the range stays free. A freed block
// merges with the free ranges before and behind it, so memory that held sixteen small tensors can hold a large one; a
// cache by size would keep both. Sizes are whole pages of the system: part of a page cannot be returned, because the
// system would take back the whole page with all blocks on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace sluice::detail {

/// The system calls of the heap. Tests use larger pages than this machine's.
struct Pages {
  std::size_t size;  // bytes of a page, a power of two: 4 KB on x86-64, on arm64 4, 16 or 64 KB
  std::byte* (*map)(std::byte* wanted, std::size_t bytes);  // at `wanted` if possible, else elsewhere; null: none
  void (*unmap)(std::byte* begin, std::size_t bytes);

  /// `bytes`, rounded up to whole pages.
  std::size_t of(std::size_t bytes) const { return (bytes + size - 1) & ~(size - 1); }
};
/// The pages of this system.
const Pages& system_pages();
/// Bytes that the system has for a program: available memory and swap, at most what the container's limit leaves. On
/// Linux; elsewhere INT64_MAX. The system's files lie below `root`.
int64_t memory_left(const std::string& root = "/");
/// False for a request of 1 GB or more that exceeds memory_left(), so that it fails now and not when its pages are
/// written.
bool has_room(std::size_t bytes);

class Heap {
 public:
  explicit Heap(const Pages& pages = system_pages()) : pages_(pages) {}

  /// A block of at least `bytes` > 0, at the beginning of a page; null if the system has none.
  void* take(std::size_t bytes);
  /// Frees a block from take().
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
    Range *next = nullptr, *previous = nullptr;  // among the free ranges of its bin
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
  std::map<std::byte*, Range> ranges_;  // all ranges, used or free, by `begin`
  Range* bins_[kBins] = {};
  int64_t cached_ = 0;
};

}  // namespace sluice::detail
