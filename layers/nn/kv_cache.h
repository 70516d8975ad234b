// What a stream of attention keeps of earlier tokens: keys, values, and whatever else a layer reads by token.
#pragma once

#include <sluice/core/tensor.h>

#include <vector>

namespace sluice {

/// A KvCache is a value. A copy shares memory until one of the two is appended to; that one then takes its own memory.
///
/// Rows are only added, behind the last one. Without a window the capacity at least doubles, so a token costs O(1)
/// copies, amortised. With a window of W it ends at 5/4·W rows, or W + 1: when these are full, the last W move to new
/// memory.
struct KvCache {
  /// keys, values, …: [batch, heads, capacity, width], each with its own heads and width.
  std::vector<Tensor> buffers;
  int64_t length = 0;    // tokens seen
  int64_t first = 0;     // position of the first row of the buffers
  int64_t window = 0;    // W; 0 keeps everything
  int64_t reserved = 0;  // rows of the buffers from the first on, where a layer knows how many (Flash); 0: they grow

  /// Stores m more tokens, each of `fresh` [batch, heads, m, width]. Returns for each all rows that their queries may
  /// look at, by position: everything so far, or with a window the W − 1 rows before and the m new ones. Where the
  /// buffers must grow they get room for `expected` tokens in all. Without history. ShapeError when the shapes do not
  /// continue the stream, ValueError for another window than before.
  std::vector<Tensor> append(const std::vector<Tensor>& fresh, int64_t window = 0, int64_t expected = 0);
  /// Undoes the last append(); without a window undoes all appends since the cache had `before` tokens.
  void take_back(int64_t before) noexcept;
  /// Frees memory beyond the stored rows. Changes nothing if there is no memory for their copy.
  void trim() noexcept;
  /// Number of rows kept: length, or with a window at most W.
  int64_t stored() const { return window > 0 && window < length ? window : length; }
  /// The stored rows by position, each [batch, heads, stored(), width]. Throws ValueError for an empty cache.
  std::vector<Tensor> rows() const;
  /// How many numbers the stored rows hold.
  int64_t numel() const;
};

}  // namespace sluice
