// Rung 3: blocks are copied into the order in which they are read, and a tile of c stays in registers while a block of
// k goes by, so that a step loads rows + columns numbers for rows · columns multiply-adds.
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/ladder.h>
#include <sluice/ops/gemm/panels.h>

#include <sluice/core/memory/thread_memory.h>

#include <algorithm>
#include <cstring>

namespace sluice::detail {

namespace {

/// The portable tile: up to 4 rows of 2 vectors of 16 bytes, the width of SSE2 and NEON.
template <class T, int R> void portable_tile(const TileCall<T>& t) {
  using V [[gnu::vector_size(16)]] = T;
  constexpr int W = 16 / sizeof(T), kCols = 2 * W;
  T sums[R][kCols] = {};
  for (int i = 0; t.goes_on && i < R; ++i) std::copy_n(t.c + i * t.ldc, t.cols, sums[i]);
  V sum[R][2];
  std::memcpy(sum, sums, sizeof sum);
  const T *a = t.a, *b = t.b;
  T padded[kCols] = {};
  for (int64_t p = 0; p < t.k; ++p, a += t.a_k, b += t.b_k) {
    const bool part = t.cols < kCols;
    if (part) std::copy_n(b, t.cols, padded);
    V right[2];
    std::memcpy(right, part ? padded : b, sizeof right);
    if (t.panel) std::memcpy(t.panel + p * kCols, right, sizeof right);
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) sum[i][0] += a[i * t.a_row] * right[0], sum[i][1] += a[i * t.a_row] * right[1];
  }
  std::memcpy(sums, sum, sizeof sums);
  for (int i = 0; i < R; ++i)
    for (int64_t j = 0; j < t.cols; ++j) {
      T& c = t.c[i * t.ldc + j];
      c = t.beta == T(0) ? t.alpha * sums[i][j] : t.alpha * sums[i][j] + t.beta * c;
      if (t.bias) c += t.bias[j];
    }
}

template <class T> void any_portable_tile(int rows, const TileCall<T>& t) {
  switch (rows) {
    case 1: return portable_tile<T, 1>(t);
    case 2: return portable_tile<T, 2>(t);
    case 3: return portable_tile<T, 3>(t);
    default: return portable_tile<T, 4>(t);
  }
}

template <class T> void portable_transpose(const T* from, int64_t ld, int64_t rows, int64_t k, T* to, int64_t ld_to) {
  for (int64_t p = 0; p < k; ++p)
    for (int64_t j = 0; j < rows; ++j) to[p * ld_to + j] = from[j * ld + p];
}

}  // namespace

const Micro<float> portable_f32{4, 8, &any_portable_tile<float>, &portable_transpose<float>};
const Micro<double> portable_f64{4, 4, &any_portable_tile<double>, &portable_transpose<double>};

template <class T> T* pack_memory(int which, int64_t numbers) {
  struct Packed;
  return static_cast<T*>(thread_memory<Packed, 3>(which, static_cast<std::size_t>(numbers) * sizeof(T)));
}

/// Copies in pieces of constant length, which need no call of memcpy. Prefetches from + ahead, an access that
/// processors do not predict.
template <class T> static void copy(const T* from, int64_t count, T* to, int64_t ahead) {
  constexpr int64_t kPiece = 32 / sizeof(T);
  int64_t i = 0;
  for (; i + kPiece <= count; i += kPiece) {
    __builtin_prefetch(from + ahead + i);
    std::memcpy(to + i, from + i, 32);
  }
  for (; i < count; ++i) to[i] = from[i];
}

template <class T>
void pack_panels(const Micro<T>& micro, Trans trans, const T* b, int64_t ldb, int64_t k, int64_t cols, T* to) {
  const int64_t width = micro.cols, group = 4 * width;  // several panels at a time, to read longer pieces of b's rows
  for (int64_t first = 0; first < cols; first += group) {
    const int64_t end = std::min(first + group, cols);
    if (trans == Trans::yes)
      for (int64_t j = first; j < end; j += width)
        micro.transpose(b + j * ldb, ldb, std::min(width, cols - j), k, to + j * k, width);
    else
      for (int64_t p = 0; p < k; ++p)
        for (int64_t j = first; j < end; j += width)
          copy(b + p * ldb + j, std::min(width, cols - j), to + j * k + p * width, 8 * ldb);
  }
  const int64_t used = cols % width, last = cols / width * width;
  if (used)
    for (int64_t p = 0; p < k; ++p) std::fill_n(to + last * k + p * width + used, width - used, T(0));
}

template <class T>
void copy_rows(const Micro<T>& micro, Trans trans, const T* a, int64_t lda, int64_t n, int64_t k, T* to, int64_t ld) {
  if (trans == Trans::yes) return micro.transpose(a, lda, k, n, to, ld);
  for (int64_t i = 0; i < n; ++i) std::copy_n(a + i * lda, k, to + i * ld);
}

namespace {

/// Packs rows of a in groups of a tile's height: a_p of row i of a group lies at [p · height + i]. A transposed a is
/// copied kBytes at a time; numbers written past a group's height are overwritten by the next p.
template <int kBytes, class T>
void group_columns(const T* a, int64_t lda, int64_t n, int64_t height, int64_t k, T* to) {
  constexpr int64_t kPiece = kBytes / sizeof(T);
  for (int64_t p = 0; p < k; ++p, a += lda)
    for (int64_t i = 0; i < n; i += height) {
      T* const place = to + i * k + p * height;
      __builtin_prefetch(a + i + 8 * lda);
      if (p + 1 < k && 2 * height >= kPiece && lda + n - i >= kPiece) std::memcpy(place, a + i, kBytes);
      else std::copy_n(a + i, std::min(height, n - i), place);
    }
}
template <class T>
void group_rows(const Micro<T>& micro, Trans trans, const T* a, int64_t lda, int64_t n, int64_t height, int64_t k,
                T* to) {
  const int64_t bytes = height * int64_t{sizeof(T)};
  if (trans == Trans::no)
    for (int64_t i = 0; i < n; i += height)
      micro.transpose(a + i * lda, lda, std::min(height, n - i), k, to + i * k, height);
  else if (bytes <= 32) group_columns<32>(a, lda, n, height, k, to);
  else if (bytes <= 64) group_columns<64>(a, lda, n, height, k, to);
  else group_columns<128>(a, lda, n, height, k, to);
}

/// Splits n rows into tiles of equal height. rows: the rows of as many tiles as stay in L2 together.
struct RowBlocks {
  int64_t height, rows;
  RowBlocks(int64_t n, int64_t most) : height(Cut(n, most).length), rows(kRows / most * height) {}
};

/// How many rows meet a panel before the next panel does.
template <class T> int64_t rows_at_a_time(const Micro<T>& micro, int64_t n, int64_t m, int64_t k) {
  const RowBlocks blocks(n, micro.rows);
  // While k is short, c is most of the traffic: tiles then go along its rows, which they write in the order of memory.
  return k <= 32 && m >= 8 * micro.cols ? blocks.height : blocks.rows;
}

/// Packs the panel of b that begins at `col`. A whole panel of a b that is not transposed is left to the tile, which
/// copies what it multiplies.
template <class T> void pack_panel(const Micro<T>& micro, const Source<T>& from, int64_t col, T* to, TileCall<T>& t) {
  if (from.trans == Trans::yes) micro.transpose(from.b + col * from.ld, from.ld, t.cols, t.k, to, micro.cols);
  else if (t.cols < micro.cols) pack_panels(micro, from.trans, from.b + col, from.ld, t.k, t.cols, to);
  else t.panel = to, t.b = from.b + col, t.b_k = from.ld;
}

}  // namespace

template <class T> void multiply_block(const Micro<T>& micro, const Left<T>& a, const Right<T>& b, const Block<T>& to) {
  const auto [n, m, k, alpha, beta, c, ldc, bias, rounded] = to;
  const int64_t height = RowBlocks(n, micro.rows).height, row = a.grouped ? k : a.row;
  // Each tile prefetches one of `parts` parts of a panel.
  const int64_t parts = std::max<int64_t>(1, 2 * micro.cols * int64_t{sizeof(T)} / 64);
  const int64_t block = rows_at_a_time(micro, n, m, k);
  for (int64_t first = 0; first < n; first += block) {
    const int64_t rows = std::min(block, n - first);
    for (int64_t col = 0; col < m; col += micro.cols) {
      const int64_t panel = col / micro.cols * b.panel;
      TileCall<T> t{.k = k,
                    .a = a.data + first * row,
                    .a_row = a.grouped ? 1 : row,
                    .a_k = a.grouped ? height : a.k,
                    .b = b.data + panel,
                    .b_k = b.step,
                    .c = c + first * ldc + col,
                    .ldc = ldc,
                    .cols = std::min<int64_t>(micro.cols, m - col),
                    .alpha = alpha,
                    .beta = beta,
                    .bias = bias ? bias + col : nullptr};
      if (first == 0 && b.source) pack_panel(micro, *b.source, col, b.source->to + panel, t);
      // The next panel is prefetched: it may be far away, and its first tile would wait for it.
      const T* const next = col + micro.cols < m ? b.data + panel + b.panel : b.data;
      for (int64_t i = 0; i < rows; i += height) {
        t.ahead = t.panel    ? t.b + micro.cols
                  : b.packed ? next + std::min(i / height, parts - 1) * (k * micro.cols / parts)
                             : next;
        micro.tile(static_cast<int>(std::min(height, rows - i)), t);
        if (t.panel) t.b = t.panel, t.b_k = b.step, t.panel = nullptr;  // this tile has packed it
        t.a += height * row, t.c += height * ldc;
      }
    }
  }
}

template <class T>
void copy_and_multiply(const Micro<T>& micro, Trans trans, const T* a, int64_t lda, bool round, const Right<T>& b,
                       const Block<T>& to) {
  const int64_t n = to.n, k = to.k;
  const int64_t block = std::min(RowBlocks(n, micro.rows).rows, n), line = 128 / int64_t{sizeof(T)};
  T* const memory = pack_memory<T>(0, (block + micro.rows) * k + line);
  for (int64_t first = 0; first < n; first += block) {
    const int64_t rows = std::min(block, n - first), height = RowBlocks(rows, micro.rows).height;
    group_rows(micro, trans, a + first * (trans == Trans::no ? lda : 1), lda, rows, height, k, memory);
    if constexpr (sizeof(T) == 4)
      if (round) round_to_bf16(memory, round_up(rows, height) * k);
    Right<T> right = b;
    if (first > 0) right.source = nullptr;  // packed by now
    multiply_block<T>(micro, {memory, 0, 0, true}, right, to.rows(first, rows));
  }
}

template <class T> void gemm_packed(const Micro<T>& micro, const Product<T>& p, bool pack_a, bool pack_b) {
  if (p.k == 0) return gemm_naive(p);
  pack_b = pack_b || p.tb == Trans::yes;
  const Cut depth(p.k, kDepth);
  // Few rows meet a panel before the next one is packed: one place in L1 or L2 then serves all panels. The columns of a
  // transposed b are read one panel after the other, along all of k.
  const bool few = rows_at_a_time(micro, p.n, p.m, depth.length) >= p.n, along = few && p.tb == Trans::yes;
  const int64_t fitting = kWidth / int64_t{sizeof(T)} / micro.cols * micro.cols;
  const int64_t width = along ? micro.cols : few || !pack_b ? p.m : fitting;
  for (int64_t col = 0; col < p.m; col += width)
    for (int64_t l = 0; l < p.k; l += depth.length) {
      const int64_t cols = std::min(width, p.m - col), k = std::min(depth.length, p.k - l);
      Right<T> right{p.b + l * p.ldb + col, micro.cols, p.ldb, false};
      Source<T> source{p.tb, p.tb == Trans::no ? right.data : p.b + col * p.ldb + l, p.ldb, nullptr};
      if (pack_b) {
        // The last block of k may be so short that few rows come some at a time.
        const bool once = rows_at_a_time(micro, p.n, cols, k) >= p.n;
        source.to = pack_memory<T>(1, (once ? micro.cols : round_up(cols, micro.cols)) * k + 64 / int64_t{sizeof(T)});
        right = {source.to, once ? 0 : micro.cols * k, micro.cols, true, &source};
      }
      const T* left = p.ta == Trans::no ? p.a + l : p.a + l * p.lda;
      const Block<T> to{p.n, cols, k, p.alpha, l == 0 ? p.beta : T(1), p.c + col, p.ldc};
      if (pack_a && !along) copy_and_multiply(micro, p.ta, left, p.lda, false, right, to);
      else multiply_block(micro, in_place(p.ta, left, p.lda), right, to);
    }
}

template float* pack_memory(int, int64_t);
template double* pack_memory(int, int64_t);
template void pack_panels(const Micro<float>&, Trans, const float*, int64_t, int64_t, int64_t, float*);
template void pack_panels(const Micro<double>&, Trans, const double*, int64_t, int64_t, int64_t, double*);
template void copy_rows(const Micro<float>&, Trans, const float*, int64_t, int64_t, int64_t, float*, int64_t);
template void copy_rows(const Micro<double>&, Trans, const double*, int64_t, int64_t, int64_t, double*, int64_t);
template void multiply_block(const Micro<float>&, const Left<float>&, const Right<float>&, const Block<float>&);
template void multiply_block(const Micro<double>&, const Left<double>&, const Right<double>&, const Block<double>&);
template void copy_and_multiply(const Micro<float>&, Trans, const float*, int64_t, bool, const Right<float>&,
                                const Block<float>&);
template void copy_and_multiply(const Micro<double>&, Trans, const double*, int64_t, bool, const Right<double>&,
                                const Block<double>&);
template void gemm_packed(const Micro<float>&, const Product<float>&, bool, bool);
template void gemm_packed(const Micro<double>&, const Product<double>&, bool, bool);

}  // namespace sluice::detail
