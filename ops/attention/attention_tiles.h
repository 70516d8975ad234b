// Shared by the forward and the backward kernel: access to their operands, and one tile of scores,
//
//   s = ρ (cap(scale · Q_i K_jᵀ) + bias)          rows × cols, behind the mask
//
// A tile that the mask forbids as a whole is never computed; a tile that it forbids in part is masked row by row.
//
// On AMX products of f32 are computed in three parts (ops/gemm/amx_parts.h). Infinities and NaN have no such parts, and
// huge numbers overflow earlier or later than in a chain of multiply-adds. So elements that depend on a number that is
// not finite below 2⁵⁶ (not "tame") are computed by that chain. All other elements keep their bits: a later token that
// holds NaN changes no earlier row.
#pragma once

#include <sluice/core/math.h>
#include <sluice/core/random.h>
#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/few_rows.h>
#include <sluice/ops/gemm/amx_parts.h>
#include <sluice/ops/rows.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice::detail {

/// Rounds the size of a piece of memory up, so that the next piece begins on a cache line.
inline int64_t lines(int64_t numbers) { return (numbers + 15) / 16 * 16; }

/// Whether |x| < 2⁵⁶: sums of 2¹⁵ products of such numbers are finite, in parts too.
template <class T>
bool is_tame(T x) { return std::abs(x) < T(0x1p56); }
template <class T>
bool is_tame(const T* x, int64_t rows, int64_t width, int64_t ld) {
  T most = 0;
  bool numbers = true;
  for (int64_t r = 0; r < rows; ++r) {
    const T* line = x + r * ld;
    const T size = row_total<T>(width, [line](int64_t j) { return std::abs(line[j]); });
    most = std::max(most, size), numbers &= size == size;
  }
  return numbers && is_tame(most);
}

/// Packs b [k, m] in three parts, with 0 for numbers that are not tame. Returns whether all numbers are tame.
template <class T>
bool fill_tame(const Parts& parts, const T* b, int64_t ldb, int64_t k, int64_t m) {
  if (parts.fill_b(Read::plain, b, ldb)) return true;
  Scratch<T> clean(k * m);
  for (int64_t p = 0; p < k; ++p)
    for (int64_t j = 0; j < m; ++j) clean.data()[p * m + j] = is_tame(b[p * ldb + j]) ? b[p * ldb + j] : T(0);
  return parts.fill_b(Read::plain, clean.data(), m), false;
}

/// After c [n, m] = alpha · a · bᵀ in three parts: recomputes the elements that depend on numbers that are not tame, by
/// multiply-adds.
template <class T>
void mend_dots(int64_t n, int64_t m, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc) {
  Scratch<T> chain(n * m);
  gemm(Read::plain, Read::transposed, n, m, k, alpha, a, lda, b, ldb, T(0), chain.data(), m);
  const auto tame = [k](const T* row, T factor) {
    return std::all_of(row, row + k, [factor](T x) { return is_tame(x) && is_tame(x * factor); });
  };
  std::vector<uint8_t> columns(static_cast<std::size_t>(m));
  for (int64_t j = 0; j < m; ++j) columns[static_cast<std::size_t>(j)] = tame(b + j * ldb, T(1));
  for (int64_t i = 0; i < n; ++i) {
    const bool row = tame(a + i * lda, alpha);
    for (int64_t j = 0; j < m; ++j)
      if (!row || !columns[static_cast<std::size_t>(j)]) c[i * ldc + j] = chain.data()[i * m + j];
  }
}

/// c [n, m] += alpha · a · b, or alpha · aᵀ · b. add() does this in three parts, with 0 for numbers of b that are not
/// tame. Elements that depend on numbers of a or b that are not tame are recomputed by multiply-adds. masked: a zero of
/// a hides its row of b.
template <class T, class Add>
void mended_sums(Read ra, int64_t n, int64_t m, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, bool masked,
                 T* c, int64_t ldc, Add add) {
  Scratch<T> chain(n * m);
  for (int64_t i = 0; i < n; ++i) std::copy_n(c + i * ldc, m, chain.data() + i * m);
  if (masked && !all_finite(b, k, m, ldb)) sparse_product(ra, n, m, k, alpha, a, lda, b, ldb, chain.data(), m);
  else gemm(ra, Read::plain, n, m, k, alpha, a, lda, b, ldb, T(1), chain.data(), m);
  add();
  const auto weight = [&](int64_t i, int64_t p) { return ra == Read::plain ? a[i * lda + p] : a[p * lda + i]; };
  const auto take = [&](int64_t i, int64_t j) { c[i * ldc + j] = chain.data()[i * m + j]; };
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t i = 0; i < n; ++i)
      if (!is_tame(weight(i, p)))
        for (int64_t j = 0; j < m; ++j) take(i, j);
    for (int64_t j = 0; j < m; ++j)
      if (!is_tame(b[p * ldb + j]))
        for (int64_t i = 0; i < n; ++i)
          if (!masked || weight(i, p) != T(0)) take(i, j);
  }
}

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
  RngBlocks from;
  Precision precision = sluice::precision();
  bool split = false;  // products are computed in three parts
  const T* bias = nullptr;
  int64_t bias_stride[4] = {0, 0, 0, 0};
  const T* relative = nullptr;
  int64_t relative_head = 0;
  const T* row_scale = nullptr;
  int64_t row_scale_stride[3] = {0, 0, 0};

  explicit ScoreTiles(const AttentionCall& c)
      : o(c.options), batch(c.q.dim(0)), heads(c.q.dim(1)), kv_heads(c.k.dim(1)), m(c.q.dim(2)), n(c.k.dim(2)),
        d(c.q.dim(3)), dv(c.v.dim(3)), q(c.q), k(c.k), v(c.v), visibility(o.mask, batch, heads, m, n), from(c.from) {
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
    split = m >= 64 && n >= 64 && d >= 24 && dv >= 24 && large_packing<T>(precision, n) == Packing::split;
  }

  /// The columns of a tile [first, first + width) in `seen`; with `split`, extended to whole steps of AMX.
  Visibility::Span cut(int64_t first, int64_t width, Visibility::Span seen) const {
    int64_t begin = std::clamp<int64_t>(seen.begin - first, 0, width), end = std::clamp<int64_t>(seen.end - first, begin, width);
    if (split && begin < end) begin = begin / 32 * 32, end = std::min((end + 31) / 32 * 32, width);
    return {first + begin, first + end};
  }

  /// Whether products of `rows` rows are computed without gemm. gemm, too, computes one row in f32.
  bool few(int64_t rows) const { return rows == 1 || (rows <= kFewRows && precision == Precision::f32); }
  int64_t kv_head(int64_t head) const { return head / (heads / kv_heads); }
  T rho(int64_t b, int64_t h, int64_t row) const {
    return row_scale ? row_scale[b * row_scale_stride[0] + h * row_scale_stride[1] + row * row_scale_stride[2]] : T(1);
  }
  /// The interval of columns that rows [row, row + rows) can see at all.
  Visibility::Span columns(int64_t row, int64_t rows) const {
    const auto first = visibility.span(row), last = visibility.span(row + rows - 1);
    return {std::min(first.begin, last.begin), std::max(first.end, last.end)};
  }

  /// Packs scale · Q in three parts, so that their products need no scaling. Returns whether scale · Q and Q are tame.
  /// scaled [rows, d]: memory for scale · Q.
  bool fill_queries(const Parts& parts, int64_t b, int64_t h, int64_t row, int64_t rows, T* scaled) const {
    const T factor = T(*o.scale);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < d; ++c) scaled[r * d + c] = q.at(b, h, row + r)[c] * factor;
    return parts.fill_a(Read::plain, scaled, d) && is_tame(q.at(b, h, row), rows, d, q.row);
  }

  /// s = scale · Q Kᵀ of a tile. keys: its packed Kᵀ, or null; ready: its packed rows of Q, or null.
  void dots(const Tile& t, T* s, int64_t ld, const PackedB<T>* keys = nullptr, const PackedA<T>* ready = nullptr) const {
    const T* queries = q.at(t.batch, t.head, t.row);
    if (keys && ready) keys->multiply(*ready, 0, t.rows, T(*o.scale), T(0), s, ld, 0, keys->panels());
    else if (keys) keys->multiply(Read::plain, t.rows, T(*o.scale), queries, q.row, T(0), s, ld);
    else if (few(t.rows))
      few_dots(t.rows, t.cols, d, T(*o.scale), queries, q.row, k.at(t.batch, kv_head(t.head), t.col), k.row, s, ld);
    else
      gemm(Read::plain, Read::transposed, t.rows, t.cols, d, T(*o.scale), queries, q.row,
           k.at(t.batch, kv_head(t.head), t.col), k.row, T(0), s, ld, precision);
  }

  /// Turns scale · Q Kᵀ into scores; forbidden scores are arbitrary. With a cap, slope (if not null) receives cap'.
  void dots_to_scores(const Tile& t, T* s, int64_t ld, T* slope = nullptr) const {
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
    const uint64_t first = from.first + static_cast<uint64_t>(row * ((n + 3) / 4));
    for (int64_t j = t.col; j < t.col + t.cols;) {
      const uint64_t block = first + static_cast<uint64_t>(j / 4);
      const auto word = philox4x32({uint32_t(block), uint32_t(block >> 32), 0, 0}, {uint32_t(from.seed), uint32_t(from.seed >> 32)});
      for (; j < t.col + t.cols; ++j) {
        line[j - t.col] *= word[static_cast<std::size_t>(j & 3)] >= threshold ? grow : T(0);
        if ((j & 3) == 3) { ++j; break; }
      }
    }
  }
};

}  // namespace sluice::detail
