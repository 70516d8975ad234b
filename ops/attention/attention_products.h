// The products of matrices in a tile, for `rows` queries and `cols` keys:
//
//   S = scale·Q Kᵀ       dP = G Vᵀ              rows × cols: scalar products of rows, they overwrite
//   O += P V             dQ += scale·dS K       rows × width
//   dV += Pᵀ G           dK += scale·dSᵀ Q      cols × width
//
// A product is computed in the first of these ways that applies:
//
//   in parts   f32 on AMX, each number as three of bf16 (ops/gemm/bf16x3.h)
//   sparse     a sum behind a mask whose right operand is not finite: 0·NaN must add nothing
//   packed     K and V of a tile of keys that several tiles of queries see whole are packed once (KeyTile)
//   few rows   S and P V of a decoding step (ops/matmul/skinny.h), also with K and V in bf16
//   gemm       everything else
//
// Infinities and NaN have no parts, and in parts huge numbers overflow earlier or later than in a chain of
// multiply-adds. So elements that depend on a number that is not finite below 2⁵⁶ are recomputed by that chain. All
// other elements keep their bits: a later token that holds NaN changes no earlier row.
#pragma once

#include <sluice/ops/attention/attention_tiles.h>
#include <sluice/ops/matmul/skinny.h>
#include <sluice/ops/gemm/bf16x3.h>

#include <type_traits>
#include <utility>
#include <vector>

namespace sluice::detail {

/// Rounds the size of a piece of memory up, so that the next piece begins on a cache line.
inline int64_t lines(int64_t numbers) { return round_up(numbers, 16); }

/// Whether |x| < 2⁵⁶: sums of 2¹⁵ products of such numbers are finite, in parts too.
template <class T> bool fits_bf16x3(T x) { return std::abs(x) < T(0x1p56); }

/// A matrix: `count` rows of `width` numbers, row i at data + i · ld, read as they lie or transposed.
template <class T> struct TileMatrix {
  const T* data;
  int64_t ld, count, width;
  Trans trans = Trans::no;

  int64_t rows() const { return trans == Trans::no ? count : width; }
  int64_t cols() const { return trans == Trans::no ? width : count; }
  T at(int64_t i, int64_t j) const { return trans == Trans::no ? data[i * ld + j] : data[j * ld + i]; }
  TileMatrix transposed() const { return {data, ld, count, width, Trans::yes}; }
};

/// Calls f with `cols` rows of K or V from `col` on, of key head kv.
template <class T, class F>
void with_key_rows(const ScoreTiles<T>& t, const typename ScoreTiles<T>::KeyRows& x, int64_t b, int64_t kv, int64_t col,
                   int64_t cols, int64_t width, F f) {
  if (t.narrow) f(TileMatrix<typename ScoreTiles<T>::Narrow>{x.narrow.at(b, kv, col), x.narrow.row, cols, width});
  else f(TileMatrix<T>{x.wide.at(b, kv, col), x.wide.row, cols, width});
}

/// A right operand, packed for many products.
template <class T> struct PackedMatrix {
  PackedB<T> panels;
  Bf16x3 parts;
  bool fits = true;  // in parts: whether all numbers fit; others are packed as 0

  static int64_t size(const ScoreTiles<T>& t, int64_t rows, int64_t cols) {
    return lines(t.in_parts ? Bf16x3::size(cols, rows) : PackedB<T>::size(rows, cols));
  }
  template <class B>
  PackedMatrix(const ScoreTiles<T>& t, const TileMatrix<B>& x, T* memory)
      : panels(x.rows(), x.cols(), memory, t.precision), parts(x.cols(), x.rows(), memory) {
    if (!t.in_parts) panels.fill(x.trans, x.data, x.ld, 0, panels.panels());
    else if constexpr (std::is_same_v<B, T>) fill_parts(x);
  }

 private:
  void fill_parts(const TileMatrix<T>& x) {
    fits = parts.fill_b(x.trans, x.data, x.ld);
    if (fits) return;
    Scratch<T> clean(x.count * x.width);
    for (int64_t i = 0; i < x.count * x.width; ++i) {
      const T number = x.data[i / x.width * x.ld + i % x.width];
      clean.data()[i] = fits_bf16x3(number) ? number : T(0);
    }
    parts.fill_b(x.trans, clean.data(), x.width);
  }
};

enum class Direction { forward, backward };

/// A tile of keys and values, packed for all queries: Kᵀ and V forward; Kᵀ, Vᵀ and K backward. Empty by default.
template <class T> struct KeyTile {
  std::optional<PackedMatrix<T>> keys_t, values, values_t, keys;

  static int64_t size(const ScoreTiles<T>& t, Direction direction, int64_t cols) {
    const auto of = [&](int64_t rows, int64_t width) { return PackedMatrix<T>::size(t, rows, width); };
    return of(t.d, cols) + (direction == Direction::forward ? of(cols, t.dv) : of(t.dv, cols) + of(cols, t.d));
  }
  KeyTile() = default;
  KeyTile(const ScoreTiles<T>& t, Direction direction, int64_t b, int64_t kv, int64_t col, int64_t cols, T* memory) {
    const auto pack = [&](std::optional<PackedMatrix<T>>& to, const auto& x) {
      to.emplace(t, x, memory);
      memory += PackedMatrix<T>::size(t, x.rows(), x.cols());
    };
    with_key_rows(t, t.k, b, kv, col, cols, t.d, [&](const auto& k) {
      with_key_rows(t, t.v, b, kv, col, cols, t.dv, [&](const auto& v) {
        pack(keys_t, k.transposed());
        if (direction == Direction::forward) pack(values, v);
        else pack(values_t, v.transposed()), pack(keys, k);
      });
    });
  }
};

/// Packed tiles of keys of `heads` key heads from `first` on, counted over all batches. Packed once for all queries.
template <class T> class PackedHeads {
 public:
  PackedHeads(const ScoreTiles<T>& t, int64_t cols, int64_t first, int64_t heads)
      : t_(t), cols_(cols), first_(first), col_tiles_(ceil_div(t.n, cols)),
        size_(KeyTile<T>::size(t, Direction::forward, cols)), memory_(heads * col_tiles_ * size_),
        tiles_(static_cast<std::size_t>(heads * col_tiles_)) {}
  int64_t count() const { return static_cast<int64_t>(tiles_.size()); }
  /// Packs tiles begin … end − 1. Threads may pack different tiles at the same time.
  void fill(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = first_ + i / col_tiles_, b = head / t_.kv_heads, kv = head % t_.kv_heads;
      const int64_t col = i % col_tiles_ * cols_, cols = std::min(cols_, t_.n - col);
      tiles_[static_cast<std::size_t>(i)] = {t_, Direction::forward, b, kv, col, cols, memory_.data() + i * size_};
    }
  }
  const KeyTile<T>& at(int64_t head, int64_t col) const {
    return tiles_[static_cast<std::size_t>((head - first_) * col_tiles_ + col / cols_)];
  }

 private:
  const ScoreTiles<T>& t_;
  int64_t cols_, first_, col_tiles_, size_;
  Scratch<T> memory_;
  std::vector<KeyTile<T>> tiles_;
};

/// Calls product(), which computes in parts: c = alpha · a b if b is transposed, otherwise c += alpha · a b. Recomputes
/// by multiply-adds the elements that depend on numbers that do not fit. masked: a zero of a hides its row of b.
template <class T, class F>
void recompute_in_f32(T alpha, const TileMatrix<T>& a, const TileMatrix<T>& b, bool masked, T* c, int64_t ldc,
                      F product) {
  const bool dots = b.trans == Trans::yes;
  const int64_t n = a.rows(), m = b.cols(), k = a.cols();
  Scratch<T> chain(n * m);
  for (int64_t i = 0; i < n && !dots; ++i) std::copy_n(c + i * ldc, m, chain.data() + i * m);
  if (masked && !all_finite(b.data, b.count, b.width, b.ld))
    sparse_product(a.trans, n, m, k, alpha, a.data, a.ld, b.data, b.ld, chain.data(), m);
  else gemm(a.trans, b.trans, n, m, k, alpha, a.data, a.ld, b.data, b.ld, dots ? T(0) : T(1), chain.data(), m);
  product();
  const T factor = dots ? alpha : T(1);  // multiplies a before a is split
  const auto take = [&](int64_t i, int64_t j) { c[i * ldc + j] = chain.data()[i * m + j]; };
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = 0; p < k; ++p)
      if (!fits_bf16x3(a.at(i, p)) || !fits_bf16x3(a.at(i, p) * factor)) {
        for (int64_t j = 0; j < m; ++j) take(i, j);
        break;
      }
  for (int64_t j = 0; j < m; ++j)
    for (int64_t p = 0; p < k; ++p)
      if (!fits_bf16x3(b.at(p, j))) {
        for (int64_t i = 0; i < n; ++i)
          if (!masked || a.at(i, p) != T(0)) take(i, j);
        if (!masked) break;
      }
}

/// The products of one thread. `keys` is the packed tile of keys; if it is empty, K and V are read where they lie.
/// Products in parts need a packed tile.
template <class T> class TileProducts {
  using Tile = typename ScoreTiles<T>::Tile;
  using Keys = const KeyTile<T>&;
  using Matrix = TileMatrix<T>;

 public:
  /// For tiles of at most rows × cols. packed: some calls will pass packed keys.
  TileProducts(const ScoreTiles<T>& t, int64_t rows, int64_t cols, bool packed)
      : t_(t), queries_(t.in_parts ? Bf16x3::size(rows, t.d)
                        : packed   ? PackedA<T>::size(rows, t.d)
                                   : 0),
        left_(t.in_parts ? std::max({Bf16x3::size(rows, t.dv), Bf16x3::size(rows, cols), Bf16x3::size(cols, rows)})
                         : 0),
        right_(t.in_parts ? Bf16x3::size(std::max(t.d, t.dv), rows)
               : t.narrow && !t.few
                   ? std::max(PackedMatrix<T>::size(t, t.d, cols), PackedMatrix<T>::size(t, cols, t.dv))
                   : 0),
        size_(rows * std::max(t.d, t.dv)), gathered_(t.visibility.block_of_query() > 0 ? 3 * size_ : 0) {}

  /// s = scale·Q Kᵀ. Packs Q unless it is the Q of the previous call.
  void scores(const Tile& t, Keys keys, T* s) {
    const Matrix q = queries(t);
    const T scale = T(*t_.o.scale);
    with_rows(t, t_.k, t_.d, [&](const auto& k) {
      if (t_.few) return few_dots(t, scale, q, k, s);
      const std::pair rows(q.data, t.rows);
      if (keys.keys_t && (std::exchange(packed_, rows) != rows || t.list)) pack_queries(q, scale);
      multiply(t, scale, q, keys.keys_t ? queries_.data() : nullptr, k.transposed(), keys.keys_t, s, t.cols);
    });
  }
  /// o [rows, dv] += P V.
  void add_values(const Tile& t, Keys keys, const T* p, T* o) {
    with_rows(t, t_.v, t_.dv, [&](const auto& v) {
      if (t_.few) return few_sums(t, p, v, o);
      add_rows(t, t_.dv, o, t_.dv,
               [&](T* c, int64_t ldc) { multiply(t, T(1), weights(t, p), nullptr, v, keys.values, c, ldc); });
    });
  }
  /// dp = G Vᵀ.
  void weight_gradients(const Tile& t, Keys keys, const HeadView<const T>& g, T* dp) {
    multiply(t, T(1), rows_of(t, g, t_.dv, 1), nullptr, values_of(t).transposed(), keys.values_t, dp, t.cols);
  }
  /// dv [cols, dv] += Pᵀ G.
  void add_value_gradients(const Tile& t, const T* p, const HeadView<const T>& g, T* dv) {
    multiply(t, T(1), weights(t, p).transposed(), nullptr, rows_of(t, g, t_.dv, 1), {}, dv, t_.dv);
  }
  /// dk [cols, d] += scale·dSᵀ Q.
  void add_key_gradients(const Tile& t, const T* ds, T* dk) {
    multiply(t, T(*t_.o.scale), weights(t, ds).transposed(), nullptr, queries(t), {}, dk, t_.d);
  }
  /// dq [rows, d] += scale·dS K.
  void add_query_gradients(const Tile& t, Keys keys, const T* ds, const HeadView<T>& dq) {
    add_rows(t, t_.d, dq.at(t.batch, t.head, t.row), dq.row, [&](T* c, int64_t ldc) {
      multiply(t, T(*t_.o.scale), weights(t, ds), nullptr, keys_of(t), keys.keys, c, ldc);
    });
  }

 private:
  /// S and P V of few queries.
  template <class B> void few_dots(const Tile& t, T scale, const Matrix& q, const TileMatrix<B>& k, T* s) const {
    const auto dots = [&](auto far) {
      vectorised([&] { skinny_dots<far>(t.rows, t.cols, t_.d, scale, q.data, q.ld, k.data, k.ld, s, t.cols); });
    };
    far_ ? dots(std::true_type()) : dots(std::false_type());
  }
  template <class B> void few_sums(const Tile& t, const T* p, const TileMatrix<B>& v, T* o) const {
    if (hides(t, v)) return sparse_product(Trans::no, t.rows, t_.dv, t.cols, T(1), p, t.cols, v.data, v.ld, o, t_.dv);
    const auto sums = [&](auto far) {
      vectorised([&] { skinny_sums<far>(t.rows, t_.dv, t.cols, p, t.cols, v.data, v.ld, o, t_.dv); });
    };
    far_ ? sums(std::true_type()) : sums(std::false_type());
  }

  /// c = alpha · a b if b is transposed, otherwise c += alpha · a b. left: a as packed by pack_queries(), or null.
  template <class B>
  void multiply(const Tile& t, T alpha, const Matrix& a, T* left, const TileMatrix<B>& b,
                const std::optional<PackedMatrix<T>>& right, T* c, int64_t ldc) {
    const bool dots = b.trans == Trans::yes;
    const int64_t n = a.rows(), m = b.cols(), k = a.cols();
    const T beta = dots ? T(0) : T(1);
    if (in_parts()) {
      if constexpr (std::is_same_v<B, T>) multiply_parts(t, alpha, a, left, b, right, c, ldc);
    } else if (!dots && hides(t, b)) {
      sparse_product(a.trans, n, m, k, alpha, a.data, a.ld, b.data, b.ld, c, ldc);
    } else if (left) {
      const PackedA<T> packed(n, k, left, t_.precision);
      right->panels.multiply(packed, 0, n, alpha, beta, c, ldc, 0, right->panels.panels());
    } else if (right) {
      right->panels.multiply(a.trans, n, alpha, a.data, a.ld, beta, c, ldc);
    } else if constexpr (!std::is_same_v<B, T>) {
      PackedMatrix<T>(t_, b, right_.data()).panels.multiply(a.trans, n, alpha, a.data, a.ld, beta, c, ldc);
    } else if (dots) {
      gemm_chained(a.trans, b.trans, n, m, k, alpha, a.data, a.ld, b.data, b.ld, beta, c, ldc, t_.precision);
    } else {
      gemm(a.trans, b.trans, n, m, k, alpha, a.data, a.ld, b.data, b.ld, beta, c, ldc, t_.precision);
    }
  }

  /// multiply() in parts.
  void multiply_parts(const Tile& t, T alpha, const Matrix& a, T* left, const Matrix& b,
                      const std::optional<PackedMatrix<T>>& right, T* c, int64_t ldc) {
    const bool dots = b.trans == Trans::yes;
    const int64_t first = right ? t.first : 0;
    const Bf16x3 x(a.rows(), a.cols(), left ? left : left_.data());
    const bool fits = left ? queries_fit_ : x.fill_a(a.trans, a.data, a.ld);
    const PackedMatrix<T> y = right ? *right : PackedMatrix<T>(t_, b, right_.data());
    const auto product = [&] {
      y.parts.multiply(x, dots ? 0 : first, dots ? first : 0, b.cols(), left ? T(1) : alpha, T(dots ? 0 : 1), c, ldc);
    };
    if (fits && y.fits) return product();
    recompute_in_f32(alpha, a, b, t.masked && !dots, c, ldc, product);
  }

  /// Packs Q, or in parts scale·Q, so that products of parts need no scaling.
  void pack_queries(const Matrix& q, T scale) {
    if (!in_parts()) return PackedA<T>(q.count, q.width, queries_.data(), t_.precision).fill(Trans::no, q.data, q.ld);
    queries_fit_ = true;
    vectorised([&] {
      for (int64_t i = 0; i < q.count; ++i) {
        const T* from = q.data + i * q.ld;
        T* to = right_.data() + i * q.width;
        const T size = row_total<T>(q.width, [=](int64_t j) { return to[j] = from[j] * scale, std::abs(from[j]); });
        queries_fit_ &= fits_bf16x3(size);
      }
    });
    queries_fit_ &= Bf16x3(q.count, q.width, queries_.data()).fill_a(Trans::no, right_.data(), q.width);
  }

  bool in_parts() const { return std::is_same_v<T, float> && t_.in_parts; }
  /// True if zero weights must hide rows of a sum's right operand.
  template <class B> bool hides(const Tile& t, const TileMatrix<B>& b) const {
    return t.masked && !all_finite(b.data, b.count, b.width, b.ld);
  }

  /// Calls add(c, ldc), which adds the rows of the tile to c. `to` is the row of query t.row.
  template <class F> void add_rows(const Tile& t, int64_t width, T* to, int64_t ld, F add) {
    if (!t.list) return add(to, ld);
    T* const sums = gathered_.data() + 2 * size_;
    std::fill_n(sums, t.rows * width, T(0));
    add(sums, width);
    vectorised([=, list = t.list, rows = t.rows, first = t.row] {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < width; ++c) to[(list[r] - first) * ld + c] += sums[r * width + c];
    });
  }

  Matrix weights(const Tile& t, const T* p) const { return {p, t.cols, t.rows, t.cols}; }
  /// The tile's rows of x. Listed rows are copied to memory number `place` of gathered_.
  Matrix rows_of(const Tile& t, const HeadView<const T>& x, int64_t width, int64_t place) {
    if (!t.list) return {x.at(t.batch, t.head, t.row), x.row, t.rows, width};
    T* const rows = gathered_.data() + place * size_;
    for (int64_t r = 0; r < t.rows; ++r) std::copy_n(x.at(t.batch, t.head, t.list[r]), width, rows + r * width);
    return {rows, width, t.rows, width};
  }
  template <class B> TileMatrix<B> cols_of(const Tile& t, const HeadView<const B>& x, int64_t width) const {
    return {x.at(t.batch, t_.kv_head(t.head), t.col), x.row, t.cols, width};
  }
  Matrix queries(const Tile& t) { return rows_of(t, t_.q, t_.d, 0); }
  Matrix keys_of(const Tile& t) const { return cols_of(t, t_.k.wide, t_.d); }
  Matrix values_of(const Tile& t) const { return cols_of(t, t_.v.wide, t_.dv); }
  template <class F> void with_rows(const Tile& t, const typename ScoreTiles<T>::KeyRows& x, int64_t width, F f) const {
    with_key_rows(t_, x, t.batch, t_.kv_head(t.head), t.col, t.cols, width, f);
  }

  const ScoreTiles<T>& t_;
  /// Whether K and V are more than the caches of a core hold.
  const bool far_ = t_.batch * t_.kv_heads * t_.n * (t_.d + t_.dv) > (int64_t{4} << 20) / (t_.narrow ? 2 : 4);
  Scratch<T> queries_, left_, right_;         // packed queries; the operands of one product in parts
  std::pair<const T*, int64_t> packed_ = {};  // address and number of the rows in queries_; views may overlap
  bool queries_fit_ = true;
  int64_t size_;         // most numbers in the rows of a tile
  Scratch<T> gathered_;  // listed rows: queries, gradients of the output, and sums for either
};

}  // namespace sluice::detail
