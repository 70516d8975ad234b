// Large blocks of the allocator: cut from ranges of addresses that grow, and joined again when they are free.
//
// Best fit: a request takes the smallest free range that holds it, and what it leaves stays free. A freed block joins
// the free ranges before and behind it, so that memory which held sixteen small tensors can hold a large one: a cache by
// size would keep both. Sizes are whole pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace sluice::detail {

class Heap {
 public:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t pages_of(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

  /// A block of at least `bytes` > 0, at a multiple of 4 KB; null if the system has none.
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

  std::map<std::byte*, Range> ranges_;  // every one, used or free, by its beginning
  Range* bins_[kBins] = {};
  int64_t cached_ = 0;
};

}  // namespace sluice::detail
