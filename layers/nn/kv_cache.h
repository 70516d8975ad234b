// What a stream of attention keeps of earlier tokens: keys, values, and whatever else a layer reads by token.
#pragma once

#include <sluice/core/tensor.h>

#include <vector>

namespace sluice {

/// A KvCache is a value. A copy shares memory until one of the two is appended to; that one then takes its own memory.
///
/// Without a window the capacity at least doubles, so a token costs O(1) copies, amortised. With a window of W only the
/// last W rows are kept: once the cache is full, the row of position p is p mod W, and the memory never grows again.
struct KvCache {
  /// keys, values, …: [batch, heads, capacity, width], each with its own heads and width.
  std::vector<Tensor> rings;
  int64_t length = 0;    // tokens seen
  int64_t window = 0;    // W; 0 keeps everything
  int64_t reserved = 0;  // rows of the rings from the first on, where a layer knows how many (Flash); 0: they grow
  /// Of the last append(): the rows that it overwrote in each ring.
  std::vector<Tensor> overwritten = {};

  /// Whether rows must come in the order of positions.
  enum class Order { position, any };

  /// Stores m more tokens, each of `fresh` [batch, heads, m, width]. Returns for each all rows that their queries may
  /// look at, the new ones last: everything so far, or with a window the W − 1 rows before and the m new ones. With
  /// Order::any they may come permuted where that saves a copy. Where the rings must grow they get room for `expected`
  /// tokens in all. Without history. ShapeError when the shapes do not continue the stream, ValueError for another
  /// window than before.
  std::vector<Tensor> append(const std::vector<Tensor>& fresh, int64_t window = 0, Order order = Order::position,
                             int64_t expected = 0);
  /// Takes back the last append(), without a window all since then: the cache has `before` tokens again.
  void take_back(int64_t before);
  /// Number of rows kept: length, or with a window at most W.
  int64_t stored() const { return window > 0 && window < length ? window : length; }
  /// The stored rows by position, each [batch, heads, stored(), width]. Throws ValueError for an empty cache.
  std::vector<Tensor> rows() const;
  /// How many numbers the stored rows hold.
  int64_t numel() const;
};

}  // namespace sluice
