// Rows that a scan needs soon. In a tensor [batch, n, heads, width] the rows of a head lie far apart. Processors do not
// foresee such accesses, so a chunk would wait for all of its operands. Here a chunk fetches the rows of the next one
// into L2. A core has few reads under way at once: a chunk's worth in a row would hold up the product behind them, so
// the chunk fetches a part before each of its products. Rows to be written gain as much, as they are read first.
#pragma once

#include <sluice/ops/attention/heads.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice::detail {

/// The rows of some steps in up to kMost tensors.
template <class T> class RowsAhead {
 public:
  /// Begins anew, with steps [first, first + count) as far as they are within [0, n), to be fetched by `parts` calls.
  void begin(int64_t first, int64_t count, int64_t n, int64_t parts) {
    step_ = std::max<int64_t>(first, 0), end_ = std::min(first + count, n), at_once_ = ceil_div(count, parts);
    tensors_ = 0;
  }
  /// Adds columns [col, col + width) of head h of batch b in each of `views`. Tensors whose rows lie one behind the
  /// other are left out: processors foresee those.
  template <class... X> void add(int64_t b, int64_t h, int64_t col, int64_t width, const HeadView<X>&... views) {
    const auto one = [&](const auto& x) {
      if (x.row > width) columns_[tensors_++] = {x.at(b, h, 0) + col, x.row, width};
    };
    (one(views), ...);
  }
  /// Fetches the next part.
  void fetch() {
    each_line([](const T* line) { __builtin_prefetch(line, 0, 2); });
  }
  /// Calls f with the beginning of each line of 64 bytes of the next part.
  template <class F> void each_line(F f) {
    for (const int64_t last = std::min(step_ + at_once_, end_); step_ < last; ++step_)
      for (std::size_t i = 0; i < tensors_; ++i)
        for (int64_t c = 0; c < columns_[i].width; c += 64 / int64_t{sizeof(T)})
          f(columns_[i].head + step_ * columns_[i].row + c);
  }

 private:
  static constexpr std::size_t kMost = 9;
  struct Columns {
    const T* head;  // of step 0
    int64_t row, width;
  };
  std::array<Columns, kMost> columns_;
  std::size_t tensors_ = 0;
  int64_t step_ = 0, end_ = 0, at_once_ = 0;
};

}  // namespace sluice::detail
