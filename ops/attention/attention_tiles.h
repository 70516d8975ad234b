// What the forward and the backward kernel share: how they find their operands, and one tile of scores,
//
//   s = ρ (cap(scale · Q_i K_jᵀ) + bias)          rows × cols, behind the mask
//
// A tile that the mask forbids is never computed; one it allows in places is masked row by row.
#pragma once

#include <sluice/core/math.h>
#include <sluice/core/random.h>
#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/few_rows.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice::detail {

/// Numbers of a piece of memory after which another one begins on a line of the cache.
inline int64_t lines(int64_t numbers) { return (numbers + 15) / 16 * 16; }

template <class T>
struct ScoreTiles {
  struct Tile {
    int64_t batch, head, row, rows, col, cols;
    bool masked;  // some pairs are forbidden
  };

  const AttentionOptions& o;
  int64_t batch, heads, kv_heads, m, n, d, dv;
  Heads<const T> q, k, v;
  Visibility visibility;
  uint64_t seed, offset;
  Precision precision = sluice::precision();
  const T* bias = nullptr;
  int64_t bias_stride[4] = {0, 0, 0, 0};
  const T* relative = nullptr;
  int64_t relative_head = 0;
  const T* row_scale = nullptr;
  int64_t row_scale_stride[3] = {0, 0, 0};

  explicit ScoreTiles(const AttentionCall& c)
      : o(c.options), batch(c.q.dim(0)), heads(c.q.dim(1)), kv_heads(c.k.dim(1)), m(c.q.dim(2)), n(c.k.dim(2)),
        d(c.q.dim(3)), dv(c.v.dim(3)), q(c.q), k(c.k), v(c.v), visibility(o.mask, batch, heads, m, n), seed(c.seed),
        offset(c.offset) {
    if (o.bias.defined()) {
      const Layout l = o.bias.layout().expanded({batch, heads, m, n});
      std::copy_n(l.strides.begin(), 4, bias_stride);
      bias = o.bias.data<T>();
    }
    if (o.relative_bias.defined()) {
      relative = o.relative_bias.data<T>();
      relative_head = o.relative_bias.dim(0) > 1 ? o.relative_bias.strides()[0] : 0;
    }
    if (o.row_scale.defined()) {
      const Layout l = o.row_scale.layout().expanded({batch, heads, m});
      std::copy_n(l.strides.begin(), 3, row_scale_stride);
      row_scale = o.row_scale.data<T>();
    }
  }

  /// Whether products of so many rows are made without gemm. Of one row gemm, too, computes in f32.
  bool few(int64_t rows) const { return rows == 1 || (rows <= kFewRows && precision == Precision::f32); }
  int64_t kv_head(int64_t head) const { return head / (heads / kv_heads); }
  T rho(int64_t b, int64_t h, int64_t row) const {
    return row_scale ? row_scale[b * row_scale_stride[0] + h * row_scale_stride[1] + row * row_scale_stride[2]] : T(1);
  }
  /// The columns that rows [row, row + rows) can see at all.
  Visibility::Span columns(int64_t row, int64_t rows) const {
    const auto first = visibility.span(row), last = visibility.span(row + rows - 1);
    return {std::min(first.begin, last.begin), std::max(first.end, last.end)};
  }

  /// Scores of a tile, row-major with leading dimension ld; forbidden ones are whatever they are. keys: the tile's,
  /// transposed, if they are packed already; ready: its rows, too. slope: to be filled with cap', where there is a cap.
  void scores(const Tile& t, T* s, int64_t ld, const PackedB<T>* keys = nullptr, const PackedA<T>* ready = nullptr,
              T* slope = nullptr) const {
    const T* queries = q.at(t.batch, t.head, t.row);
    if (keys && ready) keys->multiply(*ready, 0, t.rows, T(*o.scale), T(0), s, ld, 0, keys->panels());
    else if (keys) keys->multiply(Read::plain, t.rows, T(*o.scale), queries, q.row, T(0), s, ld);
    else if (few(t.rows))
      few_dots(t.rows, t.cols, d, T(*o.scale), queries, q.row, k.at(t.batch, kv_head(t.head), t.col), k.row, s, ld);
    else
      gemm(Read::plain, Read::transposed, t.rows, t.cols, d, T(*o.scale), queries, q.row,
           k.at(t.batch, kv_head(t.head), t.col), k.row, T(0), s, ld, precision);
    if (o.softcap > 0) {
      const T cap = T(o.softcap), inverse = T(1 / o.softcap);
      for (int64_t r = 0; r < t.rows; ++r) {
        T* __restrict__ line = s + r * ld;
        for (int64_t j = 0; j < t.cols; ++j) line[j] = math::tanh(line[j] * inverse);
        for (int64_t j = 0; slope && j < t.cols; ++j) slope[r * ld + j] = 1 - line[j] * line[j];
        for (int64_t j = 0; j < t.cols; ++j) line[j] *= cap;
      }
    }
    if (!bias && !relative && !row_scale) return;
    for (int64_t r = 0; r < t.rows; ++r) {
      T* line = s + r * ld;
      if (bias) {
        const T* b = bias + t.batch * bias_stride[0] + t.head * bias_stride[1] + (t.row + r) * bias_stride[2] + t.col * bias_stride[3];
        if (bias_stride[3] == 1) for (int64_t j = 0; j < t.cols; ++j) line[j] += b[j];
        else for (int64_t j = 0; j < t.cols; ++j) line[j] += b[j * bias_stride[3]];
      }
      if (relative) {  // entry n − 1 + p_j − p_i = m − 1 + j − i
        const T* b = relative + t.head * relative_head + m - 1 + t.col - (t.row + r);
        for (int64_t j = 0; j < t.cols; ++j) line[j] += b[j];
      }
      if (row_scale) {
        const T factor = rho(t.batch, t.head, t.row + r);
        for (int64_t j = 0; j < t.cols; ++j) line[j] *= factor;
      }
    }
  }

  /// Writes `value` over the forbidden scores of row r of a tile.
  void hide(const Tile& t, int64_t r, T* line, T value, std::vector<uint8_t>& seen) const {
    if (!t.masked) return;
    if (visibility.only_span()) {
      const auto span = visibility.span(t.row + r);
      const int64_t begin = std::clamp<int64_t>(span.begin - t.col, 0, t.cols), end = std::clamp<int64_t>(span.end - t.col, begin, t.cols);
      std::fill(line, line + begin, value);
      std::fill(line + end, line + t.cols, value);
      return;
    }
    seen.resize(static_cast<std::size_t>(t.cols));
    visibility.fill_row(t.batch, t.head, t.row + r, t.col, t.cols, seen.data());
    const uint8_t* allowed = seen.data();
    for (int64_t j = 0; j < t.cols; ++j) line[j] = allowed[j] ? line[j] : value;
  }

  /// Multiplies row r of a tile by dropout's factors.
  void drop(const Tile& t, int64_t r, T* line) const {
    const uint64_t threshold = static_cast<uint64_t>(std::ldexp(o.dropout, 32));
    const T grow = T(1 / (1 - o.dropout));
    const int64_t row = (t.batch * heads + t.head) * m + t.row + r;
    const uint64_t first = offset + static_cast<uint64_t>(row * ((n + 3) / 4));
    for (int64_t j = t.col; j < t.col + t.cols;) {
      const uint64_t block = first + static_cast<uint64_t>(j / 4);
      const auto word = philox4x32({uint32_t(block), uint32_t(block >> 32), 0, 0}, {uint32_t(seed), uint32_t(seed >> 32)});
      for (; j < t.col + t.cols; ++j) {
        line[j - t.col] *= word[static_cast<std::size_t>(j & 3)] >= threshold ? grow : T(0);
        if ((j & 3) == 3) { ++j; break; }
      }
    }
  }
};

}  // namespace sluice::detail
