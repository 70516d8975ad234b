// Keys and values of earlier tokens: the state of streaming softmax attention.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice {

/// A value: a copy shares memory until one of the copies is appended to, which then takes memory of its own.
///
/// Without a window capacity doubles, so a token costs O(1) copies, amortised. With a window of W only the last W
/// rows are kept: once full, the row of position p is p mod W, and the memory never grows again (SPEC §8).
struct KvCache {
  Tensor keys, values;  // [batch, heads, capacity, ·]
  int64_t length = 0;   // tokens seen
  int64_t window = 0;   // W; 0 keeps everything

  struct Rows {
    Tensor keys, values;  // [batch, heads, rows, ·]
  };
  enum class Order { position, any };

  /// Stores m more tokens, k [batch, heads, m, d] and v [batch, heads, m, dv]. Returns all rows that their queries
  /// may look at, the new ones last: everything so far, or with a window the W − 1 rows before and the m new
  /// ones. With Order::any they may come permuted where that saves a copy. Without history. ShapeError when the
  /// shapes do not continue the stream.
  Rows append(const Tensor& k, const Tensor& v, Order order = Order::position);
  /// Number of rows kept: length, or with a window at most W.
  int64_t stored() const { return window > 0 && window < length ? window : length; }
  /// The stored rows by position, [batch, heads, stored(), ·].
  Tensor stored_keys() const { return in_order(keys); }
  Tensor stored_values() const { return in_order(values); }
  /// Numbers in the stored rows: batch · heads · stored() · (d + dv).
  int64_t numel() const;

 private:
  Tensor in_order(const Tensor& ring) const;
};

}  // namespace sluice
