// A mask (ops/attention/attention_mask.h) for kernels: its rules for single pairs, and the spans of visible rows.
#pragma once

#include <sluice/cuda/tensors.h>
#include <sluice/ops/attention/attention_mask.h>

#include <optional>
#include <vector>

namespace sluice::cuda {

/// Positions [begin, end) of rows or columns.
struct Span {
  int64_t begin, end;
  __device__ bool holds(int64_t i) const { return i >= begin && i < end; }
};

/// A bool or i64 tensor of the mask, broadcast; `at` is null if the mask has none.
template <class T, int rank> struct MaskTensor {
  const T* at = nullptr;
  int64_t strides[rank] = {};
  MaskTensor() = default;
  /// x may have any shape that expands to `shape`.
  MaskTensor(const Tensor& x, const Shape& shape) : at(data_or_null<T>(x)) {
    if (!at) return;
    const Layout l = x.layout().expanded(shape);
    for (int d = 0; d < rank; ++d) strides[d] = l.strides[d];
  }
};

struct MaskView {
  int64_t m, n, reach, dilation;  // reach: (window − 1)·dilation, or beyond every position without a window
  bool causal, windowed, banded, only_span;
  const bool* global = nullptr;  // by position, if there are any
  MaskTensor<bool, 3> keys;      // [batch, heads, n]
  MaskTensor<int64_t, 2> query_segments, key_segments;
  MaskTensor<bool, 4> blocks;                  // [batch, groups of heads, rows, cols]
  int64_t block, block_rows, block_heads = 1;  // keys of a block; queries and heads that share its row
  MaskTensor<bool, 4> dense;

  /// True if query `row` may see key `col`.
  __device__ bool allowed(int64_t batch, int64_t head, int64_t row, int64_t col) const {
    const int64_t p = row + n - m;
    if (causal && col > p) return false;
    if (banded && !(global && p >= 0 && global[p])) {
      const int64_t distance = p < col ? col - p : p - col;
      if ((distance > reach || (dilation > 1 && distance % dilation != 0)) && !(global && global[col])) return false;
    }
    if (only_span) return true;
    if (blocks.at && !blocks.at[batch * blocks.strides[0] + head / block_heads * blocks.strides[1] +
                                row / block_rows * blocks.strides[2] + col / block * blocks.strides[3]])
      return false;
    if (keys.at && !keys.at[batch * keys.strides[0] + head * keys.strides[1] + col * keys.strides[2]]) return false;
    if (query_segments.at && query_segments.at[batch * query_segments.strides[0] + row * query_segments.strides[1]] !=
                                 key_segments.at[batch * key_segments.strides[0] + col * key_segments.strides[1]])
      return false;
    return !dense.at || dense.at[batch * dense.strides[0] + head * dense.strides[1] + row * dense.strides[2] +
                                 col * dense.strides[3]];
  }
  /// The keys that query `row` may see by the rules that give an interval: causal, and window without global positions.
  /// Both ends grow with the row.
  SLUICE_FN Span keys_of(int64_t row) const {
    const int64_t p = row + n - m;
    Span s{0, n};
    if (causal) s.end = clipped(p + 1, n);
    if (windowed) s.begin = clipped(p - reach, n), s.end = s.end < p + reach + 1 ? s.end : p + reach + 1;
    return {s.begin, s.end < s.begin ? s.begin : s.end};
  }
  /// The queries that may see key `col`, by the rules of keys_of.
  __device__ Span queries_of(int64_t col) const {
    const int64_t row = col - (n - m);  // the query at the key's position
    Span s{0, m};
    if (causal) s.begin = clipped(row, m);
    if (windowed) {
      const int64_t first = clipped(row - reach, m), end = clipped(row + reach + 1, m);
      s = {s.begin > first ? s.begin : first, end};
    }
    return {s.begin, s.end < s.begin ? s.begin : s.end};
  }
  /// The keys that any of `count` queries from `row` on may see; the queries that may see any of `count` keys from col.
  SLUICE_FN Span keys_of(int64_t row, int64_t count) const {
    return {keys_of(row).begin, keys_of(row + count - 1).end};
  }
  __device__ Span queries_of(int64_t col, int64_t count) const {
    return {queries_of(col).begin, queries_of(col + count - 1).end};
  }
  /// True if the spans alone show that rows [row, row + rows) see all of columns [col, col + cols).
  __device__ bool all(int64_t row, int64_t rows, int64_t col, int64_t cols) const {
    return only_span && keys_of(row + rows - 1).begin <= col && keys_of(row).end >= col + cols;
  }

 private:
  static SLUICE_FN int64_t clipped(int64_t i, int64_t end) { return i < 0 ? 0 : i < end ? i : end; }
};

/// A mask for kernels: its view, valid while this object lives, and the table of global positions on the device.
class DeviceMask {
 public:
  DeviceMask(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n);
  MaskView view;

 private:
  std::optional<Scratch<bool>> global_;
};

}  // namespace sluice::cuda
