// What linear_scan's kernel reads and writes, and which part of it a step of the kernel works on.
#pragma once

#include <sluice/ops/attention/heads.h>
#include <sluice/ops/scan/linear_scan.h>

#include <cstdint>

namespace sluice::detail {

/// Steps [first, first + count) of head h of batch b, and columns [col, col + cols) of its values.
struct ScanPiece {
  int64_t b, h, first, count, col, cols;
};

/// Of the whole state, of its rows, or of its columns.
enum class ScanDecay { none, scalar, keys, values };
inline ScanDecay kind_of_decay(const Tensor& g, const LinearScanOptions& o) {
  if (!g.defined()) return ScanDecay::none;
  if (g.rank() == 3) return ScanDecay::scalar;
  return o.decay_on_values ? ScanDecay::values : ScanDecay::keys;
}

template <class T> struct ScanOperands {
  const LinearScanOptions& o;
  HeadView<const T> q, k, v;
  HeadView<T> out;
  const T* g;  // [batch, heads, n, channels]
  ScanDecay decay;
  bool by_channel = decay == ScanDecay::keys || decay == ScanDecay::values;
  int64_t heads, group, n, m, e, channels;  // group: heads of v that read a head of k; channels of g: 1, m or e
  bool thin = m == 1 || e == 1;             // S is a row or a column

  ScanOperands(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& g_, const LinearScanOptions& options,
               Tensor& y)
      : o(options), q(q_), k(k_), v(v_), out(y), g(g_.defined() ? g_.data<T>() : nullptr),
        decay(kind_of_decay(g_, options)), heads(v_.dim(1)), group(heads / q_.dim(1)), n(q_.dim(2)), m(q_.dim(3)),
        e(v_.dim(3)), channels(by_channel ? g_.dim(3) : 1) {}

  /// The row of the tensors that is step i of a piece.
  int64_t row_of(const ScanPiece& p, int64_t i) const { return o.reverse ? p.first + p.count - 1 - i : p.first + i; }
  /// The decays of head h of batch b; null if there are none.
  const T* decays(int64_t b, int64_t h) const { return g ? g + (b * heads + h) * n * channels : nullptr; }
  /// Those of a row, for the columns of the piece.
  const T* decays(const ScanPiece& p, int64_t row) const {
    return decays(p.b, p.h) + row * channels + (decay == ScanDecay::values ? p.col : 0);
  }
};

}  // namespace sluice::detail
