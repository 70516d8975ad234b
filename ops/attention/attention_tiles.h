// Shared by the forward and the backward kernel: access to their operands, and one tile of scores,
//
//   s = ρ (cap(scale · Q_i K_jᵀ) + bias)          rows × cols, behind the mask
//
// A tile that the mask forbids as a whole is never computed; a tile that it forbids in part is masked row by row.
// Products of matrices: attention_products.h.
#pragma once

#include <sluice/core/number/math.h>
#include <sluice/core/number/philox.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/gemm/gemm.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

namespace sluice::detail {

/// How many queries are few. In bf16 without tiles of bf16, packing K and V for a product takes longer than 8 queries.
inline int64_t few_queries(Precision precision) {
  return precision == Precision::bf16 && usual_packing(f32, precision) != Packing::tiles ? 8 : kSkinnyRows;
}

template <class T> struct ScoreTiles {
  struct Tile {
    int64_t batch, head, row, rows, col, cols;
    int64_t first;                  // its first column, counted from the start of the tile of keys
    bool whole;                     // its columns are the whole tile of keys
    bool masked;                    // some pairs are forbidden
    const int32_t* list = nullptr;  // the numbers of its rows, unless they are row, row + 1, …

    int64_t at(int64_t r) const { return list ? list[r] : row + r; }
  };

  const AttentionOptions& o;
  int64_t batch, heads, kv_heads, m, n, d, dv;
  HeadView<const T> q;
  bool narrow;  // k and v are bf16 beside q in f32
  using Narrow = std::conditional_t<std::is_same_v<T, float>, BFloat16, T>;
  struct KeyRows {
    HeadView<const T> wide;         // unless `narrow`
    HeadView<const Narrow> narrow;  // if it is true
  } k, v;
  Visibility visibility;
  RngBlocks from;
  Precision precision = sluice::precision();
  /// True if the call has so few queries that its products need no gemm. The call decides, not the tile: the backward
  /// pass must compute the scores of the forward pass to the bit, or e^{S − lse} is not P. For the same reason gemv
  /// computes no scores.
  bool few = m <= few_queries(precision) && visibility.block_of_query() == 0;
  bool in_parts = false;  // products are computed in three parts
  const T* bias = nullptr;
  int64_t bias_stride[4] = {0, 0, 0, 0};
  const T* relative = nullptr;
  int64_t relative_head = 0;
  const T* row_scale = nullptr;
  int64_t row_scale_stride[3] = {0, 0, 0};

  explicit ScoreTiles(const AttentionCall& c)
      : o(c.options), batch(c.q.dim(0)), heads(c.q.dim(1)), kv_heads(c.k.dim(1)), m(c.q.dim(2)), n(c.k.dim(2)),
        d(c.q.dim(3)), dv(c.v.dim(3)), q(c.q), narrow(c.k.dtype() != c.q.dtype()),
        visibility(o.mask, batch, heads, m, n), from(c.from) {
    if (narrow) k.narrow = HeadView<const Narrow>(c.k), v.narrow = HeadView<const Narrow>(c.v);
    else k.wide = HeadView<const T>(c.k), v.wide = HeadView<const T>(c.v);
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
    in_parts = !narrow && m >= 64 && n >= 64 && d >= 24 && dv >= 24 &&
               splits({.n = m, .m = d, .k = n, .dtype = dtype_of<T>(), .precision = precision});
  }

  /// The tile of rows [row, row + rows) of head h and of those columns of the tile of keys [first, first + width) that
  /// lie in `seen`; in three parts, whole AMX steps of columns. Returns nothing if the mask forbids all pairs.
  std::optional<Tile> tile(int64_t b, int64_t h, int64_t row, int64_t rows, int64_t first, int64_t width,
                           Visibility::Span seen) const {
    int64_t begin = std::clamp<int64_t>(seen.begin - first, 0, width);
    int64_t end = std::clamp<int64_t>(seen.end - first, begin, width);
    if (begin == end) return std::nullopt;
    if (in_parts) begin = begin / 32 * 32, end = std::min(round_up(end, 32), width);
    const int64_t cols = end - begin;
    const auto kind = visibility.classify(b, h, row, rows, first + begin, cols);
    if (kind == Visibility::Sees::none) return std::nullopt;
    return Tile{b, h, row, rows, first + begin, cols, begin, cols == width, kind == Visibility::Sees::some};
  }
  /// If the mask lists blocks of keys for each query, reduces a tile to the rows that see one of its columns. `list`
  /// must have room for all rows.
  void gather(Tile& t, std::vector<int32_t>& list) const {
    if (visibility.block_of_query() == 0 || !t.masked) return;
    bool masked = true;
    const int64_t count = visibility.rows_with(t.batch, t.head, t.row, t.rows, t.col, t.cols, list.data(), masked);
    t.masked = masked;
    if (count < t.rows) t.rows = count, t.list = list.data();
  }
  /// Rows of a tile unless the call sets them. With blocks for each query, rows with the same keys are gathered from
  /// many.
  int64_t rows_wanted(int64_t otherwise) const { return visibility.block_of_query() > 0 ? 512 : otherwise; }
  /// Columns of a tile unless the call sets them. With blocks for each query: one block of keys, or several short ones.
  int64_t cols_wanted(int64_t otherwise) const {
    const int64_t block = visibility.block_of_query();
    return block == 0 ? otherwise : block > 256 ? 256 : block >= 32 ? block : 64 / block * block;
  }
  int64_t kv_head(int64_t head) const { return head / (heads / kv_heads); }
  T rho(int64_t b, int64_t h, int64_t row) const {
    return row_scale ? row_scale[b * row_scale_stride[0] + h * row_scale_stride[1] + row * row_scale_stride[2]] : T(1);
  }
  /// The interval of columns that rows [row, row + rows) can see at all.
  Visibility::Span columns(int64_t row, int64_t rows) const {
    const auto first = visibility.span(row), last = visibility.span(row + rows - 1);
    return {std::min(first.begin, last.begin), std::max(first.end, last.end)};
  }

  /// Turns scale · Q Kᵀ into scores; forbidden scores are arbitrary. With a cap, slope (if not null) receives cap'.
  void dots_to_scores(const Tile& t, T* s, T* slope = nullptr) const {
    if (o.softcap > 0) {
      const T cap = T(o.softcap), inverse = T(1 / o.softcap);
      for (int64_t r = 0; r < t.rows; ++r) {
        T* __restrict__ line = s + r * t.cols;
        for (int64_t j = 0; j < t.cols; ++j) line[j] = math::tanh(line[j] * inverse);
        for (int64_t j = 0; slope && j < t.cols; ++j) slope[r * t.cols + j] = 1 - line[j] * line[j];
        for (int64_t j = 0; j < t.cols; ++j) line[j] *= cap;
      }
    }
    if (!bias && !relative && !row_scale) return;
    for (int64_t r = 0; r < t.rows; ++r) {
      T* line = s + r * t.cols;
      if (bias) {
        const auto [by_batch, by_head, by_row, by_col] = bias_stride;
        const T* b = bias + t.batch * by_batch + t.head * by_head + t.at(r) * by_row + t.col * by_col;
        if (by_col == 1)
          for (int64_t j = 0; j < t.cols; ++j) line[j] += b[j];
        else
          for (int64_t j = 0; j < t.cols; ++j) line[j] += b[j * by_col];
      }
      if (relative) {  // entry n − 1 + p_j − p_i = m − 1 + j − i
        const T* b = relative + t.head * relative_head + m - 1 + t.col - t.at(r);
        for (int64_t j = 0; j < t.cols; ++j) line[j] += b[j];
      }
      if (row_scale) {
        const T factor = rho(t.batch, t.head, t.at(r));
        for (int64_t j = 0; j < t.cols; ++j) line[j] *= factor;
      }
    }
  }

  /// Writes `value` over the forbidden scores of row r of a tile.
  void hide(const Tile& t, int64_t r, T* line, T value, std::vector<uint8_t>& seen) const {
    if (!t.masked) return;
    if (visibility.only_span()) {
      const auto span = visibility.span(t.at(r));
      const int64_t begin = std::clamp<int64_t>(span.begin - t.col, 0, t.cols);
      const int64_t end = std::clamp<int64_t>(span.end - t.col, begin, t.cols);
      std::fill(line, line + begin, value);
      std::fill(line + end, line + t.cols, value);
      return;
    }
    seen.resize(static_cast<std::size_t>(t.cols));
    visibility.fill_row(t.batch, t.head, t.at(r), t.col, t.cols, seen.data());
    const uint8_t* allowed = seen.data();
    for (int64_t j = 0; j < t.cols; ++j) line[j] = allowed[j] ? line[j] : value;
  }

  /// Multiplies row r of a tile by dropout's factors.
  void drop(const Tile& t, int64_t r, T* line) const {
    const Dropping<T> drop(o.dropout);
    const int64_t row = (t.batch * heads + t.head) * m + t.at(r);
    const uint64_t first = from.first + static_cast<uint64_t>(row * ceil_div(n, 4));
    for_philox_words(from.seed, first, t.col, t.cols, [=](int64_t j, const uint32_t* word, int64_t count) {
      for (int64_t e = 0; e < count; ++e) line[j + e] *= drop(word[e]);
    });
  }
};

}  // namespace sluice::detail
