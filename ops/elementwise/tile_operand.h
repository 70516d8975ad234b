// How the loops of map and of comparisons read their operands.
#pragma once

#include <sluice/core/kernel/strided.h>
#include <sluice/ops/shape/create.h>

#include <algorithm>

namespace sluice::detail {

/// An operand, read tile by tile. It is read once if it repeats after at most kTile elements. If each of its numbers
/// stands for at least kTile elements, each number is read once.
template <class T> class TileOperand {
 public:
  static constexpr int64_t kLength = 4096 / sizeof(T);  // shorter tiles are too much overhead for short formulas
  static constexpr int64_t kBuffer = kLength + kTile;   // room for a tile after the longest period
  TileOperand() = default;
  /// x, which must broadcast to `shape`. A transposed operand is first copied whole.
  TileOperand(const Tensor& x, const Shape& shape) : x_(reads_across(x.layout()) ? contiguous(x.detach()) : x) {
    walk_ = StridedRange(x_.layout().expanded(shape));
    at_ = x_.raw(), as_it_is_ = x.dtype() == dtype_of<T>();
    bf16_run_ = x.dtype() == bf16 && walk_.contiguous;
    if (walk_.rank == 0 || walk_.contiguous) return;
    const int last = walk_.rank - 1;
    numel_ = shape.numel();
    if (walk_.strides[0] == 0 && numel_ / walk_.shape[0] <= kTile) period_ = numel_ / walk_.shape[0];
    else if (walk_.strides[last] == 0) same_ = walk_.shape[last];
    if (same_ >= kTile) constant_ = same_, copies_ = std::min(kLength, constant_);
  }

  /// Address of the elements from i on, or null if they cannot be read in place; n becomes how many lie there.
  const T* in_place(int64_t i, int64_t& n) const {
    const T* at = reinterpret_cast<const T*>(at_);
    if (constant_ > 0) {
      int64_t number = i / constant_;
      n = std::min(n, (number + 1) * constant_ - i);
      if (!as_it_is_ || copies_ > 1) return nullptr;
      for (int d = walk_.rank - 2; d > 0; number /= walk_.shape[d], --d)
        at += number % walk_.shape[d] * walk_.strides[d];
      return at + number * walk_.strides[0];
    }
    if (!as_it_is_ || period_ > 0) return nullptr;
    if (walk_.contiguous) return at + i;
    const StridedRange::Run run = walk_.run(i);
    if (run.count == 0) return nullptr;
    n = std::min(n, run.count);
    return at + run.offset;
  }
  /// True if each number stands for many elements. From then on it is read in place, or the buffer holds it once.
  bool as_number() {
    constexpr int64_t kLeast = 192;  // as in StridedRange::run()
    if (as_it_is_ && same_ >= kLeast) constant_ = same_;
    if (constant_ > 0) copies_ = 1;
    return constant_ > 0;
  }
  /// True if every tile is read anew, unless it is read in place.
  bool varies() const { return period_ == 0 && constant_ == 0; }
  /// The n elements from i on, in the buffer. `held` says what the buffer holds; it must be −1 at first.
  const T* buffered(int64_t i, int64_t n, T* buffer, int64_t& held) const {
    if (period_ > 0) {
      if (held < 0) {
        const int64_t all = std::min(numel_, kLength + period_);
        read_tile(walk_, at_, x_.dtype(), 0, period_, buffer);
        if (period_ == 1) std::fill_n(buffer, all, buffer[0]);
        else
          for (int64_t have = period_; have < all; have *= 2)
            std::copy_n(buffer, std::min(have, all - have), buffer + have);
        held = 0;
      }
      return period_ == 1 ? buffer : buffer + i % period_;  // a tile begins anywhere in the period
    }
    if (constant_ > 0) {
      if (held == i / constant_) return buffer;
      held = i / constant_;
      read_tile(walk_, at_, x_.dtype(), held * constant_, copies_, buffer);
    } else if (bf16_run_) {
      const BFloat16* at = reinterpret_cast<const BFloat16*>(at_) + i;
      for (int64_t j = 0; j < n; ++j) buffer[j] = convert<T>(at[j]);
    } else {
      read_tile(walk_, at_, x_.dtype(), i, n, buffer);
    }
    return buffer;
  }

 private:
  Tensor x_;
  StridedRange walk_;
  const std::byte* at_ = nullptr;
  int64_t numel_ = 0;     // elements of `shape`
  int64_t period_ = 0;    // number of elements after which the operand repeats; 0: it does not, or after too many
  int64_t same_ = 0;      // number of neighbours that are one number
  int64_t constant_ = 0;  // number of elements for which each number stands; 0: few
  int64_t copies_ = 0;    // of each such number in the buffer
  bool as_it_is_ = false, bf16_run_ = false;
};

}  // namespace sluice::detail
